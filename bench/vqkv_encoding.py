#!/usr/bin/env python3
"""Times kv_append of a prompt in one call, in VQKV's formats: a table of milliseconds.

    PYTHONPATH=build/release/python python3 bench/vqkv_encoding.py [--tokens 32768] [--device cuda] [--json OUT]

Keys are in two parts of 20 stages x 80 and 16 stages x 48 channels, values in 8 stages x 128, with 4096
entries and with the paper's 65,536 (16,384 of the 48 channels); 8 KV heads. Rows are normally distributed,
and a stage's entries have the variance that a good codebook of so many leaves them. The codes of the first
tokens are compared with those that a call of these alone writes, which encodes by another kernel where it
is short: words that differ are counted. Needs PyTorch; times are device times on a GPU, else wall times.
"""

import argparse
import json
import statistics
import time

import torch

import vqgen
import vqgen.torch

KV_HEADS, HEAD_DIM = 8, 128
HIGH = [c for c in range(HEAD_DIM) if 24 <= c % 64]  # channels of the key's first part
LOW = [c for c in range(HEAD_DIM) if c % 64 < 24]
FIRST = 32  # tokens whose codes are compared


def formats(bits, low_bits):
    """The formats of keys and of values."""
    def stage(size, stages, index_bits):
        return {"vector_size": size, "num_codebooks": stages, "index_bits": index_bits, "scope": "tensor"}
    keys = {"parts": [{**stage(len(HIGH), 20, bits), "channels": HIGH},
                      {**stage(len(LOW), 16, low_bits), "channels": LOW}]}
    return vqgen.format_fields(keys), vqgen.format_fields(stage(HEAD_DIM, 8, bits))


def codebooks(form, device):
    """The codebooks of all parts in order; a stage's entries are drawn from what earlier stages leave."""
    parts = []
    for part in form.get("parts", [form]):
        size, bits, spread = part["vector_size"], part["index_bits"], 1.0
        for _ in range(part["num_codebooks"]):
            explained = 1 - 2 ** (-2 * bits / size)
            entries = torch.randn(2**bits, size, device=device)
            parts.append((spread * explained**0.5 * entries).half().flatten())
            spread *= (1 - explained)**0.5
    books = torch.cat(parts)
    return books if "parts" in form else books.view(1, form["num_codebooks"], -1, form["vector_size"])


def cache(form_of_keys, form_of_values, books, tokens):
    return vqgen.torch.VQCache(batch=1, query_heads=KV_HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM,
                               tokens=tokens, keys=form_of_keys, values=form_of_values,
                               key_codebooks=books[0], value_codebooks=books[1])


def call_ms(append, device):
    if device.startswith("cuda"):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        append()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)
    begin = time.perf_counter()
    append()
    return 1e3 * (time.perf_counter() - begin)


def row(bits, low_bits, arguments):
    torch.manual_seed(bits)
    forms = formats(bits, low_bits)
    books = [codebooks(form, arguments.device) for form in forms]
    shape = (1, arguments.tokens, KV_HEADS, HEAD_DIM)
    keys, values = (torch.randn(shape, device=arguments.device).half() for _ in range(2))
    whole = cache(*forms, books, arguments.tokens)

    def append():
        whole.lengths.zero_()
        whole.append(keys, values)

    append()  # compiled
    times = [call_ms(append, arguments.device) for _ in range(arguments.rounds)]
    few = cache(*forms, books, arguments.tokens)
    few.append(keys[:, :FIRST], values[:, :FIRST])
    differ = total = 0
    for name in ("keys", "values"):
        one, other = (getattr(each, name).codes.view(KV_HEADS, arguments.tokens, -1)[:, :FIRST]
                      for each in (whole, few))
        differ += int((one != other).sum())
        total += one.numel()
    return {"entries": 2**bits, "entries_of_low": 2**low_bits, "tokens": arguments.tokens,
            "ms": statistics.median(times), "rounds_ms": times, "words": total, "words_that_differ": differ}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bits", nargs="+", default=["12:12", "16:14"], metavar="BITS:BITS",
                        help="of codes: of values and the first part of keys, and of the second")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    rows = []
    print("| entries | of the 48 channels | tokens | ms | words that differ |\n|---|---|---|---|---|", flush=True)
    for each in arguments.bits:
        rows.append(row(*map(int, each.split(":")), arguments))
        last = rows[-1]
        print(f"| {last['entries']} | {last['entries_of_low']} | {last['tokens']} | {last['ms']:.1f} | "
              f"{last['words_that_differ']} of {last['words']} |", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
