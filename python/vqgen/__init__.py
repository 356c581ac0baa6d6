"""vqgen: fused vector-quantization kernels for LLM inference, made for your formats and GPU.

    import numpy, vqgen
    runtime = vqgen.Runtime("host")                    # or the number of a GPU
    attention = runtime.attention("config.json")       # compiled once, cached
    out = attention(query, keys, values, lengths)

CUDA is opened by the first Runtime of a device, and no array library is imported.
"""

from vqgen._core import version as __version__
from vqgen._errors import (AlignmentError, BadInput, Capturing, DeviceError, Error, Infeasible,
                           InternalError, Miss, RangeError)
from vqgen._measures import ScalarErrors, scalar_errors
from vqgen._runtime import (Append, Argument, Attention, Dequantize, Linear, Merge, Op, Quantized,
                            Runtime, Scalar, WeightRows)
from vqgen._training import Codebooks, format_fields, train_codebooks, train_rsimvq

__all__ = ["AlignmentError", "Append", "Argument", "Attention", "BadInput", "Capturing",
           "Codebooks", "Dequantize", "DeviceError", "Error", "Infeasible", "InternalError", "Linear",
           "Merge", "Miss", "Op", "Quantized", "RangeError", "Runtime", "Scalar", "ScalarErrors",
           "WeightRows", "__version__", "configs", "format_fields", "scalar_errors", "train_codebooks",
           "train_rsimvq"]


def __getattr__(name):
    if name == "configs":
        import importlib
        return importlib.import_module("vqgen.configs")
    raise AttributeError(f"module 'vqgen' has no attribute '{name}'")
