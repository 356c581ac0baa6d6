#!/usr/bin/env python3
"""Writes the configs of the grid that choose() is judged by (docs/lab/cost-model.md) to a folder.

    scripts/grid_configs.py FOLDER

Products of three shapes at 1, 8 and 64 rows in four formats, and attention of Llama-7B in two.
"""
import argparse
import json
import pathlib

SHAPES = [(4096, 4096), (11008, 4096), (4096, 11008)]
ROWS = [1, 8, 64]
WEIGHTS = ["quip-4", "aqlm-3", "gptvq-2", "aqlm-2x8"]
CACHES = ["cq-2c8b", "cq-4c8b"]


def configs():
    for weights in WEIGHTS:
        for outputs, inputs in SHAPES:
            for rows in ROWS:
                op = "gemv" if rows == 1 else "gemm"
                shape = {"m": rows, "out_features": outputs, "in_features": inputs}
                name = f"{op}-{weights}-{outputs}x{inputs}-{rows}"
                yield name, {"op": op, "shape": shape, "weights": weights}
    for cache in CACHES:
        for batch in [1, 8]:
            for tokens in [1024, 4096, 16384]:
                shape = {"batch": batch, "query_heads": 32, "kv_heads": 32, "head_dim": 128,
                         "tokens": tokens}
                name = f"attention-{cache}-{batch}x{tokens}"
                yield name, {"op": "attention_decode", "shape": shape, "keys": cache,
                             "values": cache}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, config in configs():
        (folder / f"{name}.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
