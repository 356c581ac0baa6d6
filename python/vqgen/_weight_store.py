"""A model folder that grows decoder block by decoder block, and goes on after a kill:

    OUT.partial/arguments.json           what the blocks' bytes depend on
    OUT.partial/layer-NNNNN.safetensors  a finished block
    OUT.partial/model/                   becomes OUT by one rename when all is there
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import zlib

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

import vqgen
import vqgen.torch
from vqgen import _folders
from vqgen._paths import publish
from vqgen._weight_books import trained_of


def checksum(tensors) -> int:
    """CRC-32 of the bytes of tensors, in their order."""
    value = 0
    for each in tensors:
        value = zlib.crc32(each.detach().cpu().contiguous().view(torch.uint8).numpy(), value)
    return value


def quantization_of(model, fields: dict, names: list[str]) -> dict:
    """The quantization_config of a model whose linear layers `names` are quantized to the format `fields`."""
    quantized = set(names)
    dense = [name.removesuffix(".weight") for name, tensor in model.named_parameters(remove_duplicate=False)
             if name.endswith(".weight") and tensor.dim() == 2 and name.removesuffix(".weight") not in quantized]
    sizes = [(name, model.get_submodule(name)) for name in names]
    return {"quant_method": _folders.METHOD, "version": _folders.VERSION, "dtype": vqgen.torch.DTYPES[model.dtype],
            "format": fields, "overrides": [], "modules_to_not_convert": dense,
            "weight_shapes": [{"modules": name, "out_features": linear.out_features, "in_features": linear.in_features}
                              for name, linear in sizes]}


def drop_finished(out: str) -> None:
    """Removes what a run has left that was killed just after OUT got its name."""
    folder = f"{out}.partial"
    there = [os.path.exists(os.path.join(folder, name)) for name in ("arguments.json", "model")]
    if os.path.isdir(out) and there == [True, False]:
        shutil.rmtree(folder)


def require_space(out: str, model, quantization: dict) -> None:
    """Refuses a disk without room for the blocks and the folder that is made of them."""
    parent, config, width = os.path.dirname(out) or ".", _folders.Quantization(quantization), {"F16": 2, "BF16": 2}
    sizes = {each["modules"]: (each["out_features"], each["in_features"]) for each in quantization["weight_shapes"]}
    quantized = sum(math.prod(shape) * width.get(kind, 4) for name, size in sizes.items()
                    for kind, shape in config.tensors_of(name, *size).values())
    dense = sum(tensor.numel() * tensor.element_size() for name, tensor in model.named_parameters()
                if name.removesuffix(".weight") not in sizes)
    kept = sum(entry.stat().st_size for entry in os.scandir(f"{out}.partial")) if os.path.isdir(f"{out}.partial") else 0
    needed, free = dense + 2 * quantized - kept, shutil.disk_usage(parent).free
    if needed > free:
        raise vqgen.BadInput(f"quantize(out): {out} needs {needed} bytes and {parent} has {free} free; free some, or choose another "
                             "place")


def require_names(model, names: list[str]) -> None:
    """Refuses a model whose files name a quantized layer otherwise than the model does: it would not be found there."""
    from transformers.core_model_loading import revert_weight_conversion
    own = {f"{name}.codes": torch.empty(1, dtype=torch.int32, device="meta") for name in names}
    for name in own.keys() - revert_weight_conversion(model, dict(own)).keys():
        raise vqgen.Infeasible(f"{type(model).__name__} saves '{name}' under another name, where a quantized layer is not read; "
                               "quantize its folder by vqgen quantize")


class Kept:
    """The finished blocks of a run, which a later run with the same arguments goes on from. A context, in which no other
    run may have the folder. Raises BadInput for a folder that is there and is not one of such a run."""

    def __init__(self, out: str, arguments: dict):
        self.out, self.folder = out, f"{out}.partial"
        self._text, self._lock = json.dumps(arguments, sort_keys=True), None

    def __enter__(self):
        try:
            os.makedirs(self.folder, exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise vqgen.BadInput(f"{self.folder}: finished blocks cannot be kept there: {error}; choose another out") from None
        try:
            self._take()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, *_):
        os.close(self._lock)

    def _take(self):
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise vqgen.BadInput(f"{self.folder}: another quantize() is writing it; wait for it, or choose another out") from None
        path = os.path.join(self.folder, "arguments.json")
        if not os.path.exists(path):
            if os.listdir(self.folder):
                raise vqgen.BadInput(f"{self.folder}: is there without an arguments.json, so no quantize() made it; remove it, or "
                                     "choose another out")
            publish(path, lambda held: _write(held, self._text))
            return
        try:
            with open(path, encoding="utf-8") as file:
                before = json.load(file)
        except (OSError, ValueError) as error:
            raise vqgen.BadInput(f"{path}: it cannot be read: {error}; remove {self.folder} to begin again") from None
        arguments = json.loads(self._text)
        others = [name for name in arguments if before.get(name) != arguments[name]]
        if others:
            raise vqgen.BadInput(f"{self.folder} holds blocks of an unfinished run with another {', '.join(others)}; give the same "
                                 "arguments, or remove the folder to begin again")

    def path(self, number: int) -> str:
        return os.path.join(self.folder, f"layer-{number:05}.safetensors")

    def write(self, number: int, layer, made: dict, figures: dict) -> None:
        tensors = {f"{name}.{key}": tensor for name, each in made.items() for key, tensor in each.tensors().items()}
        metadata = {"block": json.dumps({"model": checksum(layer.parameters()), "figures": figures, "names": list(made)})}
        publish(self.path(number), lambda held: save_file(tensors, held, metadata))

    def read(self, number: int, layer, block, fields: dict) -> tuple[dict, dict] | None:
        """Trained by name, and the figures of write(); None where the block is not finished."""
        if not os.path.exists(self.path(number)):
            return None
        facts, tensors = self.raw(number)
        if facts["model"] != checksum(layer.parameters()):
            raise vqgen.BadInput(f"{self.path(number)} is of a block with other weights; give the same model, or remove "
                                 f"{self.folder} to begin again")
        made = {name: trained_of(fields, under(tensors, name), block.get_submodule(name).in_features,
                                 block.get_submodule(name).weight.device) for name in facts["names"]}
        return made, facts["figures"]

    def raw(self, number: int) -> tuple[dict, dict]:
        """The facts and tensors of a finished block."""
        try:
            with safe_open(self.path(number), "pt") as file:
                return json.loads(file.metadata()["block"]), {name: file.get_tensor(name) for name in file.keys()}
        except (OSError, SafetensorError, TypeError, KeyError, ValueError) as error:
            raise vqgen.BadInput(f"{self.path(number)} cannot be read: {error}; remove it, and its block is quantized "
                                 "again") from None

    def publish(self, model, prefixes: list[str], quantization: dict) -> None:
        """Writes the model folder from all finished blocks. prefixes: the names of the blocks in the model."""
        state = model.state_dict()
        for number, prefix in enumerate(prefixes):
            facts, tensors = self.raw(number)
            for name in facts["names"]:
                del state[f"{prefix}.{name}.weight"]
            state |= {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}
        made = os.path.join(self.folder, "model")
        try:
            shutil.rmtree(made, ignore_errors=True)
            model.save_pretrained(made, state_dict=state)
            config = os.path.join(made, "config.json")
            with open(config, encoding="utf-8") as file:
                fields = json.load(file)
            publish(config, lambda held: _write(held, json.dumps({**fields, "quantization_config": quantization}, indent=2) + "\n"))
            _require_whole(made)
            os.rename(made, self.out)
        except (OSError, SafetensorError) as error:
            raise vqgen.BadInput(f"{self.out}: it cannot be written: {error}; make room, and call again: finished blocks are kept "
                                 f"in {self.folder}") from error
        shutil.rmtree(self.folder)


def _require_whole(folder):
    """Raises unless all quantized layers are as the config says, and the bytes are on the disk."""
    quantization, tensors = _folders.read_folder(folder)
    for module in tensors.modules():
        tensors.require(module, quantization.tensors_of(module, *quantization.shape_of(module)))
    for name in [*os.listdir(folder), "."]:
        place = os.open(os.path.join(folder, name), os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)


def _write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def under(tensors: dict, name: str) -> dict:
    """The tensors NAME.KEY, by KEY."""
    return {key.removeprefix(f"{name}."): tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")}
