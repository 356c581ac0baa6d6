"""Shared by the cases: the tool, a folder for each case, safetensors from NumPy, and the verdict."""

import json
import os
import struct
import subprocess
import sys
import tempfile

import numpy as np

TOOL = os.environ.get("VQGEN", "vqgen")
_FOLDER = tempfile.TemporaryDirectory()  # goes when Python ends
FOLDER = _FOLDER.name
_NAMES = {"float32": "F32", "float16": "F16", "uint16": "BF16", "float64": "F64", "int32": "I32"}


def path(name):
    return os.path.join(FOLDER, name)


def vqgen(*arguments, check=False):
    """Return the finished process of the tool, in the case's folder; with `check`, it must exit with 0."""
    done = subprocess.run([TOOL, *arguments], cwd=FOLDER, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise RuntimeError(f"vqgen {' '.join(arguments)}: {done.returncode}: {done.stderr}")
    return done


def bf16(array):
    """Return an array's numbers as bf16, in the uint16 that save() writes as BF16."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def save(name, tensors):
    """Write {name: array} as safetensors into the case's folder."""
    header, data = {}, b""
    for each, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[each] = {"dtype": _NAMES[array.dtype.name], "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    write(name, header, data)


def write(name, header, data):
    """Write a safetensors file of a header and the bytes behind it."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path(name), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def config(**fields):
    """Write the config c.json."""
    with open(path("c.json"), "w", encoding="utf-8") as file:
        json.dump(fields, file)


def end(ok):
    print("RIGHT" if ok else "FAIL")
    sys.exit(0 if ok else 1)
