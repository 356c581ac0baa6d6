"""Losses of models with quantized linear layers, for vqgen.eval."""

from __future__ import annotations

import contextlib
import os

import torch

import vqgen
from vqgen import _folders, _losses
from vqgen._losses import AT_ONCE
from vqgen._models import in_float32
from vqgen._quantizer import load
from vqgen._weight_books import decodes, trained_of
from vqgen._weights import quantize


def linears_in(model, folder) -> dict:
    """The linear layers of a dense model that a model folder has quantized, by name: (module, format). Refuses the folder
    of another model."""
    quantization, tensors = _folders.read_folder(folder)
    modules, found = dict(model.named_modules()), {}
    for name in sorted(tensors.modules()):
        linear, told = modules.get(name), quantization.shape_of(name)
        if quantization.rotation_of(name) is not None:
            raise vqgen.Infeasible(f"{folder}: the weights of '{name}' are rotated, and are not compared with a model's; load() the "
                                   "folder and give it as the model")
        if not isinstance(linear, torch.nn.Linear):
            raise vqgen.BadInput(f"{folder} has weights of '{name}', which is no linear layer of this {type(model).__name__}; take "
                                 "the folder of this model")
        if told != (linear.out_features, linear.in_features):
            raise vqgen.BadInput(f"{folder}: weight_shapes say {told} of '{name}', and the model's is {linear.out_features} x "
                                 f"{linear.in_features}; take the folder of this model")
        tensors.require(name, quantization.tensors_of(name, *told))
        found[name] = linear, quantization.format_of(name)
    return found


def bits_of(linears: dict) -> float:
    """The bits that codes take for a weight, in the mean."""
    sizes = [(linear.weight.numel(), form) for linear, form in linears.values()]
    bits = sum(count * form["num_codebooks"] * form["index_bits"] / form["vector_size"] for count, form in sizes)
    return bits / sum(count for count, _ in sizes)


@contextlib.contextmanager
def dense_weights(model, folder):
    """Inside it, linear layers of the model have the weights that a folder's codes stand for, in the model's dtype and by
    PyTorch alone. Yields the mean relative error of the weights. Refuses a folder of other weights by their error."""
    before, errors, tensors = [], [], _folders.read_folder(folder)[1]
    try:
        for name, (linear, form) in linears_in(model, folder).items():
            if not decodes(form):
                raise vqgen.Infeasible(f"{folder}: '{name}' has scope {form['scope']}, decoder {form['decoder']} and layout "
                                       f"{form.get('layout')}, which PyTorch does not decode; leave --no-kernels out")
            now = trained_of(form, tensors.read(name), linear.in_features, linear.weight.device).weight()
            own = linear.weight.detach().float()
            errors.append(float((now - own).norm() / own.norm().clamp_min(1e-30)))
            if not errors[-1] < 1:
                raise vqgen.BadInput(f"{folder}: '{name}' differs from the model's weight by {errors[-1]:.2f} of its size; it is "
                                     "of another model: quantize this one")
            before.append((linear, linear.weight.data))
            linear.weight.data = now.to(linear.weight.dtype)
        yield sum(errors) / len(errors)
    finally:
        for linear, data in before:
            linear.weight.data = data


def losses(model, given, tokens, unquantized: float, *, calibration, folder, tune: int = 0, kernels: bool = True,
           say=print) -> list[dict]:
    """Losses of sequences [n, length] with the weights of model folders, in nats per token, simulated by PyTorch and through
    kernels. given: paths of folders, or formats, to which the model is quantized by `calibration`, sequences [n, length],
    into a folder in `folder`, with `tune` passes of fine-tuning. unquantized: the loss without, which rises are above. A
    format that PyTorch does not decode has no simulated loss, and no error."""
    rows = []
    say(f"{'weights':34}{'layers':>7}{'bits':>7}{'error':>8}{'loss':>9}{'simulated':>11}{'rise':>9}")
    for name in given:
        path = name
        if not os.path.isdir(name):
            vqgen.format_fields(name)  # BadInput, which names presets and files
            path = os.path.join(folder, f"weights-{os.path.basename(name)}-tune-{tune}")
            if not os.path.exists(path):
                quantize(model, calibration().split(AT_ONCE), path, format=name, tune=tune,
                         progress=lambda number, count, line: say(f"  {number + 1} of {count}: {line}"))
        linears = linears_in(model, path)
        through = simulated = error = None
        if not kernels or all(decodes(form) for _, form in linears.values()):
            with dense_weights(model, path) as error, in_float32(model):
                simulated = _losses.loss(model, tokens)
        if kernels:
            through = _losses.loss(load(path, device=model.device), tokens)
        rows.append({"weights": str(name), "tune": tune, "layers": len(linears), "bits": bits_of(linears), "error": error,
                     "loss": through, "simulated": simulated, "rise": (simulated if through is None else through) - unquantized})
        shown = ["-" if each is None else f"{each:.4f}" for each in (error, through, simulated)]
        say(f"{os.path.basename(name):34}{len(linears):7}{rows[-1]['bits']:7.2f}{shown[0]:>8}{shown[1]:>9}{shown[2]:>11}"
            f"{rows[-1]['rise']:+9.4f}")
    return rows
