#!/usr/bin/env python3
"""What a prefix that sequences share costs with and without cascade attention (docs/guides/serving.md). Needs PyTorch and
the Python package.

    python3 bench/cascade.py [--formats vecinfer-d4b8i8 klt-2bit] [--prefix 32768] [--own 1024] [--sequences 16]
    python3 bench/cascade.py --host --prefix 256 --own 64 --sequences 4      # on the CPU: checks results, times nothing

A step of attention in CUDA graphs over several pools of pages with codebooks of their own, which take turns, so that codes
are cold; medians of rounds in which both kinds take turns. Each cascade is compared with the attention that it stands for.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys

import torch

import vqgen
import vqgen.torch as vt
from vqgen import _speed

HEADS = {"query_heads": 32, "kv_heads": 8, "head_dim": 128}
PAGE = 16
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


def formats_of(name):
    """The presets of keys and values: NAME, or NAME-keys and NAME-values."""
    try:
        vqgen.format_fields(name)
        return name, name
    except vqgen.Error:
        return f"{name}-keys", f"{name}-values"


class Step:
    """A pool of random codes, in which all sequences begin with the same pages, and the arguments of a call."""

    def __init__(self, name, options, device):
        keys, values = formats_of(name)
        tokens = options.prefix + options.own
        own, shared = -(-options.own // PAGE), options.prefix // PAGE
        pages = shared + options.sequences * own
        common = {"dtype": options.dtype, "keys": keys, "values": values}
        shape = {"kv_heads": HEADS["kv_heads"], "head_dim": HEADS["head_dim"], "page_tokens": PAGE}
        self.config = vt.config_text({"op": "attention_decode", **common, "shape": {
            **shape, "batch": options.sequences, "query_heads": HEADS["query_heads"], "tokens": -(-tokens // PAGE) * PAGE}})
        op = vt.prepare(vt.config_text({"op": "kv_append", **common, "shape": {
            "batch": 1, "kv_heads": HEADS["kv_heads"], "head_dim": HEADS["head_dim"], "tokens": 1}}), device)
        dtype = DTYPES[options.dtype]
        drawn = _speed.random_tensors(op, op.description["problem"], dtype, device)
        words = {each.name: each.shape[-1] for each in op.arguments if each.name.endswith(".codes")}
        self.cache, self.named = [], {}  # of the format's transforms
        for operand in ("keys", "values"):
            codes = torch.empty(pages, HEADS["kv_heads"], PAGE, words[f"{operand}.codes"], dtype=torch.int32, device=device)
            codes.view(torch.uint8).random_(0, 256)
            self.cache += [codes, drawn.pop(f"{operand}.codebooks"), drawn.pop(f"{operand}.scales", None)]
        for each in vt.prepare(self.config, device).arguments:
            if each.name.endswith("_rotation"):
                self.named[each.name] = torch.linalg.qr(torch.randn(each.shape)).Q.contiguous().to(device)
            elif each.name.endswith(("_mean", "_smooth")):
                self.named[each.name] = 1 + torch.randn(each.shape, device=device) / 10
        order = torch.randperm(pages, device=device).int()
        self.table = torch.cat([order[:shared].expand(options.sequences, -1), order[shared:].view(options.sequences, own)], 1)
        self.table = self.table.contiguous()
        self.lengths = torch.full((options.sequences,), tokens, dtype=torch.int32, device=device)
        self.query = torch.randn(options.sequences, HEADS["query_heads"], HEADS["head_dim"], dtype=dtype, device=device)
        self.cascade = vt.Cascade(self.config)
        self.shared = self.cascade.prefixes(self.table, self.lengths, groups=[(range(options.sequences), options.prefix)])

    def plain(self):
        return torch.ops.vqgen.attention(self.config, self.query, *self.cache, self.lengths, block_table=self.table,
                                         **self.named)

    def shared_once(self):
        return self.cascade.attention(self.shared, self.query, *self.cache, **self.named)

    def difference(self):
        """The largest of the results, of their largest number, and of their log-sum-exps."""
        (out, lse), (expected, expected_lse) = self.shared_once(), self.plain()
        largest = expected.float().abs().max().clamp(min=1e-6)
        return ((out.float() - expected.float()).abs().max() / largest).item(), (lse - expected_lse).abs().max().item()


def captured(call):
    """A CUDA graph of `call`, and what it must keep."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()
    return graph, kept


def time(graphs, replays):
    """Microseconds of one step."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for turn in range(-len(graphs), replays):
        if turn == 0:
            begin.record()
        graphs[turn % len(graphs)][0].replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / replays * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--formats", nargs="+", default=["vecinfer-d4b8i8", "klt-2bit"], help="presets of keys and values")
    parser.add_argument("--dtype", choices=DTYPES, default="f16")
    parser.add_argument("--prefix", type=int, default=32768, help="tokens that all sequences share, whole pages [32768]")
    parser.add_argument("--own", type=int, default=1024, help="tokens of each sequence's own [1024]")
    parser.add_argument("--sequences", type=int, default=16, help="of one group [16]")
    parser.add_argument("--caches", type=int, default=8, help="pools that take turns, together beyond the L2 cache [8]")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--replays", type=int, default=40)
    parser.add_argument("--host", action="store_true", help="the host backend: compares results, and times nothing")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if options.prefix % PAGE or min(options.prefix, options.own, options.sequences) < 1:
        sys.exit(f"cascade.py: --prefix {options.prefix} is no whole number of pages of {PAGE}, or a size is below 1; change it")
    if not options.host and not torch.cuda.is_available():
        sys.exit("cascade.py: there is no GPU; give --host with small sizes to compare results alone")
    torch.manual_seed(1)
    vt.use_runtime(vqgen.Runtime("host" if options.host else torch.cuda.current_device(), threads=os.cpu_count() or 1))
    device, rows = torch.device("cpu" if options.host else "cuda"), []
    print("| format | without, us | with cascade, us | ratio | difference | of log-sum-exps |\n|---|---|---|---|---|---|")
    for name in options.formats:
        steps = [Step(name, options, device) for _ in range(1 if options.host else options.caches)]
        out, lse = steps[0].difference()
        if not (out < 1e-2 and lse < 2e-2):  # NaN fails
            sys.exit(f"cascade.py: {name}: results differ by {out:.3g}, log-sum-exps by {lse:.3g}")
        us, ratio = {}, None
        if not options.host:
            kinds = {kind: [captured(getattr(step, kind)) for step in steps] for kind in ("plain", "shared_once")}
            times = {kind: [] for kind in kinds}
            for turn in range(options.rounds):
                for kind in list(kinds)[::-1 if turn % 2 else 1]:
                    times[kind].append(time(kinds[kind], options.replays))
            us = {kind: statistics.median(each) for kind, each in times.items()}
            ratio = statistics.median(a / b for a, b in zip(times["shared_once"], times["plain"]))
            del kinds
        shown = [f"{each:.1f}" if each else "-" for each in (us.get("plain"), us.get("shared_once"))]
        print(f"| {name} | {shown[0]} | {shown[1]} | {f'{ratio:.3f}' if ratio else '-'} | {out:.1e} | {lse:.1e} |", flush=True)
        rows.append({"format": name, "dtype": options.dtype, "prefix": options.prefix, "own": options.own,
                     "sequences": options.sequences, "us": us, "ratio": ratio, "difference": [out, lse]})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
