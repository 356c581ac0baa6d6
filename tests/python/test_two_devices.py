"""Ops of two GPUs in one process: neither device's streams, workspaces and captures touch the other's."""

import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import vqgen
import vqgen.torch as vt

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="this machine has no two GPUs")
DEVICES = [torch.device("cuda", number) for number in (0, 1)]
ROUNDS, SEEDS = 40, (1, 2)
SHAPE = {"batch": 3, "query_heads": 32, "kv_heads": 8, "head_dim": 128, "tokens": 8192}
WEIGHT = (4096, 14336)
WEIGHTS = ("weights.codes", "weights.codebooks", "weights.scales", "output_scales")
FORMS = {"keys": "vecinfer-d4b8i8", "values": "vecinfer-d4b8i8"}


@pytest.fixture(scope="module", autouse=True)
def own_caches(tmp_path_factory):
    for device in DEVICES:
        vt.use_runtime(vqgen.Runtime(device.index, cache_dir=tmp_path_factory.mktemp("kernels")))


def drawn(config, device, seed):
    """Random arguments of a config's op, by name."""
    draw, out = torch.Generator().manual_seed(seed), {}
    for each in vt.prepare(config, device).arguments:
        if each.name.endswith(".codes"):
            tensor = torch.randint(-1 << 31, (1 << 31) - 1, each.shape, generator=draw).int()
        elif each.name.endswith(".codebooks"):  # 8-bit entries
            tensor = torch.randint(-127, 128, each.shape, generator=draw).half()
        elif each.dtype == "f32":
            tensor = torch.rand(each.shape, generator=draw) * 0.01 + 0.01
        else:
            tensor = torch.randn(each.shape, generator=draw).half()
        out[each.name] = tensor.to(device)
    return out


def attention_of(device, seed):
    """A call whose parts of sequences are merged by way of a workspace."""
    config = vt.config_text({"op": "attention_decode", "dtype": "f16", "shape": SHAPE, **FORMS})
    given = drawn(config, device, seed)
    tokens = SHAPE["tokens"]
    lengths = torch.tensor([tokens, tokens * 5 // 8, 77], dtype=torch.int32, device=device)
    return lambda: torch.ops.vqgen.attention(
        config, given["query"], *(given.get(f"{operand}.{part}") for operand in ("keys", "values")
                                  for part in ("codes", "codebooks", "scales")), lengths, key_smooth=given["key_smooth"])[0]


def product_of(out_features, in_features):
    return vt.config_text({"op": "gemm", "dtype": "f16", "weights": "aqlm-2x8i8",
                           "shape": {"m": 16, "out_features": out_features, "in_features": in_features}})


def linear_of(device, seed):
    """A product whose parts of K are added by way of a workspace."""
    config = product_of(*WEIGHT)
    given = drawn(config, device, seed)
    return lambda: torch.ops.vqgen.linear(config, *map(given.get, ("x", *WEIGHTS)))


def calls_of(device, seed):
    return [attention_of(device, seed), linear_of(device, seed)]


@pytest.fixture(scope="module")
def alone():
    """Per seed the results of one device while the other is idle."""
    return {seed: [call().cpu() for call in calls_of(DEVICES[0], seed)] for seed in SEEDS}


def test_results_are_finite_and_of_their_seed(alone):
    for first, second in zip(alone[1], alone[2]):
        assert first.isfinite().all() and not torch.equal(first, second)


def test_threads_with_a_device_each_get_the_bits_of_one_alone(alone):
    """Each thread's current device is the other's, and each works on streams of its own."""
    wrong, failed = [], []

    def work(device, seed):
        try:
            calls, streams = calls_of(device, seed), [torch.cuda.Stream(device) for _ in range(2)]
            torch.cuda.synchronize(device)
            for number in range(ROUNDS):
                stream = streams[number % 2]
                with torch.cuda.device(1 - device.index):
                    with torch.cuda.stream(stream):
                        outs = [call() for call in calls]
                stream.synchronize()
                wrong.extend((device, number) for out, want in zip(outs, alone[seed]) if not torch.equal(out.cpu(), want))
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=work, args=each) for each in zip(DEVICES, SEEDS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed and not wrong


def test_captures_of_both_devices_replay_in_any_order(alone):
    graphs, outs, held = [], [], []
    for device, seed in zip(DEVICES, SEEDS):
        with torch.cuda.device(device):
            calls = calls_of(device, seed)
            held.append(calls)  # their tensors are read by replays
            [call() for call in calls]
            torch.cuda.synchronize(device)
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1], stream=torch.cuda.Stream(device)):  # the default one is of one device
                outs.append([call() for call in calls])
    for order in ((0, 1), (1, 0), (0, 0), (1, 1), (0, 1)):
        for out in (each for each in outs for each in each):
            out.fill_(torch.nan)
        for index in order:
            with torch.cuda.device(DEVICES[index]):
                graphs[index].replay()
        for index in set(order):
            torch.cuda.synchronize(DEVICES[index])
            assert all(torch.equal(out.cpu(), want) for out, want in zip(outs[index], alone[SEEDS[index]]))
        for index in {0, 1} - set(order):
            assert all(out.isnan().all() for out in outs[index])


def test_tensors_of_another_device_are_refused():
    config = product_of(64, 64)
    given = drawn(config, DEVICES[0], 1)
    for name in ("x", "weights.codes", "weights.codebooks"):
        arguments = {**given, name: given[name].to(DEVICES[1])}
        with pytest.raises(vqgen.BadInput, match="on cuda:[01]; it has to be .* on cuda:[01]"):
            torch.ops.vqgen.linear(config, *map(arguments.get, ("x", *WEIGHTS)))
