"""Runs of vqgen.hf.quantize() that are killed, meet what is there, or have no room."""

import os
import pathlib
import shutil

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import vqgen
import vqgen.hf
from vqgen import _weights
from weight_models import FAST, IDS, content, folder, model, small  # noqa: F401


def killed(model, out, **more):
    def stop(number, *_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vqgen.hf.quantize(model, IDS.split(2), out, progress=stop, **{**FAST, **more})
    return pathlib.Path(f"{out}.partial")


def test_a_killed_run_goes_on_and_writes_the_same_bytes(model, folder, tmp_path):
    out = tmp_path / "weights"
    kept = killed(model, out)
    assert not out.exists() and sorted(path.name for path in kept.iterdir()) == ["arguments.json", "layer-00000.safetensors"]
    with pytest.raises(vqgen.BadInput, match="it is being written, or its run was killed: start the same run again"):
        vqgen.hf.load(out)
    for other, name in (({"seed": 2}, "seed"), ({"beam": 3}, "effort"), ({"format": "aqlm-1x8"}, "format"),
                        ({"exclude": "*.down_proj"}, "exclude")):
        with pytest.raises(vqgen.BadInput, match=f"unfinished run with another {name}; give the same arguments"):
            vqgen.hf.quantize(model, IDS.split(2), out, **{**FAST, **other})
    with pytest.raises(vqgen.BadInput, match="another tokens"):
        vqgen.hf.quantize(model, IDS[:4].split(2), out, **FAST)
    other = small()
    other.model.layers[0].input_layernorm.weight.data[0] += 1
    with pytest.raises(vqgen.BadInput, match="of a block with other weights; give the same model"):
        vqgen.hf.quantize(other, IDS.split(2), out, **FAST)
    other = small()
    other.model.embed_tokens.weight.data[0] += 1
    with pytest.raises(vqgen.BadInput, match="another embeddings"):
        vqgen.hf.quantize(other, IDS.split(2), out, **FAST)
    begun = []
    before = _weights.quantized_block
    try:
        _weights.quantized_block = lambda *args, **named: begun.append(named["where"]) or before(*args, **named)
        vqgen.hf.quantize(model, IDS.split(2), out, **FAST)
    finally:
        _weights.quantized_block = before
    assert begun == ["model.layers.1"] and not kept.exists()
    assert content(out) == content(folder)


def test_a_place_that_is_taken_is_refused_and_left_alone(model, folder, tmp_path):
    def refused(out, words):
        with pytest.raises(vqgen.BadInput, match=words):
            vqgen.hf.quantize(model, IDS.split(2), out, **FAST)

    before = content(folder)
    refused(folder, "is there already; remove it, or choose another name")
    refused(tmp_path / "none" / "weights", "is in a folder that is not there; make .*none")
    other = tmp_path / "other.partial"
    other.mkdir()
    (other / "notes").write_text("mine")
    refused(tmp_path / "other", "is there without an arguments.json, so no quantize.. made it")
    assert (other / "notes").read_text() == "mine"
    kept = killed(model, tmp_path / "own")
    import fcntl
    place = os.open(kept, os.O_RDONLY)
    fcntl.flock(place, fcntl.LOCK_EX)
    refused(tmp_path / "own", "another quantize.. is writing it; wait for it")
    os.close(place)
    (kept / "layer-00000.safetensors").write_bytes(b"cut")
    refused(tmp_path / "own", "layer-00000.safetensors cannot be read: .*; remove it, and its block is quantized again")
    (kept / "arguments.json").write_text("{")
    refused(tmp_path / "own", "arguments.json: it cannot be read: .*; remove .*own.partial to begin again")
    # A run that was killed between the folder's rename and the end.
    (kept / "arguments.json").write_text("{}")
    shutil.copytree(folder, tmp_path / "own")
    refused(tmp_path / "own", "is there already")
    assert not kept.exists() and content(folder) == before


def test_a_full_disk_is_refused(model, folder, tmp_path, monkeypatch):
    out = tmp_path / "weights"
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 30, 1 << 30, 1000))
        with pytest.raises(vqgen.BadInput, match=r"needs \d+ bytes and .* has 1000 free; free some, or choose another place"):
            vqgen.hf.quantize(model, IDS.split(2), out, **FAST)
    assert not list(tmp_path.iterdir())
    with monkeypatch.context() as patch:  # once all is trained
        patch.setattr(type(model), "save_pretrained", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(vqgen.BadInput, match="No space left; make room, and call again: finished blocks are kept"):
            vqgen.hf.quantize(model, IDS.split(2), out, **FAST)
    assert not out.exists()
    vqgen.hf.quantize(model, IDS.split(2), out, **FAST)
    assert content(out) == content(folder)
