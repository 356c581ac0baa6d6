"""A config as JSON."""

from __future__ import annotations

import json
import os

from vqgen._errors import BadInput


def config_text(config, op=None):
    """A config as JSON; `op` is that of one that names none."""
    from vqgen.configs import as_json  # which most programs do not need
    if isinstance(config, (str, os.PathLike)):
        try:
            with open(config, encoding="utf-8") as file:
                return file.read()
        except (OSError, ValueError) as error:
            raise BadInput(f"{os.fsdecode(config)!r}: the config cannot be read: {error}") from None
    value = as_json(config)
    if not isinstance(value, dict):
        raise BadInput(f"a config is a dict, a dataclass or a path, and not {type(config).__name__}")
    shape = value.get("shape")
    if op == "gemm" and isinstance(shape, dict) and shape.get("m") == 1:
        op = "gemv"
    try:
        return json.dumps({"op": op, **value} if op else value, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"a config holds what is no JSON: {error}") from None
