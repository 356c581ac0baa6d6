#!/usr/bin/env python3
"""What a batch of one long sequence and many short ones costs, against uniform batches of as many
bytes (docs/guides/serving.md). Needs a GPU, PyTorch and the Python package.

    python3 bench/mixed_lengths.py [--rounds 9] [--json JSON]

Attention in CUDA graphs over four caches of codes and codebooks of their own, which take turns;
medians of rounds in which all kinds take turns.
"""
import argparse
import json
import pathlib
import statistics

import torch

import vqgen.torch
from vqgen import _speed

HEADS = {"query_heads": 32, "kv_heads": 8, "head_dim": 128}
FORMATS = {"keys": "vecinfer-d4b8i8", "values": "vecinfer-d4b8"}
BATCHES = [[131072] + [2048] * 31, [32768] + [1024] * 7, [65536] * 2 + [4096] * 14]
CACHES = 4


def graphs(lengths, tokens, **options):
    """One of each cache: a step over sequences of `lengths` in a cache of room for `tokens`."""
    made = []
    device = torch.device("cuda")
    op = vqgen.torch.prepare(vqgen.torch.config_text(
        {"op": "kv_append", "dtype": "f16", **FORMATS,
         "shape": {"batch": 1, "kv_heads": HEADS["kv_heads"], "head_dim": HEADS["head_dim"],
                   "tokens": 1}}), device)
    for _ in range(CACHES):
        drawn = _speed.random_tensors(op, op.description["problem"], torch.float16, device)
        given = {name.replace("keys.", "key_").replace("values.", "value_"): drawn[name]
                 for name in drawn}
        cache = vqgen.torch.VQCache(batch=len(lengths), tokens=tokens, **options, **HEADS,
                                    **FORMATS, **given)
        for held in (cache.keys, cache.values):
            held.codes.view(torch.uint8).random_(0, 256)
        cache.lengths.copy_(torch.tensor(lengths))
        query = torch.randn(len(lengths), HEADS["query_heads"], HEADS["head_dim"],
                            dtype=torch.float16, device="cuda")
        cache.attend(query)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = cache.attend(query)
        made.append((graph, cache, query, out))
    return made


def time(made, replays=40):
    """Microseconds of one step."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for turn in range(-CACHES, replays):
        if turn == 0:
            begin.record()
        made[turn % CACHES][0].replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / replays * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    rows = []
    print("| lengths | chosen plan, us | by length, us | uniform, us | ratios | | independent |\n"
          "|---|---|---|---|---|---|---|")
    for lengths in BATCHES:
        longest, each = max(lengths), sum(lengths) // len(lengths)
        kinds = {"mixed": graphs(lengths, longest),
                 "by length": graphs(lengths, longest, attention_plan={"schedule": "balanced"}),
                 "uniform": graphs([each] * len(lengths), each),
                 "batch_invariant": graphs(lengths, longest, batch_invariant=True)}
        times = {kind: [] for kind in kinds}
        for turn in range(options.rounds):
            for kind in list(kinds)[::-1 if turn % 2 else 1]:
                times[kind].append(time(kinds[kind]))
        us = {kind: statistics.median(times[kind]) for kind in kinds}
        ratios = {kind: statistics.median(a / b for a, b in zip(times[kind], times["uniform"]))
                  for kind in kinds}
        name = ", ".join(f"{lengths.count(n)} x {n}" for n in sorted(set(lengths), reverse=True))
        print(f"| {name} | {us['mixed']:.1f} | {us['by length']:.1f} | {us['uniform']:.1f} | "
              f"{ratios['mixed']:.2f} | {ratios['by length']:.2f} | {ratios['batch_invariant']:.2f} |",
              flush=True)
        rows.append({"lengths": lengths, "us": us, "ratios": ratios})
        del kinds
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
