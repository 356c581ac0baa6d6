"""Linear layers of one x as one: the rows of W below each other, with codebooks of their own, and an MLP of two launches."""

from __future__ import annotations

import math

import torch

import vqgen
from vqgen._layers import VQJoined, VQLinear, VQPart


def row_tiles(form: dict, rows: list[int], columns: int) -> dict | None:
    """The format of parts with the `rows`, one below the other, as one matrix: row tiles, with codebooks of their own. None
    if tiles or layouts do not divide a part. form: of each part; columns: of all."""
    if any(each % form.get("layout", {"rows": 1})["rows"] for each in rows):
        return None
    if form["scope"] == "tensor":
        return form | {"scope": "tile", "tile_rows": math.gcd(*rows), "tile_columns": columns}
    if form["scope"] != "tile" or any(each % form["tile_rows"] for each in rows):
        return None
    return form


def per_tile(tensors: list, rows: list[int], form: dict, tiles: dict) -> list:
    """The codebooks, or the scales, of parts, as many as the tiles of each."""
    if form["scope"] != "tensor":
        return tensors
    return [each.expand(own // tiles["tile_rows"], *each.shape[1:]) for each, own in zip(tensors, rows)]


def join_layers(layers: list[VQLinear], **epilogue) -> VQLinear:
    """One VQLinear of layers that take the same x: its outputs are theirs, one behind the other. Each part keeps its codebooks;
    parts that share one become one matrix with it. epilogue: as of VQLinear. With gate="silu", layers are [gate, up], and
    gate_rows follows. The result has tensors of its own.

    Raises BadInput for layers that have different formats, and for rotated weights.
    """
    first = layers[0]
    form = vqgen.format_fields(first.format)
    rows = [each.out_features for each in layers]
    for each in layers:
        if each.input_signs is not None:
            raise vqgen.BadInput("join_layers(): a layer has rotated weights, which are no rows of a larger matrix; leave it as it is")
        if (vqgen.format_fields(each.format) != form or each.in_features != first.in_features
                or each.codebooks.dtype != first.codebooks.dtype):
            raise vqgen.BadInput(f"join_layers(): layers differ in format, dtype or inputs: {each.format} of {each.in_features}, and "
                                 f"{first.format} of {first.in_features}; quantize them alike")
    gated = epilogue.get("gate") is not None
    if gated and (len(layers) != 2 or rows[0] != rows[1]):
        raise vqgen.BadInput(f"join_layers(gate=): layers of {rows} outputs; give [gate, up], of equally many")
    if form.get("layout", {"rows": 1})["rows"] != 1 and gated:
        raise vqgen.BadInput(f"join_layers(gate=): layout {form['layout']} has rows in groups; quantize with the default layout")

    def all_of(name):
        return [getattr(each, name) for each in layers]

    shared = form["scope"] == "tensor" and all(
        one is None or all(torch.equal(one, other) for other in all_of(name)[1:])
        for name in ("codebooks", "stage_scales") for one in [getattr(first, name)])
    in_turns = shared and gated  # a gate row, its up row
    tiles = form if shared else row_tiles(form, rows, first.in_features)
    if tiles is None:
        raise vqgen.BadInput(f"join_layers(): format {first.format} has no tiles that divide layers of {rows} outputs; leave the layers "
                             "as they are, or quantize with scope tensor")

    def below(tensors):
        if tensors[0] is None:
            return None
        return torch.stack(tensors, 1).flatten(0, 1) if in_turns else torch.cat(tensors)

    books, scales = (None if getattr(first, name) is None else
                     getattr(first, name).clone() if shared else torch.cat(per_tile(all_of(name), rows, form, tiles))
                     for name in ("codebooks", "stage_scales"))
    biases = all_of("bias")
    bias = None
    if any(each is not None for each in biases):
        bias = torch.cat([first.codebooks.new_zeros(own) if each is None else each for each, own in zip(biases, rows)])
    if gated:
        epilogue = {"gate_rows": 1 if in_turns else rows[0], **epilogue}
    return VQLinear(vqgen.Quantized(below(all_of("codes")), books, scales), tiles, sum(rows), first.in_features,
                    output_scales=below(all_of("output_scales")), bias=bias, dtype=first.codebooks.dtype, **epilogue)


def with_epilogue(layer: VQLinear, **epilogue) -> VQLinear:
    """The layer with an epilogue, as of VQLinear; tensors are shared."""
    return VQLinear(vqgen.Quantized(layer.codes, layer.codebooks, layer.stage_scales), layer.format, layer.out_features,
                    layer.in_features, output_scales=layer.output_scales, bias=layer.bias, dtype=layer.codebooks.dtype,
                    input_signs=layer.input_signs, output_signs=layer.output_signs, **epilogue)


class FusedMLP(torch.nn.Module):
    """down(silu(gate(x)) * up(x)) in two GEMMs, as Llama has it. gate, up, down: VQLinear, without bias in gate and up.

    residual: True if forward() takes what is added to the result. multiplier: of the result before that, as Granite's
    residual_multiplier.

    Example: mlp = FusedMLP(gate, up, down, residual=True); h = mlp(norm(h), residual=h)
    """

    def __init__(self, gate: VQLinear, up: VQLinear, down: VQLinear, *, residual: bool = False, multiplier: float = 1.0):
        super().__init__()
        self.gate_up = join_layers([gate, up], gate="silu")
        self.down = with_epilogue(down, residual=residual, multiplier=multiplier)

    def forward(self, x, residual=None):
        return self.down(self.gate_up(x), residual)


def fuse(model) -> int:
    """Join the quantized layers of a Llama-like model in place, so that a decoder layer takes fewer launches: q_proj, k_proj and
    v_proj become one layer, and an MLP of gate_proj, up_proj and down_proj with SiLU a FusedMLP. Layers of several formats
    and rotated ones stay as they are. The names of the modules change, so load weights before. Returns how many layers
    fewer a step takes; raises BadInput if there is nothing to fuse.

    Example: model = vqgen.hf.load("out/model"); vqgen.hf.fuse(model)
    """
    fewer = 0
    for name, module in list(model.named_modules()):
        if (projections := _linears(module, "q_proj", "k_proj", "v_proj")) is not None:
            whole = join_layers(projections)
            module.add_module("qkv_proj", whole)
            shared = VQJoined(whole, [each.out_features for each in projections])
            for number, (part, each) in enumerate(zip(("q_proj", "k_proj", "v_proj"), projections)):
                module.set_submodule(part, VQPart(shared, number, each.out_features, each.in_features))
            fewer += 2
        elif (_linears(module, "gate_proj", "up_proj") is not None and isinstance(getattr(module, "down_proj", None), VQLinear)
              and type(getattr(module, "act_fn", None)).__name__ in ("SiLU", "SiLUActivation")
              and module.gate_proj.bias is None and module.up_proj.bias is None):
            model.set_submodule(name, FusedMLP(module.gate_proj, module.up_proj, module.down_proj))
            fewer += 1
    if fewer == 0:
        raise vqgen.BadInput("fuse(): no layer has q_proj, k_proj and v_proj, or gate_proj, up_proj and down_proj with SiLU, that "
                             "are quantized in one format; leave it out")
    return fewer


def _linears(module, *names) -> list[VQLinear] | None:
    """The children of these names, if they may be joined."""
    found = [getattr(module, name, None) for name in names]
    if any(not isinstance(each, VQLinear) or each.takes_residual or each.input_signs is not None for each in found):
        return None
    if len({str(vqgen.format_fields(each.format)) for each in found}) != 1:
        return None
    form = vqgen.format_fields(found[0].format)
    tiles = row_tiles(form, [each.out_features for each in found], found[0].in_features)
    return None if tiles is None or form.get("layout", {"rows": 1})["rows"] != 1 else found
