"""vqgen's mask function for models of transformers: it makes no tensor, but says what the mask is. A
model may ask for masks that no layer takes, so that attention refuses them, and not this."""

from __future__ import annotations

from transformers import AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

import vqgen
from vqgen._opaque import Mask

__all__ = ["MASKS", "causal_mask"]

# What transformers builds masks from, by the name of the function; None is served, alone or in the intersections of
# WINDOWS.
MASKS = {
    "causal_mask_function": None,
    "and_masks": "an intersection of masks",
    "or_masks": "a union of masks (prefixes, images)",
    "bidirectional_mask_function": "tokens that see later ones",
    "blockwise_overlay": "blocks that see later tokens of their own",
    "chunked_causal_mask_function": "chunks of tokens",
    "chunked_overlay": "chunks of tokens",
    "packed_sequence_mask_function": "packed sequences",
    "padding_mask_function": "padding by a function",
    "remap_positions_for_packed_sequence": "packed sequences",
    "sliding_window_bidirectional_mask_function": "a sliding window to both sides",
    "sliding_window_bidirectional_overlay": "a sliding window to both sides",
    "sliding_window_causal_mask_function": "a sliding window",
    "sliding_window_overlay": "a sliding window",
}


# Functions whose intersection with the causal one is served: the field of a config's shape, and the variable that holds it.
WINDOWS = {
    "chunked_overlay": ("attention_chunk", "chunk_size"),
    "sliding_window_overlay": ("sliding_window", "sliding_window"),
}


def causal_mask(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=causal_mask_function,
                attention_mask=None, **_):
    """The mask of a pass of `q_length` tokens, as transformers asks for it. attention_mask: bool [batch,
    kv_length] or None. It reads nothing on the device. Other keywords say how other functions make a tensor."""
    window = _window_of(mask_function)
    if mask_function is not causal_mask_function and not window:
        return Mask(None, ", ".join(dict.fromkeys(MASKS.get(name) or name for name in _parts(mask_function)
                                                  if name != "causal_mask_function")))
    if attention_mask is not None and tuple(attention_mask.shape) != (batch_size, kv_length):
        raise vqgen.BadInput(f"attention_mask is {list(attention_mask.shape)}; give [{batch_size}, {kv_length}], "
                             "the tokens in the cache and the new ones, or none")
    return Mask(attention_mask, window=window)


def _window_of(function) -> dict:
    """The window of an intersection of one of WINDOWS with causality, or none."""
    names = list(_parts(function))
    if len(names) != 3 or names[0] != "and_masks" or set(names[1:]) - WINDOWS.keys() != {"causal_mask_function"}:
        return {}
    overlay = next(each for each in _held(function) if each is not causal_mask_function)
    field, variable = WINDOWS[overlay.__qualname__.split(".")[0]]
    return {field: dict(zip(overlay.__code__.co_freevars, overlay.__closure__))[variable].cell_contents}


def _held(function):
    """The functions that a mask function was made of."""
    for cell in getattr(function, "__closure__", None) or ():
        held = cell.cell_contents
        yield from (each for each in (held if isinstance(held, tuple) else (held,)) if callable(each))


def _parts(function):
    """Names of the module-level functions that a mask function was made by and of."""
    yield getattr(function, "__qualname__", repr(function)).split(".")[0]
    for each in _held(function):
        yield from _parts(each)


AttentionMaskInterface.register("vqgen", causal_mask)
