"""README's first program runs as written, and its attention equals that over the decoded cache."""

import re
from pathlib import Path

import numpy as np

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_program_of_readme_attends_to_the_cache():
    program = re.search(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)[1]
    names = {}
    exec(program, names)  # README's own text

    def decoded(cache):
        """Return [B, KV, T, D] from one code per byte."""
        entries = cache.codebooks[0, 0].astype(np.float64)
        return entries[cache.codes.view(np.uint8)].reshape(names["B"], names["KV"], names["T"], names["D"])

    group = names["H"] // names["KV"]
    keys, values = (np.repeat(decoded(names[each]), group, axis=1) for each in ("keys", "values"))
    scores = np.einsum("bhd,bhtd->bht", names["q"].astype(np.float64), keys) / names["D"] ** 0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("bht,bhtd->bhd", weights / weights.sum(-1, keepdims=True), values)
    assert names["out"].shape == expected.shape
    assert np.abs(names["out"] - expected).max() < 2e-3 * np.abs(expected).max()
