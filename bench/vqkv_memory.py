#!/usr/bin/env python3
"""Bytes per token of VQKV's formats, and the longest context that fits a GPU: a calculation.

Prints a table for each model, as VQKV's table 3 has it. Counted are weights of 16 bits, the
codebooks, codes with rows padded to 4 bytes, and the raw tokens; activations and workspaces are not.
Needs Python alone.
"""

import argparse

# From the models' cards: parameters, layers; 8 KV heads of 128 channels in both.
MODELS = {"Llama-3.1-8B": (8_030_261_248, 32), "Llama-3.2-3B": (3_212_749_824, 28)}
KV_HEADS, HEAD_DIM = 8, 128
RAW = 1024 + 4  # newest and first tokens that stay raw (section 4.1)
# Stages, channels and index bits of the values, and of the keys' low and high frequencies (section 4.1).
FORMATS = {"Llama-3.1-8B": ((8, 128, 16), (20, 80, 16), (16, 48, 14)),
           "Llama-3.2-3B": ((10, 128, 16), (20, 80, 16), (14, 48, 16))}
RECIPE = (16, 22, 32)  # residual stages of the recipe vqkv of vqgen.eval, of vectors of 64


def rows(bits):
    """Bytes of one token's codes in one head and layer."""
    return -(-bits // 32) * 4


def caches(model):
    """(name, bytes of codes per token, bytes of codebooks, raw tokens); codebooks shared by all layers."""
    heads = MODELS[model][1] * KV_HEADS
    parts = FORMATS[model]
    yield "FP16", heads * 2 * HEAD_DIM * 2, 0, 0
    yield "INT8, a scale per channel", heads * 2 * HEAD_DIM, heads * 2 * HEAD_DIM * 2, 0
    kivi = rows(HEAD_DIM * 4) + HEAD_DIM // 32 * 4
    yield "KIVI of 4 bits, 32 raw", heads * 2 * kivi, 0, 32
    codes = heads * sum(rows(stages * bits) for stages, _, bits in parts)
    books = 2 * sum(stages * width << bits for stages, width, bits in parts)
    yield "VQKV", codes, books, RAW
    small = heads * sum(rows(stages * 12) for stages, *_ in parts)
    yield "VQKV of 4096 entries", small, 2 * sum(stages * width << 12 for stages, width, _ in parts), RAW
    yield "VQKV of 4096 entries, a codebook per layer", small, MODELS[model][1] * 2 * sum(
        stages * width << 12 for stages, width, _ in parts), RAW
    for stages in RECIPE:  # keys in two parts take as many bytes of codes, and codebooks of 128 channels
        halves = heads * 2 * rows(stages * 8 * HEAD_DIM // 64)
        yield f"{stages} stages of 64, 256 entries, per layer", halves, MODELS[model][1] * 2 * 2 * (stages * 64 << 8), RAW


def longest(memory, parameters, token, books, raw, raw_token):
    """Tokens of one sequence, the raw ones among them."""
    left = memory - 2 * parameters - books - raw * raw_token
    return max(0, int(left // token) + raw)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory-gb", nargs="+", type=float, default=[80, 141], help="of 1e9 bytes")
    sizes = parser.parse_args().memory_gb
    for model, (parameters, layers) in MODELS.items():
        raw_token = layers * KV_HEADS * 2 * HEAD_DIM * 2
        print(f"{model}: weights {2e-9 * parameters:.1f} GB\n")
        print("| cache | bytes per token | bits an element | codebooks MB | "
              + " | ".join(f"tokens in {size:g} GB" for size in sizes) + " |")
        print("|---" * (4 + len(sizes)) + "|")
        for name, token, books, raw in caches(model):
            tokens = [longest(1e9 * size, parameters, token, books, raw, raw_token) for size in sizes]
            print(f"| {name} | {token:,} | {16 * token / raw_token:.2f} | {1e-6 * books:,.0f} | "
                  + " | ".join(f"{each:,}" for each in tokens) + " |")
        print()


if __name__ == "__main__":
    main()
