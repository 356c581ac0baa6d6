"""The console script `vqgen`: the tool that the package carries, in this process's place."""

import os
import signal
import sys

from vqgen._paths import nvrtc_folder


def path() -> str:
    """The tool's. VQGEN_TOOL names another, as for a package that is used where it was built."""
    return os.environ.get("VQGEN_TOOL") or os.path.join(os.path.dirname(__file__), "bin", "vqgen")


def main():
    tool = path()
    nvrtc = nvrtc_folder()
    if nvrtc is not None:
        os.environ["VQGEN_NVRTC"] = nvrtc
    for each in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and the tool would too
        signal.signal(each, signal.SIG_DFL)
    os.execv(tool, [tool, *sys.argv[1:]])
