#!/usr/bin/env python3
"""Quantized experts in vLLM beside the same weights in FP16: log-probabilities of the same tokens (docs/guides/vllm.md).

    python3 bench/vllm_compare.py folder CONFIG MODEL --cache vecinfer-d4b8i8 --weights aqlm-2x8i8 --layers 2
    python3 bench/vllm_experts.py MODEL --ranks 2

CONFIG: config.json of a Mixtral or a Qwen3-MoE. vLLM continues random prompts greedily with the quantized model, on --ranks
GPUs, then reads prompts and tokens at once on one GPU: with that model, with its dequantized weights, and with those where
each expert has the next one's down projection. The last row shows how far apart wrong experts are. `beyond` counts tokens
whose log-probability there is more than --tolerance below the largest. Needs a GPU for each rank, and vLLM 0.26.
"""
import argparse
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import re
import statistics
import sys
import tempfile

import vllm_random

CAPTURED = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 8, 64, 128]}
MOST_APART = 0.05  # median, of log-probabilities


def dequantize(folder, out):
    """Write the folder of a quantized model again, with dense weights."""
    import torch
    from safetensors.torch import load_file, save_file

    import vqgen.torch
    from vqgen import _folders
    config = json.loads((folder / "config.json").read_text())
    told = _folders.Quantization(config.pop("quantization_config"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensors = load_file(folder / "model.safetensors", device=device)
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[told.dtype]
    dense = {name: tensor for name, tensor in tensors.items() if name.endswith(".weight")}
    for module in [name.removesuffix(".codes") for name in tensors if name.endswith(".codes")]:
        held = {name.rpartition(".")[2]: tensors[name].clone()
                for name in (f"{module}.{suffix}" for suffix in ("codes", "codebooks", "stage_scales", "output_scales"))
                if name in tensors}
        rows, columns = told.shape_of(module)
        layer = vqgen.torch.VQLinear(vqgen.Quantized(held["codes"], held["codebooks"], held.get("stage_scales")),
                                     told.format_of(module), rows, columns, output_scales=held.get("output_scales"),
                                     dtype=dtype)
        dense[f"{module}.weight"] = layer(torch.eye(columns, dtype=dtype, device=device)).T.contiguous()
    out.mkdir()
    (out / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.cpu() for name, tensor in dense.items()}, out / "model.safetensors", {"format": "pt"})


def with_others(tensors):
    """Weights where each expert has the next one's down projection."""
    found = {}
    for name in tensors:
        if match := re.fullmatch(r"(.*\.experts\.)(\d+)(\.(?:down_proj|w2)\.weight)", name):
            following = f"{match[1]}{int(match[2]) + 1}{match[3]}"
            found[name] = tensors[following if following in tensors else f"{match[1]}0{match[3]}"]
    return {**tensors, **found}


def logprobs_of(model, sequences, prompt, new, ranks=1):
    """What vLLM says of tokens behind each sequence's `prompt`. Of `new` tokens that it chooses greedily: the tokens, and
    their log-probabilities. Where new is 0, of the sequence's own: log-probabilities, and how much higher the largest is."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import SamplingParams
    most = max(map(len, sequences)) + new + 1
    llm = vllm_random.engine(model, max_model_len=-(-most // 256) * 256, max_num_seqs=128, max_num_batched_tokens=8192,
                             skip_tokenizer_init=True, tensor_parallel_size=ranks, gpu_memory_utilization=0.4, kv_cache_memory_bytes=1 << 30,
                             attention_backend="FLASH_ATTN", compilation_config=CAPTURED)
    sampling = SamplingParams(temperature=0, max_tokens=new or 1, ignore_eos=True, detokenize=False,
                              **({"logprobs": 0} if new else {"prompt_logprobs": 1}))
    outs = llm.generate([{"prompt_token_ids": each} for each in sequences], sampling, use_tqdm=False)
    if not new:
        read = [read_tokens(out.prompt_logprobs[prompt:], each[prompt:]) for out, each in zip(outs, sequences)]
        return [logprobs for logprobs, _ in read], [gaps for _, gaps in read]
    chosen = [out.outputs[0] for out in outs]
    return ([list(each.token_ids) for each in chosen],
            [[step[token].logprob for step, token in zip(each.logprobs, each.token_ids)] for each in chosen])


def read_tokens(steps, tokens):
    """(log-probabilities, gaps to the largest) of a sequence's tokens. steps: vLLM's, of the largest and the token's own."""
    own = [step[token].logprob for step, token in zip(steps, tokens)]
    return own, [max(each.logprob for each in step.values()) - given for step, given in zip(steps, own)]


def row_of(side, given, wanted, gaps, tolerance):
    """A row of results: how far a side's log-probabilities are from those wanted, and which tokens it would not choose."""
    apart = [abs(one - other) for ours, theirs in zip(given, wanted) for one, other in zip(ours, theirs)]
    row = {"side": side, "steps": len(apart), "median_apart": round(statistics.median(apart), 5),
           "largest_apart": round(max(apart), 4)}
    if gaps is not None:
        flat = [gap for each in gaps for gap in each]
        row |= {"same": sum(gap == 0 for gap in flat), "beyond": sum(gap > tolerance for gap in flat),
                "largest_gap": round(max(flat), 4)}
    return row


def alone(*given):
    """logprobs_of() in a process of its own, whose memory is free again at its end."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(logprobs_of, *given).result()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="folder of a quantized model")
    parser.add_argument("--prompts", type=int, default=96, help="prompts at once, up to 128 [96]")
    parser.add_argument("--prompt-tokens", type=int, default=100, help="tokens of a prompt [100]")
    parser.add_argument("--new", type=int, default=32, help="new tokens of a prompt [32]")
    parser.add_argument("--ranks", type=int, default=1, help="GPUs of the model that continues prompts [1]")
    parser.add_argument("--tolerance", type=float, default=0.02, help="gap of log-probabilities that counts as beyond [0.02]")
    parser.add_argument("--json", help="file for the results")
    options = parser.parse_args()
    prompts = [each["prompt_token_ids"] for each in vllm_random.random_prompts(options.prompts, options.prompt_tokens, 0)]
    tokens, decoded = alone(options.model, prompts, options.prompt_tokens, options.new, options.ranks)
    sequences = [prompt + chosen for prompt, chosen in zip(prompts, tokens)]
    found = {"quantized, one by one": (decoded, None)}
    with tempfile.TemporaryDirectory() as folder:
        from safetensors.torch import load_file, save_file
        dense = pathlib.Path(folder) / "dense"
        dequantize(options.model, dense)
        read = lambda model: alone(model, sequences, options.prompt_tokens, 0)
        found["quantized, at once"] = read(options.model)
        found["dense"] = read(dense)
        save_file(with_others(load_file(dense / "model.safetensors")), dense / "others.safetensors", {"format": "pt"})
        (dense / "others.safetensors").replace(dense / "model.safetensors")
        found["dense, other experts"] = read(dense)
    rows = [{**row_of(side, given, found["dense"][0], gaps, options.tolerance), "ranks": options.ranks if gaps is None else 1}
            for side, (given, gaps) in found.items()]
    for row in rows:
        print("##", json.dumps(row), flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))
    by_one, at_once, _, others = (row["median_apart"] for row in rows)
    return not max(by_one, at_once) < MOST_APART < others


if __name__ == "__main__":
    sys.exit(main())
