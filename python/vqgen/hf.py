"""A Hugging Face model over a quantized KV cache:

    calibrate(model, batches, "codebooks", keys="vecinfer-d4b8", values="vecinfer-d4b8")
    model.set_attn_implementation("vqgen")
    cache = VQCache(model.config, "codebooks", batch=2, tokens=4096, window=128)
    model.generate(**inputs, past_key_values=cache)

Importing this registers the attention function "vqgen" and its masks with transformers. A prompt is
attended to raw and encoded at once; each token after it is encoded, and attends to codes. Padding is
never stored. Models are those whose attention calls its attention function with rotated keys, such as
Llama's and Qwen's. For inference alone; beams are not reordered.
"""

from __future__ import annotations

import os
import subprocess
import tempfile

import torch
from transformers import AttentionInterface, AttentionMaskInterface, Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin
from transformers.masking_utils import flash_attention_mask

import vqgen
import vqgen.torch
from vqgen import _tool
from vqgen._calibration import can_write, write_bundle

__all__ = ["VQCache", "calibrate"]


class _Layer(CacheLayerMixin):
    """One layer's cache. What update() hands on is met again in _attention(), with the mask."""

    def __init__(self, cache: vqgen.torch.VQCache):
        super().__init__()
        self.cache = cache
        self.seen = 0  # tokens of the batch so far, with padding

    def lazy_initialization(self, key_states, value_states):
        self.is_initialized = True

    def update(self, key_states, value_states, *_, **__):
        self.is_initialized = True
        key_states.vqgen_layer = self
        return key_states, value_states

    def get_mask_sizes(self, query_length):
        return self.seen + query_length, 0

    def get_seq_length(self):
        return self.seen

    def get_max_length(self):
        return self.cache.tokens

    def reset(self):
        self.seen = 0
        self.cache.lengths.zero_()

    def reorder_cache(self, beam_idx):
        raise vqgen.Infeasible("a VQCache cannot be reordered; generate without beams")


class VQCache(Cache):
    """The cache of a model, for `past_key_values`.

    config: the model's. codebooks: a bundle that calibrate() or `vqgen quantize` wrote, with an item
    for each layer, in the order of their numbers. A batch has `batch` sequences with room for
    `tokens` each; `window` and `sinks` tokens are kept raw too. On `device`, with elements of the
    bundle's dtype, which has to be the model's.
    """

    def __init__(self, config, codebooks: str | os.PathLike, *, batch: int, tokens: int,
                 window: int = 0, sinks: int = 0, device: torch.device | str = "cpu"):
        config = config.get_text_config(decoder=True)
        items = _items(codebooks)
        if len(items) != config.num_hidden_layers:
            raise vqgen.BadInput(f"{codebooks} has {len(items)} layers, and the model "
                                 f"{config.num_hidden_layers}; calibrate the model itself")
        query_heads = config.num_attention_heads
        kv_heads = config.num_key_value_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // query_heads
        layers = []
        for item, tensors in items:
            if (item["kv_heads"], item["head_dim"]) != (kv_heads, head_dim):
                raise vqgen.BadInput(
                    f"{codebooks} is of {item['kv_heads']} heads of {item['head_dim']}, and the "
                    f"model has {kv_heads} of {head_dim}; calibrate the model itself")
            on_device = {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}
            layers.append(_Layer(vqgen.torch.VQCache(
                batch=batch, query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim,
                tokens=tokens, window=window, sinks=sinks, keys=item["keys"],
                values=item["values"], key_codebooks=on_device["keys.codebooks"],
                value_codebooks=on_device["values.codebooks"],
                key_scales=on_device.get("keys.stage_scales"),
                value_scales=on_device.get("values.stage_scales"),
                key_smooth=on_device.get("keys.smooth"))))
        super().__init__(layers=layers)

    def bytes_per_token(self) -> float:
        """Of codes in all layers, for one token of one sequence."""
        return sum(layer.cache.bytes_per_token() for layer in self.layers)


def _items(path):
    """The attention items of a bundle, by their numbers, each with its tensors but the codes."""
    import re

    bundle = vqgen.torch.read_bundle(path)
    items = [item for item in bundle if item["kind"] == "attention"]
    items.sort(key=lambda item: [int(number) for number in re.findall(r"\d+", item["name"])])
    wanted = [f"{operand}.{name}" for operand in ("keys", "values")
              for name in ("codebooks", "stage_scales", "smooth")]
    return [(item, vqgen.torch.bundle_tensors(path, item["name"], wanted)) for item in items]


def _attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0,
               sliding_window=None, softcap=None, **_):
    layer = getattr(key, "vqgen_layer", None)
    if layer is None:
        raise vqgen.BadInput("attention 'vqgen' got no VQCache; pass one as past_key_values")
    if sliding_window is not None or softcap is not None:
        raise vqgen.Infeasible("sliding windows and soft caps of a model are not built yet")
    if scaling is None:
        scaling = query.shape[-1]**-0.5
    new_keys, new_values = key.transpose(1, 2), value.transpose(1, 2)
    tokens = key.shape[2]
    room = layer.cache.tokens
    if layer.seen + tokens > room and (layer.cache.lengths + tokens > room).any():
        raise vqgen.RangeError(f"the cache has room for {room} tokens a sequence, and they are more "
                               "now; make a larger one")
    if layer.seen > 0 and tokens == 1:
        layer.cache.append(new_keys, new_values)
        out, _ = layer.cache.attend(query[:, :, 0].contiguous(), softmax_scale=scaling)
        layer.seen += 1
        return out[:, None], None
    if layer.seen > 0:
        raise vqgen.Infeasible("a prompt in several parts is not built yet; pass it whole")
    counts = None
    mask = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril()
    if attention_mask is not None:  # [batch, tokens], of what is no padding
        real = attention_mask.bool()
        mask = (mask & real[:, None, None]) | ~real[:, None, :, None]  # padding sees all: no NaN
        counts = real.sum(1, dtype=torch.int32)
        first = real.long().argsort(dim=1, descending=True, stable=True)[..., None, None]
        new_keys, new_values = (each.take_along_dim(first, 1) for each in (new_keys, new_values))
    layer.cache.append(new_keys, new_values, counts)
    layer.seen += tokens
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1])
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register("vqgen", _attention)
AttentionMaskInterface.register("vqgen", flash_attention_mask)  # the padding alone, or None


@torch.no_grad()
def calibrate(model, batches, out: str | os.PathLike, *, keys, values, seed: int = 1) -> None:
    """Trains codebooks of the model's own keys and values, for all layers, and writes a bundle.

    batches: tensors of token numbers [sequences, tokens], without padding. keys, values: formats,
    as of a config. Of a model on a GPU, keys and values stay there, and so does training. Where the
    formats are not trained so (lattices, layouts, other sizes than 2, 4, 8 and 16), and of a model of
    float32 or on the CPU, the tool trains. The bundle is the same (docs/quantizing.md).
    """
    on_device = model.device.type == "cuda" and can_write(model.dtype, keys, values)
    parts = {}
    before = model.config._attn_implementation
    for tokens in batches:
        cache = DynamicCache(config=model.config)
        model.set_attn_implementation("sdpa")
        try:
            model(tokens.to(model.device), past_key_values=cache, use_cache=True)
        finally:
            model.set_attn_implementation(before)
        for number, layer in enumerate(cache.layers):
            for name, states in (("k", layer.keys), ("v", layer.values)):
                heads = states.transpose(0, 1).flatten(1, 2)
                parts.setdefault((number, name), []).append(heads if on_device else heads.cpu())
    if not parts:
        raise vqgen.BadInput("calibrate() got no batches; pass token numbers")
    if on_device:
        layers = ([torch.cat(parts.pop((number, name)), 1) for name in "kv"]
                  for number in range(len(parts) // 2))
        write_bundle(out, layers, keys, values, seed)
    else:
        _quantize(parts, out, keys, values, seed)


def _quantize(parts, out, keys, values, seed):
    import json

    from safetensors.torch import save_file
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "calibration.safetensors")
        save_file({f"layer{number}.{name}": torch.cat(states, 1).contiguous()
                   for (number, name), states in parts.items()}, file)

        def text(form):
            return form if isinstance(form, str) else json.dumps(form)

        done = subprocess.run(
            [_tool.path(), "quantize", "--input", file, "--out", os.fspath(out), "--seed", str(seed),
             "--keys", "layer*.k", "--key-format", text(keys), "--values", "layer*.v",
             "--value-format", text(values)], capture_output=True, text=True)
    if done.returncode != 0:
        raise vqgen.Error(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else
                          f"vqgen quantize ended with {done.returncode}")
