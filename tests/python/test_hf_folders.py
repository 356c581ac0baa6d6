"""Model folders of `vqgen quantize MODEL_DIR`: loaded, saved, and refused where they are not whole. The models are made
up and tiny."""

import json
import math
import os
import pathlib
import shutil
import subprocess
import types

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import vqgen
import vqgen.hf
import vqgen.torch as vt
from hf_models import DEVICE, IDS, tiny  # noqa: F401
from safetensors.torch import load_file, save_file
from vqgen import _folders

FEW = {"head_dim": 32}  # layers of two sizes, 128x128 and 64x128, so that two kernels serve a model
FORMATS = {
    "aqlm": "aqlm-2x8i8",
    "entries": {"vector_size": 4, "index_bits": 6},
    "tiles": {"vector_size": 8, "index_bits": 4, "num_codebooks": 2, "scope": "tile", "tile_rows": 128,
              "tile_columns": 64, "stage_scales": True},
    "layout": {"vector_size": 8, "index_bits": 8, "output_scales": True, "layout": {"rows": 2, "words": 2}},
    "lattice": "quip-2",
}


def quantize(model, out, form="aqlm-2x8i8", *more):
    return subprocess.run([os.environ["VQGEN_TOOL"], "quantize", model, "--out", out, "--format",
                           form if isinstance(form, str) else json.dumps(form), "--device", "cpu", "--any-format", *more],
                          capture_output=True, text=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The folder of a model, in two shards."""
    folder = tmp_path_factory.mktemp("source") / "model"
    model = tiny("Qwen2", **FEW)
    model.save_pretrained(folder, max_shard_size="250KB")
    assert (folder / "model.safetensors.index.json").exists()
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def folder(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("quantized") / "out"
    done = quantize(source, out, "aqlm-2x8i8", "--exclude", "*.layers.0.self_attn.q_proj")
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def own(folder, tmp_path):
    """A copy of the folder, to be damaged."""
    return pathlib.Path(shutil.copytree(folder, tmp_path / "own"))


def logits(model):
    with torch.no_grad():
        return model(IDS.to(model.device)).logits.float()


def dense_weights(layer):
    """The weights [out_features, in_features] that the codes stand for, by plain PyTorch: of a table, codes row after
    row, one codebook for all."""
    form = json.loads(layer.config)["weights"]
    stages, bits, size = form["num_codebooks"], form["index_bits"], form["vector_size"]
    codes, books = layer.codes.cpu().long() & 0xffffffff, layer.codebooks.cpu().float()
    sub_vectors = layer.in_features // size
    row = (codes[..., None] >> torch.arange(32)) & 1  # bits, the lowest first
    row = row.flatten(-2)[:, :sub_vectors * stages * bits].unflatten(-1, (sub_vectors, stages, bits))
    numbers = (row << torch.arange(bits)).sum(-1)
    dense = 0
    for stage in range(stages):
        entries = books[0, stage][numbers[..., stage]].flatten(-2)
        dense = dense + entries * (1 if layer.stage_scales is None else layer.stage_scales[0, stage].cpu())
    return dense if layer.output_scales is None else dense * layer.output_scales.cpu()[:, None]


def linears(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, vt.VQLinear)}


def test_a_loaded_model_is_the_dense_model_of_its_codes(source, folder):
    model = vqgen.hf.load(folder, device=DEVICE)
    held = linears(model)
    assert len(held) == 13 and "model.layers.0.self_attn.q_proj" not in held
    assert isinstance(model.lm_head, torch.nn.Linear) and model.dtype == torch.float16 and not model.training
    plain = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    whole = logits(plain)
    with torch.no_grad():
        for name, layer in held.items():
            linear = plain.get_submodule(name)
            weight = dense_weights(layer)
            assert (weight - linear.weight).norm() < 0.6 * linear.weight.norm()
            linear.weight.copy_(weight)
            torch.testing.assert_close(layer.bias is None, linear.bias is None)
    ours, theirs = logits(model).cpu(), logits(plain)
    assert (ours - theirs).norm() < 0.01 * theirs.norm()
    assert (ours - whole).norm() > 0.05 * whole.norm()  # the codes have a loss, which the dense weights share


def test_from_pretrained_and_a_round_trip_give_the_same_bits(folder, tmp_path):
    expected = logits(vqgen.hf.load(folder, device=DEVICE))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).to(DEVICE)
    assert torch.equal(logits(model), expected)
    for size in ("100KB", "5GB"):
        saved = tmp_path / size
        model.save_pretrained(saved, max_shard_size=size)
        again = vqgen.hf.load(saved, device=DEVICE)
        assert torch.equal(logits(again), expected)
        assert {name: (layer.config, layer.codes.dtype) for name, layer in linears(again).items()} == {
            name: (layer.config, layer.codes.dtype) for name, layer in linears(model).items()}
        both = [json.loads((each / "config.json").read_text())["quantization_config"] for each in (saved, folder)]
        assert both[0] == both[1]
        done = subprocess.run([os.environ["VQGEN_TOOL"], "inspect", saved], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert all(tensor.data_ptr() % 16 == 0 for layer in linears(model).values()
               for tensor in layer.buffers() if tensor.numel())


def test_a_model_without_its_head_loads_too(folder):
    model = transformers.AutoModel.from_pretrained(folder)
    assert len(linears(model)) == 13


@pytest.mark.parametrize("form", FORMATS)
def test_shapes_are_those_of_the_tool(source, tmp_path, form):
    out = tmp_path / "out"
    done = quantize(source, out, FORMATS[form])
    assert done.returncode == 0, done.stderr
    quantization, tensors = _folders.read_folder(out)
    assert len(tensors.modules()) == 14
    for module in tensors.modules():
        expected = quantization.tensors_of(module, *quantization.shape_of(module))
        tensors.require(module, expected)
        assert set(expected) == {name.rpartition(".")[2] for name in tensors.about if name.startswith(module + ".")
                                 and not name.endswith(".bias")}
    model = vqgen.hf.load(out)
    assert len(linears(model)) == 14


def test_layers_may_have_formats_of_their_own(source, folder, own, tmp_path):
    other = tmp_path / "other"
    assert quantize(source, other, FORMATS["entries"]).returncode == 0
    theirs = {name: tensor for file in other.glob("*.safetensors") for name, tensor in load_file(file).items()}
    mine = {name: tensor for file in own.glob("*.safetensors") for name, tensor in load_file(file).items()}
    for file in own.glob("*.safetensors*"):
        file.unlink()
    mixed = {name: tensor for name, tensor in mine.items() if ".layers.1." not in name}
    mixed |= {name: tensor for name, tensor in theirs.items() if ".layers.1." in name}
    save_file(mixed, own / "model.safetensors", {"format": "pt"})
    config = json.loads((own / "config.json").read_text())
    form = json.loads((other / "config.json").read_text())["quantization_config"]["format"]
    config["quantization_config"]["overrides"] = [{"modules": "*.layers.1.*", "format": form}]
    (own / "config.json").write_text(json.dumps(config))
    mixed, one, two = linears(vqgen.hf.load(own)), linears(vqgen.hf.load(folder)), linears(vqgen.hf.load(other))
    for name, layer in mixed.items():
        same = (two if ".layers.1." in name else one)[name]
        assert layer.config == same.config and torch.equal(layer.codes, same.codes)


def refused(call, *words):
    with pytest.raises(vqgen.BadInput) as raised:
        call()
    text = str(raised.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text


def both_refuse(folder, *words):
    refused(lambda: vqgen.hf.load(folder), *words)
    refused(lambda: transformers.AutoModelForCausalLM.from_pretrained(folder), *words)


def change(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    for name, value in fields.items():
        config["quantization_config"][name] = value
    (folder / "config.json").write_text(json.dumps(config))


CODES = "model.layers.1.mlp.up_proj.codes"


@pytest.mark.parametrize("fields, words", [
    ({"version": 2, "future": 1}, ("version is format version 2", "knows up to 1; upgrade vqgen")),
    ({"version": "1"}, ("version is '1'", "quantize again")),
    ({"future": 1}, ("unknown field 'future'",)),
    ({"overrides": [{"modules": "*", "form": {}}]}, ("overrides[0]", "format")),
    ({"dtype": "f8"}, ("dtype is 'f8'",)),
    ({"modules_to_not_convert": [3]}, ("modules_to_not_convert", "3")),
    ({"format": {"vector_size": 7, "index_bits": 8}}, ("format", "vector_size")),
    ({"weight_shapes": [{"modules": "*", "out_features": 64, "in_features": 64}]}, ("weight_shapes", "(64, 64)")),
    ({"modules_to_not_convert": ["lm_head", "*.up_proj"]}, (".codes", "is of no linear layer")),
    ({"modules_to_not_convert": ["lm_head"]}, ("layers.0.self_attn.q_proj.codes", "is not there"))])
def test_a_config_that_is_not_known_is_refused(own, fields, words):
    change(own, **fields)
    both_refuse(own, "config.json" if not any("codes" in word for word in words) else "safetensors", *words)


def rewritten(folder, change_tensors):
    """The shards with changed tensors, and an index that tells of them."""
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        change_tensors(tensors)
        save_file(tensors, file, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {
        name: file.name for file in folder.glob("*.safetensors") for name in load_file(file)}}))


def test_tensors_that_are_missing_or_misshapen_are_refused(own):
    def without(name):
        return lambda tensors: tensors.pop(name, None)

    def replaced(name, by):
        return lambda tensors: name in tensors and tensors.update({name: by(tensors[name]).contiguous()})

    held = {file: file.read_bytes() for file in own.iterdir()}
    for changed, words in [
            (without(CODES), (CODES, "is not there, though the layer is quantized")),
            (without("model.norm.weight"), ("model.norm.weight", "is not there", "fetch the folder again")),
            (replaced("model.norm.weight", lambda each: each[:64]), ("model.norm.weight", "[64]", "[128]")),
            (replaced(CODES, lambda each: each[:, :4]), (CODES, "I32 [128, 4]", "I32 [128, 8]")),
            (replaced(CODES, lambda each: each.float()), (CODES, "F32", "I32")),
            (lambda tensors: CODES in tensors and tensors.update({"lm_head.codes": tensors[CODES].clone()}),
             ("lm_head.codes", "is of no linear layer")),
            (replaced(CODES.replace("codes", "codebooks"), lambda each: each * float("nan")),
             ("up_proj.codebooks", "NaN"))]:
        rewritten(own, changed)
        both_refuse(own, *words)
        for file, data in held.items():
            file.write_bytes(data)


def test_an_index_that_lies_is_refused(own):
    index = own / "model.safetensors.index.json"
    told = json.loads(index.read_text())["weight_map"]
    other = next(name for name in told.values() if name != told[CODES])
    index.write_text(json.dumps({"metadata": {}, "weight_map": {**told, CODES: other}}))
    both_refuse(own, "index.json", CODES, "fetch the folder again")
    index.write_text(json.dumps({"metadata": {}, "weight_map": {**told, "ghost.codes": told[CODES]}}))
    both_refuse(own, "index.json", "ghost.codes", "in no file")
    index.write_text(json.dumps({"metadata": {}, "weight_map": {**told, CODES: "../elsewhere"}}))
    refused(lambda: vqgen.hf.load(own), "index.json", "not beside it")
    index.write_text("{}")
    refused(lambda: vqgen.hf.load(own), "index.json", "no index of shards")
    index.write_text(json.dumps({"metadata": {}, "weight_map": told}))
    (own / told[CODES]).unlink()
    refused(lambda: vqgen.hf.load(own), told[CODES], "is not there")
    (own / told[CODES]).write_bytes(b"cut")
    refused(lambda: vqgen.hf.load(own), told[CODES], "cannot be read as safetensors")


def test_folders_that_are_none_are_refused(source, own, tmp_path):
    refused(lambda: vqgen.hf.load(tmp_path / "none"), "is no folder", "vqgen quantize")
    (tmp_path / "new.partial").mkdir()
    refused(lambda: vqgen.hf.load(tmp_path / "new"), "is being written", "start the same run again")
    refused(lambda: vqgen.hf.load(source), "no quantization_config", "vqgen quantize")
    (own / "config.json").write_text("{")
    refused(lambda: vqgen.hf.load(own), "config.json", "cannot be read")


def test_another_dtype_is_refused(folder):
    for dtype in (torch.bfloat16, torch.float32):
        refused(lambda: vqgen.hf.load(folder, dtype=dtype), str(dtype), "torch.float16", "leave dtype out")
    assert vqgen.hf.load(folder, dtype=torch.float16).dtype == torch.float16


def test_a_model_is_not_quantized_by_loading_it(source, folder):
    fields = json.loads((folder / "config.json").read_text())["quantization_config"]
    from vqgen._quantizer import VQConfig
    refused(lambda: transformers.AutoModelForCausalLM.from_pretrained(source, quantization_config=VQConfig(**fields)),
            "is not quantized", "vqgen quantize")


def test_bfloat16_and_tied_embeddings(tmp_path):
    model = tiny("Llama", tie_word_embeddings=True, **FEW).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    assert quantize(tmp_path / "model", tmp_path / "out").returncode == 0
    ours = vqgen.hf.load(tmp_path / "out")
    assert ours.dtype == torch.bfloat16 and ours.lm_head.weight is ours.model.embed_tokens.weight
    assert len(linears(ours)) == 14 and logits(ours).isfinite().all()


def test_vllm_s_command_calibrates_a_quantized_folder(tmp_path, monkeypatch, capsys):
    from vqgen.vllm import __main__ as command
    from vqgen.vllm import _identity
    own = tmp_path / "own"
    tiny("Llama", num_hidden_layers=1).save_pretrained(tmp_path / "model")
    assert quantize(tmp_path / "model", own).returncode == 0
    words = lambda text, add_special_tokens: types.SimpleNamespace(input_ids=[1 + ord(each) % 63 for each in text])
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda folder: words)
    (tmp_path / "text").write_text("a text of a few hundred letters; " * 20)
    options = ["--sequences", "4", "--length", "128", "--keys", "vecinfer-d4b8i8", "--values", "vecinfer-d4b8i8"]
    assert command.main([str(own), "--text", str(tmp_path / "text"), *options]) == 0, capsys.readouterr().err
    bundle = own / "vqgen.bundle"
    _identity.require_same(bundle, own)
    tensors = _identity.identity(own)["tensors"]
    assert len(tensors) == 2 and all(name.endswith("_proj.codes") for name in tensors)
    assert len(vqgen.hf.layers_of(bundle)) == 1
    vqgen.hf.load(own)  # the bundle is no file of weights
    rewritten(own, lambda held: [held[name].add_(1) for name in tensors if name in held])
    refused(lambda: _identity.require_same(bundle, own), "is of another model", "has other numbers there")


@pytest.mark.parametrize("keys, values", [
    ("vecinfer-d4b8i8", "vecinfer-d4b8i8"), ("int4-kivi-keys", "int4-kivi-values"),
    (vqgen.hf.klt_format("keys", 2, 64), vqgen.hf.klt_format("values", 2, 64)),
    ({"parts": [{"vector_size": 4, "index_bits": 4, "channels": list(range(32)), "stage_scales": True, "num_codebooks": 2},
                {"vector_size": 8, "index_bits": 4, "channels": list(range(32, 64)), "stage_scales": True}]}, "vecinfer-d4b8")])
def test_inspect_counts_the_cache_that_kernels_read(own, keys, values):
    config = json.loads((own / "config.json").read_text())  # which alone says the size of heads
    (own / "config.json").write_text(json.dumps({**config, "head_dim": 64}))

    def text(form):
        return form if isinstance(form, str) else json.dumps(form)

    done = subprocess.run([os.environ["VQGEN_TOOL"], "inspect", own, "--context", "64", "--batch", "2", "--key-format", text(keys),
                           "--value-format", text(values), "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    window = 32 if keys == "int4-kivi-keys" else 0
    op = vt.prepare(vt.config_text({"op": "kv_dequantize", "dtype": "f16", "keys": keys, "values": values, "shape": {
        "batch": 2, "kv_heads": 2, "head_dim": 64, "tokens": 64, "recent_tokens": window}}), DEVICE)
    wide = {"f16": 2, "f32": 4, "u32": 4}
    held = [(each.dtype, math.prod(each.shape)) for each in op.arguments
            if each.name.startswith(("keys.", "values.", "key_", "value_", "raw_"))]
    assert json.loads(done.stdout)["cache_bytes"] == 2 * sum(wide[kind] * count for kind, count in held)
