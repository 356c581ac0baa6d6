"""The console script `vqgen`: the tool that the package carries, in this process's place."""

import os
import sys

from vqgen._runtime import _nvrtc


def main():
    tool = os.path.join(os.path.dirname(__file__), "bin", "vqgen")
    nvrtc = _nvrtc()
    if nvrtc is not None:
        os.environ["VQGEN_NVRTC"] = nvrtc
    os.execv(tool, [tool, *sys.argv[1:]])
