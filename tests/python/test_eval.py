"""Simulated quantization against the kernels' results, and the command of the evaluation."""

import json
import os
import pathlib
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

import reference
import vqgen
import vqgen.eval
import vqgen.torch as vt
from vqgen import _calibration, simulation

SOURCE = pathlib.Path(os.environ["VQGEN_SOURCE_DIR"])
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("form, units", [
    ({"vector_size": 4, "index_bits": 8}, 1),
    ({"vector_size": 2, "index_bits": 6, "scope": "head", "smooth": True, "hadamard": True}, 2),
    ({"vector_size": 4, "index_bits": 5, "num_codebooks": 2, "scope": "head", "stage_scales": True}, 2),
    ({"vector_size": 8, "index_bits": 7, "scope": "channel_group", "group_channels": 16}, 8)])
def test_simulated_rows_are_those_that_the_codes_stand_for(draw, form, units):
    heads, dim, tokens, stages = 2, 64, 21, form.get("num_codebooks", 1)
    plain = {name: each for name, each in form.items() if name not in ("smooth", "hadamard")}

    def tensor(*shape, kind=torch.float32):
        return torch.from_numpy(draw.standard_normal(shape)).to(DEVICE, kind)

    books = [tensor(units, stages, 1 << form["index_bits"], form["vector_size"],
                    kind=torch.float16) for _ in range(2)]
    scales = tensor(units, stages).exp() if form.get("stage_scales") else None
    smooth = tensor(heads, dim).exp() if form.get("smooth") else None
    cache = vt.VQCache(batch=3, query_heads=2, kv_heads=heads, head_dim=dim, tokens=tokens, keys=form,
                       values=plain, key_codebooks=books[0], value_codebooks=books[1],
                       key_scales=scales, value_scales=scales, key_smooth=smooth)
    rows = [tensor(3, heads, tokens, dim, kind=torch.float16) for _ in range(2)]
    cache.append(*(each.transpose(1, 2) for each in rows))
    for held, given, fields, factor in ((cache.keys, rows[0], form, smooth),
                                        (cache.values, rows[1], plain, None)):
        expected = simulation.dequantized(given, fields, held.codebooks, scales, factor)
        columns = dim * heads // units if units > 1 else dim
        numbers = reference.unpack(held.codes.cpu().numpy().view(np.uint32),
                                   dim // form["vector_size"] * stages, form["index_bits"])
        numbers = numbers.reshape(3, heads, tokens, -1, stages)
        stored = np.zeros((3, heads, tokens, dim))
        for head in range(heads):
            for first in range(0, dim, columns):
                unit = 0 if units == 1 else (head * dim + first) // columns
                part = slice(first // form["vector_size"], (first + columns) // form["vector_size"])
                for stage in range(stages):
                    entries = held.codebooks[unit, stage].double().cpu().numpy()
                    if scales is not None:
                        entries = entries * scales[unit, stage].item()
                    stored[:, head, :, first:first + columns] += entries[
                        numbers[:, head, :, part, stage]].reshape(3, tokens, columns)
        if fields.get("hadamard"):
            stored = stored @ reference.hadamard(dim)
        if factor is not None:
            stored = stored * factor.double().cpu().numpy()[:, None]
        # Near ties may resolve either way, and then a sub-vector differs.
        wrong = np.abs(expected.cpu().numpy() - stored) > 1e-4 * np.abs(stored).max()
        assert wrong.mean() < 0.02, wrong.mean()


@pytest.mark.parametrize("scopes", [("tensor", "head"), ("channel_group", "tensor")])
def test_simulated_keys_in_parts_are_those_that_the_kernels_store(draw, scopes):
    heads, dim, tokens = 2, 64, 21
    order = draw.permutation(dim).tolist()
    parts = [{"channels": order[:24], "vector_size": 8, "index_bits": 6, "num_codebooks": 3, "scope": scopes[0]},
             {"channels": order[24:], "vector_size": 4, "index_bits": 5, "scope": scopes[1]}]
    units = {"tensor": (1, 1), "head": (heads, heads), "channel_group": (heads * 3, heads * 10)}
    sizes = [units[scope][i] * (3 * 64 * 8, 32 * 4)[i] for i, scope in enumerate(scopes)]

    def tensor(*shape):
        return torch.from_numpy(draw.standard_normal(shape)).to(DEVICE, torch.float16)

    values = {"vector_size": 4, "index_bits": 8}
    cache = vt.VQCache(batch=3, query_heads=2, kv_heads=heads, head_dim=dim, tokens=tokens,
                       keys={"parts": parts}, values=values, key_codebooks=tensor(sum(sizes)),
                       value_codebooks=tensor(1, 1, 256, 4))
    keys, rows = tensor(3, heads, tokens, dim), tensor(3, heads, tokens, dim)
    cache.append(keys.transpose(1, 2), rows.transpose(1, 2))
    stored = cache.dequantize(tokens)[0].float()
    expected = simulation.dequantized(keys, vqgen.format_fields({"parts": parts}), cache.keys.codebooks)
    wrong = (stored - expected).abs() > 2e-3 * expected.abs().max()  # near ties may go either way
    assert wrong.float().mean() < 5e-3, wrong.float().mean()


def test_keys_may_be_rotated_before_they_are_smoothed(small):
    model = transformers.AutoModelForCausalLM.from_pretrained(small, dtype=torch.float16).to(DEVICE)
    batches = [torch.arange(60).view(2, 30), torch.arange(60, 90)[None]]
    states = list(_calibration.states_of(model.eval(), batches, DEVICE))
    form = {"vector_size": 4, "index_bits": 5, "scope": "head", "smooth": True}
    layers = _calibration.layers_rotated_first(states, form, form)
    assert len(layers) == len(states) == 2
    for (item, tensors), (keys, values) in zip(layers, states):
        assert not item["values"]["smooth"] and "values.smooth" not in tensors
        turned = keys.double().cpu().numpy() @ reference.hadamard(64)
        factors = tensors["keys.smooth"].double().cpu().numpy()
        np.testing.assert_allclose(factors, np.sqrt(np.abs(turned).max(1)), rtol=1e-4)
        books = tensors["keys.codebooks"].double().cpu().numpy()[0, 0]
        smoothed = (turned / factors[:, None]).reshape(-1, 1, 4)
        numbers = ((smoothed - books)**2).sum(-1).argmin(1)
        expected = books[numbers].reshape(turned.shape) * factors[:, None] @ reference.hadamard(64)
        held = simulation.dequantized(keys[None], item["keys"], tensors["keys.codebooks"], None,
                                      tensors["keys.smooth"], rotated_first=True)[0]
        wrong = np.abs(held.cpu().numpy() - expected) > 1e-3 * np.abs(expected).max()
        assert wrong.mean() < 0.03, wrong.mean()  # near ties may go either way


@pytest.mark.parametrize("form, units, size", [
    ({"preset": "int8-channel"}, 64, 2), ({"preset": "int8-channel", "vector_size": 4}, 32, 4),
    ({"preset": "int8-channel", "group_channels": 32}, 4, 2),
    ({"preset": "fp8-e4m3"}, 2, 2), ({"preset": "int8-token"}, 1, 2),
    ({"preset": "int8-token", "group_channels": 16}, 1, 2), ({"preset": "int4-kivi-values"}, 1, 4),
    ({"preset": "int4-kivi-values", "vector_size": 2, "group_channels": 0}, 1, 2)])
def test_simulated_scalars_are_those_that_the_kernels_store(draw, form, units, size):
    heads, dim, tokens = 2, 64, 9
    form = vqgen.format_fields(form)

    def tensor(*shape):
        return torch.from_numpy(draw.standard_normal(shape)).to(DEVICE, torch.float16)

    scales = [torch.ones_like(each) if form.get("token_scales") else each.abs() / 64 + 0.01
              for each in (tensor(units, 1, 1, size), tensor(units, 1, 1, size))]
    cache = vt.VQCache(batch=2, query_heads=2, kv_heads=heads, head_dim=dim, tokens=tokens, keys=form,
                       values=form, key_codebooks=scales[0], value_codebooks=scales[1])
    rows = [tensor(2, heads, tokens, dim) for _ in range(2)]
    cache.append(*(each.transpose(1, 2) for each in rows))
    for stored, given, books in zip(cache.dequantize(tokens), rows, scales):
        expected = simulation.dequantized(given, form, books)
        assert (stored.float() - expected).abs().max() <= 2e-3 * expected.abs().max()
        assert (stored.float() - expected).norm() <= 5e-4 * expected.norm()


@pytest.mark.parametrize("form", [{"preset": "int4-kivi-keys"}, {
    "preset": "int4-kivi-keys", "vector_size": 2, "decoder": "scalar", "group_tokens": 16}])
def test_groups_of_tokens_are_those_that_the_kernels_store(draw, form):
    """KIVI's keys, token by token: full groups are coded, the other tokens are raw."""
    heads, dim, tokens = 2, 64, 75
    form = vqgen.format_fields(form)

    def tensor(*shape):
        return torch.from_numpy(draw.standard_normal(shape)).to(DEVICE, torch.float16)

    ones = torch.ones(1, 1, 1, form["vector_size"], dtype=torch.float16, device=DEVICE)
    cache = vt.VQCache(batch=2, query_heads=2, kv_heads=heads, head_dim=dim, tokens=tokens, keys=form,
                       values="int4-kivi-values", key_codebooks=ones, value_codebooks=ones.new_ones(1, 1, 1, 4),
                       recent_tokens=32)
    cache._windows.zero_()
    rows = [tensor(2, heads, tokens, dim) for _ in range(2)]
    for begin in range(0, tokens, 15):
        cache.append(*(each[:, :, begin:begin + 15].transpose(1, 2) for each in rows))
    stored = cache.dequantize(tokens)[0].float()
    expected = simulation.dequantized(rows[0], form, ones)
    full = tokens // form["group_tokens"] * form["group_tokens"]
    assert torch.equal(stored[:, :, full:], rows[0][:, :, full:].float())
    assert (stored - expected).abs().max() <= 2e-3 * expected.abs().max()
    assert (stored - rows[0].float()).norm() > 1e-3 * expected.norm()
    query = tensor(2, 2, dim)
    out = cache.attend(query)[0].float()
    values = cache.dequantize(tokens)[1].float()
    weights = ((stored @ query.float()[..., None])[..., 0] * dim**-0.5).softmax(-1)
    assert (out - (weights[:, :, None] @ values)[:, :, 0]).abs().max() < 4e-3


@pytest.mark.parametrize("recent_tokens, together, batch", [
    (3, 1, 1), (3, 4, 1), (0, 1, 1), (0, 4, 1), (3, 1, 3), (7, 1, 4), (8, 1, 5), (13, 1, 2)])
def test_simulated_attention_sees_raw_tokens_where_the_cache_has_them(draw, recent_tokens, together, batch):
    tokens, dim, sinks = 13, 8, 2
    query, keys, values, raw_keys, raw_values = (
        torch.from_numpy(draw.standard_normal((1, heads, tokens, dim))) for heads in (4, 2, 2, 2, 2))
    out = simulation.attention(query, keys, values, raw_keys, raw_values, recent_tokens, sinks, 0.3,
                               together, batch)
    for head in range(4):
        for now in range(tokens):
            full = (now + 1) // together * together
            in_window = {token // batch for token in range(now - recent_tokens + batch, now + 1)} if recent_tokens else ()
            raw = [token // batch in in_window or token < sinks or token >= full for token in range(now + 1)]
            seen_keys, seen_values = (
                np.stack([(own if is_raw else held)[0, head // 2, token].numpy()
                          for token, is_raw in enumerate(raw)])
                for held, own in ((keys, raw_keys), (values, raw_values)))
            scores = np.exp(0.3 * seen_keys @ query[0, head, now].numpy())
            expected = scores @ seen_values / scores.sum()
            assert np.allclose(out[0, head, now].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("recent_tokens, batch", [(5, 1), (5, 3), (7, 4), (4, 4)])
def test_simulated_batches_leave_the_window_as_in_the_cache(draw, recent_tokens, batch):
    """Attention alone shows which tokens are raw: compare the simulation with the kernels, step by step."""
    heads, dim, tokens, sinks = 2, 64, 21, 2
    form = {"vector_size": 4, "index_bits": 4}

    def tensor(*shape):
        return torch.from_numpy(draw.standard_normal(shape)).to(DEVICE, torch.float16)

    books = [tensor(1, 1, 16, 4) for _ in range(2)]
    cache = vt.VQCache(batch=3, query_heads=4, kv_heads=heads, head_dim=dim, tokens=tokens, keys=form,
                       values=form, key_codebooks=books[0], value_codebooks=books[1], recent_tokens=recent_tokens,
                       flush_block=batch, sinks=sinks)
    keys, values = tensor(3, heads, tokens, dim), tensor(3, heads, tokens, dim)
    query = tensor(3, 4, tokens, dim)
    held = [simulation.dequantized(rows, form, each) for rows, each in zip((keys, values), books)]
    expected = simulation.attention(query, *held, keys, values, recent_tokens, sinks, dim**-0.5, flush_block=batch)
    plain = simulation.attention(query, *held, keys, values, recent_tokens, sinks, dim**-0.5)
    assert batch == 1 or (expected - plain).abs().max() > 0.05  # the raw tokens can be told
    for now in range(tokens):
        cache.append(keys[:, :, now:now + 1].transpose(1, 2), values[:, :, now:now + 1].transpose(1, 2))
        out, _ = cache.attend(query[:, :, now].contiguous())
        # Near ties may resolve either way, and then a sub-vector of a row differs.
        assert ((out - expected[:, :, now]).abs() > 0.02).float().mean() < 0.05, now


def test_a_batch_that_the_window_lacks_is_refused(draw):
    rows = torch.zeros(1, 1, 3, 4)
    for recent_tokens in (0, 2):
        with pytest.raises(vqgen.BadInput, match=f"flush_block is 3; it is at most recent_tokens, which are {recent_tokens}"):
            simulation.attention(rows, rows, rows, rows, rows, recent_tokens, 0, 1.0, flush_block=3)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return a model with random weights whose tokens are bytes, and a text."""
    sys.path.insert(0, str(SOURCE / "scripts"))
    import tinycode_model
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(4)
    config = transformers.Qwen2Config(
        vocab_size=256, hidden_size=64, intermediate_size=64, num_hidden_layers=2, head_dim=64,
        num_attention_heads=2, num_key_value_heads=1, initializer_range=0.2, pad_token_id=0,
        eos_token_id=None, bos_token_id=None)
    transformers.Qwen2ForCausalLM(config).half().save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tinycode_model.tokenizer()))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (folder / "text").write_text("Eight and a half: \u00fc\u20ac.\n" * 100)
    return folder


def test_the_command_says_what_it_measured(small, capsys):
    out = small / "out.json"
    assert vqgen.eval.main([
        str(small), "--text", str(small / "text"), "--format", "vecinfer-d4b8", "--recent-tokens", "0", "8", "11:4",
        "--calibration", "6", "--sequences", "2", "--length", "40", "--codebooks",
        str(small / "books"), "--device", DEVICE, "--json", str(out)]) == 0
    result = json.loads(out.read_text())["accuracy"]
    assert [(row["recent_tokens"], row["flush_block"], row["bits"]) for row in result["rows"]] == [
        (0, 1, 2.0), (8, 1, 2.0), (11, 4, 2.0)]
    for row in result["rows"]:
        assert abs(row["loss"] - row["simulated"]) < 0.05 * row["simulated"]
        assert row["bytes_per_token"] == 2 * 2 * 16
    of_none, *recent_counts = (row["loss"] for row in result["rows"])
    assert all(abs(each - result["unquantized"]) < min(0.2, abs(of_none - result["unquantized"]))
               for each in recent_counts)
    said = capsys.readouterr().out
    assert "perplexity" in said and " 11:4 " in said


def test_recipes_of_transforms_and_of_calibration(small, capsys, monkeypatch):
    out, books = small / "recipes.json", small / "recipe-books"
    (small / "other").write_text("Neither seven, nor 1/4.\n" * 100)
    transforms = vqgen.eval.RECIPES["transforms"]
    assert [run.keys[0] for run in transforms] == ["none", "smooth", "hadamard", "smooth + hadamard",
                                                   "hadamard + smooth"]
    monkeypatch.setitem(vqgen.eval.RECIPES, "transforms", transforms[-2:])
    command = [str(small), "--text", str(small / "text"), "--calibration-text", str(small / "other"),
               "--recipe", "transforms", "calibration", "--calibration", "8", "--sequences", "2",
               "--length", "40", "--codebooks", str(books), "--device", DEVICE, "--json", str(out)]
    assert vqgen.eval.main(command) == 0
    said = capsys.readouterr().out.splitlines()
    rows = json.loads(out.read_text())["accuracy"]["rows"]
    assert [(row["keys"], row["calibration"]["sequences"], row["calibration"]["text"])
            for row in rows] == [
        ("smooth + hadamard", 8, "other"), ("hadamard + smooth", 8, "other"),
        ("vecinfer-d4b8", 1, "text"), ("vecinfer-d4b8", 6, "text"), ("vecinfer-d4b8", 8, "text"),
        ("vecinfer-d4b8", 8, "other")]
    other_order = rows.pop(1)
    assert other_order["loss"] is None and other_order["bits"] == 2
    line, = (line for line in said if line.startswith("hadamard + smooth (simulated) "))
    assert line.split()[-7:] == ["-", f"{other_order['simulated']:.4f}", "-", "64", "8", "of", "other"]
    for row in rows:
        assert abs(row["loss"] - row["simulated"]) < 0.05 * row["simulated"]
    assert other_order["simulated"] != rows[0]["simulated"]
    assert len({row["simulated"] for row in rows[1:]}) == 4
    names = {path.name.rsplit("-", 2)[0] for path in books.iterdir()}
    assert len(list(books.iterdir())) == 5 and names == {
        "smooth + hadamard-d4b8-8", *(f"vecinfer-d4b8-vecinfer-d4b8-{count}" for count in (1, 6, 8))}
    # The text's bundles exist already, but the transforms were trained on the other text.
    assert vqgen.eval.main([*command[:3], *command[5:]]) == 0
    trained = [line for line in capsys.readouterr().err.splitlines() if line.startswith("training")]
    assert [line.split("-")[0] for line in trained] == ["training smooth + hadamard",
                                                        "training hadamard + smooth"]


def test_the_recipe_klt_compares_what_presets_and_shared_out_codes_lose(small, capsys, monkeypatch):
    runs = vqgen.eval.RECIPES["klt"]
    assert [run.recent_tokens for run in runs] == [0] * 12 + [128] * 12
    assert [run.keys[0] for run in runs[:12]] == [
        "vecinfer-d4b8i8", "vecinfer-d4b8i8", "vecinfer-d4b8i8 centred", *(f"klt-{bits}bit-keys" for bits in (1, 1.5, 2, 3, 4)),
        *(f"klt-{bits}bit shared out" for bits in (1, 1.5, 2, 3))]
    assert [run.key_gain for run in runs[:3]] == [False, True, True]
    tried = [runs[14], runs[5], runs[9], runs[22]]
    monkeypatch.setitem(vqgen.eval.RECIPES, "klt", [run._replace(recent_tokens=min(run.recent_tokens, 8)) for run in tried])
    out, books = small / "klt.json", small / "klt-books"
    command = [str(small), "--text", str(small / "text"), "--recipe", "klt", "--calibration", "8", "--sequences", "1",
               "--length", "40", "--codebooks", str(books), "--device", DEVICE, "--json", str(out), "--no-kernels", "--errors",
               "--passkeys", "2"]
    assert vqgen.eval.main(command) == 0
    result, said = json.loads(out.read_text())["accuracy"], capsys.readouterr()
    centred, two, shared, windowed = result["rows"]
    assert [row["bits"] for row in (centred, two)] == [2, 2] and centred["bytes_per_token"] == 64
    assert 1 <= shared["bits"] <= 1.5 and shared["shares"]["bits"] == shared["bits"] and windowed["bits"] <= 2
    assert said.err.count("training") == 4 and len(list(books.iterdir())) == 4
    assert result["passkey"] <= 1 and "of the pass keys" in said.out and "rise of loss" in said.out
    for row in result["rows"]:
        assert row["loss"] is None and list(row["divergence"]) == list(row["passkey"]) == ["simulated"]
        found = row["divergence"]["simulated"]
        assert found["kl"] > 0 and 0 <= found["other"] <= 1 and len(found["by_position"]) == 4
        assert abs(row["simulated"] - result["unquantized"]) < 0.5 * result["unquantized"]
    assert windowed["divergence"]["simulated"]["by_position"][0]["kl"] < shared["divergence"]["simulated"]["kl"]
    assert vqgen.eval.main(command) == 0  # from the bundles
    again = json.loads(out.read_text())["accuracy"]["rows"]
    assert [row["simulated"] for row in again] == [row["simulated"] for row in result["rows"]]
    assert "shares" not in again[2] and "training" not in capsys.readouterr().err


def test_both_losses_are_compared_by_position(small, capsys):
    out = small / "divergence.json"
    assert vqgen.eval.main([
        str(small), "--text", str(small / "text"), "--format", "vecinfer-d4b8", "--calibration", "6", "--sequences", "2",
        "--length", "40", "--codebooks", str(small / "books"), "--device", DEVICE, "--json", str(out), "--divergence"]) == 0
    row, = json.loads(out.read_text())["accuracy"]["rows"]
    simulated, kernels = (row["divergence"][name] for name in ("simulated", "kernels"))
    assert abs(simulated["kl"] - kernels["kl"]) < 0.2 * kernels["kl"] and abs(simulated["other"] - kernels["other"]) < 0.15
    assert abs(row["loss"] - row["simulated"]) < 0.05 * row["simulated"]
    said = capsys.readouterr().out
    assert "KL divergence, kernels:" in said and "another token, simulated:" in said


def test_a_format_file_is_told_by_its_name_and_its_fields(small, capsys):
    form, books = small / "own" / "form.json", small / "file-books"
    form.parent.mkdir()
    command = [str(small), "--text", str(small / "text"), "--format", f"{form}:vecinfer-d4b8",
               "--calibration", "4", "--sequences", "1", "--length", "40", "--codebooks", str(books),
               "--device", DEVICE]
    trained = []
    for bits in (5, 5, 4):
        form.write_text(json.dumps({"vector_size": 4, "index_bits": bits}))
        assert vqgen.eval.main(command) == 0
        trained.append(capsys.readouterr().err.count("training form-"))
    assert trained == [1, 0, 1]
    names = [path.name.split("-") for path in books.iterdir()]
    assert len(names) == 2 and {len(name) for name in names} == {7}
    assert {(name[0], *name[2:5]) for name in names} == {("form", "vecinfer", "d4b8", "4")}


def test_a_kept_bundle_of_another_format_is_refused(small, capsys):
    books = small / "kept-books"
    command = [str(small), "--text", str(small / "text"), "--calibration", "4", "--sequences", "1", "--length", "40",
               "--codebooks", str(books), "--no-kernels", "--device", DEVICE, "--format"]
    assert vqgen.eval.main([*command, "vecinfer-d4b8"]) == 0 and vqgen.eval.main([*command, "vecinfer-d4b8"]) == 0
    (kept,) = books.iterdir()
    kept.rename(books / kept.name.replace("d4b8", "d8b8"))
    capsys.readouterr()
    assert vqgen.eval.main([*command, "vecinfer-d8b8"]) == 2
    assert "has keys of another format than vecinfer-d8b8; remove it" in capsys.readouterr().err


@pytest.mark.parametrize("options, words", [
    (["--text", "none", "--format", "vecinfer-d4b8"], "none"),
    (["--text", "TEXT", "--format", "vecinfer-d4b8", "--sequences", "500"], "are wanted"),
    (["--text", "TEXT", "--format", "nothing", "--length", "20"], "nothing"),
    (["--text", "TEXT", "--format", "vecinfer-d4b8", "--length", "20", "--calibration", "8", "--recent-tokens", "4:5"],
     "flush_block is 5")])
def test_what_cannot_be_evaluated_is_refused_in_a_line(small, capsys, options, words):
    options = [str(small / "text") if each == "TEXT" else each for each in options]
    assert vqgen.eval.main([str(small), "--device", DEVICE, *options]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("vqgen.eval: ") and words in said
