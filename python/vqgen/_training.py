"""Codebooks trained on arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from vqgen import _arrays, _core
from vqgen._errors import BadInput

if TYPE_CHECKING:
    from vqgen._runtime import Runtime

_ELEMENTS = {"f16": 0, "bf16": 1}


class Codebooks(NamedTuple):
    """codebooks: [units, stages, entries, vector_size]; scales: float32 [units, stages] or None."""

    codebooks: Any
    scales: Any


def format_fields(form) -> dict:
    """All fields of a format: a preset's name, a format file, or a dict of fields (docs/config.md)."""
    import json
    return json.loads(_core.format_fields(_text(form)))


def train_codebooks(vectors, form, *, dtype: str = "f16", seed: int = 1, iterations: int = 30,
                    runtime: Runtime | None = None) -> Codebooks:
    """Codebooks by k-means (docs/quantizing.md), on all vectors.

    vectors: float32 [units, rows, columns], contiguous, of any library that speaks DLPack; a unit is
        what one set of codebooks serves, and columns a multiple of the format's vector_size. They
        are in the domain that is quantized: smooth, hadamard and output_scales are not applied.
    form: a format, as of a config; its scope is not asked, and its decoder is table.
    dtype: of the codebooks, "f16" or "bf16".
    runtime: of the device that the vectors are on, which trains them without a copy; None for the
        CPU's memory and all its cores. A device takes sub-vectors of 2, 4, 8 or 16 numbers.

    Returns Codebooks in the CPU's memory: PyTorch's of PyTorch's vectors, else NumPy's. The same
    vectors and seed give the same bits on one machine. BadInput for NaN, infinity and fewer
    sub-vectors than entries.
    """
    _arrays.require("vectors", vectors)
    if dtype not in _ELEMENTS:
        raise BadInput(f"dtype is {dtype!r}; it is one of {', '.join(_ELEMENTS)}")
    if len(vectors.shape) != 3:
        raise BadInput(f"'vectors' has shape {list(vectors.shape)}; it is [units, rows, columns]")
    if iterations < 1:
        raise BadInput(f"iterations is {iterations}; it is at least 1")
    fields = format_fields(form)
    if "parts" in fields:
        raise BadInput("keys in parts are trained part by part; give the format of one")
    units, stages = vectors.shape[0], fields["residuals"]
    codebooks = _arrays.empty_on_cpu(
        vectors, (units, stages, 1 << fields["index_bits"], fields["vector_size"]), dtype)
    scales = None
    if fields["stage_scales"]:
        scales = _arrays.empty_on_cpu(vectors, (units, stages), "f32")
    if runtime is not None and runtime.device != "host":
        runtime.synchronize(_arrays.current_stream(vectors))
    _core.train(None if runtime is None else runtime._core, vectors, codebooks, scales, _text(form),
                _ELEMENTS[dtype], seed, iterations)
    return Codebooks(codebooks, scales)


def _text(form) -> str:
    import json
    import os

    from vqgen.configs import as_json
    if isinstance(form, (str, os.PathLike)):
        return os.fspath(form)
    value = as_json(form)
    if not isinstance(value, dict):
        raise BadInput(f"a format is a name, a path or a dict, and not {type(form).__name__}")
    return json.dumps(value)
