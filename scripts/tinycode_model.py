#!/usr/bin/env python3
"""Writes the small trained model tinycode as a Qwen2 model directory that `transformers` loads.

    scripts/tinycode_model.py FOLDER OUT

FOLDER holds tinycode-config.json and tinycode-*-of-*.safetensors. OUT gets config.json,
model.safetensors and a tokenizer whose tokens are bytes. Needs NumPy and safetensors.
"""
import argparse
import json
import pathlib
import re
import sys

from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

NAMES = {"emb": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
PARTS = {"n1": "input_layernorm", "n2": "post_attention_layernorm",
         **{name: f"self_attn.{name}_proj" for name in "qkvo"},
         **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")}}
SAME = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "intermediate_size", "rope_theta", "rms_norm_eps")


def renamed(name):
    block = re.fullmatch(r"blocks\.(\d+)\.(\w+)\.(weight|bias)", name)
    if block:
        return f"model.layers.{block[1]}.{PARTS[block[2]]}.{block[3]}"
    stem, kind = name.rsplit(".", 1)
    return f"{NAMES[stem]}.{kind}"


def tokenizer():
    """Token n is byte n: byte-level BPE without merges, whose alphabet stands for bytes by printable
    characters: a byte that is one stands for itself, the others are numbered from 256."""
    shown = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(256, 512))
    vocabulary = {chr(byte if byte in shown else next(hidden)): byte for byte in range(256)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
             "use_regex": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
            "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": []}}


def write(folder, out):
    facts = json.loads((folder / "tinycode-config.json").read_text())
    files = sorted(folder.glob("tinycode-*-of-*.safetensors"))
    if not files:
        raise OSError(f"{folder} has no tinycode-*-of-*.safetensors")
    tensors = {renamed(name): tensor for file in files for name, tensor in load_file(file).items()}
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
              "dtype": "float16", "tie_word_embeddings": False, "max_position_embeddings": 32768,
              "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
              **{name: facts[name] for name in SAME}}
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    for name, value in (
            ("config.json", config), ("tokenizer.json", tokenizer()),
            ("generation_config.json", {"pad_token_id": 0}),
            ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast",
                                       "pad_token": "\u0100", "padding_side": "left",
                                       "clean_up_tokenization_spaces": False})):
        (out / name).write_text(json.dumps(value, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    try:
        write(arguments.folder, arguments.out)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        sys.exit(f"tinycode_model: {error}")


if __name__ == "__main__":
    main()
