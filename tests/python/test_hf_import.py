"""Checkpoints that `vqgen import` turns into model folders, loaded by vqgen.hf. The models are made up and tiny."""

import json
import os
import re
import struct
import subprocess

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import numpy as np
import vqgen
import vqgen.hf
import vqgen.torch as vt
from hf_models import DEVICE, IDS, tiny  # noqa: F401
from safetensors.torch import save_file


def run_import(source, out, *more):
    done = subprocess.run([os.environ["VQGEN_TOOL"], "import", source, "--out", out, *more], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def logits(model):
    with torch.no_grad():
        return model(IDS.to(model.device)).logits.float().cpu()


def decoder_layers(model):
    """The linear layers that checkpoints quantize, by name."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and name != "lm_head"]


def save_model(model, tensors, folder, more):
    """Write a folder of these tensors, and of the model's config with more fields."""
    folder.mkdir()
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(json.loads(model.config.to_json_string()) | more))


def write_aqlm(model, folder, stages, bits):
    """Write the model's folder with random codes for its linear layers, as AQLM has them, and give them to the model."""
    group, draw = 8, torch.Generator().manual_seed(3)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, linear in decoder_layers(model):
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
    save_model(model, tensors, folder, {"quantization_config": {
        "quant_method": "aqlm", "in_group_size": group, "out_group_size": 1, "num_codebooks": stages,
        "nbits_per_codebook": bits, "linear_weights_not_to_quantize": ["lm_head.weight", "model.embed_tokens.weight"]}})


def check_imported(folder, plain, said):
    """Import the checkpoint in folder/model, and compare with the dense model of its codes."""
    done = run_import(folder / "model", folder / "out")
    assert said in done.stdout and "14 linear layers" in done.stdout
    model = vqgen.hf.load(folder / "out", device=DEVICE)
    assert sum(isinstance(module, vt.VQLinear) for module in model.modules()) == 14
    ours, theirs = logits(model), logits(plain.float())
    assert (ours - theirs).norm() < 0.01 * theirs.norm()


@pytest.mark.parametrize("stages,bits", [(2, 8), (1, 12)])
def test_an_aqlm_model_is_the_dense_model_of_its_codes(tmp_path, stages, bits):
    plain = tiny("Llama", head_dim=32)
    plain.set_attn_implementation("eager")
    write_aqlm(plain, tmp_path / "model", stages, bits)
    check_imported(tmp_path, plain, f"aqlm {stages}x{bits} -> d8b{bits}")


def write_bitsandbytes(model, folder, block=32):
    """Write the model's folder with NF4 for its linear layers, as bitsandbytes stores it, and give them to the model."""
    levels = torch.tensor([-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0, 0.0795803,
                           0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0])
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, linear in decoder_layers(model):
        size, inputs = linear.weight.shape
        blocks = linear.weight.detach().float().view(-1, block)
        scales = blocks.abs().amax(1)
        numbers = ((blocks / scales[:, None])[..., None] - levels).abs().argmin(-1).flatten()
        linear.weight.data = (levels[numbers].view(-1, block) * scales[:, None]).view(size, inputs).half()
        state = json.dumps({"quant_type": "nf4", "blocksize": block, "dtype": "float16", "shape": [size, inputs]})
        tensors[f"{name}.weight"] = (numbers[0::2] * 16 + numbers[1::2]).to(torch.uint8)[:, None]
        tensors[f"{name}.weight.absmax"], tensors[f"{name}.weight.quant_map"] = scales, levels.clone()
        tensors[f"{name}.weight.quant_state.bitsandbytes__nf4"] = torch.tensor(list(state.encode()), dtype=torch.uint8)
    save_model(model, tensors, folder, {"quantization_config": {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}})


def test_a_bitsandbytes_model_is_the_dense_model_of_its_codes(tmp_path):
    plain = tiny("Llama", head_dim=32)
    plain.set_attn_implementation("eager")
    write_bitsandbytes(plain, tmp_path / "model")
    check_imported(tmp_path, plain, "bitsandbytes nf4 -> d2b8g32")


def test_an_aqlm_folder_is_refused_with_its_remedy(tmp_path):
    write_aqlm(tiny("Llama", head_dim=32), tmp_path / "model", 1, 4)
    with pytest.raises(vqgen.BadInput, match="config.json: quantization_config: quant_method is 'aqlm' .* vqgen import"):
        vqgen.hf.load(tmp_path / "model")


# Bytes of a block of 256 weights of Q2_K, IQ2_XXS, IQ2_XS, IQ3_XXS, IQ1_S, IQ3_S and IQ2_S.
BLOCK_BYTES = {10: 84, 16: 66, 17: 74, 18: 98, 19: 50, 21: 110, 22: 82}


def write_gguf(path, types):
    """Write a Llama of 2 layers and 256 channels; its linear layers are random blocks of the types, by turns; 1 is F16."""
    draw, tensors = np.random.default_rng(4), []

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    def add(name, axes, kind, data):
        tensors.append((name, axes, kind, data.tobytes()))

    def normal(*shape):
        return (draw.standard_normal(shape) * 0.05).astype(np.float16)

    add("token_embd.weight", (256, 64), 1, normal(64, 256))
    add("output.weight", (256, 64), 1, normal(64, 256))
    add("output_norm.weight", (256,), 0, np.ones(256, np.float32))
    number = 0
    for layer in range(2):
        for norm in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{norm}.weight", (256,), 0, np.ones(256, np.float32))
        for name, inputs, outputs in (("attn_q", 256, 256), ("attn_k", 256, 128), ("attn_v", 256, 128),
                                      ("attn_output", 256, 256), ("ffn_gate", 256, 512), ("ffn_up", 256, 512),
                                      ("ffn_down", 512, 256)):
            kind, number = types[number % len(types)], number + 1
            data = normal(outputs, inputs)
            if kind in BLOCK_BYTES:
                data = draw.integers(0, 256, (inputs * outputs // 256, BLOCK_BYTES[kind]), dtype=np.uint8)
                unit = {10: 32, 16: 8, 17: 8, 18: 4, 19: 16, 21: 1, 22: 8}[kind]
                scales = (draw.uniform(0.5, 1, len(data)) * 0.0006 * unit / 8).astype(np.float16)[:, None].view(np.uint8)
                for at in ((80, 82) if kind == 10 else (0,)):
                    data[:, at:at + 2] = scales
            add(f"blk.{layer}.{name}.weight", (inputs, outputs), kind, data)
    keys = [("general.architecture", 8, text("llama"))]
    keys += [(f"llama.{key}", 4, struct.pack("<I", value)) for key, value in {
        "block_count": 2, "context_length": 128, "embedding_length": 256, "feed_forward_length": 512,
        "attention.head_count": 4, "attention.head_count_kv": 2}.items()]
    keys += [("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5))]
    header, data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)), b""
    header += b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in keys)
    for name, axes, kind, content in tensors:
        header += text(name) + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, kind, len(data))
        data += content + bytes(-len(content) % 32)
    path.write_bytes(header + bytes(-len(header) % 32) + data)


@pytest.mark.parametrize("types,kept", [((16,), 14), ((18,), 14), ((21,), 14), ((17,), 14), ((19,), 14), ((22,), 14), ((10,), 14),
                                        ((21, 16, 1, 10, 16), 11)])
def test_a_gguf_model_with_codes_is_the_dense_model(tmp_path, types, kept):
    write_gguf(tmp_path / "model.gguf", types)
    done = run_import(tmp_path / "model.gguf", tmp_path / "codes")
    assert "linear layers" in done.stdout
    done = run_import(tmp_path / "model.gguf", tmp_path / "dense", "--dense")
    assert "linear layers" not in done.stdout
    read = subprocess.run([os.environ["VQGEN_TOOL"], "inspect", tmp_path / "codes"], capture_output=True, text=True)
    assert read.returncode == 0, read.stderr
    assert sum(int(count) for count in re.findall(r"(\d+) linear layers", read.stdout)) == kept
    model = vqgen.hf.load(tmp_path / "codes", device=DEVICE)
    assert sum(isinstance(module, vt.VQLinear) for module in model.modules()) == kept
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "dense", dtype=torch.float32)
    plain.set_attn_implementation("eager")
    ours, theirs = logits(model), logits(plain)
    assert theirs.norm() > 0 and (ours - theirs).norm() < 0.01 * theirs.norm()
