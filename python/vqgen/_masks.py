"""vqgen's mask function for models of transformers: it makes no tensor, but says what the mask is. A
model may ask for masks that no layer takes, so that attention refuses them, and not this."""

from __future__ import annotations

from transformers import AttentionMaskInterface
from transformers.masking_utils import causal_mask_function, sdpa_mask

import vqgen
from vqgen._opaque import HandedMask, Mask

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
                attention_mask=None, use_vmap=False, device="cpu", config=None, **_):
    """The mask of a pass of `q_length` tokens, as transformers asks for it. attention_mask: bool [batch,
    kv_length] or None. It reads nothing on the device. With blocks of tokens that see later ones of their own, the
    mask of a prompt is a tensor; a single token behind it sees what is before it, in a block or not.
    Other keywords say how other functions make a tensor."""
    window, sees = _window_of(mask_function), None
    # PaliGemma hands its decoder a mask of its own.
    kind = HandedMask if getattr(config, "use_bidirectional_attention", False) else Mask
    if _has_blocks(mask_function):
        window = _window_in(mask_function)
        if q_length == kv_length:  # a whole prompt
            sees = sdpa_mask(batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
                             allow_is_causal_skip=False, use_vmap=use_vmap, device=device)
            sees = sees | ~sees.any(-1, keepdim=True)  # rows of padding have numbers too
        elif q_length > 1 or (window and next(_parts(mask_function)) == "or_masks"):
            return kind(None, "blocks that see later tokens of their own, behind the first pass over a prompt")
    elif mask_function is not causal_mask_function and not window:
        return kind(None, ", ".join(dict.fromkeys(MASKS.get(name) or name for name in _parts(mask_function)
                                                  if name != "causal_mask_function")))
    if attention_mask is not None and tuple(attention_mask.shape) != (batch_size, kv_length):
        raise vqgen.BadInput(f"attention_mask is {list(attention_mask.shape)}; give [{batch_size}, {kv_length}], "
                             "the tokens in the cache and the new ones, or none")
    return kind(attention_mask, window=window, sees=sees)


def _window_of(function) -> dict:
    """The window of an intersection of one of WINDOWS with causality, or none."""
    names = list(_parts(function))
    if len(names) != 3 or names[0] != "and_masks" or set(names[1:]) - WINDOWS.keys() != {"causal_mask_function"}:
        return {}
    return _window_in(function)


def _has_blocks(function) -> bool:
    """Return whether a mask function joins causality, in a window or not, with blocks that are seen whole."""
    names = list(_parts(function))
    return names.count("blockwise_overlay") == 1 and names.count("causal_mask_function") == 1 and "or_masks" in names and (
        not {*names} - {"and_masks", "or_masks", "causal_mask_function", "blockwise_overlay", *WINDOWS})


def _window_in(function) -> dict:
    """The window that a function was made of, or none."""
    name = function.__qualname__.split(".")[0]
    if name in WINDOWS:
        field, variable = WINDOWS[name]
        return {field: dict(zip(function.__code__.co_freevars, function.__closure__))[variable].cell_contents}
    return {field: size for each in _held(function) for field, size in _window_in(each).items()}


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
