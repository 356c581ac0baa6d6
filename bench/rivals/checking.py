"""What a rival hands over, and the check that stands before every timing.

The reference decodes what the rival stored and computes in double precision. It uses nothing of the
rival's code.
"""
import dataclasses
import importlib.metadata

from ours import Failed  # of bench/flagship


class Wrong(Exception):
    """An output that is not what the stored codes stand for; one line."""


@dataclasses.dataclass
class Prepared:
    """One rival on one problem.

    choices    by label, lists of calls: call i reads copy i, and returns its output. Each label is one
               setting that the package leaves to its user; the fastest is timed.
    copies     how many copies of codes, scales and codebooks there are
    expected   expected(i) is the reference on copy i
    tolerance  the largest relative error, a norm over the whole output
    bits       per stored number, scales and codebooks left out
    output     the tensor that all calls write, None where each makes its own
    """
    choices: dict
    copies: int
    expected: object
    tolerance: float
    bits: float
    output: object = None


def rel_err(got, expected):
    """|got - expected| / |expected| in double precision; NaN where either has one."""
    reference = expected.double()
    return float((got.double() - reference).norm()) / float(reference.norm())


class Checker:
    """Checks a rival's outputs on its first and its last copy. Keeps the references."""

    def __init__(self, prepared):
        self.prepared = prepared
        self.references = {copy: prepared.expected(copy) for copy in {0, prepared.copies - 1}}

    def worst(self, label):
        """The largest error of these copies. Wrong where it is beyond the tolerance or NaN."""
        errors = []
        for copy, reference in self.references.items():
            if self.prepared.output is not None:
                self.prepared.output.fill_(float("nan"))  # what a call leaves unwritten is seen
            error = rel_err(self.prepared.choices[label][copy](), reference)
            if not error <= self.prepared.tolerance:
                raise Wrong(f"rel_err {error:.2e} on copy {copy}, {self.prepared.tolerance:g} is allowed")
            errors.append(error)
        return max(errors)


def version_of(distribution):
    """The version of an installed package, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


__all__ = ["Checker", "Failed", "Prepared", "Wrong", "rel_err", "version_of"]
