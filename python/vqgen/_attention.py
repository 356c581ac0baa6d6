"""vqgen's attention function for models of transformers: judges what the model asks for, and hands it
to the layer of the cache whose keys it got."""

from __future__ import annotations

import torch
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface

import vqgen
import vqgen._masks  # registers the masks of "vqgen"
from vqgen._opaque import Mask, Sealed, opened, parts_of, sees_of
from vqgen._sights import Sight, attended

__all__ = ["HARMLESS", "REFUSED", "SERVED", "prompt_attention", "require_sight"]

# Keywords that change nothing here, and why.
HARMLESS = {
    "position_ids": "keys and queries come rotated, and the cache counts its tokens itself",
    "cache_position": "the cache counts its tokens itself",
    "use_cache": "the cache is there",
    "deterministic": "kernels give the same bits each time",
    "num_items_in_batch": "of the loss",
    "output_hidden_states": "of the model's output",
    "output_router_logits": "of the model's output",
    "return_dict": "of the model's output",
}
# Keywords that change the result as the layer's config says, which has to agree.
SERVED = {
    "s_aux": "sink logits",
    "sliding_window": "a sliding window",
    "softcap": "a soft cap of scores",
}
# Keywords that would change the result, and what they ask for. They are refused unless None (dropout:
# 0; is_causal: true; output_attentions: false). What is in neither table is refused too.
REFUSED = {
    "block_indices": "attention to some blocks",
    "cu_seq_lens_k": "packed sequences",
    "cu_seq_lens_q": "packed sequences",
    "dropout": "dropout; call model.eval()",
    "indices": "attention to some tokens",
    "is_causal": "tokens that see later ones",
    "max_length_k": "packed sequences",
    "max_length_q": "packed sequences",
    "output_attentions": "weights of attention, which no kernel stores",
    "position_bias": "a bias by position",
    "seq_idx": "packed sequences",
    "sinks": "learned attention sinks",
}


def require_sight(module, attention_mask, named, sight: Sight = Sight()) -> torch.Tensor | None:
    """Refuses, by name, what a module asks of attention beside causal attention of `sight`. Returns the padding
    of its mask, bool [batch, tokens so far], or None. Sink logits are left to the caller."""
    said = {"sliding_window": sight.sliding_window, "softcap": sight.logit_softcap}
    for name, value in named.items():
        if name in said and value is not None and value != said[name]:
            raise vqgen.Infeasible(f"{type(module).__name__}: '{name}' is {value}, and its config says {said[name] or 'none'}"
                                   f" for this layer; take the model's own cache and attention")
        if value is None or name in SERVED or name in HARMLESS or (name == "is_causal" and value is True) or (
                name in ("dropout", "output_attentions") and not value):
            continue
        raise vqgen.Infeasible(f"{type(module).__name__}: '{name}' asks for {REFUSED.get(name, 'what is unknown here')}"
                               ", which vqgen's attention does not serve; take the model's own cache and attention")
    if isinstance(attention_mask, Mask):
        padding, kinds, window = parts_of(attention_mask)
        if window != {name: size for name, size in sight.shape.items() if name != "logit_softcap"} and not kinds:
            kinds = ", ".join(f"{name} {size}" for name, size in window.items()) or "all tokens before a token's own"
            kinds += f", and its config says {sight.shape or 'full attention'} for this layer"
        if kinds:
            raise vqgen.Infeasible(f"{type(module).__name__}: its mask is of {kinds}; a VQCache serves causal attention, "
                                   "sliding windows and chunks alone: take the model's own cache and attention")
        return padding
    if attention_mask is not None:
        shape = list(getattr(attention_mask, "shape", ()))
        raise vqgen.Infeasible(f"attention_mask: a mask of one's own, {type(attention_mask).__name__} {shape}, is not "
                               "served; give [batch, tokens] with zeros where a token is padding, or none")
    if not getattr(module, "is_causal", True):
        raise vqgen.Infeasible(f"{type(module).__name__}: it is not causal, and a VQCache serves causal attention "
                               "alone; take the model's own cache and attention")
    return None


@torch.compiler.disable  # the cache counts tokens in Python, by which graphs would be compiled anew
def _attention(module, query, key, value, attention_mask, scaling=None, **named):
    if type(key) is not Sealed or type(value) is not Sealed:
        raise vqgen.BadInput(f"{type(module).__name__}: attention 'vqgen' got no VQCache; pass one as "
                             "past_key_values, and leave parts without it (as vision towers) to another attention: "
                             "set_attn_implementation({'text_config': 'vqgen'})")
    (layer, key), (_, value) = opened(key), opened(value)
    with layer.tokens.turn(layer.number):
        padding = require_sight(module, attention_mask, named, layer.sight)
        sinks = named.get("s_aux")
        if sinks is not None and (sinks.dim() != 1 or len(sinks) != query.shape[1]):
            raise vqgen.Infeasible(f"{type(module).__name__}: s_aux is {list(sinks.shape)}, and sink logits are one for "
                                   f"each of {query.shape[1]} query heads; take the model's own cache and attention")
        scaling = query.shape[-1]**-0.5 if scaling is None else scaling
        return layer.attend(query, key, value, scaling, padding, sinks, sees_of(attention_mask)), None


def prompt_attention(query, key, value, dense, state, scaling, sight: Sight = Sight(), sinks=None, sees=None):
    """Tokens of a prompt attend to each other raw, and to earlier ones as `dense` has them; None
    where there are none. state: the cache's Tokens; sinks: [query_heads] sink logits, or None. sees: the mask of
    a prompt with none before it, instead of the sight's, bool [batch, 1, tokens, tokens], or None."""
    plain = not sight.shape and sinks is None
    options = {"scale": scaling, "enable_gqa": query.shape[1] != key.shape[1]}
    tokens = query.shape[2]

    def attend(query, keys, values, end):
        if not plain:
            return attended(query, keys, values, scaling, sight, sinks, sees)
        if sees is not None:
            return torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=sees, **options)
        of_all = {"is_causal": True} if end is None else {"attn_mask": causal_lower_right(query.shape[2], end)}
        return torch.nn.functional.scaled_dot_product_attention(query, keys, values, **of_all, **options)

    if dense is None:
        return attend(query, key, value, None)
    if not state.padded:
        for held, new in zip(dense, (key, value)):
            held[:, :, state.earlier:] = new
        return attend(query, *dense, state.seen)
    out = value.new_zeros(*query.shape[:3], value.shape[-1])
    ends = state.lengths.tolist()
    for row, (length, end) in enumerate(zip(state.positions.tolist(), ends)):
        new = end - length  # the real ones, which stand first
        if new == 0:
            continue
        one = slice(row, row + 1)
        for held, fresh in zip(dense, (key, value)):
            held[row, :, length:end] = fresh[row, :, :new]
        out[one, :, :new] = attend(query[one, :, :new], *(held[one, :, :end] for held in dense), end)
    return out


AttentionInterface.register("vqgen", _attention)
