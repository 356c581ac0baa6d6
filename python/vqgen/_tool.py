"""The console script `vqgen`: the tool that the package carries, in this process's place."""

import os
import shutil
import signal
import sys

from vqgen._errors import BadInput, exit_code
from vqgen._paths import nvrtc_folder


def path() -> str:
    """The tool's. VQGEN_TOOL names another, as for a package that is used where it was built. Raises BadInput if it is
    not there."""
    named = os.environ.get("VQGEN_TOOL")
    tool = named or os.path.join(os.path.dirname(__file__), "bin", "vqgen")
    found = shutil.which(tool)
    if found is None:
        raise BadInput(f"{'VQGEN_TOOL' if named else 'the package'}: {tool} is no program; build the target vqgen, and name "
                       "its bin/vqgen by VQGEN_TOOL")
    return found


def main() -> int:
    return exit_code("vqgen", _run)


def _run():
    tool = path()
    nvrtc = nvrtc_folder()
    if nvrtc is not None:
        os.environ["VQGEN_NVRTC"] = nvrtc
    for each in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and the tool would too
        signal.signal(each, signal.SIG_DFL)
    os.execv(tool, [tool, *sys.argv[1:]])
