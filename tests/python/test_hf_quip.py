"""QuIP# checkpoints that `vqgen import` turns into model folders, loaded by vqgen.hf. The models are made up and tiny."""

import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import copy

import numpy as np
import quip_models
import vqgen
import vqgen.hf
import vqgen.torch as vt
from hf_models import DEVICE, IDS, tiny
from safetensors import safe_open
from test_hf_import import logits, run_import
from vqgen import _weight_losses
from vqgen._layers import VQPart

# Features of 12, 20 and 28 times a power of two: 192 and 320 inputs, 192, 384 and 640 outputs.
SIZES = {"hidden_size": 192, "intermediate_size": 320, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A checkpoint, the folder that is made of it, and the dense model of its codes."""
    folder = tmp_path_factory.mktemp("quip")
    plain = tiny("Llama", **SIZES)
    plain.set_attn_implementation("eager")
    quip_models.write(plain, folder / "model")
    done = run_import(folder / "model", folder / "out")
    assert "quip# E8P12 -> e8p, rotated  8 linear layers" in done.stdout
    return folder, plain


def test_codes_are_decoded_as_the_package_does():
    with safe_open(quip_models.SAMPLES, "np") as file:
        assert (quip_models.decoded(file.get_tensor("Qidxs")) == file.get_tensor("decoded")).all()


def test_the_model_is_the_dense_model_of_its_codes(made):
    folder, plain = made
    model = vqgen.hf.load(folder / "out", device=DEVICE)
    assert sum(isinstance(module, vt.VQLinear) for module in model.modules()) == 8
    assert sum(isinstance(module, VQPart) for module in model.modules()) == 10
    ours, theirs = logits(model), logits(copy.deepcopy(plain).float())
    assert (ours - theirs).norm() < 0.01 * theirs.norm()
    again = logits(model)
    assert torch.equal(ours, again)


def test_a_wrong_sign_is_found(made):
    folder, plain = made
    model, theirs = vqgen.hf.load(folder / "out", device=DEVICE), logits(copy.deepcopy(plain).float())
    for name in ("input_signs", "output_signs"):
        signs = model.model.layers[0].self_attn.qkv_proj.get_buffer(name)
        signs[::2].neg_()
        assert (logits(model) - theirs).norm() > 0.05 * theirs.norm()
        signs[::2].neg_()


def test_scales_of_inputs_and_copies_and_saved_folders(made, tmp_path):
    plain = tiny("Llama", **SIZES)
    plain.set_attn_implementation("eager")
    quip_models.write(plain, tmp_path / "model", rescale=True)
    run_import(tmp_path / "model", tmp_path / "out")
    model = vqgen.hf.load(tmp_path / "out", device=DEVICE)
    ours, theirs = logits(model), logits(plain.float())
    assert (ours - theirs).norm() < 0.01 * theirs.norm()
    assert torch.equal(logits(copy.deepcopy(model)), ours)
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(vqgen.hf.load(tmp_path / "saved", device=DEVICE)), ours)


def test_two_stages_are_four_bits(tmp_path):
    plain = tiny("Llama", **SIZES)
    plain.set_attn_implementation("eager")
    quip_models.write(plain, tmp_path / "model", stages=2)
    assert "quip# E8P12RVQ4B -> e8px2, rotated  8 linear layers" in run_import(tmp_path / "model", tmp_path / "out").stdout
    model = vqgen.hf.load(tmp_path / "out", device=DEVICE)
    ours, theirs = logits(model), logits(plain.float())
    assert (ours - theirs).norm() < 0.01 * theirs.norm()


def test_tokens_are_generated(made):
    folder, plain = made
    model = vqgen.hf.load(folder / "out", device=DEVICE)
    model.set_attn_implementation("eager")
    ids = IDS[:1, :5].to(DEVICE)
    ours = model.generate(ids, max_new_tokens=4, do_sample=False)
    assert ours.shape == (1, 9)


def damage(folder, out, change):
    out.mkdir()
    for each in folder.iterdir():
        (out / each.name).write_bytes(each.read_bytes())
    config = json.loads((out / "config.json").read_text())
    change(config["quantization_config"])
    (out / "config.json").write_text(json.dumps(config))
    return out


def drop(fields):
    fields["rotations"] = [each for each in fields["rotations"] if not each["modules"].endswith("down_proj")]


def other_part(fields):
    next(each for each in fields["rotations"] if each["modules"].endswith("qkv_proj"))["parts"][0]["name"] = "x_proj"


def other_rows(fields):
    next(each for each in fields["rotations"] if each["modules"].endswith("qkv_proj"))["parts"][0]["out_features"] = 8


@pytest.mark.parametrize("change,words", [
    (drop, "down_proj.input_signs': is there, but the config's format has none"),
    (other_part, "qkv_proj.codes': has 192 rows of 'model.layers.0.self_attn.x_proj', and LlamaForCausalLM has no"),
    (other_rows, "rotations: the parts of 'model.layers.0.self_attn.qkv_proj' have 136 rows of 320|has 8 rows of"),
    (lambda fields: fields.update(rotations=[{"modules": 3}]), r"rotations\[0\]: modules is 3; it is of type str")])
def test_folders_that_lie_are_refused(made, tmp_path, change, words):
    with pytest.raises(vqgen.BadInput, match=words) as found:
        vqgen.hf.load(damage(made[0] / "out", tmp_path / "bad", change))
    assert "\n" not in str(found.value)


def test_losses_beside_the_dense_model_are_refused(made):
    with pytest.raises(vqgen.Infeasible, match="the weights of 'model.layers.0.mlp.down_proj' are rotated"):
        _weight_losses.linears_in(made[1], made[0] / "out")


def test_layers_take_signs_both_or_none():
    codes = torch.zeros(16, 4, dtype=torch.int32)
    weights = vqgen.Quantized(codes, torch.full((1, 1, 256, 8), 0.5).half(), torch.ones(1, 1))
    with pytest.raises(vqgen.BadInput, match="one of them is given"):
        vt.VQLinear(weights, "quip-2", 16, 64, input_signs=torch.ones(64))


def test_a_joined_layer_computes_anew_for_another_x(made):
    model = vqgen.hf.load(made[0] / "out", device=DEVICE)
    mlp = model.model.layers[0].mlp
    x, other = (torch.randn(2, 192, device=DEVICE).half() for _ in range(2))
    with torch.no_grad():
        whole = mlp.gate_up_proj(x)
        assert torch.equal(mlp.up_proj(x), whole[:, :320]) and torch.equal(mlp.gate_proj(x), whole[:, 320:])
        mlp.up_proj(x)
        assert torch.equal(mlp.gate_proj(other), mlp.gate_up_proj(other)[:, 320:])
        assert torch.equal(mlp.gate_proj(x), whole[:, 320:]) and torch.equal(mlp.gate_proj(x), whole[:, 320:])
        mlp.up_proj(x), mlp.up_proj(x)
        x.add_(1)
        assert torch.equal(mlp.gate_proj(x), mlp.gate_up_proj(x)[:, 320:])
    assert np.isfinite(whole.float().cpu().numpy()).all()
