#!/usr/bin/env python3
"""What serving costs (docs/guides/serving.md): attention over pages in random order against rows that follow
each other, and over several query tokens against one; kv_dequantize against filling the same bytes.

    python3 bench/serving_figures.py [--vqgen BIN] [--rounds 9] [--only REGEX] [--json JSON]

Needs a GPU, and PyTorch for the fill. All kernels are verified, then timed in turns: each round takes
each shape once, its kinds one after the other, in the other order every other round. Codes and
codebooks rotate. Figures are medians of the rounds; each ratio is the median of a round's ratios.
"""
import argparse
import json
import pathlib
import re
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "flagship"))
from ours import Turns  # noqa: E402

SHAPES = [(1, 32768), (1, 131072), (8, 4096), (16, 16384), (64, 8192)]  # batch, tokens
PAGES = (0, 16, 64)
SHAPES_OF_QUERIES = [(1, 131072), (8, 32768)]
QUERIES = (1, 4, 8)
DECODED = (8, 8192)  # batch, tokens
HEADS = {"query_heads": 32, "kv_heads": 8, "head_dim": 128}
FORMATS = {"keys": "vecinfer-d4b8i8", "values": "vecinfer-d4b8"}


def problems():
    """name -> kind -> config; the first kind is what the others are held against."""
    found = {}
    for batch, tokens in SHAPES:
        shape = {"batch": batch, "tokens": tokens, **HEADS}
        found[f"attention B{batch} N{tokens}"] = {
            f"pages of {page}" if page else "no pages":
                {"op": "attention_decode", "dtype": "f16", **FORMATS,
                 "shape": {**shape, "page_tokens": page}} for page in PAGES}
    for batch, tokens in SHAPES_OF_QUERIES:
        shape = {"batch": batch, "tokens": tokens, **HEADS}
        found[f"queries B{batch} N{tokens}"] = {
            f"{queries} query tokens":
                {"op": "attention_decode", "dtype": "f16", **FORMATS,
                 "shape": {**shape, "query_tokens": queries}} for queries in QUERIES}
    shape = {"batch": DECODED[0], "tokens": DECODED[1], **HEADS}
    del shape["query_heads"]
    for name in ("d4b8", "d8b12"):
        found[f"kv_dequantize {name}"] = {
            f"pages of {page}" if page else "no pages":
                {"op": "kv_dequantize", "dtype": "f16", "keys": f"vecinfer-{name}",
                 "values": f"vecinfer-{name}", "shape": {**shape, "page_tokens": page}}
            for page in (0, 16)}
    return found


class Fill:
    """Fills as many bytes as kv_dequantize writes, in buffers that take turns, by PyTorch."""

    def __init__(self):
        import torch
        self.torch = torch
        elements = 2 * DECODED[0] * DECODED[1] * HEADS["kv_heads"] * HEADS["head_dim"]
        self.buffers = [torch.empty(elements, dtype=torch.float16, device="cuda") for _ in range(8)]

    def time(self):
        """Microseconds of one fill."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        for turn in range(-8, 64):
            if turn == 0:
                begin.record()
            self.buffers[turn % 8].fill_(1)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 64 * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--vqgen", default="build/release/bin/vqgen")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", default="1", help="draws the order of the pool, too")
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    wanted = {name: kinds for name, kinds in problems().items() if options.only.search(name)}
    with tempfile.TemporaryDirectory() as scratch:
        configs, numbers = [], {}
        for name, kinds in wanted.items():
            for kind, config in kinds.items():
                path = pathlib.Path(scratch, f"{len(configs):03}.json")
                path.write_text(json.dumps(config))
                numbers[name, kind] = len(configs)
                configs.append(str(path))
        turns = Turns(options.vqgen, configs, "uniform",
                      ["--warm-up", "100", "--seed", options.seed])
        document = turns.verified()
        failed = {}
        for (name, kind), number in numbers.items():
            told = document["configs"][number]["measurement"]
            if told["outcome"] != "timed":
                failed[name, kind] = told.get("why") or told["outcome"]
                del wanted[name][kind]
        times = {key: [] for key in numbers if key not in failed}
        decoded = [name for name in wanted if name.startswith("kv_dequantize")]
        fill = Fill() if decoded else None
        for turn in range(options.rounds):
            for name, kinds in wanted.items():
                for kind in list(kinds)[::-1 if turn % 2 else 1]:
                    times[name, kind].append(turns.time(numbers[name, kind], "rotated")["us"])
                if name in decoded:
                    times.setdefault((name, "a fill"), []).append(fill.time())
        turns.close()
    print(f"{document['gpu']}: medians of {options.rounds} turns\n")
    print("| shape | kind | us | ratio | rounds' ratios |\n|---|---|---|---|---|")
    rows = []
    for name, kinds in wanted.items():
        first = "a fill" if name in decoded else next(iter(kinds))
        for kind in [first, *kinds] if name in decoded else kinds:
            ratios = [a / b for a, b in zip(times[name, kind], times[name, first])]
            row = {"shape": name, "kind": kind, "us": statistics.median(times[name, kind]),
                   "ratio": statistics.median(ratios), "rounds": times[name, kind]}
            rows.append(row)
            print(f"| {name} | {kind} | {row['us']:.2f} | {row['ratio']:.3f} | "
                  f"{min(ratios):.3f} to {max(ratios):.3f} |")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    for (name, kind), why in failed.items():
        print(f"{name}, {kind}: not timed: {why}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
