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


def require_place(what, path) -> str:
    """The path of a file to write, as a str. Raises BadInput unless a file can be made there or replaced: training
    takes long, and a place that cannot be written is found before it."""
    out = path_of(what, path)

    def refuse(why):
        raise BadInput(f"{what}: {out} {why}")

    if not out:
        refuse("is empty; name a file")
    if os.path.isdir(out):
        refuse("is a folder; name a file")
    if os.path.lexists(out) and (os.path.islink(out) or not os.path.isfile(out)):
        refuse("is no regular file; name another")
    _require_parent(out, refuse)
    return out


def require_new_folder(what, path) -> str:
    """The path of a folder to make, as a str, without a slash at its end. Raises BadInput if it is there, or cannot be
    made."""
    out = path_of(what, path)

    def refuse(why):
        raise BadInput(f"{what}: {out} {why}")

    if not out:
        refuse("is empty; name a folder")
    out = out.rstrip("/") or out
    if os.path.lexists(out):
        refuse("is there already; remove it, or choose another name")
    _require_parent(out, refuse)
    return out


def _require_parent(out, refuse):
    parent = os.path.dirname(out) or "."
    if not os.path.exists(parent):
        refuse(f"is in a folder that is not there; make {parent} (mkdir -p), or choose another")
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK | os.X_OK):
        refuse(f"cannot be written: {parent} is no folder that can be written; choose another")


def publish(out, write) -> None:
    """Make the file by write(path of one beside it): it appears whole or not at all. Raises BadInput if it cannot be
    written."""
    held = f"{out}.{os.getpid()}"
    try:
        write(held)
        os.replace(held, out)
    except BadInput:
        raise
    except Exception as error:  # of a library of its own, such as SafetensorError
        raise BadInput(f"{out}: it cannot be written: {error}; make room, or choose another place") from error
    finally:
        if os.path.exists(held):
            os.remove(held)


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
