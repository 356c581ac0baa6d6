"""Linear layers of one x as one: the rows of W below each other, with codebooks of their own, and an MLP of two launches."""

from __future__ import annotations

import copy
import math

import torch

import vqgen
from vqgen._layers import VQJoined, VQLinear, VQPart
from vqgen._op_configs import has_epilogue


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

    Raises BadInput for layers that have different formats, for rotated weights, and for layers with an epilogue.
    """
    if not layers:
        raise vqgen.BadInput("join_layers(): there are no layers; give one or more")
    first = layers[0]
    form = vqgen.format_fields(first.format)
    rows = [each.out_features for each in layers]
    for each in layers:
        if each.input_signs is not None:
            raise vqgen.BadInput("join_layers(): a layer has rotated weights, which are no rows of a larger matrix; leave it as "
                                 "it is")
        _require_plain("join_layers()", each)
        if _kind(each) != _kind(first):
            raise vqgen.BadInput(f"join_layers(): layers differ in format, dtype, device or inputs: {each.format} of "
                                 f"{each.in_features}, and {first.format} of {first.in_features}; quantize them alike")
    if "gate_rows" in epilogue:
        raise vqgen.BadInput("join_layers(): gate_rows follows from the layers; leave it out")
    gated = epilogue.get("gate") not in (None, "none")
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
    whole_groups = not any(each % form.get("layout", {"rows": 1})["rows"] for each in rows[:-1])
    tiles = (form if whole_groups else None) if shared else row_tiles(form, rows, first.in_features)
    if tiles is None:
        raise vqgen.BadInput(f"join_layers(): format {first.format} has no tiles that divide layers of {rows} outputs; leave the "
                             "layers as they are, or quantize with scope tensor")

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
    """The layer, which has none, with an epilogue, as of VQLinear; tensors are shared."""
    _require_plain("with_epilogue()", layer)
    return VQLinear(vqgen.Quantized(layer.codes, layer.codebooks, layer.stage_scales), layer.format, layer.out_features,
                    layer.in_features, output_scales=layer.output_scales, bias=layer.bias, dtype=layer.codebooks.dtype,
                    input_signs=layer.input_signs, output_signs=layer.output_signs, **epilogue)


def _require_plain(what, layer):
    if has_epilogue(layer.config):
        raise vqgen.BadInput(f"{what}: a layer has a gate, a multiplier or a residual, which would be lost; pass one without")


def _kind(layer):
    """What layers have in common that become one."""
    return str(vqgen.format_fields(layer.format)), layer.in_features, layer.codebooks.dtype, layer.codebooks.device


_QKV = ("q_proj", "k_proj", "v_proj")


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
    v_proj become one layer, and an MLP of gate_proj, up_proj and down_proj a FusedMLP, if its forward() is that of Llama.
    Layers of several formats, rotated ones and those with hooks stay as they are. The names of the modules change: load
    weights before, and save the model before. An MLP then has no gradient of x. Returns how many layers fewer a step takes;
    raises BadInput if there is nothing to fuse.

    Example: model = vqgen.hf.load("out/model"); vqgen.hf.fuse(model)
    """
    attentions, mlps = [], []
    for name, module in model.named_modules():
        if not hasattr(module, "qkv_proj") and _may_join(module, *_QKV):
            attentions.append(module)
        elif name and _may_join(module, "gate_proj", "up_proj") and _is_llama_mlp(module):
            mlps.append((name, module))
    if not attentions and not mlps:
        raise vqgen.BadInput("fuse(): no layer has q_proj, k_proj and v_proj, or an MLP of gate_proj, up_proj and down_proj with "
                             "SiLU, that are quantized in one format; leave it out")
    for module in attentions:
        projections = [getattr(module, name) for name in _QKV]
        whole = join_layers(projections)
        module.add_module("qkv_proj", whole.train(module.training))
        shared = VQJoined(whole, [each.out_features for each in projections])
        for number, (part, each) in enumerate(zip(_QKV, projections)):
            module.set_submodule(part, VQPart(shared, number, each.out_features, each.in_features))
    for name, module in mlps:
        model.set_submodule(name, FusedMLP(module.gate_proj, module.up_proj, module.down_proj).train(module.training))
    if hasattr(model, "hf_quantizer"):
        model.hf_quantizer.fused = True
    return 2 * len(attentions) + len(mlps)


def _may_join(module, *names) -> bool:
    """True if the children of these names may become one layer, in tiles of a format that has a kernel."""
    found = [getattr(module, name, None) for name in names]
    if not all(_is_alone(each) and each.input_signs is None for each in found) or len({_kind(each) for each in found}) != 1:
        return False
    form = vqgen.format_fields(found[0].format)
    tiles = row_tiles(form, [each.out_features for each in found], found[0].in_features)
    return tiles is not None and form.get("layout", {"rows": 1})["rows"] == 1


def _is_alone(layer) -> bool:
    """True if the layer is a VQLinear without an epilogue, and nothing else happens where it is called."""
    return type(layer) is VQLinear and not has_epilogue(layer.config) and not _has_hooks(layer)


def _has_hooks(module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _is_llama_mlp(module) -> bool:
    """True if forward() gives down(silu(gate(x)) * up(x)), as small layers of the same names tell; others scale, clamp or
    normalize between."""
    layers = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    gate, up, down = layers
    if not all(map(_is_alone, layers)) or gate.bias is not None or up.bias is not None or gate.out_features != up.out_features:
        return False
    if down.in_features != gate.out_features or _has_hooks(module):
        return False
    probe = copy.copy(module)
    probe._modules = dict(module._modules)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        small = [torch.nn.Linear(*size, bias=False, dtype=torch.float32) for size in ((6, 10), (6, 10), (10, 6))]
        probe._modules.update(zip(("gate_proj", "up_proj", "down_proj"), small))
        for magnitude in (1.0, 300.0):
            x = magnitude * torch.randn(2, 3, 6, dtype=torch.float32)
            try:
                y = probe(x)
            except Exception:  # whatever its own code raises: it is no such MLP
                return False
            expected = small[2](torch.nn.functional.silu(small[0](x)) * small[1](x))
            if not isinstance(y, torch.Tensor) or y.shape != x.shape or not torch.allclose(y, expected, rtol=1e-4, atol=1e-4):
                return False
    return True
