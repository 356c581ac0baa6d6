"""Which model a bundle is of: digests of the model folder's config and of two tensors of its weights or their codes. The
bundle carries them, so that codebooks of another model are refused when an engine loads."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import shutil
import struct

import vqgen
from vqgen._paths import publish, require_place

BUNDLE = "vqgen.bundle"  # in the model's folder; engines load every *.safetensors there as weights
_KEY = "vqgen.model"     # of the bundle's metadata
# Fields of config.json that say nothing about keys and values, and that tools rewrite.
_VOLATILE = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"}
_ATTENTION = re.compile(r"(k_proj|qkv_proj|query_key_value|c_attn|Wqkv|wk|attn)\.")
# Files that engines load weights from, and those of training.
_OTHER, _NO_WEIGHTS = (".bin", ".pt", ".pth", ".gguf"), {"training_args", "optimizer", "scheduler", "scaler"}
_CHUNK = 1 << 24


def _header(path: pathlib.Path) -> tuple[dict, int]:
    """The header of a safetensors file, and where its data begins."""
    try:
        with open(path, "rb") as file:
            size, = struct.unpack("<Q", file.read(8))
            if size > 1 << 30:
                raise ValueError(f"a header of {size} bytes")
            return json.loads(file.read(size)), 8 + size
    except (OSError, ValueError, struct.error) as error:
        raise vqgen.BadInput(f"{path}: it cannot be read as safetensors: {error}; write it again") from None


def _weights(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """The file of each tensor of the model."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            return {name: folder / file for name, file in json.loads(index.read_text())["weight_map"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise vqgen.BadInput(f"{index}: it has no weight_map: {error}; download the model again") from None
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        other = sorted(file.name for file in folder.iterdir() if file.suffix in _OTHER and file.stem not in _NO_WEIGHTS)
        if other:
            raise vqgen.BadInput(f"{folder}: its weights are {other[0]}, no safetensors, by which a bundle is bound to its model; "
                                 "write them as safetensors: save_pretrained() of transformers")
    return {name: file for file in files for name in _header(file)[0] if name != "__metadata__"}


def _natural(name: str) -> list:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _digest(path: pathlib.Path, name: str) -> str:
    header, begin = _header(path)
    if name not in header:
        raise vqgen.BadInput(f"{path}: it has no tensor {name}, which the model's index promises; download the model again")
    about = header[name]
    digest = hashlib.sha256(json.dumps([about["dtype"], about["shape"]]).encode())
    first, end = about["data_offsets"]
    with open(path, "rb") as file:
        file.seek(begin + first)
        while first < end:
            part = file.read(min(_CHUNK, end - first))
            if not part:
                raise vqgen.BadInput(f"{path}: it ends within {name}; download the model again")
            digest.update(part)
            first += len(part)
    return digest.hexdigest()


def identity(folder: str | os.PathLike) -> dict:
    """The digests of a model folder: {"config": ..., "tensors": {NAME: ...}}, of the first and the last weight of
    attention. A folder without weights has no tensors. Raises BadInput for weights that are no safetensors."""
    folder = pathlib.Path(folder)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise vqgen.BadInput(f"{folder}: its config.json cannot be read: {error}; give the folder of a Hugging Face model") from None
    if not isinstance(config, dict):
        raise vqgen.BadInput(f"{folder}: its config.json is no object; give the folder of a Hugging Face model")
    text = json.dumps({name: value for name, value in config.items() if name not in _VOLATILE}, sort_keys=True)
    files = _weights(folder)
    names = sorted((name for name in files if name.endswith(("weight", ".codes"))), key=_natural)
    names = [name for name in names if _ATTENTION.search(name)] or names
    return {"config": hashlib.sha256(text.encode()).hexdigest(),
            "tensors": {name: _digest(files[name], name) for name in dict.fromkeys(names[:1] + names[-1:])}}


def bind(bundle: str | os.PathLike, folder: str | os.PathLike) -> pathlib.Path:
    """Write the bundle into the model folder as `vqgen.bundle`, with the folder's identity().

    bundle: of vqgen.hf.calibrate() or `vqgen quantize`, made from this model's keys and values. Returns the path. The
    file appears whole or not at all.
    """
    bundle, out = pathlib.Path(bundle), pathlib.Path(require_place("bind(folder)", pathlib.Path(folder) / BUNDLE))
    header, begin = _header(bundle)
    metadata = header.get("__metadata__", {})
    if "vqgen.bundle" not in metadata:
        raise vqgen.BadInput(f"{bundle}: it is no bundle; write one by vqgen.hf.calibrate()")
    header["__metadata__"] = {**metadata, _KEY: json.dumps(identity(folder))}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def write(held):
        with open(bundle, "rb") as source, open(held, "wb") as to:
            source.seek(begin)
            to.write(struct.pack("<Q", len(text)) + text)
            shutil.copyfileobj(source, to, _CHUNK)

    publish(out, write)
    return out


def require_same(bundle: str | os.PathLike, folder: str | os.PathLike) -> None:
    """Refuse a bundle that is bound to no model, or to another one than the folder's."""
    text = _header(pathlib.Path(bundle))[0].get("__metadata__", {}).get(_KEY)
    remedy = f"calibrate this model: python3 -m vqgen.vllm {folder} --text FILE"
    if text is None:
        raise vqgen.BadInput(f"{bundle}: it is bound to no model; bind it to the one that it is of: python3 -m vqgen.vllm "
                             f"{folder} --bundle {bundle}")
    try:
        wanted = json.loads(text)
        tensors = dict(wanted["tensors"])
    except (ValueError, KeyError, TypeError) as error:
        raise vqgen.BadInput(f"{bundle}: its {_KEY} cannot be read: {error}; {remedy}") from None
    found = identity(folder)
    if wanted["config"] != found["config"]:
        raise vqgen.BadInput(f"{bundle}: it is of a model with another config.json than {folder}; {remedy}")
    for name in sorted(tensors.keys() | found["tensors"].keys()):
        if tensors.get(name) != found["tensors"].get(name):
            what = ("is in the bundle's model alone" if name not in found["tensors"] else
                    "is not in the bundle's model" if name not in tensors else "has other numbers there")
            raise vqgen.BadInput(f"{bundle}: it is of another model than {folder}: {name} {what}; {remedy}")
