"""The installed transformers' demands on attention: each keyword that a model passes to its attention
function,
and each function that makes masks, is supported or refused by name. A new one fails here."""

import ast
import inspect
import os
import pathlib
import re

import pytest

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers import masking_utils
from transformers.utils.generic import TransformersKwargs

import vqgen.hf
from vqgen._attention import HARMLESS, REFUSED, SERVED, _attention
from vqgen._masks import MASKS

OPERANDS = {"module", "query", "key", "value", "attention_mask", "scaling"}  # of the attention function itself
# Functions by which models make masks. The supported ones (True) make a causal mask or call one that does; the others
# mark their masks, or belong to layers for which VQCache refuses to be made.
CREATES = {
    "create_causal_mask": True,
    "create_masks_for_generate": True,
    "create_bidirectional_mask": False,
    "create_bidirectional_sliding_window_mask": False,
    "create_chunked_causal_mask": True,
    "create_recurrent_attention_mask": False,
    "create_sliding_window_causal_mask": True,
}


def keywords_of(source):
    """Return the keywords in the calls of an attention function, under the name that models use."""
    for match in re.finditer(r"\battention_interface\(", source):
        end, depth = match.end(), 1
        while depth:
            depth += {"(": 1, ")": -1}.get(source[end], 0)
            end += 1
        call = ast.parse(source[match.start():end]).body[0].value
        yield from (keyword.arg for keyword in call.keywords if keyword.arg)


def models():
    folder = pathlib.Path(transformers.__file__).parent / "models"
    return sorted(folder.glob("*/modeling_*.py"))


def test_each_keyword_of_a_model_is_served_or_refused_by_name():
    found = {}
    for path in models():
        for name in keywords_of(path.read_text(encoding="utf-8")):
            found.setdefault(name, set()).add(path.parent.name)
    assert len(models()) > 300 and len(found) > 15, "the models' calls were not found; transformers names them anew"
    assert {"s_aux", "indices", "position_bias", "is_causal"} <= found.keys()
    unknown = {name: sorted(users)[:8] for name, users in found.items()
               if name not in OPERANDS | HARMLESS.keys() | REFUSED.keys() | SERVED.keys()}
    assert not unknown, "put each into REFUSED or, with its reason, into HARMLESS"
    assert not HARMLESS.keys() & REFUSED.keys() and not SERVED.keys() & (HARMLESS.keys() | REFUSED.keys())


def test_each_keyword_of_a_forward_pass_is_served_or_refused_by_name():
    passed = set(TransformersKwargs.__annotations__)
    assert len(passed) > 5
    assert passed <= HARMLESS.keys() | REFUSED.keys() | SERVED.keys()


def test_the_audit_finds_a_new_keyword():
    call = """        out, _ = attention_interface(
            self, query, key, value, mask, scaling=self.scale(),
            novelty=self.novelty, **kwargs)
    """
    assert list(keywords_of(call)) == ["scaling", "novelty"]


def test_attention_itself_takes_its_operands_alone():
    parameters = inspect.signature(_attention).parameters
    assert [name for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD] == [
        "module", "query", "key", "value", "attention_mask", "scaling"]


def of_masks(pattern):
    return {name for name, each in vars(masking_utils).items() if inspect.isfunction(each)
            and each.__module__ == masking_utils.__name__ and re.search(pattern, name)}


def test_each_part_of_a_mask_is_served_or_refused_by_name():
    found = of_masks(r"mask_function$|_overlay$|^(and|or)_masks$|^remap_")
    found -= {"add_offsets_to_mask_function"}  # by mask functions themselves, of what they were given
    assert {"causal_mask_function", "chunked_overlay", "or_masks"} <= found
    assert found <= MASKS.keys(), "name in MASKS what each adds to a causal mask"
    assert [name for name, words in MASKS.items() if words is None] == ["causal_mask_function"]


def test_each_function_that_makes_a_mask_is_known():
    found = of_masks("^create_")
    assert found <= CREATES.keys()
    assert {name for name, served in CREATES.items() if served} <= found


def test_pages_name_the_oldest_version_that_the_package_allows():
    source = pathlib.Path(os.environ["VQGEN_SOURCE_DIR"])
    oldest = re.search(r'"transformers>=([\d.]+)"', (source / "pyproject.toml").read_text(encoding="utf-8")).group(1)
    for page in "huggingface.md", "pytorch.md":
        text = (source / "docs" / "guides" / page).read_text(encoding="utf-8")
        assert re.findall(r"transformers ([\d.]+) or later", text) == [oldest], page
