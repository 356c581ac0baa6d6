"""vqgen.hf.quantize(): model folders with calibrated linear layers, tuned and resumed."""

import json
import os
import subprocess

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import transformers
import vqgen
import vqgen.hf
from hf_models import DEVICE  # noqa: F401
from vqgen import _folders, _weight_blocks, _weight_tuning, _weights
from vqgen._bundles import packed, unpacked
from vqgen._models import attending
from vqgen._weight_books import trained_of
from vqgen._weight_losses import dense_weights, linears_in
from weight_models import FAST, FORM, IDS, LINEARS, folder, model, small  # noqa: F401


def test_codes_are_packed_and_unpacked():
    codes = torch.randint(0, 32, (3, 2, 13))
    assert torch.equal(unpacked(packed(codes, 5), 5, 13), codes)


def test_the_folder_has_the_tensors_of_each_linear_layer(model, folder):
    quantization, tensors = _folders.read_folder(folder)
    assert tensors.modules() == {f"model.layers.{layer}.{name}" for layer in (0, 1) for name in LINEARS}
    assert quantization.format == vqgen.format_fields(FORM) and quantization.dtype == "f16"
    held = tensors.read("model.layers.0.self_attn.q_proj")
    books = held["codebooks"]
    assert books.dtype == torch.float16 and torch.equal(books, books.round()) and books.abs().max() <= 63
    assert held["stage_scales"].unique().numel() == 1
    assert "lm_head" in quantization._dense and "model.embed_tokens" in quantization._dense


def test_all_readers_take_the_folder(model, folder, tmp_path):
    done = subprocess.run([os.environ["VQGEN_TOOL"], "inspect", folder], capture_output=True, text=True)
    assert done.returncode == 0 and "d8b5i8cx2  14 linear layers" in done.stdout, done.stderr + done.stdout
    ours, theirs = vqgen.hf.load(folder, device=DEVICE), transformers.AutoModelForCausalLM.from_pretrained(folder).to(DEVICE)
    with torch.no_grad():
        logits = ours(IDS[:2].to(DEVICE)).logits
        assert torch.equal(theirs(IDS[:2].to(DEVICE)).logits, logits)
        with dense_weights(model, folder), attending(model, "sdpa"):
            dense = model(IDS[:2].to(DEVICE)).logits
    assert (logits - dense).float().norm() < 0.01 * dense.float().norm()
    ours.save_pretrained(tmp_path / "saved")
    assert torch.equal(vqgen.hf.load(tmp_path / "saved", device=DEVICE)(IDS[:2].to(DEVICE)).logits, logits)


def test_kernels_compute_what_pytorch_does(model, folder):
    with dense_weights(model, folder) as error:
        assert 0.01 < error < 0.8
        dense = model.model.layers[1].mlp.up_proj.weight.clone()
        expected = dense @ torch.eye(64, dtype=torch.float16, device=DEVICE)
    assert not torch.equal(model.model.layers[1].mlp.up_proj.weight, dense)
    quantized = vqgen.hf.load(folder, device=DEVICE)
    layer = quantized.model.layers[1].mlp.up_proj
    assert isinstance(layer, vqgen.torch.VQLinear)
    found = layer(torch.eye(64, dtype=torch.float16, device=DEVICE)).T
    assert torch.equal(quantized.model.layers[0].self_attn.q_proj.bias, model.model.layers[0].self_attn.q_proj.bias)
    assert (found - expected).abs().max() < 2e-3 * expected.abs().max()


def test_blocks_compute_what_the_model_does():
    """Layers of several kinds have masks and positions of their own, a row for each sequence or one for all."""
    kinds = {"Qwen2": {}, "Gemma2": {"sliding_window": 5, "query_pre_attn_scalar": 32}, "Mistral": {"sliding_window": 5},
             "Gemma3": {"config_kind": "Gemma3Text", "sliding_window": 5, "query_pre_attn_scalar": 32,
                        "layer_types": ["sliding_attention", "full_attention"]}}
    for kind, fields in kinds.items():
        model = small(kind=kind, **fields).float()
        model.train()
        model.config.attention_dropout = 0.0
        with attending(model, "eager"), torch.no_grad():
            expected = model.model(IDS.to(DEVICE), use_cache=False).last_hidden_state
            calls = _weight_blocks.first_calls(model, IDS.to(DEVICE).split(3), DEVICE, torch.float32)
            assert all(each.training for each in model.modules())
            for layer in model.model.layers:
                part = calls.output(layer, 1, slice(1, 2))
                calls = calls.behind(layer)
                torch.testing.assert_close(calls.hidden[1][1:2], part)
            found = model.model.norm(torch.cat(calls.hidden))
        torch.testing.assert_close(found, expected, msg=lambda text, kind=kind: f"{kind}: {text}")


def test_a_model_that_does_more_between_its_layers_is_refused(tmp_path):
    model = small()
    layer = model.model.layers[1]
    layer.register_forward_pre_hook(
        lambda _, args, named: ((args[0] * 2, *args[1:]), named), with_kwargs=True, prepend=True)
    with pytest.raises(vqgen.Infeasible, match="changes hidden states between its decoder layers 0 and 1"):
        vqgen.hf.quantize(model, IDS.split(2), tmp_path / "weights", **FAST)


def test_a_model_with_a_soft_cap_and_windows(tmp_path):
    model = small(kind="Gemma2", sliding_window=5, query_pre_attn_scalar=32)
    vqgen.hf.quantize(model, IDS.split(3), tmp_path / "weights", **{**FAST, "tune": 1})
    assert len(linears_in(model, tmp_path / "weights")) == 14


def test_experts_may_stay_dense(tmp_path):
    model = small(kind="Qwen2Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=64)
    vqgen.hf.quantize(model, IDS.split(2), tmp_path / "weights", exclude=["*.experts.*"], **FAST)
    names = {name.split(".", 3)[3] for name in linears_in(model, tmp_path / "weights")}
    assert names == {*LINEARS[:4], *(f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down"))}
    held = vqgen.hf.load(tmp_path / "weights", device=DEVICE)
    with torch.no_grad(), dense_weights(model, tmp_path / "weights"), attending(model, "sdpa"):
        expected = model(IDS.to(DEVICE)).logits.float()
        assert (held(IDS.to(DEVICE)).logits.float() - expected).norm() < 0.01 * expected.norm()


def test_dropout_changes_nothing(model, folder, tmp_path):
    other = small(attention_dropout=0.5)
    other.train()
    vqgen.hf.quantize(other, IDS.split(2), tmp_path / "weights", **FAST)
    assert other.training and other.model.layers[0].training
    assert (tmp_path / "weights" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def prepared(model):
    """A copy of the first block in float32, and its calls."""
    with attending(model, "sdpa"):
        calls = _weight_blocks.first_calls(model.float(), IDS.to(DEVICE).split(3), DEVICE, torch.float32)
        block = _weight_blocks.own_copy(model.model.layers[0], DEVICE, torch.float32)
    model.half()
    return block, calls


def hidden_error(block, made, calls, targets):
    for name, each in made.items():
        block.get_submodule(name).weight.data = each.weight()
    return float(sum((out - target).square().sum() for out, target in zip(calls.run(block), targets)))


@pytest.mark.parametrize("form", (FORM, {**FORM, "entry_type": "element", "stage_scales": False, "common_scale": False,
                                         "output_scales": False}))
def test_tuning_brings_a_block_closer_to_the_dense_one(model, form):
    fields = vqgen.format_fields(form)
    block, calls = prepared(model)
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


def test_layers_that_are_left_out_stay_dense(model, tmp_path):
    out = tmp_path / "weights"
    vqgen.hf.quantize(model, IDS[:2].split(2), out, exclude=["mlp.down_proj", "*.q_proj", "model.layers.0.*"], **FAST)
    assert set(linears_in(model, out)) == {f"model.layers.1.{name}" for name in set(LINEARS) - {"mlp.down_proj", "self_attn.q_proj"}}
    held = vqgen.hf.load(out, device=DEVICE)
    assert torch.equal(held.model.layers[0].mlp.up_proj.weight, model.model.layers[0].mlp.up_proj.weight)
    with pytest.raises(vqgen.BadInput, match="exclude names 'mlp.dwon_proj', which no decoder layer has; .* self_attn.q_proj"):
        vqgen.hf.quantize(model, IDS.split(2), tmp_path / "other", exclude=["mlp.dwon_proj"], **FAST)


def test_bfloat16_and_tied_embeddings(tmp_path):
    model = small(kind="Llama", tie_word_embeddings=True).to(torch.bfloat16)
    vqgen.hf.quantize(model, IDS.split(2), tmp_path / "weights", **FAST)
    held = vqgen.hf.load(tmp_path / "weights", device=DEVICE)
    assert held.dtype == torch.bfloat16 and held.lm_head.weight is held.model.embed_tokens.weight
    with torch.no_grad():
        logits = held(IDS.to(DEVICE)).logits.float()
        with dense_weights(model, tmp_path / "weights"), attending(model, "sdpa"):
            assert (logits - model(IDS.to(DEVICE)).logits.float()).norm() < 0.05 * logits.norm()


def test_the_lattice_takes_a_scale_for_each_row(model, tmp_path):
    """Rows of one size lose as much less as the best scale of all loses more."""
    block, calls = prepared(model)
    weight = block.self_attn.q_proj.weight.data * torch.logspace(-2, 0, 64)[:, None]
    hessian = _weight_blocks.hessian_of(block, "self_attn.q_proj", calls, "layer")
    lost = {}
    for scaled in (False, True):
        fields = vqgen.format_fields({"preset": "quip-2", "output_scales": scaled})
        made = _weights.trained(weight, hessian, fields, torch.float16, _weights.Effort(rounds=0, beam=1))
        lost[scaled] = float((((made.weight() - weight).norm(dim=1) / weight.norm(dim=1))).median())
    assert lost[True] < 0.6 < lost[False]
    with pytest.raises(vqgen.Infeasible, match='a scale for each row; give it as {"preset": "quip-2", "output_scales": True}'):
        vqgen.hf.quantize(model, IDS.split(2), tmp_path / "weights", format="quip-2")


@pytest.mark.parametrize("change, words", [
    ({"format": {**FORM, "vector_size": 4, "scope": "tile", "tile_rows": 32, "tile_columns": 32}}, "has scope tile"),
    ({"format": "vecinfer-d4b8"}, "scope head"), ({"format": "int8-channel"}, "entries of a table or of the E8P lattice"),
    ({"format": "iq2-xxs"}, "entries of a table or of the E8P lattice"),
    ({"format": {**FORM, "group_inputs": 32}}, "no scales of groups of inputs .group_inputs 32."),
    ({"format": {"vector_size": 8, "index_bits": 16, "scope": "tensor"}}, "cannot train 65536 entries"),
    ({"tune": -1}, "tune"), ({"damping": 0}, "damping is 0; it is a number above 0"), ({"beam": 0}, "beam"),
    ({"rate": "high"}, "rate is 'high'"), ({"device": "gpux"}, "device is 'gpux': .*; give one of PyTorch's"),
    ({"format": {**FORM, "vector_size": 32, "index_bits": 6}}, "no kernel reads it")])
def test_arguments_that_do_not_fit_are_refused(model, tmp_path, change, words):
    with pytest.raises(vqgen.Error, match=words):
        vqgen.hf.quantize(model, IDS.split(2), tmp_path / "weights", **{**FAST, **change})
    assert not list(tmp_path.iterdir())


def test_batches_that_do_not_fit_are_refused(model, tmp_path):
    for batches, words in (([], "got no batches"), ([IDS[0]], r"a batch is torch.int64 \[24\]"), (["text"], "a batch is str")):
        with pytest.raises(vqgen.BadInput, match=words):
            vqgen.hf.quantize(model, batches, tmp_path / "weights", **FAST)
    assert not list(tmp_path.iterdir())


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
    with pytest.raises(vqgen.Infeasible, match="Qwen2Model has no head, .* AutoModelForCausalLM"):
        vqgen.hf.quantize(small().model, IDS.split(2), out, **FAST)
    with pytest.raises(vqgen.Infeasible, match="layer 0, self_attn.q_proj: its weight is not in memory"):
        vqgen.hf.quantize(small().to("meta"), IDS.split(2), out, **FAST)
    mixed = small()
    mixed.model.layers[1].mlp.up_proj.float()
    with pytest.raises(vqgen.Infeasible, match="layer 1, mlp.up_proj: its weight is torch.float32 where the model is"):
        vqgen.hf.quantize(mixed, IDS.split(2), out, **FAST)
    with pytest.raises(vqgen.Infeasible, match="layer 0, mlp.experts.gate_up_proj: is of experts, .* exclude=..*.experts"):
        vqgen.hf.quantize(small(kind="Mixtral", num_local_experts=2), IDS.split(2), out, **FAST)
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


def test_a_quantized_model_is_refused(folder, tmp_path):
    with pytest.raises(vqgen.Infeasible, match="is quantized already .*; give the original"):
        vqgen.hf.quantize(vqgen.hf.load(folder), IDS.split(2), tmp_path / "weights", **FAST)


def test_a_folder_of_another_model_is_refused(model, folder):
    with pytest.raises(vqgen.BadInput, match="no linear layer of this Qwen2ForCausalLM"):
        linears_in(small(num_hidden_layers=1), folder)
    with pytest.raises(vqgen.BadInput, match=r"say \(64, 96\) of .*, and the model's is 64 x 128"):
        linears_in(small(intermediate_size=128), folder)
    other = small()
    for layer in other.model.layers:
        for name in LINEARS:
            layer.get_submodule(name).weight.data.normal_()
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(vqgen.BadInput, match="it is of another model"), dense_weights(other, folder):
        pass
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())


def test_weights_of_the_tool_are_decoded(model, tmp_path):
    """Folders that `vqgen quantize` wrote: plain k-means, and the lattice."""
    model.save_pretrained(tmp_path / "model")
    for number, form in enumerate((json.dumps(FORM), "quip-2")):
        out = tmp_path / f"plain{number}"
        subprocess.run([os.environ["VQGEN_TOOL"], "quantize", tmp_path / "model", "--format", form, "--out", out], check=True,
                       capture_output=True)
        with dense_weights(model, out) as error:
            assert 0.1 < error < 0.8
        name = "model.layers.0.mlp.down_proj"
        quantization, tensors = _folders.read_folder(out)
        weight = trained_of(quantization.format, tensors.read(name), 96, DEVICE).weight()
        layer = vqgen.hf.load(out, device=DEVICE).get_submodule(name)
        found = layer(torch.eye(96, dtype=torch.float16, device=DEVICE)).T
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
    tiles = {"vector_size": 8, "index_bits": 4, "scope": "tile", "tile_rows": 32, "tile_columns": 32}
    subprocess.run([os.environ["VQGEN_TOOL"], "quantize", folder, "--format", json.dumps(tiles), "--out", tmp_path / "tiles"],
                   check=True, capture_output=True)
    assert vqgen.eval.main([*command, str(tmp_path / "tiles")]) == 0
    row, = json.loads(out.read_text())["accuracy"]["weights"]
    assert row["simulated"] is None and row["error"] is None and row["loss"] > 0
    assert vqgen.eval.main([*command, str(tmp_path / "tiles"), "--no-kernels"]) == 2
    assert "has scope tile" in capsys.readouterr().err
    assert vqgen.eval.main([*command, "no-such-format"]) == 2
    assert "no-such-format" in capsys.readouterr().err
