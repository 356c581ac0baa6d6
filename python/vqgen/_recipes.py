"""What vqgen.eval compares."""

from __future__ import annotations

import typing


def _named(size, bits, name=None, **transforms):
    """A format with a name."""
    return name or f"d{size}b{bits}", {"vector_size": size, "index_bits": bits, "scope": "head",
                                       **transforms}


class Run(typing.NamedTuple):
    """What is evaluated: formats of keys and of values, each with its name. recent_tokens, sinks,
    flush_block: as of vqgen.hf.VQCache; a recipe's recent_tokens may be VQKV's, which runs_of() puts in.
    calibration: a text and how many of its sequences; None for the command's. rotated_first: of the
    keys, as simulation.dequantized() does it, so that there are no kernels. rsimvq: by which the
    codebooks are trained, else by k-means. parts: keys are quantized in two parts, of low and high
    frequencies, which the errors of codebooks of the keys in one part tell apart; they share the
    stages by their channels, but so many go from the high ones to the low ones, and none gets more
    than a format has. klt: the bits of a vqgen.hf.klt_format(), instead of formats; bits: of an element
    in the mean, shared out as vqgen.hf.calibrate() does. key_gain: as of vqgen.hf.calibrate()."""

    keys: tuple
    values: tuple
    recent_tokens: int | str = 0
    sinks: int = 0
    flush_block: int = 1
    calibration: tuple | None = None
    rotated_first: bool = False
    rsimvq: bool = False
    parts: int | None = None
    klt: float | None = None
    bits: float | None = None
    key_gain: bool = True

    def trained(self):
        """All that its codebooks depend on, except for the text."""
        return (self.keys, self.values, self.rotated_first, self.rsimvq, self.parts, self.klt,
                self.bits, self.key_gain)


VQKV = "VQKV"  # its window: L_init and L_local tokens, of which as many leave it together
_INITIAL, _LOCAL = 4, 1024  # section 4.1


def local_of(length: int) -> int:
    """VQKV's L_local where sequences of `length` tokens allow it, else an eighth of these."""
    return min(_LOCAL, max(1, length // 8))


def _wide(size, stages):
    return f"d{size}b8x{stages}", {"vector_size": size, "index_bits": 8, "num_codebooks": stages,
                                   "scope": "tensor"}


def _klt(bits):
    return Run((f"klt-{bits}bit-keys",) * 2, (f"klt-{bits}bit-values",) * 2, klt=bits)


def _shared(bits):
    return Run((f"klt-{bits:g}bit shared out", None), (f"klt-{bits:g}bit shared out", None), bits=bits)


def _centred(form):
    return f"{form} centred", {"preset": form, "center": True}


D4B8 = ("vecinfer-d4b8",) * 2
D4B8I8 = ("vecinfer-d4b8i8",) * 2
_INT4 = ("int4-channel", {"preset": "int8-channel", "vector_size": 4})
_D2B8X2 = ("d2b8, 2 stages", {"preset": "vecinfer-d2b8", "num_codebooks": 2})
# What the papers' tables compare.
RECIPES = {
    "transforms": [  # of the keys, VecInfer's table 4
        *(Run(_named(4, 8, name, **transforms), _named(4, 8))
          for name, transforms in (("none", {}), ("smooth", {"smooth": True}),
                                   ("hadamard", {"hadamard": True}),
                                   ("smooth + hadamard", {"smooth": True, "hadamard": True}))),
        Run(_named(4, 8, "hadamard + smooth", smooth=True), _named(4, 8), rotated_first=True)],
    "codebooks": [  # their size at equal bits, VecInfer's table 5
        Run(_named(*form), _named(*form))
        for form in ((2, 4), (4, 8), (2, 3), (4, 6), (8, 12))],
    "operands": [  # bits for keys against bits for values, VecInfer's table 6
        Run(("vecinfer-" + keys,) * 2, ("vecinfer-" + values,) * 2)
        for keys, values in (("d2b8", "d4b8"), ("d4b8", "d2b8"), ("d4b8", "d8b8"), ("d8b8", "d4b8"))],
    "scalars": [  # plain numbers, and vectors at 8 to 1 bits
        *(Run((keys, keys), (values, values))
          for keys, values in (("int8-channel",) * 2, ("int8-token",) * 2, ("fp8-e4m3",) * 2,
                               ("int8-channel", "int8-token"), ("vecinfer-d4b8", "int8-token"))),
        Run(("int4-kivi-keys",) * 2, ("int4-kivi-values",) * 2, 32),
        Run(("int4-kivi-keys",) * 2, ("int4-kivi-values",) * 2, 128),
        Run(_INT4, _INT4, 128), Run(("vecinfer-d2b8",) * 2, ("vecinfer-d2b8",) * 2, 128),
        Run(_INT4, _INT4), Run(_D2B8X2, _D2B8X2),
        *(Run((name,) * 2, (name,) * 2)
          for name in ("vecinfer-d2b8", "vecinfer-d4b8", "vecinfer-d8b8"))],
    "vqkv": [  # wide vectors at 2, 2.75 and 4 bits, keys in one part and in two, without raw tokens and with
        Run(_wide(64, stages), _wide(64, stages), recent_tokens, rsimvq=rsimvq, parts=parts)
        for stages in (16, 22, 32) for parts in (None, -4) for rsimvq in (False, True)
        for recent_tokens in (0, VQKV)],
    "vqkv-parts": [  # keys of one vector, and in two parts of as many bits together
        Run(_wide(128, 32), _wide(64, 16)),
        *(Run(_wide(128, 32), _wide(64, 16), parts=moved) for moved in (0, -4, 4))],
    "klt": [  # VecInfer without and with g and a centre, and KLT as presets have it and shared out
        run._replace(recent_tokens=recent_tokens) for recent_tokens in (0, 128)
        for run in (Run(D4B8I8, D4B8I8, key_gain=False), Run(D4B8I8, D4B8I8), Run(*(_centred(D4B8I8[0]),) * 2),
                    _klt(1), _klt(1.5), _klt(2), _klt(3), _klt(4), *map(_shared, (1, 1.5, 2, 3)))],
    "gain": [  # of the keys' entries, with a window and without
        Run(D4B8, D4B8, recent_tokens, key_gain=key_gain) for recent_tokens in (0, 128) for key_gain in (False, True)],
    "raw": [  # tokens that stay raw
        Run(D4B8, D4B8, recent_tokens, sinks)
        for recent_tokens in (0, 32, 128, 512) for sinks in (0, 4)],
}


def runs_of(recipe: str, length: int, local: int | None = None):
    """The runs of a recipe on sequences of `length` tokens. local: VQKV's L_local, else local_of(): so
    many tokens are raw at least, and leave the window together."""
    local = local_of(length) if local is None else local
    for run in RECIPES[recipe]:
        yield run if run.recent_tokens != VQKV else run._replace(
            recent_tokens=2 * local - 1, flush_block=local, sinks=_INITIAL)
