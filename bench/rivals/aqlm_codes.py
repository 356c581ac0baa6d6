"""AQLM's CUDA kernels, by way of bench/flagship: up to 6 rows on codes, more are dequantized and multiplied
by cuBLAS. Codes are random, since the package's quantizer trains a whole model.
"""
import pathlib
import tempfile

import aqlm_kernels
import baselines
from checking import Failed, Prepared, version_of

DISTRIBUTION = "aqlm"
VARIANTS = ("2x8", "1x16")
BITS = 2
TOLERANCE = aqlm_kernels.MOST_ERROR  # sums of half-precision products
built = []  # the extension, once it is built


def missing(options):
    try:
        with tempfile.TemporaryDirectory() as scratch:
            aqlm_kernels.source_folder(options.aqlm, pathlib.Path(scratch))
    except Failed as reason:
        return f"{reason}: pip install aqlm==1.1.7 ninja, or name its wheel; nvcc builds its kernels"
    return None


def version():
    return version_of(DISTRIBUTION)


def takes(problem, _):
    return problem["part"] == "products"


def extension(options):
    if not built:
        with tempfile.TemporaryDirectory() as scratch:
            built.append(aqlm_kernels.build(options.aqlm, pathlib.Path(scratch)))
    return built[0]


def prepare(_, problem, variant, options):
    op, x, layers, bits = aqlm_kernels.operands(extension(options), variant, problem["config"], "rotated")

    def expected(copy):
        return x.double() @ aqlm_kernels.dense(*layers[copy], bits).double().T

    calls = [lambda layer=layer: op(x, *layer, None) for layer in baselines.turns_on(layers)]
    return Prepared({"": calls}, len(layers), expected, TOLERANCE, BITS)
