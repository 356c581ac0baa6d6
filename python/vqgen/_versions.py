"""Versions of the formats of vqgen's files."""

from __future__ import annotations

import vqgen


def format_version(fields: dict, key: str, known: int, where: str) -> int:
    """The version in a member of a file's fields, 1 if it is missing. Raises BadInput, which begins with `where`, for one
    above `known`, and for what is no whole number from 1."""
    version = fields.get(key, 1)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise vqgen.BadInput(f"{where}: {key} is {version!r}; it is a whole number from 1: quantize again")
    if version > known:
        raise vqgen.BadInput(f"{where}: {key} is format version {version}, and this vqgen knows up to {known}; upgrade vqgen")
    return version
