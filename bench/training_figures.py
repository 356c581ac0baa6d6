#!/usr/bin/env python3
"""How long codebooks take to train on a GPU, with the data there (docs/guides/quantize.md).

    PYTHONPATH=build/release/python python3 bench/training_figures.py [--books 512] [--only d8b12]

Needs PyTorch with CUDA and the Python package. Vectors are drawn on the device: normal, with a
deviation and a mean of their own per channel. A first, small training compiles the kernels. Prints
a row per format; exit code 1 where a format misses its goal.
"""

import argparse
import time

import torch

import vqgen
import vqgen.torch

COLUMNS = 128
GOALS = {"d4b8": (4, 8, 20.0), "d8b12": (8, 12, 120.0)}  # vector_size, index_bits, seconds for 512


def drawn(books, sub_vectors, size, device):
    rows = sub_vectors * size // COLUMNS
    draw = torch.Generator(device).manual_seed(1)
    vectors = torch.empty(books, rows, COLUMNS, device=device).normal_(generator=draw)
    deviations = torch.rand(books, 1, COLUMNS, generator=draw, device=device) * 2 + 0.2
    return vectors.mul_(deviations).add_(deviations.flip(2) - 1)


def missed(vectors, codebooks, size):
    """Mean squared error of the first book's first sub-vectors, over their mean square."""
    some = vectors[0].reshape(-1, size)[:16384]
    nearest = torch.cdist(some, codebooks[0, 0].float()).argmin(1)
    return float(((some - codebooks[0, 0].float()[nearest])**2).mean() / (some**2).mean())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--books", type=int, default=512)
    parser.add_argument("--sub-vectors", type=int, default=1 << 20, help="of a book")
    parser.add_argument("--iterations", type=int, default=25)
    parser.add_argument("--only", choices=GOALS)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "all cores"
    print(f"{name}: {options.books} codebooks, {options.sub_vectors} sub-vectors each, at most "
          f"{options.iterations} iterations, vqgen {vqgen.__version__}\n")
    print("| format | seconds | goal | terms a second | missed | same twice |\n|---|---|---|---|---|---|")
    late = False
    for label, (size, bits, goal) in GOALS.items():
        if options.only not in (None, label):
            continue
        form = {"vector_size": size, "index_bits": bits, "scope": "head"}

        def train(vectors, iterations=options.iterations, form=form):
            return vqgen.torch.train_codebooks(vectors, form, iterations=iterations).codebooks

        train(drawn(2, 1 << bits, size, device), 1)
        vectors = drawn(options.books, options.sub_vectors, size, device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begun = time.perf_counter()
        codebooks = train(vectors)
        seconds = time.perf_counter() - begun
        two = vectors[:2].contiguous()
        same = bool((train(two, 3) == train(two, 3)).all())
        terms = options.books * options.sub_vectors * size * 2**bits * options.iterations
        goal *= options.books / 512 * options.sub_vectors / (1 << 20)
        late |= seconds > goal or not same
        print(f"| {label} | {seconds:.2f} | {goal:.3g} | {terms / seconds:.2e} | "
              f"{missed(vectors, codebooks, size):.4f} | {'yes' if same else 'NO'} |")
        del vectors, two
    raise SystemExit(late)


if __name__ == "__main__":
    main()
