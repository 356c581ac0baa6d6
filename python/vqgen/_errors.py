"""vqgen's exceptions: one class for each status of the C interface."""


class Error(RuntimeError):
    """What a call failed with: one line that names what failed, on what, and the remedy."""


class BadInput(Error, ValueError):
    """A config, option or array that is malformed, of the wrong kind or missing."""


class Infeasible(Error):
    """Well formed, but no kernel can do it."""


class DeviceError(Error):
    """Compiler, driver or device missing or failed."""


class Miss(Error):
    """The op is not prepared, and policy or `Runtime.freeze()` forbids to compile it."""


class Capturing(Error):
    """The op is not prepared, and the stream is being captured."""


class RangeError(BadInput):
    """Tokens or rows beyond what the op was prepared for."""


class AlignmentError(BadInput):
    """An array or stride is less aligned than the kernel needs."""


class InternalError(Error):
    """Out of memory, or a fault of vqgen itself."""


by_status = {  # vqgen_status of include/vqgen/vqgen.h
    2: BadInput, 3: Infeasible, 5: DeviceError, 6: Miss, 7: Capturing, 8: InternalError,
    9: AlignmentError, 10: RangeError, 11: InternalError}
