#!/usr/bin/env python3
"""What a decode step on a VQKV cache must cost on an H200, by bytes and operations.

A step is a sequence of phases that wait for each other; what goes on within a phase overlaps, so that
a phase takes the largest of its parts and a step the sum of its phases. What was measured is in
docs/lab/attention-histogram.md. Needs Python alone.
"""

import argparse
import math
import random

# Rates of one H200 (docs/lab/hardware-rates.md).
READ = 4.5e12  # bytes per second of device memory
L2 = 5.5e12  # bytes per second of sectors of the second-level cache
L2_BYTES = 62.9e6
SMS, CLOCK = 132, 1.77e9
PASS = SMS * CLOCK  # accesses of shared memory per second, each of up to 128 bytes
SHARED = 227 * 1024  # bytes of a block
PRODUCTS = SMS * CLOCK * 2048  # operations per second of mma.sync in f16: half of the data sheet's
FMA = SMS * CLOCK * 128  # multiply-adds per second, fp32
LAUNCH = 2e-6  # seconds of a kernel, however small

KV_HEADS, QUERY_HEADS, HEAD_DIM = 8, 32, 128
GROUP = QUERY_HEADS // KV_HEADS
SHAPES = [(1, 131072), (8, 65536), (64, 8192), (1, 4096)]


def serialisation(lanes, banks, draws=4000):
    """Passes that `lanes` random places in `banks` take at once, in the mean."""
    rng = random.Random(1)
    total = 0
    for _ in range(draws):
        hits = [0] * banks
        for _ in range(lanes):
            hits[rng.randrange(banks)] += 1
        total += max(hits)
    return total / draws


class Book:
    """Stages of one operand, or of one part of its channels."""

    def __init__(self, stages, width, entries):
        self.stages, self.width, self.entries = stages, width, entries
        self.bits = (entries - 1).bit_length()

    def numbers(self):
        return self.stages * self.entries * self.width

    def codebook_bytes(self):
        return 2 * self.numbers()

    def code_bytes(self):  # of a token and KV head
        return math.ceil(self.stages * self.bits / 32) * 4

    def entry_bytes(self):  # that a token and KV head names
        return 2 * self.stages * self.width


def gathered(books, rows):
    """Seconds in which entries of `rows` tokens and KV heads come, from the cache where they fit."""
    held = sum(b.codebook_bytes() for b in books)
    asked = rows * sum(b.entry_bytes() for b in books)
    if held <= L2_BYTES:
        return max(held / READ, asked / L2)
    return max(min(held, asked) / READ, asked * (1 - L2_BYTES / held) / READ, asked / L2)


def by_elements(books, rows, codes):
    """A lookup per element: each entry is fetched, summed and multiplied by lanes."""
    work = rows * sum(b.stages * b.width for b in books) + rows * GROUP * 2 * HEAD_DIM
    return [("read", max(codes / READ, gathered(books, rows), work / FMA))]


def rebuild(books, rows, codes):
    """Entries are summed once per token, to shared memory; tensor cores take the sums."""
    sums = rows * sum(b.stages * b.width for b in books) / 2 / FMA  # two of 16 bits at once
    # The sums are stored once and read once.
    passes = 2 * rows * 2 * HEAD_DIM * 2 / 128 / PASS
    products = rows * 2 * HEAD_DIM * 2 * 16 / PRODUCTS  # 4 heads in operands of 16 rows
    return [("rebuild", max(codes / READ, gathered(books, rows), sums, passes, products))]


def looked_up(book, rows, slices, passes_each):
    """Seconds of passes over slices of a table, one after the other, each for the codes it holds.

    passes_each(lanes) are those of one warp's access with so many lanes.
    """
    warps = rows * book.stages / 32
    passes = warps * slices * passes_each(max(1, round(32 / slices)))
    codes_again = slices * rows * book.stages * book.bits / 8 / L2
    return max(passes / PASS, codes_again)


def score_passes(lanes):  # 8 bytes, those of 4 heads in f16: half a warp at a time
    return 2 * serialisation(max(1, lanes // 2), 16)


def bin_passes(lanes):  # 4 bytes per head; an addition takes what a load does
    return GROUP * serialisation(lanes, 32)


def tables(keys, values, batch, rows):
    queries = batch * QUERY_HEADS
    pairs = batch * KV_HEADS  # of sequences and KV heads
    made = sum(queries * b.stages * b.entries * 2 for b in keys)  # bytes of tables
    made_rate = L2 if made < L2_BYTES else READ
    make = max(
        sum(b.codebook_bytes() for b in keys) / READ,
        made / made_rate,
        sum(2 * max(queries, 16) * b.numbers() for b in keys) / PRODUCTS,
    )
    score = 0
    for b in keys:
        # A block goes through the stages for the tokens whose scores, fp32, stand beside a table.
        slices = math.ceil(b.entries * 2 * GROUP / (SHARED / 2))
        blocks = max(SMS, pairs * math.ceil(rows / pairs / (SHARED / 2 / (4 * GROUP))))
        fetched = blocks * b.stages * b.entries * 2 * GROUP / made_rate
        near = max(looked_up(b, rows, slices, score_passes), fetched)
        score += min(near, rows * b.stages * 32 / L2)  # or a sector of the cache for each
    score = max(score, rows * sum(b.code_bytes() for b in keys) / READ)
    add = 0
    for b in values:
        # A block has the bins of a stage, or a slice of them, and reads f16 probabilities.
        slices = math.ceil(b.entries * 4 * GROUP / SHARED)
        splits = math.ceil(SMS / (pairs * b.stages * slices))
        spilt = 2 * splits * pairs * b.stages * b.entries * 4 * GROUP  # written and read
        read = slices * b.stages * rows * 2 * GROUP / L2
        spill = spilt / (L2 if spilt < 2 * L2_BYTES else READ)
        add += max(looked_up(b, rows, slices, bin_passes), read, spill)
    add = max(add, rows * sum(b.code_bytes() for b in values) / READ)
    out = max(
        sum(b.codebook_bytes() for b in values) / READ,
        sum(2 * max(queries, 16) * b.numbers() for b in values) / PRODUCTS,
    )
    return [("tables", make), ("scores", score), ("bins", add), ("products", out)]


def total(phases):
    return sum(seconds for _, seconds in phases) + LAUNCH * len(phases)


def row(low, high, value, batch, tokens):
    keys = [Book(20, 80, low), Book(16, 48, high)]
    values = [Book(8, 128, value)]
    rows = batch * tokens * KV_HEADS
    half = rows * 2 * HEAD_DIM * 2
    fp16 = half / READ + LAUNCH
    codes = rows * sum(b.code_bytes() for b in keys + values)
    lookup = total(by_elements(keys + values, rows, codes))
    phases = tables(keys, values, batch, rows)
    built = total(rebuild(keys + values, rows, codes))
    table = total(phases)
    best = min((fp16, "FP16"), (lookup, "lookup"), (table, "tables"), (built, "rebuild"))
    return {
        "B": batch,
        "N": tokens,
        "FP16 MB": half / 1e6,
        "codes MB": codes / 1e6,
        "codebooks MB": sum(b.codebook_bytes() for b in keys + values) / 1e6,
        "FP16 us": fp16 * 1e6,
        "lookup us": lookup * 1e6,
        "rebuild us": built * 1e6,
        "tables us": table * 1e6,
        "of them": " + ".join(f"{seconds * 1e6:.0f}" for _, seconds in phases),
        "FP16 / tables": f"{fp16 / table:.2f}",
        "least": best[1],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args()
    for low, high, value in [(4096, 4096, 4096), (65536, 16384, 65536)]:
        print(f"\nkeys 20 x 80 x {low} and 16 x 48 x {high}, values 8 x 128 x {value}\n")
        rows = [row(low, high, value, *shape) for shape in SHAPES]
        print("| " + " | ".join(rows[0]) + " |")
        print("|" + "---|" * len(rows[0]))
        for each in rows:
            cells = [f"{v:.3g}" if isinstance(v, float) and v < 100 else
                     f"{v:.0f}" if isinstance(v, float) else str(v) for v in each.values()]
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
