"""Paths that a runtime and the tool are given, or look for."""

import os

from vqgen._errors import BadInput


def path_of(name, value):
    """An option that is a path, as a str."""
    if value is None:
        return None
    try:
        return os.fsdecode(value)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name} is no path: {error}") from None


def nvrtc_folder():
    """NVRTC among Python's packages, where no variable names one: PyTorch and NVIDIA's wheels bring
    it, and the loader does not know it."""
    if os.environ.get("VQGEN_NVRTC"):
        return None
    import sys
    for folder in sys.path:
        for below in ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"):
            path = os.path.join(folder, below)
            if os.path.isdir(path):
                return path
    return None
