#!/usr/bin/env python3
"""Writes problems that nobody tuned for to a folder: 40 of each kind, drawn from a seed.

    bench/regret_problems.py FOLDER [SEED] [--kinds KIND...]

Untuned choices are judged by them (docs/lab/cost-model.md). Those of bench/regret/ are of the default
seed and kinds, attention and products of any shape. `served` are what servers run: caches with a raw
window, pages and drafts, and weights of the shapes of models, in the recommended formats.
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
SERVED_CACHES = ["klt-2bit", "klt-2bit", "klt-1.5bit", "vecinfer-d4b8i8", "vecinfer-d4b8"]
SERVED_HEADS = [(32, 8), (28, 4), (16, 2), (40, 8), (64, 8), (24, 8), (32, 32), (14, 2)]
SERVED_WEIGHTS = ["aqlm-2x8i8", "aqlm-2x8i8", "aqlm-1x16i8", "iq2-xxs", "iq2-s", "iq3-xxs"]
SERVED_MATRICES = [(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (5120, 5120), (10240, 8192),
                   (27648, 5120), (3584, 18944), (3072, 3072), (11008, 2048), (28672, 8192), (1536, 8960)]
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


def served_attention(draw):
    cache = draw.choice(SERVED_CACHES)
    keys, values = (f"{cache}-keys", f"{cache}-values") if cache.startswith("klt") else (cache, cache)
    query_heads, kv_heads = draw.choice(SERVED_HEADS)
    head_dim = draw.choice([128, 128, 128, 64, 96, 256])
    tokens = logarithmic(draw, 1024, 131072) // 16 * 16
    batch = logarithmic(draw, 1, 64)
    batch = max(1, min(batch, MOST_ELEMENTS // 4 // (tokens * kv_heads * head_dim)))
    shape = {"batch": batch, "query_heads": query_heads, "kv_heads": kv_heads, "head_dim": head_dim,
             "tokens": tokens, "query_tokens": draw.choice([1, 1, 1, 2, 4]),
             "recent_tokens": draw.choice([0, 136, 136]), "page_tokens": draw.choice([0, 16, 64])}
    return {"op": "attention_decode", "shape": shape, "keys": keys, "values": values}


def served_product(draw):
    rows = logarithmic(draw, 1, 256)
    outputs, inputs = draw.choice(SERVED_MATRICES)
    return {"op": "gemv" if rows == 1 else "gemm",
            "shape": {"m": rows, "out_features": outputs, "in_features": inputs},
            "weights": draw.choice(SERVED_WEIGHTS)}


def served(draw):
    return draw.choice([served_attention, served_product])(draw)


KINDS = {"attention": attention, "product": product, "served": served}


def configs(seed, kinds):
    for kind in map(KINDS.get, kinds):
        draw = random.Random(f"{kind.__name__} {seed}")
        for number in range(PROBLEMS):
            yield f"{kind.__name__}-{number:02}", kind(draw)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("seed", type=int, nargs="?", default=SEED)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["attention", "product"])
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, config in configs(arguments.seed, arguments.kinds):
        (arguments.folder / f"{name}.json").write_text(json.dumps(config) + "\n")


if __name__ == "__main__":
    main()
