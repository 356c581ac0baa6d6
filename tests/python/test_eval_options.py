"""How vqgen.eval reads its command line."""

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import vqgen.eval


def test_an_option_that_is_given_again_adds_to_its_values():
    def read(*given):
        return vqgen.eval._arguments(["model", "--text", "text", *given])

    more = "klt-2bit-keys:klt-2bit-values", "vecinfer-d2b8"
    again, once = read("--format", "vecinfer-d4b8", "--format", *more), read("--format", "vecinfer-d4b8", *more)
    assert again.forms == once.forms and len(again.forms) == 3 and once.sinks == [0]
    given = read("--format", *more, "--sinks", "4", "--sinks", "8", "16", "--recent-tokens", "32", "--recent-tokens", "128")
    assert given.sinks == [4, 8, 16] and [tokens for tokens, _ in given.recent_tokens] == [32, 128]
