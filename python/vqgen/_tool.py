"""The console script `vqgen`: the tool that the package carries, in this process's place."""

import os
import sys

from vqgen._runtime import _nvrtc


def path() -> str:
    """The tool's. VQGEN_TOOL names another, as for a package that is used where it was built."""
    return os.environ.get("VQGEN_TOOL") or os.path.join(os.path.dirname(__file__), "bin", "vqgen")


def main():
    tool = path()
    nvrtc = _nvrtc()
    if nvrtc is not None:
        os.environ["VQGEN_NVRTC"] = nvrtc
    os.execv(tool, [tool, *sys.argv[1:]])
