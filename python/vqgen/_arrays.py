"""What differs between array libraries: new arrays, and the stream they work on. None of them is
imported here; the library of an array that is passed has been."""

import operator
import sys

from vqgen._errors import BadInput


def _library(array):
    return type(array).__module__.partition(".")[0]


def require(name, array):
    """Raise BadInput if it is not an array."""
    if array is None:
        raise BadInput(f"'{name}' is missing; pass an array of NumPy, PyTorch or CuPy")
    if not hasattr(array, "__dlpack__"):
        raise BadInput(f"'{name}' is of type {type(array).__name__}, no array that speaks DLPack; "
                       "pass one of NumPy, PyTorch or CuPy")


def shape_of(name, array, dimensions=None):
    """What it tells of itself; BadInput if it is not an array, or has another number of dimensions."""
    require(name, array)
    try:
        shape = tuple(int(size) for size in array.shape)
    except (AttributeError, TypeError, ValueError) as error:
        raise BadInput(f"'{name}' is of type {type(array).__name__}, which tells no shape: {error}; "
                       "pass an array of NumPy, PyTorch or CuPy") from None
    if dimensions is not None and len(shape) != dimensions:
        raise BadInput(f"'{name}' has shape {list(shape)}; it has to have {dimensions} dimensions")
    return shape


def whole(name, value, least, most=None):
    """`value` as an int; BadInput if it is not a whole number, or out of bounds."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least or (most is not None and number > most):
        bounds = f"of {least} or more" if most is None else f"within {least} to {most}"
        raise BadInput(f"{name} is {value!r}; it is a whole number {bounds}")
    return number


def empty(like, shape, dtype):
    """An uninitialised array of the library and device of `like`; dtype "f16", "bf16", "f32" or "i8".

    Without bfloat16 in NumPy and CuPy, "bf16" comes as its bits, uint16.
    """
    library = _library(like)
    if library == "torch":
        torch = sys.modules["torch"]
        types = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32,
                 "i8": torch.int8}
        return like.new_empty(shape, dtype=types[dtype])
    if library in ("numpy", "cupy"):
        types = {"f16": "float16", "bf16": "uint16", "f32": "float32", "i8": "int8"}
        return sys.modules[library].empty(shape, types[dtype])
    raise BadInput(f"results cannot be made in the library '{library}'; pass arrays for them")


def empty_on_cpu(like, shape, dtype):
    """An empty array in the CPU's memory: PyTorch's if `like` is PyTorch's, else NumPy's."""
    if _library(like) == "torch":
        return empty(like.new_empty(0, device="cpu"), shape, dtype)
    import numpy
    return empty(numpy.empty(0), shape, dtype)


def current_stream(array):
    """The CUDA stream that the array's library works on, as an integer; 0 is the default stream."""
    library = _library(array)
    if library == "torch":
        return sys.modules["torch"].cuda.current_stream(array.device).cuda_stream
    if library == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream().ptr
    return 0
