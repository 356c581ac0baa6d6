#!/usr/bin/env python3
"""Times calibrated quantization of one decoder layer, and its peak of GPU memory.

    bench/weights_calibration.py [--config CONFIG] [--format aqlm-2x8i8] [--tune 4] [--device cuda] [--json OUT]

The layer has random weights and the sizes of a Llama config (examples/python/llama-3-8b.json), and so do the hidden states
that go in: --sequences x --length tokens. Both times are of the code that vqgen.hf.quantize() runs for each layer:
`calibrated` finds codes and codebooks, `tuned` does this and fine-tunes. Each begins after a small layer has run, which loads
PyTorch's libraries. --set NAME=VALUE changes a size of the config, for a try on a CPU: hidden_size=256. Needs PyTorch,
transformers and, for memory, a GPU.
"""
import argparse
import json
import pathlib
import time

import torch
import transformers
import vqgen
from vqgen import _weight_blocks, _weights

CONFIG = pathlib.Path(__file__).parent.parent / "examples" / "python" / "llama-3-8b.json"


def calls_of(layer_config, arguments, dtype):
    """A decoder layer, and what goes into it, on the device."""
    config = transformers.AutoConfig.for_model(**layer_config)
    config.num_hidden_layers, config.vocab_size = 1, 256
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()
    model = model.to(arguments.device)
    tokens = torch.randint(0, 256, (arguments.sequences, arguments.length))
    calls = _weight_blocks.first_calls(model, tokens.split(arguments.at_once), arguments.device, dtype)
    for hidden in calls.hidden:  # of embeddings there are 256 different ones
        hidden.normal_()
    return _weight_blocks.layers_of_model(model)[0], calls


def measured(layer, calls, fields, passes: int, arguments, dtype) -> dict:
    cuda = str(arguments.device).startswith("cuda")
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    begin = time.perf_counter()
    block = _weight_blocks.own_copy(layer, arguments.device, dtype)
    targets = calls.run(block) if passes else None
    made, figures = _weights.quantized_block(block, calls, fields, torch.float16, _weights.Effort(passes=passes), targets=targets)
    calls.run(block)  # what goes into the next layer
    if cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    return {"passes": passes, "seconds": seconds, "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if cuda else None,
            "lost": {name: share for name, share in figures.items()}, "linears": len(made)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=pathlib.Path, default=CONFIG)
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="sizes other than the config's")
    parser.add_argument("--format", default="aqlm-2x8i8")
    parser.add_argument("--tune", type=int, default=4, help="passes of fine-tuning")
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--at-once", type=int, default=4, help="sequences of a batch")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    dtype = torch.float32 if arguments.device == "cpu" else torch.float16
    fields = _weights.require_format(arguments.format)
    config = json.loads(arguments.config.read_text())
    config |= {name: int(value) for name, value in (each.split("=") for each in arguments.set)}
    small = {**config, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 64}
    warm = argparse.Namespace(**{**vars(arguments), "sequences": 2, "length": 64, "at_once": 2})
    measured(*calls_of(small, warm, dtype), fields, 1, warm, dtype)
    layer, calls = calls_of(config, arguments, dtype)
    rows = []
    for name, passes in (("calibrated", 0), ("tuned", arguments.tune)):
        rows.append({"setting": name, **measured(layer, calls, fields, passes, arguments, dtype)})
        peak = "-" if rows[-1]["peak_gib"] is None else f"{rows[-1]['peak_gib']:.1f} GiB"
        print(f"{name:12}{rows[-1]['seconds']:8.1f} s  peak {peak}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"config": config, "format": arguments.format, "tokens": calls.tokens(),
                                              "device": str(arguments.device), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
