"""Quantized weights in files: blocks that an unfinished run keeps, bundles, and models whose linear layers are read from
these."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zlib

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

import vqgen
import vqgen.torch
from vqgen._bundles import bundle_tensors, in_rows, read_bundle, unpacked, write_items
from vqgen._paths import publish
from vqgen._weight_books import Books, Trained

_NAMES = ("codes", "codebooks", "stage_scales", "output_scales")


def trained_of(fields: dict, tensors: dict, columns: int, device) -> Trained:
    """What tensors of a bundle stand for, by their names behind the item's; columns: input features."""
    if fields["scope"] != "tensor" or fields["decoder"] not in ("table", "e8p") or not in_rows(fields):
        raise vqgen.Infeasible(f"weights of scope {fields['scope']}, decoder {fields['decoder']} and layout "
                               f"{fields.get('layout')} are not decoded by PyTorch; take scope tensor and plain rows "
                               "(vqgen repack --layout 1x1)")
    if fields.get("group_inputs", 0):
        raise vqgen.Infeasible(f"weights with scales of groups of inputs (group_inputs {fields['group_inputs']}) are not decoded by "
                               "PyTorch; take a format without")
    codes, books = tensors["weights.codes"], tensors["weights.codebooks"]
    stages, size = fields["num_codebooks"], fields["vector_size"]
    groups = columns // size
    codes = unpacked(codes[0, 0], fields["index_bits"], groups * stages).unflatten(1, (groups, stages)).to(device)
    scales = tensors.get("weights.stage_scales", torch.ones(1, stages, dtype=torch.float32))[0].to(device)
    rows = tensors.get("weights.output_scales", torch.ones(len(codes), dtype=torch.float32)).to(device)
    return Trained(Books(books[0].float().to(device), scales, fields, books.dtype), codes, rows)


def checksum(tensors) -> int:
    """CRC-32 of the bytes of tensors, in their order."""
    value = 0
    for each in tensors:
        value = zlib.crc32(each.detach().cpu().contiguous().view(torch.uint8).numpy(), value)
    return value


class Kept:
    """Finished blocks of a run in a folder, which a later run with the same arguments goes on from."""

    def __init__(self, folder: str, arguments: dict):
        self.folder = folder
        path = os.path.join(folder, "arguments.json")
        text = json.dumps(arguments, sort_keys=True)
        if not os.path.exists(path):
            try:
                os.makedirs(folder, exist_ok=True)
            except OSError as error:
                raise vqgen.BadInput(f"{folder}: finished blocks cannot be kept there: {error}; choose another place") from None
            publish(path, lambda held: _write(held, text))
            return
        try:
            with open(path, encoding="utf-8") as file:
                before = json.load(file)
        except (OSError, ValueError):
            before = {}
        others = [name for name in arguments if before.get(name) != json.loads(text)[name]]
        if others:
            raise vqgen.BadInput(f"{folder} holds blocks of an unfinished run with another {', '.join(others)}; give the same "
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
        made = {name: trained_of(fields, _under(tensors, name), block.get_submodule(name).in_features,
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

    def remove(self) -> None:
        shutil.rmtree(self.folder)


def _write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _under(tensors: dict, name: str) -> dict:
    return {key.removeprefix(f"{name}."): tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")}


def write_weights(out, kept: Kept, layers: list, prefixes: list[str], fields: dict, dtype: torch.dtype) -> None:
    """Writes the bundle of all finished blocks. layers: the model's; prefixes: their names in it."""
    items, tensors = [], {}
    for number, (layer, prefix) in enumerate(zip(layers, prefixes)):
        facts, own = kept.raw(number)
        tensors |= {f"{prefix}.{name}": tensor for name, tensor in own.items()}
        for name in facts["names"]:
            linear = layer.get_submodule(name)
            items.append({"name": f"{prefix}.{name}", "kind": "weights", "dtype": vqgen.torch.DTYPES[dtype], "weights": fields,
                          "out_features": linear.out_features, "in_features": linear.in_features, "input_rows": 0})
    write_items(out, items, tensors)


def _linears(model, path) -> list[tuple[dict, torch.nn.Linear]]:
    """The items of weights in a bundle, each with the model's layer of its name."""
    items = [item for item in read_bundle(path) if item["kind"] == "weights"]
    if not items:
        raise vqgen.BadInput(f"{path} has no weights; write some by vqgen.hf.quantize() or vqgen quantize --weights")
    modules, out = dict(model.named_modules()), []
    for item in items:
        linear = modules.get(item["name"])
        if not isinstance(linear, torch.nn.Linear):
            raise vqgen.BadInput(f"{path} has weights of '{item['name']}', which is no linear layer of this "
                                 f"{type(model).__name__}; take the bundle of this model")
        if (linear.out_features, linear.in_features) != (item["out_features"], item["in_features"]):
            raise vqgen.BadInput(f"{path}: '{item['name']}' is {item['out_features']}x{item['in_features']}, and the model's is "
                                 f"{linear.out_features}x{linear.in_features}; take the bundle of this model")
        out.append((item, linear))
    return out


@contextlib.contextmanager
def dense_weights(model, path):
    """Inside it, linear layers of the model have the weights that a bundle's codes stand for, in the model's dtype and by
    PyTorch alone. Yields the mean relative error of the weights. Refuses a bundle of other weights by their error."""
    before, errors = [], []
    try:
        for item, linear in _linears(model, path):
            tensors = bundle_tensors(path, item["name"], [f"weights.{name}" for name in _NAMES])
            now = trained_of(item["weights"], tensors, linear.in_features, linear.weight.device).weight()
            own = linear.weight.detach().float()
            errors.append(float((now - own).norm() / own.norm().clamp_min(1e-30)))
            if not errors[-1] < 1:
                raise vqgen.BadInput(f"{path}: '{item['name']}' differs from the model's weight by {errors[-1]:.2f} of its size; "
                                     "it is of another model: quantize this one")
            before.append((linear, linear.weight.data))
            linear.weight.data = now.to(linear.weight.dtype)
        yield sum(errors) / len(errors)
    finally:
        for linear, data in before:
            linear.weight.data = data


@contextlib.contextmanager
def kernel_weights(model, path):
    """Inside it, linear layers of the model are VQLinear with a bundle's weights."""
    found = _linears(model, path)
    try:
        yield use_weights(model, path)
    finally:
        for item, linear in found:
            model.set_submodule(item["name"], linear)


def use_weights(model, path):
    """Replaces linear layers of a model by VQLinear with a bundle's weights, and returns the model.

    path: a bundle that quantize() or `vqgen quantize --weights` wrote, whose items have the names of the model's modules.
    Biases stay; layers that the bundle lacks stay dense. Raises BadInput, and changes nothing, for a bundle of another
    model, and for a dtype that is not the bundle's.

    Example: use_weights(model, "weights").generate(**inputs)
    """
    found = _linears(model, path)
    for item, linear in found:
        if vqgen.torch.DTYPES.get(linear.weight.dtype) != item["dtype"]:
            raise vqgen.BadInput(f"{path} has weights of {item['dtype']}, and '{item['name']}' is {linear.weight.dtype}; load "
                                 "the model in the dtype that was quantized")
    made = [vqgen.torch.VQLinear.from_bundle(path, item["name"], device=linear.weight.device,
                                             bias=None if linear.bias is None else linear.bias.detach())
            for item, linear in found]
    for (item, _), module in zip(found, made):
        model.set_submodule(item["name"], module)
    return model
