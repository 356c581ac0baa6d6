"""What vqgen's own functions hand through a model of transformers, which nothing else may open."""

from __future__ import annotations

import torch

import vqgen


class Misuse(vqgen.Infeasible, AttributeError):
    """An AttributeError too, so that hasattr() answers rather than raises."""


class Opaque:
    """Stands for a tensor of a model. Whatever uses it as one raises Misuse in the words of
    `_misuse`: PyTorch's functions, operators, methods and attributes such as shape."""

    _misuse = "{what} was used"

    def _refuse(self, what: str):
        raise Misuse(self._misuse.format(what=what))

    def __getattr__(self, name):
        self._refuse(f".{name}")

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise Misuse(cls._misuse.format(what=getattr(function, "__name__", str(function))))


def _refusing(name):
    def refuse(self, *_, **__):
        self._refuse(name)
    return refuse


for _name in ("getitem setitem iter len contains bool float int index array neg pos abs invert lt le gt ge add sub "
              "mul matmul truediv floordiv mod pow and or xor lshift rshift iadd isub imul imatmul itruediv radd rsub "
              "rmul rmatmul rtruediv rfloordiv rmod rpow rand ror rxor").split():
    setattr(Opaque, f"__{_name}__", _refusing(f"__{_name}__"))


class Sealed(Opaque):
    """New keys or values [batch, kv_heads, tokens, head_dim] of a cache's layer, on their way from its
    update() to vqgen's attention. They are not what the cache holds: who read them as that would
    attend to the newest tokens alone."""

    _misuse = ("past_key_values: the VQCache was read by another attention than vqgen's ({what} of its keys or "
               "values); call model.set_attn_implementation('vqgen'), and take the model's own cache if its "
               "attention is not served")

    def __init__(self, layer, states):
        self._layer, self._states = layer, states


def opened(sealed):
    """(layer, states) of what update() handed on."""
    return sealed._layer, sealed._states


class Mask(Opaque):
    """What a model's mask is. `_padding`: bool [batch, tokens so far], false where a token is padding, or
    None; `_kinds`: what it has beside causality, padding and a window, in words, or none; `_window`: its sliding
    window or chunk, by the name of a config's field; `_sees`: bool [batch, 1, tokens, tokens], the whole mask of a
    prompt in which blocks of tokens see later ones of their own, or None."""

    _misuse = ("attention_mask: the model changes the mask that vqgen made ({what}); a VQCache serves causal "
               "attention, sliding windows and chunks alone: take the model's own cache")

    def __init__(self, padding, kinds="", window=None, sees=None):
        self._padding, self._kinds, self._window, self._sees = padding, kinds, window or {}, sees


class HandedMask(Mask):
    """A mask that a model of images makes and hands to its decoder, which asks whether it is a tensor of four
    dimensions, so that none is to be made. Whatever uses it otherwise raises, too."""

    __class__ = property(lambda self: torch.Tensor)
    shape = (1, 1, 1, 1)


def parts_of(mask: Mask):
    return mask._padding, mask._kinds, mask._window


def sees_of(mask) -> torch.Tensor | None:
    return mask._sees if isinstance(mask, Mask) else None
