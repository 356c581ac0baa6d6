#!/usr/bin/env python3
"""Writes problems that nobody tuned for to a folder: 40 of attention and 40 products, drawn from a seed.

    bench/regret_problems.py FOLDER [SEED]

Untuned choices are judged by them (docs/lab/cost-model.md). Those of bench/regret/ are of the default seed.
"""
import argparse
import json
import pathlib
import random

PROBLEMS = 40  # of each kind
SEED = 24
CACHES = ["vecinfer-d4b8", "vecinfer-d4b8i8", "vecinfer-d8b12", "vecinfer-d8b12i8", "vecinfer-d8b8",
          "vecinfer-d4b10", "vecinfer-d2b8", "million-d4b8", "cq-4c8b", "cq-8c8b"]
WEIGHTS = ["aqlm-2x8", "aqlm-2x8i8", "aqlm-3", "aqlm-1x16", "aqlm-1x16i8", "gptvq-2", "quip-2", "quip-4"]
HEAD_DIMS = [64, 96, 128, 256]
MOST_ELEMENTS = 2**31  # of keys, so that two caches of 2 bits fit any card


def logarithmic(draw, least, most):
    """A whole number whose logarithm is uniform."""
    return min(most, int(least * (most / least + 1) ** draw.random()))


def attention(draw):
    head_dim = draw.choice(HEAD_DIMS)
    heads = draw.randint(1, 16)
    tokens = logarithmic(draw, 64, 131072)
    batch = logarithmic(draw, 1, 64)
    keys = draw.choice(CACHES)
    # MILLION and CQ have a codebook a sub-space, hence the same for both.
    values = keys if keys.startswith(("million", "cq")) else draw.choice(CACHES[:7])
    if keys.startswith("vecinfer") and head_dim == 96:
        keys = {"preset": keys, "hadamard": False}  # takes a power of two
    batch = max(1, min(batch, MOST_ELEMENTS // (tokens * heads * head_dim)))
    return {"op": "attention_decode",
            "shape": {"batch": batch, "query_heads": heads * draw.randint(1, 16), "kv_heads": heads,
                      "head_dim": head_dim, "tokens": tokens},
            "keys": keys, "values": values}


def product(draw):
    rows = logarithmic(draw, 1, 256)
    sides = [logarithmic(draw, 4, 112) * 256 for _ in range(2)]
    return {"op": "gemv" if rows == 1 else "gemm",
            "shape": {"m": rows, "out_features": sides[0], "in_features": sides[1]},
            "weights": draw.choice(WEIGHTS)}


def configs(seed):
    for kind in attention, product:
        draw = random.Random(f"{kind.__name__} {seed}")
        for number in range(PROBLEMS):
            yield f"{kind.__name__}-{number:02}", kind(draw)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("seed", type=int, nargs="?", default=SEED)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, config in configs(arguments.seed):
        (arguments.folder / f"{name}.json").write_text(json.dumps(config) + "\n")


if __name__ == "__main__":
    main()
