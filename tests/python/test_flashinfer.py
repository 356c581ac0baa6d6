"""Attention over a quantized cache, contiguous and in FlashInfer's pages, against FlashInfer's references in
plain PyTorch, over the dense keys and values from kv_dequantize, cut into pages; and merges. VQGEN_FLASHINFER
names a folder with the unpacked wheel of flashinfer-python (docs/internals/testing.md); none of its compiled
code is loaded."""

import importlib
import itertools
import json
import math
import os
import pathlib
import sys
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import reference
import vqgen
import vqgen.torch as vt

TRACE = pathlib.Path(os.environ.get("VQGEN_FLASHINFER", ""), "flashinfer", "trace")
if not (TRACE / "templates" / "attention.py").is_file():
    pytest.skip("VQGEN_FLASHINFER names no folder with FlashInfer's references",
                allow_module_level=True)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MAX_BUCKETS = 1  # of the fixture own_cache
PAGE = 16
KV_HEADS = 4 if DEVICE == "cuda" else 2
MIXED = ("vecinfer-d4b10", "vecinfer-d8b12")
FORMATS = [("vecinfer-d4b8",) * 2, ("vecinfer-d4b8i8",) * 2, ("vecinfer-d2b8",) * 2, MIXED]


def cases():
    """Return (batch, tokens, head_dim, query heads per KV head, formats, window, sinks). On a GPU these are
    all
    batches, tokens and head_dims of FlashInfer's tests that fit; all else alternates."""
    if DEVICE == "cpu":
        return [(3, 54, 128, 1, FORMATS[0], 0, 0), (4, 33, 128, 4, FORMATS[1], 8, 2),
                (2, 40, 256, 2, MIXED, 0, 0)]
    sizes = [(batch, tokens, head_dim) for head_dim in (128, 256) for batch in (12, 17, 128)
             for tokens in (54, 97, 512, 2048, 16384) if batch * tokens <= 1 << 18]
    rest = itertools.cycle(itertools.product((1, 8), FORMATS, ((0, 0), (32, 4))))
    return [(*size, group, formats, *raw)
            for size, (group, formats, raw) in zip(sizes, itertools.islice(rest, 0, None, 3))]


@pytest.fixture(scope="module")
def templates():
    """Import one of its modules of references, with its packages stubbed, since they load kernels."""
    for name, folder in (("flashinfer_trace", TRACE),
                         ("flashinfer_trace.templates", TRACE / "templates")):
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = [str(folder)]
    return lambda name: importlib.import_module("flashinfer_trace.templates." + name)


@pytest.fixture(scope="module")
def flashinfer(templates):
    return templates("attention")


def codebooks(form, draw):
    """Return random entries and stage scales of one head's codebooks each, as VQCache takes them."""
    fields = vqgen.format_fields(form)
    shape = (KV_HEADS, 1, 1 << fields["index_bits"], fields["vector_size"])
    entries = torch.randn(shape, generator=draw, device=DEVICE)
    if not fields["stage_scales"]:
        return entries.half(), None
    entries = (entries * 40).round().clamp(-127, 127)  # of int8 entries
    return entries.half(), torch.full((KV_HEADS, 1), 1 / 40, device=DEVICE)


def filled(case, draw):
    """Return a contiguous cache of random codes; lengths include 0 and all tokens."""
    batch, tokens, head_dim, group, forms, recent_tokens, sinks = case
    books = [codebooks(form, draw) for form in forms]
    smooth = 0.5 + torch.rand(KV_HEADS, head_dim, generator=draw, device=DEVICE)
    cache = vt.VQCache(
        batch=batch, query_heads=group * KV_HEADS, kv_heads=KV_HEADS, head_dim=head_dim,
        tokens=-(-tokens // PAGE) * PAGE, keys=forms[0], values=forms[1],
        key_codebooks=books[0][0], value_codebooks=books[1][0], key_scales=books[0][1],
        value_scales=books[1][1], key_smooth=smooth, recent_tokens=recent_tokens, sinks=sinks)
    for held in (cache.keys, cache.values):
        held.codes.random_(-1 << 31, 1 << 31, generator=draw)
    for raw in (cache.raw_keys, cache.raw_values):
        if raw is not None:
            raw.normal_(generator=draw)
    cache.lengths.random_(1, tokens + 1, generator=draw)
    cache.lengths[0], cache.lengths[1] = tokens, 0
    query = torch.randn(batch, group * KV_HEADS, head_dim, generator=draw, device=DEVICE).half()
    return cache, query


def contiguous(cache, query):
    """Return out [batch, query_heads, head_dim] and the natural lse [batch, query_heads]."""
    return cache.attend(query)


def cut(rows, page_size, order):
    """Cut [batch, heads, tokens, n] into pages, [batch * pages, page_size, heads, n]: page i of all sequences
    in
    a row is at order[i]."""
    batch, heads, tokens, size = rows.shape
    pages = rows.view(batch, heads, tokens // page_size, page_size, size).permute(0, 2, 3, 1, 4)
    pool = rows.new_empty(len(order), page_size, heads, size)
    pool[order] = pages.reshape(pool.shape)
    return pool


def in_pages(layout):
    """Attend over the codes in pages of a pool in random order, [pages, PAGE, heads, words] (NHD) or
    [pages, heads, PAGE, words] (HND), as FlashInfer lays them out."""
    def attend(cache, query):
        batch, pages = len(cache.lengths), cache.tokens // PAGE
        draw = torch.Generator(DEVICE).manual_seed(int(cache.lengths.sum()))
        order = torch.randperm(batch * pages, generator=draw, device=DEVICE)
        codes = [cut(held.codes, PAGE, order).transpose(1, 2) for held in (cache.keys, cache.values)]
        if layout == "HND":
            codes = [each.contiguous() for each in codes]
        config = json.loads(cache.attention_config)
        config["shape"]["page_tokens"] = PAGE
        raw = cache.raw_keys is not None
        return torch.ops.vqgen.attention(
            vt.config_text(config), query, codes[0], *cache.keys[1:], codes[1], *cache.values[1:],
            cache.lengths, key_smooth=cache.key_smooth, raw_keys=cache.raw_keys,
            raw_values=cache.raw_values, tokens=cache.tokens,
            recent_counts=torch.full_like(cache.lengths, config["shape"]["recent_tokens"]) if raw else None,
            sinks=torch.full_like(cache.lengths, config["shape"]["sinks"]) if raw else None,
            block_table=order.view(batch, pages).int())
    attend.__name__ = layout
    return attend


OURS = [contiguous, in_pages("NHD"), in_pages("HND")]  # ways to attend to what filled() gives


def paged(cache, page_size, draw):
    """Return the dense keys and values in pages of random order, and the block table, [batch, pages]."""
    batch, pages = len(cache.lengths), cache.tokens // page_size
    order = torch.randperm(batch * pages, generator=draw, device=DEVICE)
    keys, values = (cut(dense, page_size, order) for dense in cache.dequantize(cache.tokens))
    return keys, values, order.view(batch, pages).int()


def worst(out, expected):
    """Return the largest error of a sequence relative to its largest magnitude (longer ones have smaller
    outputs);
    NaN if there is one. Leaves out empty sequences."""
    return np.max([reference.worst(mine, theirs) for mine, theirs in zip(
        out.cpu(), expected.double().cpu().numpy()) if theirs.any()])


@pytest.fixture
def generator(draw):
    return torch.Generator(DEVICE).manual_seed(int(draw.integers(1 << 31)))


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("page_size", [1, PAGE])
@pytest.mark.parametrize("case", cases(), ids=str)
def test_out_and_lse_of_paged_decode(flashinfer, generator, case, page_size, ours):
    cache, query = filled(case, generator)
    cache.lengths.add_(-cache.lengths % page_size)  # the reference reads whole pages
    keys, values, table = paged(cache, page_size, generator)
    used = cache.lengths // page_size
    indptr = torch.nn.functional.pad(used.cumsum(0), (1, 0)).int()
    indices = torch.cat([row[:count] for row, count in zip(table, used.tolist())])
    expected, expected_lse = flashinfer._gqa_paged_decode_reference(
        query, keys, values, indptr, indices, query.shape[-1]**-0.5)
    out, lse = ours(cache, query)
    assert expected.dtype == torch.bfloat16  # whose rounding comes on top
    assert worst(out, expected) < 4e-3 + 2**-8
    torch.testing.assert_close(lse, expected_lse * math.log(2), atol=1e-2, rtol=0)
    assert not out[1].any() and (lse[1] == -math.inf).all()


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("case", cases(), ids=str)
def test_out_of_ragged_lengths_in_both_layouts(flashinfer, generator, case, layout, ours):
    cache, query = filled(case, generator)
    keys, values, table = paged(cache, PAGE, generator)
    both = torch.stack([keys, values], 1)
    expected = flashinfer._trtllm_paged_attention_reference(
        query, both if layout == "NHD" else both.transpose(2, 3).contiguous(), table, cache.lengths,
        kv_layout=layout)
    out, _ = ours(cache, query)
    assert worst(out, expected) < 4e-3
    assert not out[1].any()


@pytest.mark.parametrize("parts", [2, 4, 8])
@pytest.mark.parametrize("rows, heads, head_dim", [(1, 32, 128), (7, 4, 256), (64, 8, 64)])
def test_merges(templates, generator, rows, heads, head_dim, parts):
    cascade = templates("cascade")
    config = vt.config_text({"op": "attention_merge", "shape": {
        "rows": rows, "heads": heads, "head_dim": head_dim, "parts": parts}})
    outs = torch.randn(parts, rows, heads, head_dim, generator=generator, device=DEVICE).half()
    lses = 4 * torch.randn(parts, rows, heads, generator=generator, device=DEVICE)
    lses[0, 0, 1] = -math.inf  # an empty part; theirs are NaN where all are
    out, lse = torch.ops.vqgen.merge(config, list(outs), list(lses))
    of_base_2 = lses / math.log(2)
    expected = [cascade._merge_states_reference(outs.transpose(0, 1), of_base_2.transpose(0, 1))]
    if parts == 2:
        expected.append(cascade._merge_state_reference(outs[0], of_base_2[0], outs[1],
                                                       of_base_2[1]))
    for expected_out, expected_lse in expected:
        assert worst(out, expected_out) < 2e-3
        torch.testing.assert_close(lse, expected_lse * math.log(2), atol=1e-4, rtol=0)
