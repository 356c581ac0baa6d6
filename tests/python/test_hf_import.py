"""Checkpoints that `vqgen import` turns into model folders, loaded by vqgen.hf. The models are made up and tiny."""

import json
import os
import subprocess

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import vqgen
import vqgen.hf
import vqgen.torch as vt
from hf_models import DEVICE, IDS, own_cache, tiny  # noqa: F401
from safetensors.torch import save_file


def run_import(source, out, *more):
    done = subprocess.run([os.environ["VQGEN_TOOL"], "import", source, "--out", out, *more], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def logits(model):
    with torch.no_grad():
        return model(IDS.to(model.device)).logits.float().cpu()


def write_aqlm(model, folder, stages, bits):
    """Write the model's folder with random codes for its linear layers, as AQLM has them, and give them to the model."""
    group, draw = 8, torch.Generator().manual_seed(3)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    tensors["lm_head.weight"] = model.lm_head.weight.detach().clone()
    for name, linear in model.named_modules():
        if not isinstance(linear, torch.nn.Linear) or name == "lm_head":
            continue
        size, inputs = linear.weight.shape
        books = (torch.randn(stages, 1 << bits, 1, group, generator=draw) * 0.05).half()
        codes = torch.randint(0, 1 << bits, (size, inputs // group, stages), generator=draw)
        scales = (torch.rand(size, 1, 1, 1, generator=draw) + 0.5).half()
        entries = sum(books[stage, codes[..., stage], 0].float() for stage in range(stages))
        linear.weight.data = (entries.flatten(1) * scales.float().view(-1, 1)).half()
        del tensors[f"{name}.weight"]
        signed = codes - ((codes >> (bits - 1)) << bits)  # two's complement of so many bits
        tensors[f"{name}.codes"] = signed.to(torch.int8 if bits <= 8 else torch.int16)
        tensors[f"{name}.codebooks"], tensors[f"{name}.scales"] = books, scales
    folder.mkdir()
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    config = json.loads(model.config.to_json_string()) | {"quantization_config": {
        "quant_method": "aqlm", "in_group_size": group, "out_group_size": 1, "num_codebooks": stages,
        "nbits_per_codebook": bits, "linear_weights_not_to_quantize": ["lm_head.weight", "model.embed_tokens.weight"]}}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("stages,bits", [(2, 8), (1, 12)])
def test_an_aqlm_model_is_the_dense_model_of_its_codes(tmp_path, stages, bits):
    plain = tiny("Llama", head_dim=32)
    plain.set_attn_implementation("eager")
    write_aqlm(plain, tmp_path / "model", stages, bits)
    done = run_import(tmp_path / "model", tmp_path / "out")
    assert f"aqlm {stages}x{bits} -> d8b{bits}" in done.stdout and "14 linear layers" in done.stdout
    model = vqgen.hf.load(tmp_path / "out", device=DEVICE)
    assert sum(isinstance(module, vt.VQLinear) for module in model.modules()) == 14
    ours, theirs = logits(model), logits(plain.float())
    assert (ours - theirs).norm() < 0.01 * theirs.norm()


def test_an_aqlm_folder_is_refused_with_its_remedy(tmp_path):
    write_aqlm(tiny("Llama", head_dim=32), tmp_path / "model", 1, 4)
    with pytest.raises(vqgen.BadInput, match="config.json: quantization_config: quant_method is 'aqlm' .* vqgen import"):
        vqgen.hf.load(tmp_path / "model")
