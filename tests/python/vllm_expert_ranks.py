"""Quantized experts of vqgen.vllm in several processes, each of which has a rank's shards, as vLLM splits them."""

import json
import pathlib

import torch
import torch.distributed as dist

import vllm_models
import vqgen
import vqgen.torch as vt
from vllm_reference import rank_of
from vqgen import _folders
from vqgen.vllm import _experts, _weights

COUNTS = (1, 9, 70)  # tokens of each step


def configuration(folder):
    return vllm_models.configuration(folder, lora_config=None, load_config=vllm_models.Fields(load_format="auto"))


def experts_of(folder, kind, rank, ranks, device):
    """The experts of a rank. kind: prefix, names of gate, up and down, experts, top_k, hidden and inner features."""
    prefix, names, experts, top_k, hidden, inner = kind
    own = _weights.Folder(json.loads((pathlib.Path(folder) / "config.json").read_text())["quantization_config"])
    own.open(configuration(folder))
    layer = _experts.Experts(own, prefix, names, experts, top_k, hidden, inner // ranks, torch.float16, device, rank=rank,
                             ranks=ranks)
    stored, tensors = layer.storage(), _folders.read_folder(folder)[1]
    for expert in range(experts):
        for name, shard in zip(names, ("w1", "w3", "w2")):
            for suffix, tensor in tensors.read(f"{prefix}.{expert}.{name}").items():
                whole = f"{'w2' if shard == 'w2' else 'w13'}_{suffix}"
                layer.load(whole, stored[whole], tensor.to(device), shard, expert)
    layer.finish(stored)
    return layer


def steps_of(kind):
    """(x, weights, ids) of each step: a router's, which all ranks have."""
    draw = torch.Generator().manual_seed(5)
    out = []
    for tokens in COUNTS:
        chosen = torch.rand(tokens, kind[2], generator=draw).topk(kind[3], -1)
        out.append((torch.randn(tokens, kind[4], generator=draw).half() / 8, chosen.values / chosen.values.sum(-1, keepdim=True),
                    chosen.indices.int()))
    return out


def run(rank, ranks, folder, kind, cache_dir, out):
    """What a process does: sums of its shards, which all ranks add up, saved in the folder `out`."""
    with rank_of(rank, ranks, cache_dir, out) as device:
        layer, outs = experts_of(folder, kind, rank, ranks, device), []
        for given in steps_of(kind):
            whole = layer(*(each.to(device) for each in given)).float().cpu()
            if ranks > 1:
                dist.all_reduce(whole)
            outs.append(whole)
        torch.save(outs, f"{out}/rank{rank}")
