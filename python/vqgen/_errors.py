"""vqgen's exceptions: one class for each status of the C interface. The extension has them, so that
`except vqgen.BadInput` catches what it raises even where these modules were imported twice."""

import sys

from vqgen._core import (AlignmentError, BadInput, Capturing, DeviceError, Error, Infeasible,
                         InternalError, Miss, RangeError)

__all__ = ["AlignmentError", "BadInput", "Capturing", "DeviceError", "Error", "Infeasible",
           "InternalError", "Miss", "RangeError"]


def exit_code(program: str, run) -> int:
    """Call run(), and return what the program exits with: 0, or 2 behind one line that says what was wrong."""
    try:
        run()
    except (Error, ImportError, OSError, ValueError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    return 0
