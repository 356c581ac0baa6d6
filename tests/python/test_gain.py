"""The gain of keys: every place that trains their codebooks applies it, to keys alone, unless told not to."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import vqgen
import vqgen.hf
import vqgen.torch as vt
from vqgen import _basis, _calibration, _recipes
from vqgen._nearest import encoded

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEAD = {"vector_size": 4, "index_bits": 5, "scope": "head"}
FORMS = [HEAD, {**HEAD, "scope": "tensor", "num_codebooks": 3}, {**HEAD, "smooth": True, "hadamard": True},
         {**HEAD, "scope": "channel_group", "group_channels": 32, "num_codebooks": 2, "stage_scales": True},
         {**HEAD, "entry_type": "int8", "num_codebooks": 2, "stage_scales": True},
         {**HEAD, "vector_size": 32, "index_bits": 4}]
QUICK = {"steps": 20, "batch": 256}


@pytest.fixture(scope="module")
def states():
    """Of two layers, keys whose heads have sizes of their own, and values."""
    torch.manual_seed(7)
    return [[(torch.randn(2, 300, 64) * torch.tensor([0.1, 3])[:, None, None]).half().to(DEVICE),
             torch.randn(2, 300, 64).half().to(DEVICE)] for _ in range(2)]


def tables(named):
    books = named["codebooks"].float()
    if "gain" in named:
        books = books * named["gain"][:, None, None, None]
    return books * named["stage_scales"][..., None, None] if "stage_scales" in named else books


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_vectors_and_their_codes_agree_in_each_unit(states, form, dtype):
    form, keys = vqgen.format_fields(form), states[0][0].to(dtype)
    plain, longer = (_calibration._trained(keys, form, 5, gain=gain) for gain in (False, True))
    vectors = _calibration._domain(keys.float(), form, plain.get("smooth"))
    given = vt.train_codebooks(vectors, _calibration.without_transforms(form), dtype=dtype, seed=5)
    assert torch.equal(plain["codebooks"], given.codebooks)
    assert given.scales is None or torch.equal(plain["stage_scales"], given.scales)
    # Half a last place of an entry, or what floats round where scales are multiplied.
    place = 2.0**-20 if form["stage_scales"] else {torch.float16: 2.0**-12, torch.bfloat16: 2.0**-9}[dtype]
    for own, before, after in zip(vectors.flatten(1), tables(plain), tables(longer)):
        own = own.view(-1, form["vector_size"])
        codes = encoded(own, before)[0]
        whole = float((own * own).sum(dtype=torch.double))
        shared = [sum(float((own * table[code]).sum(dtype=torch.double)) for table, code in zip(each, codes.T))
                  for each in (before, after)]
        room = place * float(after.abs().amax((1, 2)).sum() * own.abs().sum(dtype=torch.double)) / whole
        assert shared[0] / whole < 1 - 2 * room and abs(shared[1] / whole - 1) < room


def gains(with_gain, without):
    """By units of the keys; and that all else is as without them."""
    out = []
    for (_, longer), (_, plain) in zip(with_gain, without, strict=True):
        assert longer.keys() == plain.keys() | {"keys.gain"}
        assert all(torch.equal(longer[name], plain[name]) for name in plain)
        out.append(longer["keys.gain"])
    return torch.cat(out)


def test_every_training_of_keys_applies_it_unless_told(states, tmp_path):
    def bundles(name, write, *arguments):
        for key_gain in (True, False):
            write(tmp_path / f"{name}{key_gain}", states, *arguments, key_gain=key_gain)
        return [vqgen.hf.layers_of(tmp_path / f"{name}{key_gain}") for key_gain in (True, False)]

    on_cpu = [[each.cpu() for each in layer] for layer in states]
    for form in ({**HEAD, "hadamard": True}, {**HEAD, "entry_type": "int8", "stage_scales": True}):
        trained = bundles("kernels", _calibration.write_bundle, form, HEAD, 5)
        assert (gains(*trained) > 1.01).all()
    assert (gains(*bundles("torch", _calibration.write_torch_bundle, HEAD, HEAD, 5)) > 1.01).all()
    assert (gains(*bundles("rsimvq", _calibration.write_torch_bundle, HEAD, HEAD, 5, QUICK)) > 1.01).all()
    assert (gains(*([(0, {name: each.cpu() for name, each in tensors.items()}) for _, tensors in
                     _calibration.layers_rotated_first(states, HEAD, HEAD, key_gain=key_gain)]
                    for key_gain in (True, False))) > 1.01).all()
    parts = [{**HEAD, "channels": list(range(first, first + 32))} for first in (0, 32)]
    assert (gains(*([(0, {name: each.cpu() for name, each in tensors.items()}) for _, tensors in
                     _calibration.layers_in_parts(trained[1], states, parts, key_gain=key_gain)]
                    for key_gain in (True, False))) > 1.01).all()
    states = on_cpu
    assert (gains(*bundles("tool", vqgen.hf._quantize, HEAD, HEAD, 5)) > 1.01).all()


def test_calibrate_and_eval_take_it_by_name(tmp_path):
    config = transformers.Qwen2Config(vocab_size=64, hidden_size=128, intermediate_size=64, num_hidden_layers=1,
                                      num_attention_heads=2, num_key_value_heads=1, initializer_range=0.08)
    torch.manual_seed(3)
    model = transformers.Qwen2ForCausalLM(config).to(DEVICE, torch.float16).eval()
    batches = [torch.randint(1, 64, (2, 96))]
    for rsimvq in (None, QUICK):
        for key_gain in (True, False):
            vqgen.hf.calibrate(model, batches, tmp_path / str(key_gain), keys=HEAD, values=HEAD, key_gain=key_gain,
                               rsimvq=rsimvq)
        assert (gains(*(vqgen.hf.layers_of(tmp_path / name) for name in ("True", "False"))) > 1.01).all()
    assert [(run.recent_tokens, run.key_gain) for run in _recipes.runs_of("gain", 2048)] == [
        (0, False), (0, True), (128, False), (128, True)]


def test_a_gain_of_other_units_is_refused():
    parts = {"parts": [{"channels": [0, 1, 2, 3], "vector_size": 2, "index_bits": 1, "scope": "head"},
                       {"channels": [4, 5, 6, 7], "vector_size": 4, "index_bits": 1, "scope": "tensor"}]}
    entries = torch.ones(2 * 2 * 2 + 2 * 4)
    longer, _ = _basis.with_gain(parts, entries, None, torch.tensor([2.0, 3.0, 4.0]), 2)
    assert longer.tolist() == [2.0] * 4 + [3.0] * 4 + [4.0] * 8
    with pytest.raises(vqgen.BadInput, match="key_gain has 1 units, and the keys have 3"):
        _basis.with_gain(parts, entries, None, torch.ones(1), 2)
    with pytest.raises(vqgen.BadInput, match="key_codebooks has 15 elements, and the parts of the keys 16"):
        _basis.with_gain(parts, entries[1:], None, torch.ones(3), 2)
    whole, scales = torch.ones(2, 1, 2, 4), torch.ones(2, 1)
    for own in (None, scales):  # one gain would lengthen all units
        with pytest.raises(vqgen.BadInput, match="key_gain has 1 units, and the keys have 2"):
            _basis.with_gain({"vector_size": 4, "index_bits": 1}, whole, own, torch.ones(1), 2)
