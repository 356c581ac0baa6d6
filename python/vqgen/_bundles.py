"""Bundles that `vqgen quantize` writes, in PyTorch."""

from __future__ import annotations

import json
import re

import torch

import vqgen
from vqgen._versions import format_version

SCHEMA = 1  # of bundles
ROWS = {"rows": 1, "words": 1}


def in_rows(fields: dict) -> bool:
    """True if codes of the format are stored row after row."""
    return fields.get("layout") in (None, ROWS)


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
    where = f"{path}: vqgen.bundle"
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise vqgen.BadInput(f"{where}: is no JSON ({error}); quantize again") from None
    if not isinstance(fields, dict):
        raise vqgen.BadInput(f"{where}: is no JSON object; quantize again")
    format_version(fields, "schema", SCHEMA, where)
    if not isinstance(fields.get("items"), list):
        raise vqgen.BadInput(f"{where}: has no list 'items'; quantize again")
    return fields["items"]


def bundle_tensors(path, item: str, names) -> dict[str, torch.Tensor]:
    """The tensors ITEM.NAME that the bundle has, by NAME; names that it lacks are left out."""
    from safetensors import safe_open
    with safe_open(path, "pt") as file:
        there = set(file.keys())
        return {name: file.get_tensor(f"{item}.{name}") for name in names if f"{item}.{name}" in there}


def packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Rows of codes [..., n] as words, uint32 [..., row words] (docs/reference/config.md)."""
    spread = ((codes[..., None] >> torch.arange(bits, device=codes.device)) & 1).flatten(-2)
    spread = torch.nn.functional.pad(spread, (0, -spread.shape[-1] % 32)).unflatten(-1, (-1, 32))
    words = (spread << torch.arange(32, device=codes.device)).sum(-1)
    return words.to(torch.int32).view(torch.uint32)


def unpacked(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """The inverse of packed(): codes int64 [..., count]."""
    if bits == 8:
        return words.view(torch.uint8)[..., :count].long()
    if bits == 16:
        return words.view(torch.int16)[..., :count].long() & 0xffff
    wide = words.view(torch.int32).long() & 0xffffffff
    at = bits * torch.arange(count, device=words.device)
    # A code may go on in the next word. Where it does not, what is added lies above its bits.
    low, high = wide[..., at // 32] >> at % 32, wide[..., (at + bits - 1) // 32] << (32 - at % 32)
    return (low | high) & ((1 << bits) - 1)


def write_items(out, items: list[dict], tensors: dict) -> None:
    """Writes a bundle, whole or not at all. items: its metadata; tensors: on the CPU, by ITEM.NAME."""
    from safetensors.torch import save_file

    from vqgen._paths import publish
    metadata = {"vqgen.bundle": json.dumps({"schema": SCHEMA, "items": items})}
    publish(out, lambda held: save_file(tensors, held, metadata))


def layers_of(path) -> list[tuple[dict, dict]]:
    """The attention items of a bundle, in the order of their numbers, each with its tensors but the
    codes, by name."""
    items = [item for item in read_bundle(path) if item["kind"] == "attention"]
    items.sort(key=lambda item: [int(number) for number in re.findall(r"\d+", item["name"])])
    wanted = [f"{operand}.{name}" for operand in ("keys", "values")
              for name in ("codebooks", "stage_scales", "smooth", "mean", "rotation", "gain")]
    return [(item, bundle_tensors(path, item["name"], wanted)) for item in items]
