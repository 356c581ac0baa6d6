"""The examples run unchanged and print what they should."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(os.environ["VQGEN_SOURCE_DIR"])


@pytest.mark.parametrize("name, needs, words", [
    ("quickstart", (), r"."),
    ("attention_graph", ("torch",), r"\[10, 10\] tokens, output \(2, 4, 64\), 64 bytes"),
    ("linear", ("torch", "safetensors"), r"2 bits per weight, relative error 0\.[23]"),
    ("generate", ("torch", "transformers", "safetensors"), r"64 bytes of codes per token, \[10, 12\]")])
def test_example(name, needs, words, tmp_path):
    for each in needs:
        pytest.importorskip(each, reason=f"{each} is not installed")
    done = subprocess.run([sys.executable, SOURCE / "examples/python" / f"{name}.py"], cwd=SOURCE,
                          env={**os.environ, "VQGEN_CACHE_DIR": str(tmp_path)}, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    assert re.search(words, done.stdout), done.stdout
