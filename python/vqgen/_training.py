"""Codebooks trained on arrays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from vqgen import _arrays, _core
from vqgen._errors import BadInput, Infeasible

if TYPE_CHECKING:
    from collections.abc import Callable

    from vqgen._runtime import Runtime

_ELEMENTS = {"f16": 0, "bf16": 1}
SEEDS = (1 << 64) - 1
_TRANSFORMS = ("smooth", "hadamard", "output_scales")


class Codebooks(NamedTuple):
    """codebooks: [units, stages, entries, vector_size]; scales: float32 [units, stages] or None."""

    codebooks: Any
    scales: Any


def format_fields(format) -> dict:
    """All fields of a format: a preset's name, a format file, or a dict of fields (docs/reference/config.md)."""
    return json.loads(_core.format_fields(_text(format)))


def without_transforms(format) -> dict:
    """The fields of a format whose vectors are in the domain that is quantized already."""
    return format_fields(format) | dict.fromkeys(_TRANSFORMS, False)


def refuse_transforms(fields: dict) -> None:
    """BadInput for a table with transforms, which training does not apply."""
    if own := [each for each in _TRANSFORMS if fields.get(each) and fields["decoder"] == "table"]:
        raise BadInput(f"the format has {' and '.join(own)}, which training does not apply; transform the "
                       "vectors and give the format with " + ", ".join(f'"{each}": False' for each in own) +
                       ", or use vqgen quantize or vqgen.hf.calibrate(), which transform")


def train_codebooks(vectors, format, *, dtype: str = "f16", seed: int = 1, iterations: int = 30,
                    runtime: Runtime | None = None) -> Codebooks:
    """Codebooks by k-means (docs/guides/quantize.md), on all vectors.

    vectors: float32 [units, rows, columns], contiguous, of any library that speaks DLPack; a unit is
        what one set of codebooks serves, and columns a multiple of the format's vector_size. They
        are in the domain that is quantized.
    format: a format, as of a config; its scope is not asked, and its decoder is table. One with smooth,
        hadamard or output_scales is refused: training applies none of them. Transform the vectors, and
        give it without, as {"preset": "vecinfer-d4b8", "smooth": False, "hadamard": False}.
    dtype: of the codebooks, "f16" or "bf16".
    runtime: of the device that the vectors are on, which trains them without a copy; None for the
        CPU's memory and all its cores. A device takes sub-vectors of 2, 4, 8 or 16 numbers; others
        vqgen.torch.train_codebooks() does.

    Returns Codebooks in the CPU's memory: PyTorch's of PyTorch's vectors, else NumPy's. The same
    vectors and seed give the same bits on one machine. BadInput for NaN, infinity and fewer
    sub-vectors than entries.
    """
    shape = _arrays.shape_of("vectors", vectors)
    if dtype not in _ELEMENTS:
        raise BadInput(f"dtype is {dtype!r}; it is one of {', '.join(_ELEMENTS)}")
    if len(shape) != 3:
        raise BadInput(f"'vectors' has shape {list(shape)}; it is [units, rows, columns]")
    seed, iterations = _arrays.whole("seed", seed, 0, SEEDS), _arrays.whole("iterations", iterations, 1)
    fields = format_fields(format)
    if "parts" in fields:
        raise BadInput("keys in parts are trained part by part; give the format of one")
    refuse_transforms(fields)
    units, stages = shape[0], fields["num_codebooks"]
    codebooks = _arrays.empty_on_cpu(
        vectors, (units, stages, 1 << fields["index_bits"], fields["vector_size"]), dtype)
    scales = None
    if fields["stage_scales"]:
        scales = _arrays.empty_on_cpu(vectors, (units, stages), "f32")
    if runtime is not None and runtime.device != "host":
        runtime.synchronize(_arrays.current_stream(vectors))
    _core.train(None if runtime is None else runtime._core, vectors, codebooks, scales, json.dumps(fields),
                _ELEMENTS[dtype], seed, iterations)
    return Codebooks(codebooks, scales)


def train_rsimvq(vectors, format, *, dtype: str = "f16", seed: int = 1,
                 start: str | Codebooks = "kmeans", steps: int = 1000, batch: int = 65536,
                 learning_rate: float = 1e-3, beta: float = 1.0, gamma: float = 0.25,
                 train_entries: bool = True, judged_by=None, device=None,
                 progress: Callable[[int, int, float], None] | None = None) -> Codebooks:
    """Codebooks by RSimVQ (VQKV, section 3.1): entries and a projection of each stage, trained together
    by gradients, and multiplied at the end, so that they are codebooks as any others. Needs PyTorch.

    vectors, format, dtype: as of train_codebooks(). Formats with a table of entries of the element type;
        not int8 entries, lattices or scalars.
    start: "kmeans", the codebooks of train_codebooks(); Codebooks of these, which saves their
        training; or "random". The error over `vectors` never ends above that of a start by
        k-means or Codebooks: the best of it and of ten points of the training is returned.
    steps, batch: of Adam, and vectors of a step, at most all (the paper: 65,536). learning_rate: of the
        first step, falling to 0 along a cosine (the paper: 0.001, and no word on its fall). Units and
        stages are brought to a root mean square of 1 before, so that it is relative to the data.
    beta, gamma: of the loss, equation 4 (_rsimvq.gradient()); the paper does not say them.
    train_entries: False trains the projections alone, as SimVQ does.
    judged_by: vectors of another text, as `vectors` with any rows. The best by their error is returned
        instead, never above the start's. Codebooks of many stages fit the text that trained them so
        closely that any step does harm there, though it helps elsewhere.
    device: PyTorch's, that trains; by default that of `vectors` where it is a GPU, else the first GPU,
        else the CPU. Distances are computed by blocks of 32 MB (section 3.3). A start by k-means is
        made on the CPU; of sub-vectors that are not 2, 4, 8 or 16 wide, on the GPU that trains.
    progress: called with the unit, the step and the mean squared error, of vectors at a root mean square
        of 1, at the start and at the ten points; of at most 16,384 of them, or 16 for each entry.

    Returns Codebooks in the CPU's memory: PyTorch's of PyTorch's vectors, else NumPy's. Entries that no
    vector takes are moved beside busy ones, at the ten points. The same arguments give the same
    bits on one machine's CPU; a GPU adds up gradients in any order. BadInput for NaN, infinity, fewer
    sub-vectors than entries, a start of another shape; Infeasible for other formats; ImportError
    without PyTorch. Thread-safe.
    """
    fields = _rsimvq_fields(format)
    _arrays.require("vectors", vectors)
    if dtype not in _ELEMENTS:
        raise BadInput(f"dtype is {dtype!r}; it is one of {', '.join(_ELEMENTS)}")
    seed = _arrays.whole("seed", seed, 0, SEEDS)
    steps, batch = _arrays.whole("steps", steps, 0), _arrays.whole("batch", batch, 1)
    for name, value in (("learning_rate", learning_rate), ("beta", beta), ("gamma", gamma)):
        if not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            raise BadInput(f"{name} is {value!r}; it is a number of 0 or more")
    try:
        import torch
    except ImportError as error:
        raise ImportError("train_rsimvq needs PyTorch; pip install torch") from error
    from vqgen import _kmeans, _rsimvq

    own = isinstance(vectors, torch.Tensor)
    try:
        given = vectors if own else torch.from_dlpack(vectors)
    except (BufferError, RuntimeError, TypeError) as error:
        raise BadInput(f"'vectors' cannot be taken by PyTorch: {error}; pass a copy") from error
    shape = tables_shape(given, fields)
    judges = _rsimvq_judges(judged_by, given)
    if device is None:
        device = given.device
        if device.type == "cpu" and torch.cuda.is_available():
            device = torch.device("cuda")
    device = torch.device(device)
    if isinstance(start, str):
        if start not in ("kmeans", "random"):
            raise BadInput(f"start is {start!r}; it is 'kmeans', 'random' or Codebooks")
        if start == "random":
            start = None
        elif device.type == "cuda" and _kmeans.takes(fields):
            start = Codebooks(*_kmeans.trained(given.detach().to(device), fields, _kmeans.ELEMENTS[dtype], seed))
        else:
            start = train_codebooks(given.cpu().contiguous(), fields, dtype=dtype, seed=seed)
    else:
        start = _rsimvq_start(start, shape, dtype, fields["stage_scales"])
    options = _rsimvq.Options(dtype, seed, steps, batch, learning_rate, beta, gamma, train_entries)
    tables, scales = _rsimvq.trained(given.detach().to(device).reshape(shape[0], -1, shape[3]), options,
                                     start, shape, fields["stage_scales"], progress,
                                     None if judges is None else judges.detach().to(device).reshape(
                                         shape[0], -1, shape[3]))
    if own:
        return Codebooks(tables, scales)
    tables = tables.view(torch.uint16) if dtype == "bf16" else tables
    return Codebooks(tables.numpy(), None if scales is None else scales.numpy())


def _rsimvq_fields(format) -> dict:
    fields = format_fields(format)
    if fields["decoder"] != "table":
        raise Infeasible(f"RSimVQ trains entries, and the decoder {fields['decoder']} has none to train; "
                         "take a format of decoder table")
    if fields["entry_type"] != "element":
        raise Infeasible(f"RSimVQ trains no entries of {fields['entry_type']}; take the format with "
                         "entry_type element, or train_codebooks()")
    refuse_transforms(fields)
    return fields


def tables_shape(vectors, fields: dict) -> tuple[int, int, int, int]:
    """The shape of the tables, [units, stages, entries, size]; BadInput where the vectors do not fit the format."""
    import torch
    if vectors.dtype != torch.float32:
        raise BadInput(f"'vectors' is {str(vectors.dtype).removeprefix('torch.')}; it has to be float32")
    if vectors.dim() != 3:
        raise BadInput(f"'vectors' has shape {list(vectors.shape)}; it is [units, rows, columns]")
    units, rows, columns = vectors.shape
    size, entries = fields["vector_size"], 1 << fields["index_bits"]
    if units < 1 or columns % size or not columns:
        raise BadInput(f"'vectors' has shape {list(vectors.shape)}; it is [units, rows, columns], one unit "
                       f"at least and columns a multiple of {size}")
    if rows * columns // size < entries:
        raise BadInput(f"{rows * columns // size} sub-vectors cannot train {entries} entries; give more "
                       "rows or take fewer index_bits")
    if not torch.isfinite(vectors).all():
        raise BadInput("'vectors' must be finite, and holds NaN or infinity")
    return units, fields["num_codebooks"], entries, size


def _rsimvq_judges(judges, vectors):
    """In PyTorch, checked."""
    import torch
    if judges is None:
        return None
    judges = torch.as_tensor(judges)
    if judges.dtype != torch.float32 or judges.dim() != 3 or judges.shape[1] < 1 or (
            (judges.shape[0], judges.shape[2]) != (vectors.shape[0], vectors.shape[2])):
        raise BadInput(f"'judged_by' is {judges.dtype} {list(judges.shape)}; it is torch.float32 "
                       f"[{vectors.shape[0]}, rows, {vectors.shape[2]}], as 'vectors'")
    if not torch.isfinite(judges).all():
        raise BadInput("'judged_by' must be finite, and holds NaN or infinity")
    return judges


def _rsimvq_start(start, shape, dtype: str, has_scales: bool) -> Codebooks:
    """In PyTorch, checked."""
    import torch
    try:
        codebooks, scales = start
        codebooks = torch.as_tensor(codebooks)
        scales = None if scales is None else torch.as_tensor(scales)
    except (TypeError, ValueError) as error:
        raise BadInput(f"start is no Codebooks: {error}") from None
    if dtype == "bf16" and codebooks.dtype == torch.uint16:
        codebooks = codebooks.view(torch.bfloat16)
    wanted = {"f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    if tuple(codebooks.shape) != shape or codebooks.dtype != wanted:
        raise BadInput(f"start has codebooks {list(codebooks.shape)} of {codebooks.dtype}; the format and "
                       f"vectors want {list(shape)} of {wanted}")
    if (scales is not None) != has_scales or (has_scales and tuple(scales.shape) != shape[:2]):
        raise BadInput("start has scales that the format does not have, or lacks them: float32 "
                       f"{list(shape[:2])} with stage_scales, else None")
    if not (torch.isfinite(codebooks.float()).all() and (scales is None or (scales > 0).all())):
        raise BadInput("start holds NaN, infinity or a scale that is not above 0")
    return Codebooks(codebooks, scales)


def _text(format) -> str:
    import os

    from vqgen.configs import as_json
    if isinstance(format, (str, os.PathLike)):
        return os.fspath(format)
    value = as_json(format)
    if not isinstance(value, dict):
        raise BadInput(f"a format is a name, a path or a dict, and not {type(format).__name__}")
    return json.dumps(value)
