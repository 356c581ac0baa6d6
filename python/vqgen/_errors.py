"""vqgen's exceptions: one class for each status of the C interface. The extension has them, so that
`except vqgen.BadInput` catches what it raises even where these modules were imported twice."""

from vqgen._core import (AlignmentError, BadInput, Capturing, DeviceError, Error, Infeasible,
                         InternalError, Miss, RangeError)

__all__ = ["AlignmentError", "BadInput", "Capturing", "DeviceError", "Error", "Infeasible",
           "InternalError", "Miss", "RangeError"]
