"""AQLM's own CUDA kernels (the package `aqlm`, which the user supplies), built and checked here.

The package chooses by rows: up to 6 a kernel on codes, a row after the other, else it dequantizes and
multiplies by cuBLAS; so does this. Its ops multiply by scales and copy the result in kernels of their
own, and that is part of their time.
"""
import importlib.util
import pathlib
import zipfile

import baselines
from ours import Failed

# Number of codebooks, bits of a code, and the module's functions for few rows and for more.
SCHEMES = {"2x8": (2, 8, "code2x8_matmat", "code2x8_matmat_dequant"),
           "1x8": (1, 8, "code1x8_matmat", "code1x8_matmat_dequant"),
           "1x16": (1, 16, "code1x16_matmat", "code1x16_matmat_dequant")}
MOST_ROWS_ON_CODES = 6
VECTOR = 8
MOST_ERROR = 1e-2  # relative, of the whole result: sums of half-precision products
SOURCES = ("cuda_kernel.cpp", "cuda_kernel.cu")


def source_folder(path, scratch):
    """Where the sources of the extension stand: in a wheel, below a folder, or beside an installed
    package. Failed where there are none."""
    if path is None:
        found = importlib.util.find_spec("aqlm")
        if found is None or not found.submodule_search_locations:
            raise Failed("no package aqlm is installed, and none named with --aqlm")
        path = pathlib.Path(list(found.submodule_search_locations)[0])
    if path.is_file():
        target = scratch / "aqlm"
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                if pathlib.PurePosixPath(name).name in SOURCES:
                    wheel.extract(name, target)  # keeps to the folder, whatever the name says
        path = target
    folders = sorted({file.parent for file in path.rglob(SOURCES[0])
                      if (file.parent / SOURCES[1]).is_file()})
    if not folders:
        raise Failed(f"{path}: neither a wheel nor a folder with {' and '.join(SOURCES)}")
    return folders[0]


def build(path, scratch):
    """The extension, built where it is not. Failed with the reason where that is not possible."""
    folder = source_folder(path, scratch)
    from torch.utils import cpp_extension
    try:
        return cpp_extension.load(name="aqlm_codebook_cuda",
                                  sources=[str(folder / name) for name in SOURCES])
    except (RuntimeError, OSError, ImportError) as error:
        raise Failed(f"the kernels of aqlm were not built: {str(error).splitlines()[0]}") from error


def dense(codes, codebooks, scales, bits):
    """The weights that the codes stand for, in fp32, by nothing but indexing and sums."""
    indices = codes.long() & ((1 << bits) - 1)
    vectors = sum(codebooks[c, :, 0, :].float()[indices[:, :, c]] for c in range(codes.shape[2]))
    return vectors.reshape(codes.shape[0], -1) * scales.float().reshape(-1, 1)


def layers_of(codes, books, scales, codebooks):
    """What each call reads: its own codes, and with codebooks "rotated" its own codebooks and scales."""
    if codebooks == "warm":
        return [(each, books, scales) for each in codes]
    return [(codes[0], books, scales), *((each, books.clone(), scales.clone()) for each in codes[1:])]


def operands(module, scheme, config, codebooks):
    """The package's op, an input, what its calls take turns on, and the bits of a code: codes are random,
    and codebooks and scales are "rotated" with them or "warm", the same for all."""
    import torch
    count, bits, few, many = SCHEMES[scheme]
    shape, dtype = config["shape"], baselines.element_type(config)
    rows, outputs, inputs = shape["m"], shape["out_features"], shape["in_features"]
    whole = torch.iinfo(torch.int8 if bits == 8 else torch.int16)
    code_shape = (outputs, inputs // VECTOR, count)
    nbytes = outputs * inputs // VECTOR * count * bits // 8
    codes = [torch.randint(whole.min, whole.max + 1, code_shape, device="cuda",
                           dtype=torch.int8 if bits == 8 else torch.int16)
             for _ in range(baselines.copies_of(nbytes))]
    books = baselines.random(count, 1 << bits, 1, VECTOR, dtype=dtype) * 0.05
    scales = 1 + 0.1 * baselines.random(outputs, 1, 1, 1, dtype=dtype)
    x = baselines.random(rows, inputs, dtype=dtype)
    op = getattr(module, few if rows <= MOST_ROWS_ON_CODES else many)
    return op, x, layers_of(codes, books, scales, codebooks), bits


def checked_calls(module, scheme, config, codebooks):
    """Calls on what operands() makes. Failed where the first gives another result than the dense product."""
    op, x, layers, bits = operands(module, scheme, config, codebooks)
    expected = x.float() @ dense(*layers[0], bits).T
    difference = op(x, *layers[0], None).float() - expected
    error = (difference.norm() / expected.norm()).item()
    if not error < MOST_ERROR:
        shape = config["shape"]
        raise Failed(f"aqlm {scheme} at {shape['out_features']}x{shape['in_features']}, "
                     f"{shape['m']} rows: rel_err {error:.2e}")
    del expected, difference
    calls = baselines.Calls([lambda layer=layer: op(x, *layer, None)
                             for layer in baselines.turns_on(layers)])
    return calls, error
