"""CodeGEMM: products of a row by tables of partial sums, which its kernel makes anew in each block.

There is no package. The user builds its extension `codegemm_kernel` in a checkout, installs it or names
the checkout. As in its layer, more rows than one are dequantized and multiplied by cuBLAS, and an output
is cleared before its kernel adds to it. Codes are random, since its quantizer calibrates a whole model.
"""
import importlib
import importlib.util
import sys

import baselines
from checking import Failed, Prepared, version_of

DISTRIBUTION = "codegemm_kernel"
MODULE = "codegemm_kernel"
VARIANTS = ("m1v4", "m2v8")  # codebooks, and numbers that a code of 8 bits stands for
GROUP = 128  # inputs that share a scale, as in its published checkpoints
BITS = 2
TOLERANCE = 3e-2  # a row's sums stand in f16, and blocks add them with atomics


def built_in(checkout):
    """The folder of the extension that was built below the checkout, or None."""
    found = sorted(checkout.rglob(MODULE + "*.so")) if checkout else []
    return found[-1].parent if found else None


def missing(options):
    if built_in(options.codegemm) or importlib.util.find_spec(MODULE):
        return None
    where = f"{options.codegemm} has no {MODULE}*.so" if options.codegemm else f"no module {MODULE}"
    return (f"{where}: there is no package; clone github.com/naver-aics/codegemm, run `python3 setup.py "
            "build_ext --inplace` in its codegemm/inference/custom_kernel (needs nvcc, PyTorch and ninja), and "
            "name the checkout with --codegemm")


def version():
    return version_of(DISTRIBUTION)


def takes(problem, _):
    return problem["part"] == "products"


def extension(options):
    import torch  # noqa: F401  the extension needs its libraries
    folder = built_in(options.codegemm)
    if folder and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(MODULE)
    except ImportError as error:
        raise Failed(f"{MODULE} does not load: {error}") from error


def decoded(codes, scales, codebooks):
    """The weights [outputs][inputs], in f64. Codes are words [codebook][inputs / vector / 4][outputs] of
    4 codes, the first in the lowest byte; scales are [group][outputs]."""
    import torch
    count, words, outputs = codes.shape
    shifts = torch.arange(0, 32, 8, device=codes.device, dtype=torch.int32)
    indices = ((codes.unsqueeze(-1) >> shifts) & 255).permute(0, 2, 1, 3).reshape(count, outputs, words * 4)
    vectors = sum(codebooks[c].double()[indices[c].long()] for c in range(count))
    grouped = vectors.reshape(outputs, scales.shape[0], -1)
    return (grouped * scales.double().T.unsqueeze(-1)).reshape(outputs, -1)


def layer(outputs, inputs, count, vector, generator):
    """Random codes, scales and codebooks."""
    import torch
    codes = torch.randint(-2 ** 31, 2 ** 31, (count, inputs // vector // 4, outputs), device="cuda",
                          dtype=torch.int32, generator=generator)

    def normal(*shape):
        return torch.empty(*shape, device="cuda", dtype=torch.float16).normal_(generator=generator)

    return codes, 1 + 0.1 * normal(inputs // GROUP, outputs), 0.05 * normal(count, 256, vector)


def prepare(kept, problem, variant, options):
    import torch
    kernels = extension(options)
    shape = problem["config"]["shape"]
    rows, outputs, inputs = shape["m"], shape["out_features"], shape["in_features"]
    count, vector = int(variant[1]), int(variant[3])

    def make():
        generator = torch.Generator("cuda").manual_seed(options.seed)
        return [layer(outputs, inputs, count, vector, generator)
                for _ in range(baselines.copies_of(outputs * inputs * BITS // 8))]

    layers = kept.get(("codegemm", variant, outputs, inputs), baselines.ROTATED_BYTES, make)
    x = baselines.random(1, rows, inputs, dtype=torch.float16)
    output = torch.zeros(1, 1, outputs, device="cuda", dtype=torch.float16)

    def call(codes, scales, codebooks):
        if rows > 1:
            return x[0] @ kernels.codegemm_dequant(codes, scales, codebooks, GROUP)
        output.zero_()
        kernels.codegemm_gemv(x, output, codes, scales, codebooks, GROUP)
        return output[0]

    def expected(copy):
        return x[0].double() @ decoded(*layers[copy]).T

    calls = [lambda each=each: call(*each) for each in baselines.turns_on(layers)]
    return Prepared({"": calls}, len(layers), expected, TOLERANCE, BITS)
