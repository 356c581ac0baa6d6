#!/usr/bin/env python3
"""A decoder layer of Llama-3-8B without its attention, by fused products of quantized weights and by FP16 cuBLAS. Needs
PyTorch and the Python package.

    python3 bench/decoder_layer.py [--rows 1 8 16] [--codebooks own one] [--layers 8] [--json FILE]
    python3 bench/decoder_layer.py --host --hidden 64 --inner 128 --key-value 32    # on the CPU: checks results alone

RMSNorm, q, k and v as one product, o with the residual, RMSNorm, gate and up as one product with SiLU, down with the
residual. Both kinds have the same norms by PyTorch, and the FP16 kind has joined weights too. A CUDA graph runs all layers one
after the other, so that no weights stay in L2; the two graphs take turns. Each layer is first compared with its dequantized
weights in fp32. --codebooks own: parts have codebooks of their own; one: joined matrices share theirs.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys

import torch
from torch.nn.functional import linear, rms_norm, silu

import vqgen
import vqgen.torch as vt
from vqgen._folders import tensors_of
from vqgen._linear import dense_config
from vqgen.vllm._weights import KINDS, fill_random

GOALS = {1: 2.8, 8: 2.2, 16: 1.8}
EPSILON = 1e-5
TOLERANCE = 1e-2  # of the norm, after a layer that rounds to 16 bits between its products


def random_layer(name, outputs, inputs, dtype, device):
    """A VQLinear of the format `name` with random codes, whose rows have about the length 1."""
    form = vqgen.format_fields(name)
    held = {suffix: torch.empty(shape, dtype=KINDS[kind], device=device) for suffix, (kind, shape) in
            tensors_of(form, vt.DTYPES[dtype], outputs, inputs)["tensors"].items()}
    fill_random(form, held)
    scale = held.get("stage_scales", held["codebooks"])
    scale.mul_((inputs ** -0.5) / 0.02)  # fill_random() draws weights of about 0.02
    weights = vqgen.Quantized(held["codes"], held["codebooks"], held.get("stage_scales"))
    return vt.VQLinear(weights, form, outputs, inputs, output_scales=held.get("output_scales"), dtype=dtype)


def dense(layer):
    """The layer's weights."""
    config = dense_config(layer.config, layer.out_features)
    return torch.ops.vqgen.weight_dequantize(config, layer.codes, layer.codebooks, layer.stage_scales, layer.output_scales)


def joined(parts, own, name, dtype, device, **epilogue):
    """(the fused layer, the dense weights of its parts)."""
    layers = [random_layer(name, outputs, inputs, dtype, device) for outputs, inputs in parts]
    if not own:
        for each in layers[1:]:
            each.codebooks, each.stage_scales = layers[0].codebooks, layers[0].stage_scales
    return vt.join_layers(layers, **epilogue), torch.cat([dense(each) for each in layers])


class Layer:
    """A layer's weights: fused, and dense ones of the same values."""

    def __init__(self, options, own, dtype, device):
        hidden, inner = options.hidden, options.inner
        about = (own, options.format, dtype, device)
        self.hidden, self.inner = hidden, inner
        self.qkv, self.dense_qkv = joined([(hidden, hidden)] + [(options.key_value, hidden)] * 2, *about)
        self.o, self.dense_o = joined([(hidden, hidden)], *about, residual=True)
        self.gate_up, self.dense_gate_up = joined([(inner, hidden)] * 2, *about, gate="silu")
        self.down, self.dense_down = joined([(hidden, inner)], *about, residual=True)
        self.norms = [1 + torch.randn(hidden, dtype=dtype, device=device) / 10 for _ in range(2)]

    def stand_in(self, qkv):
        """What stands for the result of attention, which is left out: as many numbers of q, k and v, without a copy."""
        return qkv.reshape(-1)[:len(qkv) * self.hidden].view(len(qkv), self.hidden)

    def fused(self, x):
        x = self.o(self.stand_in(self.qkv(rms_norm(x, (self.hidden,), self.norms[0], EPSILON))), x)
        return self.down(self.gate_up(rms_norm(x, (self.hidden,), self.norms[1], EPSILON)), x)

    def plain(self, x, dtype=None):
        """What fused() computes, by PyTorch, in `dtype` or in that of the weights."""
        qkv, o, gate_up, down, *norms = (each if dtype is None else each.to(dtype) for each in (
            self.dense_qkv, self.dense_o, self.dense_gate_up, self.dense_down, *self.norms))
        x = x + linear(self.stand_in(linear(rms_norm(x, (self.hidden,), norms[0], EPSILON), qkv)), o)
        gate, up = linear(rms_norm(x, (self.hidden,), norms[1], EPSILON), gate_up).split(self.inner, -1)
        return x + linear(silu(gate) * up, down)

    def difference(self, x):
        expected = self.plain(x.float(), torch.float32)
        return ((self.fused(x).float() - expected).norm() / (expected - x.float()).norm()).item()


def captured(layers, kind, x):
    """A CUDA graph of all layers, and what it must keep."""
    def call():
        y = x
        for layer in layers:
            y = getattr(layer, kind)(y)
        return y
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()
    return graph, kept


def time(graph, replays):
    """Microseconds of one replay."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begin.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / replays * 1e3


def measured(layers, x, options):
    """Microseconds per layer of each kind, and the median of the ratios of rounds."""
    graphs = {kind: captured(layers, kind, x) for kind in ("plain", "fused")}
    times = {kind: [] for kind in graphs}
    for turn in range(options.rounds):
        for kind in list(graphs)[::-1 if turn % 2 else 1]:
            times[kind].append(time(graphs[kind][0], options.replays) / len(layers))
    ratio = statistics.median(a / b for a, b in zip(times["plain"], times["fused"]))
    return {kind: statistics.median(each) for kind, each in times.items()}, ratio


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--format", default="aqlm-2x8i8", help="preset of the weights [aqlm-2x8i8]")
    parser.add_argument("--codebooks", nargs="+", choices=("own", "one"), default=["own", "one"],
                        help="of parts: their own, or one for those that are joined [both]")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 16], help="rows of x, 1 to 256 [1 8 16]")
    parser.add_argument("--layers", type=int, default=8, help="layers in a graph, 6 or more [8]")
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--inner", type=int, default=14336)
    parser.add_argument("--key-value", type=int, default=1024, help="rows of k, and of v [1024]")
    parser.add_argument("--dtype", choices=("f16", "bf16"), default="f16")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--replays", type=int, default=40)
    parser.add_argument("--host", action="store_true", help="the host backend: compares results, and times nothing")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if any(not 1 <= rows <= vt.MOST_ROWS for rows in options.rows):
        sys.exit(f"decoder_layer.py: --rows {options.rows}: a product takes 1 to {vt.MOST_ROWS}; change it")
    if not options.host and options.layers < 6:
        sys.exit(f"decoder_layer.py: --layers {options.layers}: their weights would stay in L2; give 6 or more")
    if not options.host and not torch.cuda.is_available():
        sys.exit("decoder_layer.py: there is no GPU; give --host with small sizes to compare results alone")
    torch.manual_seed(1)
    vt.use_runtime(vqgen.Runtime("host" if options.host else torch.cuda.current_device(), threads=os.cpu_count() or 1))
    device, found = torch.device("cpu" if options.host else "cuda"), []
    dtype = torch.float16 if options.dtype == "f16" else torch.bfloat16
    print("| codebooks | rows | FP16, us per layer | fused, us per layer | ratio | goal | difference |\n|" + "---|" * 7)
    with torch.no_grad():
        for kind in options.codebooks:
            layers = [Layer(options, kind == "own", dtype, device) for _ in range(1 if options.host else options.layers)]
            for rows in options.rows:
                x = torch.randn(rows, options.hidden, dtype=dtype, device=device)
                difference = max(layer.difference(x) for layer in layers)
                if not difference < TOLERANCE:  # NaN fails
                    sys.exit(f"decoder_layer.py: {kind} codebooks, {rows} rows: results differ by {difference:.3g}")
                us, ratio = ({}, None) if options.host else measured(layers, x, options)
                shown = [f"{us[each]:.1f}" if us else "-" for each in ("plain", "fused")]
                print(f"| {kind} | {rows} | {' | '.join(shown)} | {f'{ratio:.2f}' if ratio else '-'} | {GOALS.get(rows, '-')} | "
                      f"{difference:.1e} |", flush=True)
                found.append({"format": options.format, "codebooks": kind, "dtype": options.dtype, "rows": rows,
                              "layers": len(layers), "us": us, "ratio": ratio, "difference": difference})
            del layers
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
