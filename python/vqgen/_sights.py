"""What the tokens of a layer see, and what becomes of their scores, beside plain causal attention."""

from __future__ import annotations

import typing

import torch

import vqgen

__all__ = ["Sight", "attended", "require_bounds", "sights_of"]

_MOST_SCORES = 1 << 27


class Sight(typing.NamedTuple):
    """What one layer sees, as the shape of an attention's config has it (docs/reference/config.md); 0: none."""

    sliding_window: int = 0
    attention_chunk: int = 0
    logit_softcap: float = 0.0
    sink_logits: bool = False

    @property
    def shape(self) -> dict:
        """The fields that are there."""
        return {name: value for name, value in self._asdict().items() if value}

    def first_seen(self, seen):
        """The first token that a token sees which sees those before `seen`, its own the last; numbers or tensors."""
        if self.sliding_window:
            first = seen - self.sliding_window
            return first * (first > 0)
        return (seen - 1) // self.attention_chunk * self.attention_chunk if self.attention_chunk else seen * 0


def require_bounds(sight: Sight, keys: dict, where) -> None:
    """Refuse bounded scores over keys whose format leaves out a part of each score. keys: as of format_fields()."""
    if sight.logit_softcap and keys.get("center"):
        raise vqgen.Infeasible(f"{where}: its keys are centered, and the model bounds scores (soft cap "
                               f"{sight.logit_softcap:g}), which no kernel does with centered keys; calibrate keys and "
                               "values of the format vecinfer-d4b8i8")


def sights_of(text) -> list[Sight | str]:
    """Return the sight of each layer of a decoder's config; or, by the name that the config or transformers has for it,
    the kind of a layer without keys and values of its own that all tokens stay in."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer
    named = getattr(text, "layer_types", None) or []
    softcap = float(getattr(text, "attn_logit_softcapping", None) or 0)
    try:
        layers = DynamicCache(config=text).layers
    except KeyError as error:  # a kind for which transformers has no cache
        return [f"{error.args[0]}"] * text.num_hidden_layers
    layers += [None] * (text.num_hidden_layers - len(layers))

    def sight_of(number, layer):
        kind = named[number] if number < len(named) else None
        if type(layer) is DynamicLayer:
            return Sight(logit_softcap=softcap)
        window = getattr(layer, "sliding_window", None)
        if not isinstance(window, int):
            return kind if kind not in (None, "full_attention") else type(layer).__name__
        if kind == "chunked_attention" or (kind is None and not getattr(text, "sliding_window", None)):
            return Sight(attention_chunk=window, logit_softcap=softcap)
        if kind in (None, "sliding_attention"):
            return Sight(sliding_window=window, logit_softcap=softcap)
        return kind

    return [sight_of(*each) for each in enumerate(layers)]


def attended(query, keys, values, scaling: float, sight: Sight, sinks=None, sees=None) -> torch.Tensor:
    """Attention of the newest tokens, [batch, query_heads, tokens, channels of values] in the query's dtype, over keys
    and values [batch, kv_heads, all tokens, channels]. sinks: [query_heads], logits that add to the denominator alone, or None.
    sees: bool [batch, 1, tokens, all tokens], what they see instead of the sight's window and what is before them."""
    batch, heads, tokens, _ = query.shape
    kv_heads, held = keys.shape[1], keys.shape[2]
    out = query.new_empty(batch, heads, tokens, values.shape[-1])
    step = max(1, _MOST_SCORES // (batch * heads * held))
    for row in range(0, tokens, step):
        rows = min(step, tokens - row)
        seen = held - tokens + row + 1  # by the first of them
        begin, end = (sight.first_seen(seen), seen + rows - 1) if sees is None else (0, held)
        asking = query[:, :, row:row + rows].unflatten(1, (kv_heads, -1)).flatten(2, 3)
        scores = (asking @ keys[:, :, begin:end].mT).float().unflatten(2, (-1, rows)) * scaling
        if sight.logit_softcap:
            scores = sight.logit_softcap * torch.tanh(scores / sight.logit_softcap)
        if sees is None:
            past = torch.arange(begin, end, device=query.device)
            each_sees = torch.arange(seen, seen + rows, device=query.device)[:, None]
            hidden = (past >= each_sees) | (past < sight.first_seen(each_sees))
        else:
            hidden = ~sees[:, :, None, row:row + rows]
        scores.masked_fill_(hidden, -torch.inf)
        if sinks is not None:
            own = sinks.float().view(1, kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat((scores, own), -1)
        weights = scores.softmax(-1)[..., :end - begin].to(query.dtype).flatten(2, 3)
        out[:, :, row:row + rows] = (weights @ values[:, :, begin:end]).unflatten(2, (-1, rows)).flatten(1, 2)
    return out
