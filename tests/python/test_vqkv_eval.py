"""RSimVQ of a model: bundles of its codebooks, the recipes that compare it, and keys in two parts."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

import reference
import vqgen
import vqgen.eval
import vqgen.hf
import vqgen.torch as vt
from vqgen import _calibration, _recipes, _reconstruction, simulation

SOURCE = pathlib.Path(os.environ["VQGEN_SOURCE_DIR"])
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDE = {"vector_size": 32, "index_bits": 5, "num_codebooks": 3, "scope": "tensor"}
QUICK = {"steps": 20, "batch": 128}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Use one thread: small products are slower on several, far more so beside other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return a model with random weights whose tokens are bytes, and a text."""
    sys.path.insert(0, str(SOURCE / "scripts"))
    import tinycode_model
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(4)
    config = transformers.Qwen2Config(
        vocab_size=256, hidden_size=64, intermediate_size=64, num_hidden_layers=2, head_dim=64,
        num_attention_heads=2, num_key_value_heads=2, initializer_range=0.2, pad_token_id=0,
        eos_token_id=None, bos_token_id=None)
    transformers.Qwen2ForCausalLM(config).half().save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tinycode_model.tokenizer()))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (folder / "text").write_text("Eight and a half: \u00fc\u20ac.\n" * 100)
    return folder


@pytest.fixture(scope="module")
def model(small):
    return transformers.AutoModelForCausalLM.from_pretrained(small, dtype=torch.float16).to(DEVICE).eval()


BATCHES = [torch.arange(120).view(2, 60), torch.arange(120, 200)[None]]


@pytest.mark.parametrize("keys", [
    WIDE, {"vector_size": 8, "index_bits": 5, "scope": "head", "smooth": True, "hadamard": True},
    {"vector_size": 8, "index_bits": 4, "scope": "channel_group", "group_channels": 16, "num_codebooks": 2,
     "stage_scales": True}])
def test_a_bundle_of_rsimvq_is_one_as_any(model, tmp_path, keys):
    vqgen.hf.calibrate(model, BATCHES, tmp_path / "bundle", keys=keys, values=WIDE, rsimvq=QUICK)
    states = list(_calibration.states_of(model, BATCHES, "cpu"))
    layers = vqgen.hf.layers_of(tmp_path / "bundle")
    for number, ((item, tensors), parts) in enumerate(zip(layers, states)):
        for name, part in zip(("keys", "values"), parts):
            form = item[name]
            stored = vt.bundle_tensors(tmp_path / "bundle", f"layer{number}", [f"{name}.codes"])[f"{name}.codes"]
            stages, size = form["num_codebooks"], form["vector_size"]
            codes = reference.unpack(stored.numpy(), 64 // size * stages, form["index_bits"])
            codes = codes.reshape(2, 200, -1, stages)
            books = tensors[f"{name}.codebooks"].double().numpy()
            if f"{name}.stage_scales" in tensors:
                books = books * tensors[f"{name}.stage_scales"].double().numpy()[..., None, None]
            if name == "keys":
                books = books * tensors["keys.gain"].double().numpy()[:, None, None, None]
            units = np.arange(len(books)).reshape((2, -1) if len(books) > 1 else (1, 1))
            units = np.broadcast_to(np.repeat(units, 64 // size // units.shape[1], 1), (2, 64 // size))
            held = sum(books[units[:, None], stage, codes[..., stage]] for stage in range(stages))
            held = torch.from_numpy(held.reshape(2, 200, 64)).float()
            held = simulation.rotated(held) if form["hadamard"] else held
            if f"{name}.smooth" in tensors:
                held = held * tensors[f"{name}.smooth"][:, None]
            expected = simulation.held_of(part[None], item, tensors, name)[0]
            wrong = (held - expected).abs() > 1e-3 * expected.abs().max()
            assert wrong.float().mean() < 0.01  # near ties
            if name == "values":  # keys of so few bits are far longer by their gain
                assert (held - part).norm() < 0.9 * part.norm()
    done = subprocess.run([os.environ["VQGEN_TOOL"], "count-accesses", "--data", tmp_path / "bundle", "--out",
                           tmp_path / "hot.json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_calibrated_leaves_no_bundle(model, tmp_path):
    for forms, words in [
            (dict(keys="quip-2", values=WIDE), "decoder e8p"),
            (dict(keys=WIDE, values="vecinfer-d4b8i8"), "entries of int8"),
            (dict(keys=WIDE, values={**WIDE, "layout": {"rows": 4, "words": 1}}), "without layout"),
            (dict(keys={**WIDE, "vector_size": 48}, values=WIDE), "48 of 64"),
            (dict(keys={"parts": [{**WIDE, "channels": list(range(first, first + 32))} for first in (0, 32)]},
                  values=WIDE), "keys in parts are calibrated by k-means"),
            (dict(keys=WIDE, values={**WIDE, "index_bits": 12}), "cannot train 4096 entries")]:
        with pytest.raises(vqgen.Error, match=words):
            vqgen.hf.calibrate(model, BATCHES, tmp_path / "bundle", **forms, rsimvq=QUICK)
    with pytest.raises(vqgen.Infeasible, match="float32"):
        vqgen.hf.calibrate(model.float(), BATCHES, tmp_path / "bundle", keys=WIDE, values=WIDE, rsimvq=QUICK)
    model.half()
    assert not (tmp_path / "bundle").exists()


def test_keys_are_split_where_their_errors_part(draw):
    errors = np.where(np.arange(64) < 24, 5.0, 0.2) * np.exp(0.1 * draw.standard_normal(64))
    low = _reconstruction.rope_split([*errors, *errors])
    assert low == [*range(24, 64), *range(88, 128)]
    with pytest.raises(vqgen.Infeasible, match="no two parts"):
        _reconstruction.rope_split([1.0] * 20)


def test_keys_in_parts_are_their_parts(model, tmp_path):
    vqgen.hf.calibrate(model, BATCHES, tmp_path / "bundle", keys=WIDE, values=WIDE, rsimvq=QUICK)
    given = vqgen.hf.layers_of(tmp_path / "bundle")
    states = list(_calibration.states_of(model, BATCHES, DEVICE))
    low = [*range(16, 32), *range(48, 64)]
    high = [*range(16), *range(32, 48)]
    layers = _calibration.layers_in_parts(given, states, [
        {**WIDE, "channels": low}, {**WIDE, "channels": high, "num_codebooks": 2}])
    whole = _reconstruction.reconstruction(layers, states)
    lost, all_of = 0, 0
    for (item, tensors), (keys, _) in zip(layers, states):
        held = simulation.held_of(keys[None], item, tensors, "keys")[0].cpu().double().numpy()
        given = keys.cpu().double().numpy()
        books = tensors["keys.codebooks"].cpu().double().numpy()
        assert books.shape == (5 * 32 * 32,)
        gains = tensors["keys.gain"].cpu().double().numpy()
        for channels, own, gain in ((low, books[:3 * 32 * 32], gains[0]), (high, books[3 * 32 * 32:], gains[1])):
            left = given[..., channels].reshape(-1, 32)
            for entries in own.reshape(-1, 32, 32):
                left = left - entries[((left[:, None] - entries)**2).sum(-1).argmin(1)]
            expected = gain * (given[..., channels] - left.reshape(2, -1, 32))
            wrong = np.abs(held[..., channels] - expected) > 1e-3 * np.abs(expected).max()
            assert wrong.mean() < 0.01
        lost, all_of = lost + ((held - given)**2).sum((0, 1)), all_of + (given**2).sum()
    assert np.isclose(whole["keys"]["relative"], (lost.sum() / all_of)**0.5)
    np.testing.assert_allclose(whole["keys"]["by_channel"], lost / (2 * 2 * 200))


def test_errors_of_keys_have_no_mean(model, tmp_path):
    vqgen.hf.calibrate(model, BATCHES, tmp_path / "bundle", keys=WIDE, values=WIDE)
    layers = vqgen.hf.layers_of(tmp_path / "bundle")
    states = list(_calibration.states_of(model, BATCHES, DEVICE))
    errors = _reconstruction.reconstruction(layers, states)
    lost = whole = everything = 0
    for (item, tensors), (keys, _) in zip(layers, states):
        held = simulation.held_of(keys[None], item, tensors, "keys")[0].cpu().double().numpy()
        keys = keys.cpu().double().numpy()
        wrong, own = held - keys, keys - keys.mean(1, keepdims=True)
        lost, whole = lost + ((wrong - wrong.mean(1, keepdims=True))**2).sum(), whole + (own**2).sum()
        everything += (keys**2).sum()
    assert np.isclose(errors["keys"]["centered"], (lost / whole)**0.5)
    assert np.isclose(errors["keys"]["common_share"], 1 - whole / everything)
    assert "centered" not in errors["values"]


def test_keys_that_are_mostly_alike_are_warned_of(draw):
    keys = torch.tensor(draw.standard_normal((2, 200, 64)))
    biased = keys + 30 * (torch.arange(64) == 3)
    assert _reconstruction.common_share(keys) < 0.05 and _reconstruction.common_share(biased) > 0.9
    with pytest.warns(UserWarning, match="keys of 1 layers, most of all layer 1, .* common to all tokens.* center or klt"):
        _reconstruction.warn_of_common([0.2, 0.93, 0.75], None)


def test_the_recipe_vqkv_has_the_windows_of_the_paper():
    runs = list(_recipes.runs_of("vqkv", 32768))
    assert [(run.keys[1]["num_codebooks"] * 8 / 64, run.parts is not None, run.rsimvq) for run in runs[::2]] == [
        (bits, parts, rsimvq) for bits in (2, 2.75, 4) for parts in (False, True) for rsimvq in (False, True)]
    assert {(run.recent_tokens, run.flush_block, run.sinks) for run in runs[::2]} == {(0, 1, 0)}
    assert {(run.recent_tokens, run.flush_block, run.sinks) for run in runs[1::2]} == {(2047, 1024, 4)}
    assert [run._replace(recent_tokens=0, flush_block=1, sinks=0) for run in runs[1::2]] == runs[::2]
    assert next(run for run in _recipes.runs_of("vqkv", 2048) if run.recent_tokens).flush_block == 256
    assert next(run for run in _recipes.runs_of("vqkv", 5) if run.recent_tokens).recent_tokens == 1
    assert next(run for run in _recipes.runs_of("vqkv", 2048, 100) if run.recent_tokens)[2:5] == (199, 4, 100)
    assert list(_recipes.runs_of("raw", 5)) == vqgen.eval.RECIPES["raw"]


def test_recipes_of_vqkv(small, capsys, monkeypatch):
    wide = ("wide", WIDE)
    monkeypatch.setitem(vqgen.eval.RECIPES, "vqkv", [
        _recipes.Run(wide, wide, recent_tokens, rsimvq=rsimvq, parts=parts)
        for parts in (None, 1) for rsimvq in (False, True) for recent_tokens in (0, _recipes.VQKV)])
    whole = "whole", {**WIDE, "vector_size": 64}
    monkeypatch.setitem(vqgen.eval.RECIPES, "vqkv-parts", [_recipes.Run(whole, wide, parts=1)])
    out = small / "vqkv.json"
    command = [str(small), "--text", str(small / "text"), "--recipe", "vqkv", "vqkv-parts", "--calibration",
               "6", "--sequences", "2", "--length", "40", "--codebooks", str(small / "books"), "--device", DEVICE,
               "--json", str(out), "--errors", "--rsimvq", "steps=20", "batch=64", "learning_rate=0.005"]
    assert vqgen.eval.main(command) == 0
    said = capsys.readouterr()
    rows = json.loads(out.read_text())["accuracy"]["rows"]
    assert [row["keys"].endswith(" rsimvq") for row in rows] == [False, False, True, True] * 2 + [False]
    assert [(row["recent_tokens"], row["flush_block"], row["sinks"]) for row in rows] == [(0, 1, 0), (9, 5, 4)] * 4 + [
        (0, 1, 0)]
    for row in rows:
        assert abs(row["loss"] - row["simulated"]) < 0.02 * row["simulated"]
        assert row["bytes_per_token"] == row["bits"] * 2 * 2 * 2 * 64 / 8
    plain, plain_window, rsimvq, _, parts, parts_window, parts_rsimvq, _, of_whole = rows
    assert rsimvq["keys"] == "wide rsimvq" and "wide rsimvq" in said.out and " 9:5 " in said.out
    assert plain["bits"] == 32 / 64  # a word for 30 bits of codes
    assert parts["keys"].count("+") == 1 and parts["bits"] == of_whole["bits"] == (64 / 64 + 32 / 64) / 2
    for operand in ("keys", "values"):
        errors = [row["errors"]["calibration"][operand]["relative"] for row in (plain, rsimvq, parts, parts_rsimvq)]
        assert errors[1] < errors[0] and errors[3] < errors[2]
        assert plain_window["errors"] == plain["errors"]
    for here, there in ((plain, plain_window), (parts, parts_window)):
        assert here["simulated"] != there["simulated"]
    assert "relative error, evaluated text:" in said.out and "keys in parts of" in said.err
    # Each is trained once: six that are evaluated, and three without gain, from which RSimVQ starts and by which
    # channels are split.
    trained = [line for line in said.err.splitlines() if line.startswith("training")]
    assert len(set(trained)) == len(trained) == 9
    # The bundles exist already; without kernels their losses are equal.
    assert vqgen.eval.main([*command, "--no-kernels"]) == 0
    again = json.loads(out.read_text())["accuracy"]["rows"]
    said = capsys.readouterr().err.splitlines()
    assert all("in parts" in line for line in said if line.startswith("training"))
    assert [row["loss"] for row in again] == [None] * 9
    assert again[2]["simulated"] == rsimvq["simulated"]
    # For another text there are other codebooks, with other names.
    assert vqgen.eval.main([*command, "--no-kernels", "--judges", "3"]) == 0
    said = capsys.readouterr().err
    assert said.count("-judged-3-") == 2 and "training wide-wide-6" in said
    with pytest.raises(SystemExit):
        vqgen.eval.main([*command, "--rsimvq", "step=20"])
    assert "'step' is no setting" in capsys.readouterr().err


def test_rsimvq_starts_from_a_bundle(model, tmp_path):
    """Training starts from a bundle and judges by another text; without steps and gain the codebooks are
    the bundle's."""
    scaled = {**WIDE, "stage_scales": True, "scope": "head"}
    vqgen.hf.calibrate(model, BATCHES, tmp_path / "start", keys=scaled, values=WIDE, key_gain=False)
    start = vqgen.hf.layers_of(tmp_path / "start")
    for steps, other in ((0, None), (20, [torch.arange(60, 180)[None]])):
        vqgen.hf.calibrate(model, BATCHES, tmp_path / "bundle", keys=scaled, values=WIDE, start=start,
                           key_gain=False, rsimvq={**QUICK, "steps": steps}, judged_by=other)
        for (_, ours), (_, given) in zip(vqgen.hf.layers_of(tmp_path / "bundle"), start):
            same = [torch.equal(ours[name], given[name]) for name in given if name != "keys.smooth"]
            assert all(same) == (steps == 0), same
    with pytest.raises(vqgen.BadInput, match="start has values of another format"):
        vqgen.hf.calibrate(model, BATCHES, tmp_path / "bad", keys=scaled, values={**WIDE, "index_bits": 4},
                           start=start, rsimvq=QUICK)
    with pytest.raises(vqgen.BadInput, match="start has 1 layers"):
        vqgen.hf.calibrate(model, BATCHES, tmp_path / "bad", keys=scaled, values=WIDE, start=start[:1], rsimvq=QUICK)
    with pytest.raises(vqgen.BadInput, match="start and judged_by are of rsimvq"):
        vqgen.hf.calibrate(model, BATCHES, tmp_path / "bad", keys=scaled, values=WIDE, start=start)
    assert not (tmp_path / "bad").exists()
