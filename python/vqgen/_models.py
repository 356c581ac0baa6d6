"""What is asked of models of transformers in several places."""

from __future__ import annotations

import contextlib
import itertools

import torch
import transformers

import vqgen
from vqgen._sights import Sight, sights_of
from vqgen.torch import VQLinear


@contextlib.contextmanager
def attending(model, name: str):
    """Inside it, the model's attention is the function that transformers knows by `name`. Refuses, by its
    name, a model that calls no such function."""
    if not model._supports_attention_backend:
        raise vqgen.Infeasible(f"{type(model).__name__}: it has attention of its own in transformers {transformers.__version__}"
                               ", which none of vqgen's can replace; take another version of transformers, or the model's own "
                               "cache")
    config = model.config
    before = {"": config._attn_implementation}
    for key in config.sub_configs:
        if getattr(config, key, None) is not None:
            before[key] = getattr(config, key)._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextlib.contextmanager
def in_float32(model):
    """Inside it, a model on the CPU has its 16-bit weights in float32, in which CPUs compute several times faster. A model
    with quantized layers stays as it is, since their kernels are of one dtype."""
    before = []
    if model.device.type == "cpu" and not any(isinstance(each, VQLinear) for each in model.modules()):
        before = [(each, each.data) for each in itertools.chain(model.parameters(), model.buffers())
                  if each.dtype in (torch.float16, torch.bfloat16)]
    try:
        for each, data in before:
            each.data = data.float()
        yield
    finally:
        for each, data in before:
            each.data = data


def heads_of(config) -> tuple[int, int, int]:
    """Query heads, KV heads and head_dim of a decoder's config. Without a number of KV heads, each head has
    one, or all share one (multi_query)."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None)
    if kv_heads is None:
        kv_heads = 1 if getattr(config, "multi_query", False) else heads
    sizes = heads, kv_heads, getattr(config, "head_dim", None) or config.hidden_size // heads
    if not all(isinstance(size, int) for size in sizes):
        raise vqgen.Infeasible(f"config: heads, KV heads and head_dim are {sizes}; a VQCache serves models whose layers "
                               "all have the same: take the model's own cache")
    return sizes


def value_dim_of(config, head_dim: int) -> int:
    """The channels of a head of values, where the decoder's config has them (v_head_dim), else those of keys."""
    return getattr(config, "v_head_dim", None) or head_dim


def sizes_text(head_dim: int, value_dim: int) -> str:
    """The channels of keys and of values, in words."""
    return f"{head_dim}" if value_dim == head_dim else f"{head_dim} and of {value_dim} in values"


def require_served(config) -> tuple[int, int, int, list[Sight]]:
    """Refuses, by name, a model whose config says that a VQCache cannot hold its keys and values; returns
    heads_of() its decoder and the sight of each layer."""
    text = config.get_text_config(decoder=True)

    def refuse(what):
        raise vqgen.Infeasible(f"config: {type(text).__name__} has {what}; a VQCache serves decoders whose layers all "
                               "have causal attention over keys and values of equal sizes: take the model's own cache")

    if getattr(config, "is_encoder_decoder", False) or getattr(text, "is_encoder_decoder", False):
        refuse("an encoder beside the decoder (is_encoder_decoder)")
    if getattr(text, "kv_lora_rank", None):
        refuse(f"multi-head latent attention (MLA, kv_lora_rank {text.kv_lora_rank}), which caches latents, not heads")
    sights = sights_of(text)
    others = {number: kind for number, kind in enumerate(sights) if isinstance(kind, str)}
    if others:
        numbers = ", ".join(map(str, list(others)[:8])) + (f" and {len(others) - 8} more" if len(others) > 8 else "")
        refuse(f"layers other than attention: {numbers} ({', '.join(dict.fromkeys(others.values()))})")
    for name, what in (("use_bidirectional_attention", "tokens that see later ones"),
                       ("num_kv_shared_layers", "layers that share keys and values")):
        # The text config of a model of images says so of its prompts, whose masks say more.
        if getattr(text, name, None) and not (name == "use_bidirectional_attention" and text is not config):
            refuse(f"{what} ({name} {getattr(text, name)})")
    if not getattr(text, "is_causal", True):
        refuse("attention that is not causal (is_causal False)")
    sizes = heads_of(text)
    # Its layers of a window have twice the KV heads of the others.
    if getattr(text, "model_type", None) == "mimo_v2_flash" and any(sight.sliding_window for sight in sights):
        refuse("KV heads of other numbers in its layers of sliding_attention")
    return *sizes, sights
