#!/usr/bin/env python3
"""Makes the partitions of KLT caches that vqgen._partitions ships, of a model's spectra.

    PYTHONPATH=build/dev/python scripts/klt_partitions.py MODEL TEXT

MODEL is a folder that transformers loads, as scripts/tinycode_model.py writes it; 24 sequences of 2048 tokens of TEXT
are calibrated on. Prints the constant SHIPPED. Needs PyTorch and transformers.
"""
import argparse
import sys

import torch
import transformers

import vqgen
from vqgen import _calibration, _partitions
from vqgen._klt import Moments
from vqgen.eval import sequences_of

HEAD_DIMS = 64, 80, 96, 112, 128, 192, 256
# Keys and values share these runs at 128 channels, by the number of codes: lanes of dataflow int8_mma share them evenly.
_SHARED = {12: [(64, 8), (64, 16)], 32: [(32, 2), (32, 4), (64, 8)], 48: [(64, 2), (64, 4)]}


def spectra_of(model, tokens):
    """The spectra of keys and of values, of all layers and KV heads, by operand."""
    out = {"keys": [], "values": []}
    for states in _calibration.states_of(model, tokens.split(4), "cpu"):
        for operand, rows in zip(out, states):
            moments = Moments()
            moments.add(rows)
            out[operand] += moments.basis().variances.tolist()
    return out


def partitions(spectra, head_dim):
    """The partition of each level."""
    spectra = [_partitions.resampled(each, head_dim) for each in spectra]
    shared = _SHARED if head_dim == 128 else {}
    return [shared.get(level) or _partitions.partition(spectra, _partitions.codes_of(level, head_dim), head_dim,
                                                       step=_partitions.STEP, word=_partitions.WORD)
            for level in _partitions.LEVELS]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("text")
    arguments = parser.parse_args()
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    print("SHIPPED: dict[str, dict[int, str]] = {")
    for operand, spectra in spectra_of(model, sequences_of(tokenizer, arguments.text, 24, 2048)).items():
        print(f'    "{operand}": {{')
        for head_dim in HEAD_DIMS:
            texts = [" ".join(f"{channels}x{size}" for channels, size in each) for each in partitions(spectra, head_dim)]
            print(f'        {head_dim}: "{", ".join(texts[:4])}, "')
            print(f'{" " * len(f"        {head_dim}: ")}"{", ".join(texts[4:])}",')
        print("    },")
    print("}")


if __name__ == "__main__":
    try:
        main()
    except vqgen.Error as error:
        sys.exit(f"klt_partitions: {error}")
