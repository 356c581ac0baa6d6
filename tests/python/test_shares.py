"""KLT caches whose layers, keys and values have formats of their own: how codes are shared out among them, and that all
that reads a bundle takes each layer's."""

import copy
import json
import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from safetensors.torch import load_file

import vqgen
import vqgen.hf
from hf_models import DEVICE, IDS, tiny  # noqa: F401
from vqgen import _calibration, _losses, _partitions, _passkey, _shares
from vqgen._klt import form_of
from vqgen._models import attending, in_float32
from vqgen._partitions import runs_of
from vqgen.simulation import simulated

VOCABULARY = 512  # values of few tokens would be few vectors, which any codebook holds


@pytest.fixture(scope="module")
def model():
    return tiny(vocab_size=VOCABULARY)


@pytest.fixture(scope="module")
def batches():
    draw = torch.Generator().manual_seed(3)
    return [torch.randint(1, VOCABULARY, (2, 160), generator=draw) for _ in range(2)]


@pytest.fixture(scope="module")
def states(model, batches):
    return list(_calibration.states_of(model, batches, model.device))


@pytest.fixture(scope="module", params=_shares.MEASURES)
def shared(request, batches, tmp_path_factory):
    """A model whose layer 1 changes no output, what its codes are shared out by, and the bundle."""
    model = tiny(vocab_size=VOCABULARY)
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight.zero_()
    out = tmp_path_factory.mktemp("shared") / "bundle"
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    raw, graphs = {}, set()
    with pytest.MonkeyPatch.context() as patch:
        measured, trained = _shares.measured, _shares._trained
        patch.setattr(_shares, "_trained", lambda *given: graphs.add(torch.is_grad_enabled()) or trained(*given))
        patch.setattr(_shares, "measured", lambda *given: raw.update(measured(*given)) or raw)
        shares = vqgen.hf.calibrate(model, iter(batches), out, bits=2.0, by=request.param)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert graphs == {False}  # of autograd, which would hold what each training makes
    return model, request.param, shares, out, raw


def test_codes_go_where_they_matter(shared):
    _, by, shares, _, raw = shared
    bits = {(row["layer"], row["operand"]): row["bits"] for row in shares["rows"]}
    assert list(bits) == [(layer, operand) for layer in (0, 1) for operand in ("keys", "values")]
    if by == "loss":  # what layer 1 loses costs nothing, though its attention loses as much as any
        assert bits[1, "keys"] == bits[1, "values"] == 1
        assert not any(raw[1, operand][codes] for operand in _shares.OPERANDS for codes in raw[1, operand])
    else:
        assert max(bits[1, "keys"], bits[1, "values"]) > 1
    for row in shares["rows"]:
        rises = list(row["rises"].values())
        assert row["rise"] == row["rises"][f"{row['bits']:g}"]
        assert by == "loss" or 0 < rises[-1] < 0.5 * rises[0]


def test_a_report_says_the_bits_that_are_stored(shared):
    model, by, shares, bundle, _ = shared
    assert json.loads(json.dumps(shares)) == shares and shares["by"] == by
    assert math.isclose(shares["rise"], sum(row["rise"] for row in shares["rows"])) and 1 < shares["bits"] <= 2
    lines = str(shares).splitlines()
    assert len(lines) == 6 and lines[1].split()[:2] == ["0", "keys"] and f"rise of {by}" in lines[-1]
    cache = vqgen.hf.VQCache(model.config, bundle, batch=1, tokens=8, device=DEVICE)
    assert cache.bits_per_element() == shares["bits"]
    layers = vqgen.hf.layers_of(bundle)
    for row in shares["rows"]:
        form = layers[row["layer"]][0][row["operand"]]
        parts = form.get("parts") or [{**form, "channels": range(64)}]
        assert [[len(part["channels"]), part["vector_size"]] for part in parts] == row["parts"]


def test_layers_with_formats_of_their_own_are_the_simulation(model, states, tmp_path):
    """In one pass, by chunks, step by step with and without a window, and after a copy."""
    formats = [{"keys": form_of(runs_of(48, 64)), "values": form_of(runs_of(16, 64))},
               {"keys": form_of(runs_of(16, 64)), "values": form_of(runs_of(64, 64))}]
    _calibration.write_basis_bundle(tmp_path / "bundle", states, formats, 1)
    layers = vqgen.hf.layers_of(tmp_path / "bundle")
    keys = [layer[1]["keys.codebooks"].shape for layer in layers]
    assert keys[0] != keys[1]
    for recent_tokens in (0, 6):
        cache = vqgen.hf.VQCache(model.config, layers, batch=2, tokens=32, recent_tokens=recent_tokens, device=DEVICE)
        assert cache.bytes_per_token() == 4 * 2 * (6 + 2 + 2 + 8)
        assert cache.bits_per_element() == (3 + 1 + 1 + 4) / 4
        with torch.no_grad():
            plain = model(IDS, past_key_values=cache).logits.float()  # a prompt attends raw
            again = copy.deepcopy(cache)
            cache.reset()
            steps = torch.cat([model(each, past_key_values=cache).logits.float() for each in IDS.split(1, 1)], 1)
            with simulated(model, layers, recent_tokens=recent_tokens):
                expected = model(IDS).logits.float()
            follow = [model(IDS[:, :1], past_key_values=each).logits.float() for each in (cache, again)]
        off, quantized = ((steps - other).norm(dim=-1) for other in (expected, plain))
        # A code next to a tie may be another one, which its sequence has from there on.
        right = (off <= 0.1 * quantized.max()).float().mean()
        assert right >= 0.7 and off.norm() <= 0.3 * quantized.norm(), (recent_tokens, off, quantized)
        assert torch.isfinite(follow[1]).all() and (follow[0] - follow[1]).norm() < 0.5 * follow[0].norm()
        cache.reset()
        with torch.no_grad():
            for part in IDS.split((9, 7), 1):  # the later chunk attends to the earlier one dequantized
                chunks = model(part, past_key_values=cache).logits[:, -1].float()
        assert (chunks - plain[:, -1]).norm() < (plain[:, -1]).norm()


def test_a_step_is_captured_for_the_kernels_of_all_layers(model, states, tmp_path, monkeypatch):
    """Layers of other formats may change kernels at other lengths."""
    formats = [{"keys": form_of(runs_of(level, 64)), "values": form_of(runs_of(16, 64))} for level in (48, 16)]
    _calibration.write_basis_bundle(tmp_path / "bundle", states, formats, 1)
    cache = vqgen.hf.VQCache(model.config, tmp_path / "bundle", batch=2, tokens=32, device=DEVICE)
    for layer, buckets in zip(cache.layers, ((8, 32), (16, 32))):
        monkeypatch.setattr(layer.cache, "bucket", lambda tokens, own=buckets: min(each for each in own if each >= tokens))
    assert [cache.bucket(tokens) for tokens in (1, 8, 9, 16, 17, 32)] == [8, 8, 16, 16, 32, 32]


def test_choices_store_what_they_count():
    """A part's codes are stored in whole words: the kernels' rows are no longer than what shares count."""
    runs = _shares.choices(128)
    assert list(sorted(runs)) == list(_partitions.LEVELS)  # at 128 channels each level has all its codes
    for codes, cut in runs.items():
        assert codes == sum(-(-channels // size // 4) * 4 for channels, size in cut)


def test_rises_of_the_loss_have_the_shape_of_the_attention_errors(draw):
    errors = {(0, "keys"): {12: 0.4, 16: 0.2, 32: 0.05}, (0, "values"): {12: 0.3, 16: 0.1, 32: 0.02}, (1, "keys"): {12: 0.0, 16: 0.0}}
    noise = draw.normal(0, 1e-4, 2)
    rises = {(0, "keys"): {12: 0.1 + noise[0], 16: 0.05 + noise[1]}, (0, "values"): {12: -0.01, 16: 0.001}, (1, "keys"): {12: 0.1}}
    made = _shares._scaled(errors, rises)
    assert all(math.isclose(made[0, "keys"][codes], 0.25 * error, rel_tol=0.01) for codes, error in errors[0, "keys"].items())
    assert set(made[0, "values"].values()) == set(made[1, "keys"].values()) == {0.0}


@pytest.mark.parametrize("options, words", [
    ({"bits": 0.5}, "bits is 0.5, which no formats of head_dim 64 meet; give a number from 1 to 4"),
    ({"bits": 4.5}, "bits is 4.5"), ({"bits": math.nan}, "bits is nan"), ({"bits": "2"}, "bits is '2'"), ({"bits": True}, "bits is True"),
    ({"bits": 2, "by": "kl"}, "by is 'kl'; give one of loss, attention"),
    ({"bits": 2, "keys": "klt-2bit-keys"}, "bits takes no keys"),
    ({"bits": 2, "rsimvq": {"steps": 1}}, "bits takes no rsimvq"),
    ({"bits": 2, "judged_by": []}, "judged_by has no batches"),
    ({}, "neither keys and values nor bits"), ({"keys": "klt-2bit-keys"}, "neither keys and values nor bits")])
def test_what_cannot_be_shared_out_is_refused_in_a_line(model, tmp_path, options, words):
    def batches():
        raise AssertionError("batches are read before options are judged")
        yield

    with pytest.raises(vqgen.BadInput, match=words) as caught:
        vqgen.hf.calibrate(model, [] if "judged_by" in options else batches(), tmp_path / "bundle", **options)
    assert "\n" not in str(caught.value) and not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("head_dim, kind, words", [
    (144, torch.float16, "head_dim"), (72, torch.float16, "head_dim is 72; KLT caches have a multiple of 16"),
    (64, torch.float32, "calibrated from models of float16 and bfloat16")])
def test_models_that_no_shares_serve_are_refused_before_they_run(tmp_path, monkeypatch, head_dim, kind, words):
    model = tiny(head_dim=head_dim).to(kind)
    monkeypatch.setattr(model, "forward", lambda *_, **__: pytest.fail("the model ran"))
    with pytest.raises(vqgen.Error, match=words):
        vqgen.hf.calibrate(model, [torch.ones(1, 300, dtype=torch.long)], tmp_path / "bundle", bits=2.0)


def test_weights_are_back_after_float32(model):
    if DEVICE != "cpu":
        pytest.skip("on a GPU weights stay as they are")
    before = {name: (each, each.data_ptr(), each.dtype) for name, each in model.named_parameters()}
    with pytest.raises(KeyError), in_float32(model):
        assert model.dtype == torch.float32
        raise KeyError
    assert all((each.data_ptr(), each.dtype) == (place, kind) for each, place, kind in before.values())


def test_centred_keys_are_not_warned_of(model, batches, states, tmp_path, recwarn):
    biased = [(keys + 20, values) for keys, values in states]
    share = vqgen._reconstruction.common_share(biased[0][0])
    assert share > 0.75
    vqgen._reconstruction.warn_of_common([share], vqgen.hf.klt_format("keys", 2, 64))
    assert not recwarn.list
    with pytest.warns(UserWarning, match="common to all tokens"):
        vqgen._reconstruction.warn_of_common([share], "vecinfer-d4b8")


def test_divergence_is_that_of_the_distributions(model):
    tokens = IDS.cpu()
    with attending(model, "sdpa"):
        reference = _losses.Reference(model, tokens)
        same = reference.compared(_losses.whole_logits(model, tokens))
    assert same["kl"] < 1e-4 and same["other"] < 0.05 and abs(same["loss"] - reference.loss) < 1e-3
    moved = torch.zeros(2, 15, VOCABULARY)
    moved[:, 8:, 5] = 3.0
    found = reference.compared([(0, at, (reference.logits.float() + moved)[:, at:at + 1]) for at in range(15)])  # by steps
    p, q = reference.logits.float().softmax(-1), (reference.logits.float() + moved).softmax(-1)
    kl = (p * (p / q).log()).sum(-1)
    assert math.isclose(found["kl"], float(kl.mean()), rel_tol=1e-3)
    assert math.isclose(found["other"], float((p.argmax(-1) != q.argmax(-1)).double().mean()), abs_tol=1e-9)
    assert [part["tokens"] for part in found["by_position"]] == [[0, 3], [3, 7], [7, 11], [11, 15]]
    assert found["by_position"][0]["kl"] < 1e-6 < found["by_position"][3]["kl"]
    assert math.isclose(found["by_position"][2]["kl"], float(kl[:, 7:11].mean()), rel_tol=1e-3)


def test_pass_keys_are_counted_where_all_their_digits_are_found():
    def tokenizer(text, add_special_tokens):
        return type("Encoded", (), {"input_ids": list(text.encode())})

    fillers = torch.full((4, 120), ord("x"))
    tokens, answers = _passkey.prompts(tokenizer, fillers)
    assert tokens.shape == (4, 120) and answers == [5] * 4
    for number, row in enumerate(tokens.tolist()):
        text = bytes(row).decode()
        digits = text[-5:]
        assert digits.isdigit() and text.count(f"\nPASS_KEY = {digits}") == 2 and text.endswith(f"\nPASS_KEY = {digits}")
        assert abs(text.index(digits) - 11 - number * (120 - 17 - 11 - 5) // 4) <= 1
    logits = torch.nn.functional.one_hot(tokens[:, 1:], 128).float()
    logits[2, -3] = logits[2, -3].roll(1)  # a digit is missed
    logits[0, 50] = 0.0  # no answer's
    assert _passkey.found([(0, 0, logits[:2]), (2, 0, logits[2:])], tokens, answers) == 0.75
    assert _passkey.found([(0, at, logits[:, at:at + 1]) for at in range(119)], tokens, answers) == 0.75
