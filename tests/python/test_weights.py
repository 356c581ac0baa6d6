"""vqgen.hf.quantize(): bundles of a model's linear layers, calibrated, tuned and resumed."""

import json
import os
import pathlib

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import vqgen
import vqgen.hf
from hf_models import DEVICE, own_cache, tiny  # noqa: F401
from vqgen import _weight_blocks, _weight_tuning, _weights
from vqgen._bundles import packed, unpacked
from vqgen._weight_store import dense_weights, kernel_weights, trained_of

FORM = {"vector_size": 8, "index_bits": 5, "num_codebooks": 2, "scope": "tensor", "entry_type": "int8", "stage_scales": True,
        "common_scale": True, "output_scales": True}
IDS = torch.randint(1, 64, (6, 24), generator=torch.Generator().manual_seed(3))
FAST = {"format": FORM, "rounds": 1, "beam": 2}
LINEARS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
           "mlp.down_proj"]


def small(**fields):
    model = tiny(**{"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "num_attention_heads": 2,
                    "num_key_value_heads": 1, **fields})
    return model


@pytest.fixture(scope="module")
def model():
    return small()


@pytest.fixture(scope="module")
def bundle(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("weights") / "weights"
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    said = []
    shares = vqgen.hf.quantize(model, IDS.split(2), out, progress=lambda *each: said.append(each), **FAST)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.config._attn_implementation == "vqgen"
    assert [each[:2] for each in said] == [(0, 2), (1, 2)] and "q_proj" in said[0][2]
    assert set(shares) == {f"model.layers.{layer}.{name}" for layer in (0, 1) for name in LINEARS}
    assert all(0 < share < 0.5 for share in shares.values())
    assert [path.name for path in out.parent.iterdir()] == ["weights"]
    return out


def test_codes_are_packed_and_unpacked():
    codes = torch.randint(0, 32, (3, 2, 13))
    assert torch.equal(unpacked(packed(codes, 5), 5, 13), codes)


def test_a_bundle_has_an_item_for_each_linear_layer(model, bundle):
    items = [item for item in vqgen.torch.read_bundle(bundle)]
    assert [item["name"] for item in items] == [f"model.layers.{layer}.{name}" for layer in (0, 1) for name in LINEARS]
    tensors = vqgen.torch.bundle_tensors(bundle, items[0]["name"], ["weights.codebooks", "weights.stage_scales"])
    books = tensors["weights.codebooks"]
    assert books.dtype == torch.float16 and torch.equal(books, books.round()) and books.abs().max() <= 63
    assert tensors["weights.stage_scales"].unique().numel() == 1


def test_the_tool_reads_the_bundle(bundle):
    import subprocess

    from vqgen import _tool
    out = bundle.parent.parent / "repacked"
    done = subprocess.run([_tool.path(), "repack", str(bundle), "--layout", "4x1", "--out", str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_kernels_compute_what_pytorch_does(model, bundle):
    with dense_weights(model, bundle) as error:
        assert 0.01 < error < 0.8
        dense = model.model.layers[1].mlp.up_proj.weight.clone()
        expected = dense @ torch.eye(64, dtype=torch.float16, device=DEVICE)
    assert not torch.equal(model.model.layers[1].mlp.up_proj.weight, dense)
    with kernel_weights(model, bundle):
        layer = model.model.layers[1].mlp.up_proj
        assert isinstance(layer, vqgen.torch.VQLinear)
        found = layer(torch.eye(64, dtype=torch.float16, device=DEVICE)).T
        assert model.model.layers[0].self_attn.q_proj.bias is not None
    assert isinstance(model.model.layers[1].mlp.up_proj, torch.nn.Linear)
    assert (found - expected).abs().max() < 2e-3 * expected.abs().max()


def hidden_error(block, made, calls, targets):
    for name, each in made.items():
        block.get_submodule(name).weight.data = each.weight()
    return float(sum((out - target).square().sum() for out, target in zip(calls.run(block), targets)))


@pytest.mark.parametrize("form", (FORM, {**FORM, "entry_type": "element", "stage_scales": False, "common_scale": False,
                                         "output_scales": False}))
def test_tuning_brings_a_block_closer_to_the_dense_one(model, form):
    fields = vqgen.format_fields(form)
    model.set_attn_implementation("sdpa")
    calls = _weight_blocks.first_calls(model.float(), IDS.to(DEVICE).split(3), DEVICE, torch.float32)
    block = _weight_blocks.own_copy(model.model.layers[0], DEVICE, torch.float32)
    model.half().set_attn_implementation("vqgen")
    targets = calls.run(block)
    made, _ = _weights.quantized_block(block, calls, fields, torch.float16, _weights.Effort(rounds=0, beam=1))
    codes = {name: each.codes.clone() for name, each in made.items()}
    before = hidden_error(block, made, calls, targets)
    history = _weight_tuning.tuned(block, made, calls, targets, passes=8, rate=1e-2)
    assert len(history) == 8 and history[-1] < history[0]
    assert hidden_error(block, made, calls, targets) < 0.9 * before
    for name, each in made.items():
        assert torch.equal(each.codes, codes[name])
        if form is FORM:
            assert torch.equal(each.books.tables, each.books.tables.round()) and each.books.tables.abs().max() <= 63


def test_a_killed_run_goes_on_and_writes_the_same_bytes(model, bundle, tmp_path):
    out = tmp_path / "weights"

    def stop(number, *_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vqgen.hf.quantize(model, IDS.split(2), out, progress=stop, **FAST)
    kept = pathlib.Path(f"{out}.layers")
    assert not out.exists() and sorted(path.name for path in kept.iterdir()) == ["arguments.json", "layer-00000.safetensors"]
    for other, name in (({"seed": 2}, "seed"), ({"beam": 3}, "effort"), ({"format": "aqlm-1x8"}, "format")):
        with pytest.raises(vqgen.BadInput, match=f"unfinished run with another {name}; give the same arguments"):
            vqgen.hf.quantize(model, IDS.split(2), out, **{**FAST, **other})
    with pytest.raises(vqgen.BadInput, match="another tokens"):
        vqgen.hf.quantize(model, IDS[:4].split(2), out, **FAST)
    other = small()
    other.model.layers[0].input_layernorm.weight.data[0] += 1
    with pytest.raises(vqgen.BadInput, match="of a block with other weights; give the same model"):
        vqgen.hf.quantize(other, IDS.split(2), out, **FAST)
    begun = []
    before = _weights.quantized_block
    try:
        _weights.quantized_block = lambda *args, **named: begun.append(named["where"]) or before(*args, **named)
        vqgen.hf.quantize(model, IDS.split(2), out, **FAST)
    finally:
        _weights.quantized_block = before
    assert begun == ["model.layers.1"] and not kept.exists()
    assert out.read_bytes() == bundle.read_bytes()


def test_layers_that_are_left_out_stay_dense(model, tmp_path):
    out = tmp_path / "weights"
    vqgen.hf.quantize(model, IDS[:2].split(2), out, exclude=["mlp.down_proj", "self_attn.q_proj"], **FAST)
    names = {item["name"].split(".", 3)[3] for item in vqgen.torch.read_bundle(out)}
    assert names == set(LINEARS) - {"mlp.down_proj", "self_attn.q_proj"}
    with pytest.raises(vqgen.BadInput, match="exclude names 'mlp.dwon_proj', which no decoder layer has; .* self_attn.q_proj"):
        vqgen.hf.quantize(model, IDS.split(2), out, exclude=["mlp.dwon_proj"], **FAST)


@pytest.mark.parametrize("change, words", [
    ({"format": {**FORM, "vector_size": 4, "scope": "tile", "tile_rows": 32, "tile_columns": 32}}, "has scope tile"),
    ({"format": "vecinfer-d4b8"}, "scope head"), ({"format": "int8-channel"}, "entries of a table or of the E8P lattice"),
    ({"format": "iq2-xxs"}, "entries of a table or of the E8P lattice"),
    ({"format": {**FORM, "group_inputs": 32}}, "no scales of groups of inputs .group_inputs 32."),
    ({"format": {"vector_size": 8, "index_bits": 16, "scope": "tensor"}}, "cannot train 65536 entries"),
    ({"tune": -1}, "tune"), ({"damping": 0}, "damping is 0; it is a number above 0"), ({"beam": 0}, "beam"),
    ({"rate": "high"}, "rate is 'high'")])
def test_arguments_that_do_not_fit_are_refused(model, tmp_path, change, words):
    with pytest.raises(vqgen.Error, match=words):
        vqgen.hf.quantize(model, IDS.split(2), tmp_path / "weights", **{**FAST, **change})
    assert not list(tmp_path.iterdir())


def test_batches_that_do_not_fit_are_refused(model, tmp_path):
    for batches, words in (([], "got no batches"), ([IDS[0]], r"a batch is torch.int64 \[24\]"), (["text"], "a batch is str")):
        with pytest.raises(vqgen.BadInput, match=words):
            vqgen.hf.quantize(model, batches, tmp_path / "weights", **FAST)


def test_models_that_do_not_fit_are_refused(tmp_path):
    out = tmp_path / "weights"
    with pytest.raises(vqgen.Infeasible, match="layer 0, mlp.down_proj: 100 input features are no multiple of 8"):
        vqgen.hf.quantize(small(intermediate_size=100), IDS.split(2), out, **FAST)
    tied = small()
    tied.model.layers[1].mlp.up_proj.weight = tied.model.layers[0].mlp.up_proj.weight
    with pytest.raises(vqgen.Infeasible, match="layer 0, mlp.up_proj: its weight is tied to"):
        vqgen.hf.quantize(tied, IDS.split(2), out, **FAST)
    with pytest.raises(vqgen.Infeasible, match="no list of decoder layers"):
        _weight_blocks.layers_of_model(torch.nn.Linear(4, 4))
    with pytest.raises(vqgen.Infeasible, match="float32; pass model.half"):
        vqgen.hf.quantize(small().float(), IDS.split(2), out, **FAST)
    broken = small()
    broken.model.layers[1].mlp.up_proj.weight.data[0, 0] = torch.nan
    with pytest.raises(vqgen.BadInput, match="layer 1, mlp.up_proj: its weight holds NaN"):
        vqgen.hf.quantize(broken, IDS.split(2), out, **FAST)
    assert not list(tmp_path.iterdir())


def test_inputs_that_say_nothing_are_refused(tmp_path):
    model = small()
    model.model.embed_tokens.weight.data[IDS[0, 0]] = torch.nan
    with pytest.raises(vqgen.BadInput, match="model.layers.0.self_attn.q_proj: its inputs hold NaN"):
        vqgen.hf.quantize(model, IDS.split(2), tmp_path / "nan", **FAST)
    model = small()
    model.model.layers[0].input_layernorm.weight.data.zero_()
    with pytest.raises(vqgen.BadInput, match="model.layers.0.self_attn.q_proj: its inputs are all zero"):
        vqgen.hf.quantize(model, IDS.split(2), tmp_path / "zero", **FAST)


def test_a_bundle_of_another_model_is_refused(model, bundle):
    with pytest.raises(vqgen.BadInput, match="no linear layer of this Qwen2ForCausalLM"):
        vqgen.hf.use_weights(small(num_hidden_layers=1), bundle)
    with pytest.raises(vqgen.BadInput, match="is 96x64, and the model's is 128x64"):
        vqgen.hf.use_weights(small(intermediate_size=128), bundle)
    with pytest.raises(vqgen.BadInput, match="has weights of f16, and .* is torch.bfloat16"):
        vqgen.hf.use_weights(small().bfloat16(), bundle)
    other = small()
    for layer in other.model.layers:
        for name in LINEARS:
            layer.get_submodule(name).weight.data.normal_()
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(vqgen.BadInput, match="it is of another model"), dense_weights(other, bundle):
        pass
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())


def test_weights_of_the_tool_are_read_by_name(model, tmp_path):
    """Bundles that `vqgen quantize --weights` wrote: plain k-means, and the lattice."""
    import subprocess

    from vqgen import _tool
    model.save_pretrained(tmp_path / "model")
    for form in (json.dumps(FORM), "quip-2"):
        out = tmp_path / "plain"
        subprocess.run([_tool.path(), "quantize", "--input", str(tmp_path / "model" / "model.safetensors"), "--weights",
                        "model.layers.*_proj.weight", "--format", form, "--out", str(out)], check=True, capture_output=True)
        with dense_weights(model, out) as error:
            assert 0.1 < error < 0.8
        item = vqgen.torch.read_bundle(out)[0]
        names = [f"weights.{name}" for name in ("codes", "codebooks", "stage_scales", "output_scales")]
        tensors = vqgen.torch.bundle_tensors(out, item["name"], names)
        weight = trained_of(item["weights"], tensors, item["in_features"], DEVICE).weight()
        layer = vqgen.torch.VQLinear.from_bundle(out, item["name"], device=DEVICE)
        found = layer(torch.eye(item["in_features"], dtype=torch.float16, device=DEVICE)).T
        assert (found - weight).abs().max() < 2e-3 * weight.abs().max()


def test_eval_measures_the_loss_of_weights(tmp_path, capsys):
    import sys

    sys.path.insert(0, os.environ["VQGEN_SOURCE_DIR"] + "/scripts")
    import tinycode_model
    import vqgen.eval
    folder, form, out = tmp_path / "model", tmp_path / "form.json", tmp_path / "out.json"
    small(vocab_size=256).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tinycode_model.tokenizer()))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (tmp_path / "text").write_text("Eight and a half.\n" * 40)
    form.write_text(json.dumps(FORM))
    command = [str(folder), "--text", str(tmp_path / "text"), "--calibration", "3", "--sequences", "2", "--length", "24", "--device",
               DEVICE, "--codebooks", str(tmp_path / "books"), "--json", str(out), "--weights"]
    assert vqgen.eval.main([*command, str(form)]) == 0
    first, = json.loads(out.read_text())["accuracy"]["weights"]
    assert first["layers"] == 14 and first["bits"] == 1.25
    assert abs(first["loss"] - first["simulated"]) < 0.02 * first["simulated"]
    assert "14 " in capsys.readouterr().out
    made, = (tmp_path / "books").iterdir()
    assert vqgen.eval.main([*command, str(made), "--no-kernels"]) == 0
    again, = json.loads(out.read_text())["accuracy"]["weights"]
    assert again["loss"] is None and again["simulated"] == first["simulated"]
    assert vqgen.eval.main([*command, "no-such-format"]) == 2
    assert "no-such-format" in capsys.readouterr().err
