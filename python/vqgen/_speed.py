"""How fast a model decodes over a quantized cache, and over a 16-bit one beside it. A GPU's."""

from __future__ import annotations

import gc
import statistics
import sys
import time

import torch

import vqgen
import vqgen.hf
import vqgen.torch
from vqgen._models import heads_of, value_dim_of
from vqgen._plain_cache import PlainCache

_STEPS = 64  # of one token, timed


@torch.no_grad()
def speed(model, cache, context: int) -> dict:
    """Tokens per second of captured steps that begin with `context` tokens in each sequence."""
    batch = cache.tokens.lengths.numel()
    tokens = torch.ones(batch, 1, dtype=torch.long, device=model.device)
    host = []

    def step():
        cache.tokens.seen = context
        cache.tokens.lengths.fill_(context)
        begin = time.perf_counter()
        model(tokens, past_key_values=cache)
        host.append(time.perf_counter() - begin)

    with vqgen.hf.captured(model, cache):
        for _ in range(8):
            step()
        host.clear()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(_STEPS):
            step()
        torch.cuda.synchronize()
        spent = (time.perf_counter() - begin) / _STEPS
    free, total = torch.cuda.mem_get_info(model.device)
    return {"batch": batch, "context": context, "step_ms": spent * 1e3,
            "tokens_per_second": batch / spent, "used_gb": (total - free) / 1e9,
            "host_us": statistics.median(host) * 1e6}


@torch.no_grad()
def first_token(model, cache, context: int) -> float:
    """Milliseconds from prompts of `context` tokens to their next token's logits."""
    tokens = torch.ones(cache.tokens.lengths.numel(), context, dtype=torch.long, device=model.device)
    times = []
    for _ in range(3):
        cache.reset()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        model(tokens, past_key_values=cache, logits_to_keep=1)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    return min(times)


def speeds(model, arguments):
    """Rows of the model over a 16-bit cache and over ours, with 16-bit weights and quantized ones."""
    rows = []

    def make_plain(**sizes):
        return PlainCache(model.config, dtype=model.dtype, **sizes)

    def make_ours(**sizes):
        recent_tokens, batch = arguments.recent_tokens[0]
        return _random_cache(model, arguments.forms[0], recent_tokens=recent_tokens, flush_block=batch,
                             sinks=arguments.sinks[0], **sizes)

    def measure(kind, weights):
        make = {"16 bit": make_plain, "ours": make_ours}[kind]
        model.set_attn_implementation("vqgen")
        for context in arguments.contexts:
            for batch in arguments.batches:
                row = {"cache": kind, "weights": weights, "context": context, "batch": batch}
                try:
                    if batch == "most":
                        batch = _most(make, model, context)
                    cache = make(batch=batch, tokens=context + 1, device=model.device)
                    row |= speed(model, cache, context)
                    if arguments.first_token:
                        row["first_token_ms"] = first_token(model, cache, context)
                except torch.cuda.OutOfMemoryError:
                    row["failed"] = "does not fit"
                cache = None
                gc.collect()
                torch.cuda.empty_cache()
                rows.append(row)
                print(_speed_line(row), flush=True)

    print(f"{'cache':8}{'weights':14}{'context':>9}{'batch':>7}{'ms':>9}{'tokens/s':>11}{'GB':>8}"
          f"{'host us':>9}{'first ms':>10}")
    measure("16 bit", "16 bit")
    measure("ours", "16 bit")
    if arguments.weights:
        _quantize_randomly(model, arguments.weights[0])
        measure("ours", arguments.weights[0])
    return rows


def _speed_line(row):
    head = f"{row['cache']:8}{row['weights']:14}{row['context']:9}{row['batch']:>7}"
    if "failed" in row:
        return f"{head}  {row['failed']}"
    return (f"{head}{row['step_ms']:9.3f}{row['tokens_per_second']:11.1f}{row['used_gb']:8.1f}"
            f"{row['host_us']:9.1f}"
            + (f"{row['first_token_ms']:10.1f}" if "first_token_ms" in row else ""))


def _most(make, model, context):
    """The sequences that fit into the memory that is free, less what the steps themselves take."""
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info(model.device)[0]
    cache = make(batch=4, tokens=context + 1, device=model.device)
    each = (before - torch.cuda.mem_get_info(model.device)[0]) / 4
    del cache
    gc.collect()
    torch.cuda.empty_cache()
    return int((before - 2e9) // each)


def _random_cache(model, form, *, recent_tokens, flush_block, sinks, batch, tokens, device):
    """A cache whose codes and codebooks are drawn at random, and which has room for `tokens`."""
    config = model.config.get_text_config(decoder=True)
    _, kv_heads, head_dim = heads_of(config)
    heads = {"kv_heads": kv_heads, "head_dim": head_dim, "value_head_dim": value_dim_of(config, head_dim)}
    op = vqgen.torch.prepare(vqgen.torch.config_text(
        {"op": "kv_append", "dtype": vqgen.torch.DTYPES[model.dtype], "keys": form[0], "values": form[1],
         "shape": {"batch": 1, "tokens": 1, **heads}}), device)
    item = {**heads, **{name: op.description["problem"][name] for name in ("keys", "values")}}
    names = {"key_smooth": "keys.smooth", "keys.scales": "keys.stage_scales",
             "values.scales": "values.stage_scales"}  # of a bundle
    layers = []
    for _ in range(config.num_hidden_layers):
        tensors = random_tensors(op, item, model.dtype, device)
        layers.append((item, {names.get(name, name): tensors[name] for name in tensors}))
    cache = vqgen.hf.VQCache(model.config, layers, batch=batch, tokens=tokens, recent_tokens=recent_tokens,
                             flush_block=flush_block, sinks=sinks, device=device)
    for layer in cache.layers:
        for held in (layer.cache.keys, layer.cache.values):
            held.codes.view(torch.uint8).random_(0, 256)
    return cache


def random_tensors(op, formats, dtype, device):
    """Codebooks, scales and smoothing of an op's operands, by the names of its arguments."""
    tensors = {}
    for argument in op.arguments:
        operand, _, name = argument.name.partition(".")
        drawn = torch.randn(argument.shape, dtype=torch.float32, device=device)
        if name == "codebooks":
            if formats[operand].get("entry_type") == "int8":
                drawn = (drawn * 40).round().clamp(-127, 127)
            tensors[argument.name] = drawn.to(dtype)
        elif name == "scales" or argument.name == "output_scales":
            tensors[argument.name] = torch.full_like(drawn, 0.02)
        elif argument.name == "key_smooth":
            tensors[argument.name] = torch.ones_like(drawn)
    return tensors


def _quantize_randomly(model, form):
    """Replace each linear layer of the model by one whose codes are drawn at random."""
    for layer in model.model.layers:
        for parent in list(layer.modules()):
            for name, linear in list(parent.named_children()):
                if not isinstance(linear, torch.nn.Linear):
                    continue
                shape = {"m": 256, "out_features": linear.out_features,
                         "in_features": linear.in_features}
                op = vqgen.torch.prepare(vqgen.torch.config_text(
                    {"op": "gemm", "dtype": vqgen.torch.DTYPES[model.dtype], "shape": shape,
                     "weights": form}), model.device)
                item = op.description["problem"]
                tensors = random_tensors(op, item, model.dtype, model.device)
                shapes = {argument.name: argument.shape for argument in op.arguments}
                codes = torch.empty(shapes["weights.codes"], dtype=torch.int32, device=model.device)
                codes.view(torch.uint8).random_(0, 256)
                held = vqgen.Quantized(codes, tensors["weights.codebooks"] * 0.02,
                                       tensors.get("weights.scales"))
                setattr(parent, name, vqgen.torch.VQLinear(
                    held, item["weights"], linear.out_features, linear.in_features,
                    output_scales=tensors.get("output_scales"), bias=linear.bias,
                    dtype=model.dtype))


def compile_pointwise(model):
    """The model's norms, rotations and MLPs by torch.compile, whatever cache it runs over."""
    layers = model.model.layers
    code = sys.modules[type(layers[0]).__module__]
    code.apply_rotary_pos_emb = torch.compile(code.apply_rotary_pos_emb)
    norm, mlp = type(layers[0].input_layernorm), type(layers[0].mlp)
    for module in model.modules():
        if type(module) in (norm, mlp):
            module.compile()
