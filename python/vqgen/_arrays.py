"""What differs between array libraries: new arrays, and the stream they work on. None of them is
imported here; the library of an array that is passed has been."""

import sys


def _library(array):
    return type(array).__module__.partition(".")[0]


def empty(like, shape, dtype):
    """An uninitialised array of the library and device of `like`; dtype "f16", "bf16" or "f32".

    Without bfloat16 in NumPy and CuPy, "bf16" comes as its bits, uint16.
    """
    library = _library(like)
    if library == "torch":
        torch = sys.modules["torch"]
        types = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
        return like.new_empty(shape, dtype=types[dtype])
    if library in ("numpy", "cupy"):
        types = {"f16": "float16", "bf16": "uint16", "f32": "float32"}
        return sys.modules[library].empty(shape, types[dtype])
    from vqgen._errors import BadInput
    raise BadInput(f"results cannot be made in the library '{library}'; pass arrays for them")


def current_stream(array):
    """The CUDA stream that the array's library works on, as an integer; 0 is the default stream."""
    library = _library(array)
    if library == "torch":
        return sys.modules["torch"].cuda.current_stream(array.device).cuda_stream
    if library == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream().ptr
    return 0
