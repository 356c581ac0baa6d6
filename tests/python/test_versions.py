"""Versions of the formats of files: a newer one is refused, a missing one is the first."""

import json

import pytest

import vqgen
from vqgen import _folders
from vqgen._versions import format_version

NEWER = "is format version 2, and this vqgen knows up to 1; upgrade vqgen"
CONFIG = {"shape": {"m": 1, "out_features": 64, "in_features": 64}, "weights": {"vector_size": 4, "index_bits": 4}}
FOLDER = {"quant_method": "vqgen", "version": 1, "dtype": "f16", "format": CONFIG["weights"], "weight_shapes": [],
          "modules_to_not_convert": []}


def refused(call, *words):
    with pytest.raises(vqgen.BadInput) as raised:
        call()
    text = str(raised.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text


def test_a_version_is_a_whole_number_that_is_known():
    assert format_version({}, "schema", 3, "f") == 1
    assert format_version({"schema": 3}, "schema", 3, "f") == 3
    refused(lambda: format_version({"schema": 4}, "schema", 3, "f"), "f: schema is format version 4", "knows up to 3", "upgrade")
    for each in (0, -1, 1.0, "1", None, True, [1]):
        refused(lambda: format_version({"schema": each}, "schema", 3, "f"), f"f: schema is {each!r}", "whole number from 1")


def test_a_newer_config_is_refused_before_its_fields(host):
    assert host.linear({**CONFIG, "version": 1}).description == host.linear(CONFIG).description
    refused(lambda: host.linear({**CONFIG, "version": 2, "future": 3}), f"/version: {NEWER}")


def test_model_folders():
    plain = {key: each for key, each in FOLDER.items() if key != "version"}
    assert _folders.Quantization(plain).format == _folders.Quantization(FOLDER).format
    refused(lambda: _folders.Quantization({**FOLDER, "version": 2, "future": 3}, "m/config.json"),
            f"m/config.json: quantization_config: version {NEWER}")


@pytest.mark.parametrize("text, words", [
    (json.dumps({"schema": 2, "future": []}), (f"schema {NEWER}",)),
    (json.dumps({"schema": "1", "items": []}), ("schema is '1'", "quantize again")),
    (json.dumps({"schema": 1}), ("no list 'items'", "quantize again")),
    ("[1]", ("no JSON object",)),
    ("{", ("is no JSON",))])
def test_bundles(tmp_path, text, words):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    safetensors_torch = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    from vqgen import _bundles
    file = tmp_path / "b.safetensors"
    safetensors_torch.save_file({"x": torch.zeros(1)}, file, {"vqgen.bundle": json.dumps({"items": []})})
    assert _bundles.read_bundle(file) == []
    safetensors_torch.save_file({"x": torch.zeros(1)}, file, {"vqgen.bundle": text})
    refused(lambda: _bundles.read_bundle(file), f"{file}: vqgen.bundle", *words)
