"""Bundles that `vqgen quantize` writes, in PyTorch."""

from __future__ import annotations

import json
import re

import torch

import vqgen


def read_bundle(path) -> list[dict]:
    """The items of a bundle that `vqgen quantize` wrote: names, kinds, formats and sizes."""
    from safetensors import SafetensorError, safe_open
    try:
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get("vqgen.bundle")
    except (OSError, SafetensorError) as error:
        raise vqgen.BadInput(f"{path} cannot be read as a bundle: {error}") from None
    if text is None:
        raise vqgen.BadInput(f"{path} is no bundle; write one by vqgen quantize")
    return json.loads(text)["items"]


def bundle_tensors(path, item: str, names) -> dict[str, torch.Tensor]:
    """The tensors ITEM.NAME that the bundle has, by NAME; names that it lacks are left out."""
    from safetensors import safe_open
    with safe_open(path, "pt") as file:
        there = set(file.keys())
        return {name: file.get_tensor(f"{item}.{name}") for name in names if f"{item}.{name}" in there}


def layers_of(path) -> list[tuple[dict, dict]]:
    """The attention items of a bundle, in the order of their numbers, each with its tensors but the
    codes, by name."""
    items = [item for item in read_bundle(path) if item["kind"] == "attention"]
    items.sort(key=lambda item: [int(number) for number in re.findall(r"\d+", item["name"])])
    wanted = [f"{operand}.{name}" for operand in ("keys", "values")
              for name in ("codebooks", "stage_scales", "smooth", "mean", "rotation", "gain")]
    return [(item, bundle_tensors(path, item["name"], wanted)) for item in items]
