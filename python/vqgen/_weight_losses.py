"""Losses of models with quantized linear layers, for vqgen.eval."""

from __future__ import annotations

import os

import vqgen
import vqgen.torch
from vqgen import _losses
from vqgen._bundles import read_bundle
from vqgen._losses import AT_ONCE
from vqgen._models import in_float32
from vqgen._weight_store import dense_weights, kernel_weights
from vqgen._weights import quantize


def bits_of(path) -> float:
    """The bits that codes take for a weight, in the mean over a bundle."""
    bits = elements = 0
    for item in read_bundle(path):
        if item["kind"] == "weights":
            form, count = item["weights"], item["out_features"] * item["in_features"]
            bits += count * form["num_codebooks"] * form["index_bits"] / form["vector_size"]
            elements += count
    return bits / elements


def losses(model, given, tokens, unquantized: float, *, calibration, folder, tune: int = 0, kernels: bool = True,
           say=print) -> list[dict]:
    """Losses of sequences [n, length] with the weights of bundles, in nats per token, simulated by PyTorch and through
    kernels. given: paths of bundles, or formats, which `calibration`, sequences [n, length], quantizes into `folder`, with
    `tune` passes of fine-tuning. unquantized: the loss without, which rises are above."""
    rows = []
    say(f"{'weights':34}{'layers':>7}{'bits':>7}{'error':>8}{'loss':>9}{'simulated':>11}{'rise':>9}")
    for name in given:
        path = name
        if not os.path.isfile(name) or name.endswith(".json"):  # else a bundle
            vqgen.format_fields(name)  # BadInput, which names presets and files
            path = os.path.join(folder, f"weights-{os.path.basename(name)}-tune-{tune}")
            if not os.path.exists(path):
                quantize(model, calibration().split(AT_ONCE), path, format=name, tune=tune,
                         progress=lambda number, count, line: say(f"  {number + 1} of {count}: {line}"))
        with dense_weights(model, path) as error, in_float32(model):
            simulated = _losses.loss(model, tokens)
        through = None
        if kernels:
            with kernel_weights(model, path):
                through = _losses.loss(model, tokens)
        count = sum(item["kind"] == "weights" for item in read_bundle(path))
        rows.append({"weights": str(name), "tune": tune, "layers": count, "bits": bits_of(path), "error": error,
                     "loss": through, "simulated": simulated, "rise": (simulated if through is None else through) - unquantized})
        shown = "-" if through is None else f"{through:.4f}"
        say(f"{os.path.basename(name):34}{count:7}{rows[-1]['bits']:7.2f}{error:8.4f}{shown:>9}{simulated:11.4f}"
            f"{rows[-1]['rise']:+9.4f}")
    return rows
