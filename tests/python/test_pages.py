"""Caches in pages, on NumPy and the host backend: the arrays of engines, used in place."""

import numpy as np
import pytest

import reference
import vqgen
from vqgen import configs

BATCH, KV_HEADS, DIM, TOKENS, PAGE = 3, 2, 64, 60, 16
COLUMNS = -(-TOKENS // PAGE)
PAGES = BATCH * COLUMNS + 3
FORM = configs.Format(4, 8)  # 4 words a row
SHAPE = dict(batch=BATCH, kv_heads=KV_HEADS, head_dim=DIM, tokens=TOKENS)


def ops(host, page_tokens, form=FORM, **more):
    """Return an append of 20 tokens, an attention and a kv_dequantize over one cache."""
    if page_tokens:
        more["page_tokens"] = page_tokens
    return (host.append(configs.AppendConfig(configs.AppendShape(new_tokens=20, **SHAPE, **more),
                                             form, form)),
            host.attention(configs.AttentionConfig(
                configs.AttentionShape(query_heads=4, **SHAPE, **more), form, form)),
            host.dequantize(configs.DequantizeConfig(configs.DequantizeShape(**SHAPE, **more), form, form)))


def fill(ops, caches, draw, **pages):
    """Append tokens of three sequences, one of which is inactive, attend to them and dequantize them."""
    append, attention, decode = ops
    fresh = draw.standard_normal((2, 2, BATCH, 20, KV_HEADS, DIM)).astype(np.float16)
    append(*fresh[0], np.array([0, 0, -1], np.int32), *caches, counts=np.array([20, 7, 9], np.int32),
           **pages)
    append(*fresh[1], np.array([20, 50, -1], np.int32), *caches, **pages)
    lengths = np.array([40, 7, 0], np.int32)
    query = draw.standard_normal((BATCH, 4, DIM)).astype(np.float16)
    out, lse = attention(query, *caches, lengths, return_lse=True, **pages)
    dense = [np.zeros((BATCH, KV_HEADS, 40, DIM), np.float16) for _ in "kv"]
    decode(*caches, lengths, out_keys=dense[0], out_values=dense[1], **pages)
    return out, lse, *dense


def contiguous(books, draw, ops):
    rows = [np.zeros((BATCH, KV_HEADS, TOKENS, 4), np.uint32) for _ in "kv"]
    return fill(ops, [vqgen.Quantized(*each) for each in zip(rows, books)], draw), rows


def table_of(draw):
    """Return a table of pages in random order, wide enough, and the pages that no sequence has."""
    order = draw.permutation(PAGES).astype(np.int32)
    return order[:BATCH * COLUMNS].reshape(BATCH, COLUMNS), order[BATCH * COLUMNS:]


@pytest.mark.parametrize("order", reference.ORDERS)
def test_pages_of_engines_are_a_contiguous_cache(host, draw, order):
    books = draw.standard_normal((2, 1, 1, 256, 4)).astype(np.float16)
    seed = draw.integers(1 << 30)
    expected, rows = contiguous(books, np.random.default_rng(seed), ops(host, 0))
    table, spare = table_of(draw)
    noise = lambda shape: draw.integers(0, 1 << 32, shape, dtype=np.uint32)
    keys, values, whole = reference.pool(order, PAGES, KV_HEADS, PAGE, 4, 4, noise)
    before = [each.copy() for each in whole]
    untouched = [each.copy() for each in (keys[spare], values[spare])]
    caches = [vqgen.Quantized(*each) for each in zip((keys, values), books)]
    results = fill(ops(host, PAGE), caches, np.random.default_rng(seed), block_table=table)
    assert all(np.shares_memory(keys, each) or np.shares_memory(values, each) for each in whole)
    for got, wanted in zip(results[2:], expected[2:]):
        assert np.array_equal(got, wanted) and got.any()
    assert reference.worst(results[0], expected[0]) < 2e-3
    assert np.abs(results[1][:2] - expected[1][:2]).max() < 1e-3
    assert (results[1][2] == -np.inf).all() and not results[0][2].any()
    for sequence, tokens in enumerate(([*range(40)], [*range(7), *range(50, TOKENS)], [])):
        for pool, row in zip((keys, values), rows):
            for token in tokens:
                assert np.array_equal(pool[table[sequence, token // PAGE], :, token % PAGE],
                                      row[sequence, :, token])
    # Pages that no sequence has, and those of the inactive sequence.
    for pool, kept in zip((keys, values), untouched):
        assert np.array_equal(pool[spare], kept)
    changed = sum((a != b).any(axis=-1).sum() for a, b in zip(whole, before))
    rows_written = 57 * KV_HEADS
    assert rows_written / 2 < changed <= (1 if order == "side by side" else 2) * rows_written


@pytest.mark.parametrize("rows, words", [(2, 2), (4, 1)])
def test_groups_of_rows(host, draw, rows, words):
    form = {"vector_size": 4, "index_bits": 8, "layout": {"rows": rows, "words": words}}
    books = draw.standard_normal((2, 1, 1, 256, 4)).astype(np.float16)
    seed = draw.integers(1 << 30)
    expected, _ = contiguous(books, np.random.default_rng(seed), ops(host, 0))
    table, _ = table_of(draw)
    groups, tail = PAGE // rows, (4 // words, rows, words)
    for swapped in (False, True):
        shape = (PAGES, groups, KV_HEADS, *tail) if swapped else (PAGES, KV_HEADS, groups, *tail)
        pools = [np.zeros(shape, np.uint32) for _ in "kv"]
        views = [each.swapaxes(1, 2) if swapped else each for each in pools]
        caches = [vqgen.Quantized(*each) for each in zip(views, books)]
        results = fill(ops(host, PAGE, form), caches, np.random.default_rng(seed),
                       block_table=table)
        for got, wanted in zip(results[2:], expected[2:]):
            assert np.array_equal(got, wanted)
        assert reference.worst(results[0], expected[0]) < 2e-3


def test_groups_that_lie_apart_by_no_whole_words_a_row(host, draw):
    form = {"vector_size": 4, "index_bits": 8, "layout": {"rows": 4}}
    attention = ops(host, PAGE, form)[1]
    books = draw.standard_normal((1, 1, 256, 4)).astype(np.float16)
    query = draw.standard_normal((BATCH, 4, DIM)).astype(np.float16)
    table, _ = table_of(draw)
    for words, refused in ((17, True), (18, True), (20, False)):
        groups = np.zeros((PAGES, KV_HEADS, PAGE // 4, words), np.uint32)[..., :16]
        keys = vqgen.Quantized(groups.reshape(*groups.shape[:3], 4, 4, 1), books)
        assert np.shares_memory(keys.codes, groups)
        values = keys._replace(codes=np.ascontiguousarray(keys.codes))
        call = lambda: attention(query, keys, values, np.full(BATCH, TOKENS, np.int32),
                                 block_table=table)
        if refused:
            with pytest.raises(vqgen.BadInput, match=f"'keys.codes' has {words} words from a group "
                               "of rows to the next, which its 4 rows do not divide"):
                call()
        else:
            assert call().any()


def test_a_prefix_is_shared(host, draw):
    append, attention, _ = ops(host, PAGE)
    books = draw.standard_normal((2, 1, 1, 256, 4)).astype(np.float16)
    pools = draw.integers(0, 1 << 32, (2, PAGES, KV_HEADS, PAGE, 4), dtype=np.uint32)
    caches = [vqgen.Quantized(*each) for each in zip(pools, books)]
    query = np.repeat(draw.standard_normal((1, 4, DIM)), BATCH, 0).astype(np.float16)
    apart = np.arange(BATCH * COLUMNS, dtype=np.int32).reshape(BATCH, COLUMNS)
    for each in pools:
        for sequence in (1, 2):
            each[apart[sequence]] = each[apart[0]]
    lengths = np.array([52, 33, 52], np.int32)
    out = attention(query, *caches, lengths, block_table=apart)
    together = np.repeat(apart[:1], BATCH, 0)
    assert np.array_equal(attention(query, *caches, lengths, block_table=together), out)
    assert np.array_equal(out[0], out[2])


def test_what_is_no_number_stays_in_its_pages(host, draw):
    books = draw.standard_normal((1, 1, 256, 4)).astype(np.float16)
    books[:, :, 128:] = np.nan
    lengths, table = np.array([50, 60, 7], np.int32), table_of(draw)[0]
    pools = np.full((2, PAGES, KV_HEADS, PAGE, 4), 0xffffffff, np.uint32)
    for pool in pools:  # of nobody, of sequence 1, and past a length there are none but NaN
        for sequence in (0, 2):
            for token in range(lengths[sequence]):
                row = draw.integers(0, 1 << 32, (KV_HEADS, 4), dtype=np.uint32) & 0x7f7f7f7f
                pool[table[sequence, token // PAGE], :, token % PAGE] = row
    caches = [vqgen.Quantized(each, books) for each in pools]
    query = draw.standard_normal((BATCH, 4, DIM)).astype(np.float16)
    out, lse = ops(host, PAGE)[1](query, *caches, lengths, block_table=table, return_lse=True)
    assert [np.isfinite(each).all() for each in out] == [True, False, True]
    assert np.isfinite(lse[[0, 2]]).all() and np.isnan(out[1]).all()


def test_counts_beyond_what_there_is(host, draw):
    append = ops(host, PAGE)[0]
    books = draw.standard_normal((1, 1, 256, 4)).astype(np.float16)
    fresh = draw.standard_normal((2, BATCH, 20, KV_HEADS, DIM)).astype(np.float16)
    table, _ = table_of(draw)
    results = []
    for positions, counts in (((0, 50, 30), None), ((0, 50, 30), (21, 2**31 - 1, -1))):
        pools = np.zeros((2, PAGES, KV_HEADS, PAGE, 4), np.uint32)
        caches = [vqgen.Quantized(each, books) for each in pools]
        append(*fresh, np.array(positions, np.int32), *caches, block_table=table,
               counts=None if counts is None else np.array(counts, np.int32))
        results.append(pools)
    everything, capped = results
    assert np.array_equal(everything[:, table[:2]], capped[:, table[:2]]) and capped.any()
    assert everything[:, table[2]].any() and not capped[:, table[2]].any()
    assert not everything[:, table[1], :, :][:, 3, :, 12:].any()  # tokens 60 to 63: not of the op


def paged(host):
    books = np.ones((1, 1, 256, 4), np.float16)
    keys, values = (vqgen.Quantized(np.zeros((PAGES, KV_HEADS, PAGE, 4), np.uint32), books)
                    for _ in "kv")
    table = np.arange(BATCH * COLUMNS, dtype=np.int32).reshape(BATCH, COLUMNS)
    query = np.ones((BATCH, 4, DIM), np.float16)
    return ops(host, PAGE), keys, values, table, query, np.full(BATCH, TOKENS, np.int32)


def test_an_op_in_pages_says_what_it_takes(host):
    _, attention, _ = ops(host, PAGE)
    shapes = {each.name: each.shape for each in attention.arguments}
    assert shapes["keys.codes"] == (0, KV_HEADS, PAGE, 4) and shapes["block_table"] == (BATCH, 0)


def test_tables_that_do_not_fit(host):
    (append, attention, decode), keys, values, table, query, lengths = paged(host)
    attention(query, keys, values, lengths, block_table=table)
    for wrong, words in [
            (None, r"'block_table' is missing; it has to be int32 \[3, 1 or more\]"),
            (table.astype(np.int64), "'block_table' is int64"),
            (table[:2], r"'block_table' is int32 \[2, 4\]"),
            (table.ravel(), r"'block_table' is int32 \[12\]"),
            (np.zeros((BATCH, 8), np.int32)[:, ::2], "'block_table' is not contiguous"),
            (np.zeros((BATCH, 6), np.int32)[:, :4], "'block_table' is not contiguous"),
            (np.full_like(table, PAGES), r"block_table\[0\]\[0\] is 15, .* 0 to 14"),
            (np.where(table == 6, -1, table).astype(np.int32), r"block_table\[1\]\[2\] is -1")]:
        with pytest.raises(vqgen.BadInput, match=words):
            attention(query, keys, values, lengths, block_table=wrong)
    with pytest.raises(vqgen.BadInput, match="lengths.0. is 60, and `tokens` is 48"):
        attention(query, keys, values, lengths, block_table=np.ascontiguousarray(table[:, :3]))
    with pytest.raises(vqgen.BadInput, match="pages of the block table have room for 64"):
        attention(query, keys, values, lengths, block_table=table, tokens=65)
    with pytest.raises(vqgen.BadInput, match="'block_table' is missing; pass an array"):
        decode(keys, values, lengths)
    with pytest.raises(vqgen.BadInput, match="room for 16"):
        decode(keys, values, lengths, block_table=table[:, :1].copy(), tokens=17)
    fresh = np.ones((BATCH, 20, KV_HEADS, DIM), np.float16)
    with pytest.raises(vqgen.BadInput, match=r"page 0 is appended to by sequences 0 and 1"):
        append(fresh, fresh, np.zeros(BATCH, np.int32), keys, values,
               block_table=np.repeat(table[:1], BATCH, 0))
    twice = table.copy()
    twice[0, 1] = twice[0, 0]
    with pytest.raises(vqgen.BadInput, match=r"page 0 is appended to as block_table\[0\]\[1\], and "
                       r"is block_table\[0\]\[0\] too"):
        append(fresh, fresh, np.array([16, -1, -1], np.int32), keys, values, block_table=twice)
    full = np.full(BATCH, TOKENS, np.int32)  # nothing fits, and nothing is written
    append(fresh, fresh, full, keys, values, block_table=np.full_like(table, -1))
    assert not keys.codes.any() and not values.codes.any()
    plain = ops(host, 0)[1]
    rows = keys._replace(codes=np.zeros((BATCH, KV_HEADS, TOKENS, 4), np.uint32))
    with pytest.raises(vqgen.BadInput, match="'block_table' is given, and the config has none"):
        plain(query, rows, rows, lengths, block_table=table)


def test_codes_that_are_no_pages(host):
    (_, attention, _), keys, values, table, query, lengths = paged(host)
    codes = keys.codes
    for wrong, words in [
            (codes[:, :, :15], r"'keys.codes' is uint32 \[15, 2, 15, 4\] .*\[1 or more, 2, 16, 4\]"),
            (codes[:, :1], r"'keys.codes' is uint32 \[15, 1, 16, 4\]"),
            (codes[..., :3], r"'keys.codes' is uint32 \[15, 2, 16, 3\]"),
            (codes.reshape(15, 2, 64), r"'keys.codes' is uint32 \[15, 2, 64\]"),
            (codes[:14], "'keys.codes' has 14 pages, and 'values.codes' 15; make them equal"),
            (np.zeros((15, 2, 16, 8), np.uint32)[..., ::2],
             "gaps or an order within its last dimensions; only pages, heads and tokens"),
            (codes[:, :, ::-1], "only pages, heads and tokens"),
            (np.broadcast_to(codes[:, :, :1], codes.shape), "less than the rows of codes"),
            (np.broadcast_to(codes[:1], codes.shape), "less than the rows of codes"),
            (np.zeros((15, 2, 16, 5), np.uint32)[..., :4], "'pages.keys.[a-z]*' is not a multiple")]:
        with pytest.raises(vqgen.Error, match=words):
            attention(query, keys._replace(codes=wrong), values, lengths, block_table=table)
    with pytest.raises(vqgen.BadInput, match="17 is none of 16, 32, 64, 128 and 256"):
        ops(host, 17)


RAW = 8  # tokens of a page of full-precision rows


def raw_ops(host):
    return ops(host, PAGE, recent_tokens=20, raw_page_tokens=RAW)


def raw_pages(draw, dtype=np.float16):
    """One pool that has keys and values side by side, as engines have them, and its table."""
    columns = -(-TOKENS // RAW)
    pool = np.full((BATCH * columns + 2, KV_HEADS, RAW, 2 * DIM), np.nan, dtype)
    table = draw.permutation(len(pool)).astype(np.int32)[:BATCH * columns].reshape(BATCH, columns)
    return dict(raw_keys=pool[..., :DIM], raw_values=pool[..., DIM:], raw_block_table=table), pool


def coded_pages(draw):
    books = draw.standard_normal((2, 1, 1, 256, 4)).astype(np.float16)
    codes = np.zeros((2, PAGES, KV_HEADS, PAGE, 4), np.uint32)
    return [vqgen.Quantized(*each) for each in zip(codes, books)], table_of(draw)[0]


def test_full_precision_rows_in_pages_are_those_of_slots(host, draw):
    seed = int(draw.integers(1 << 30))
    (append, attention, decode), (caches, table) = raw_ops(host), coded_pages(np.random.default_rng(seed))
    raw, pool = raw_pages(draw)
    fresh = draw.standard_normal((2, BATCH, 20, KV_HEADS, DIM)).astype(np.float16)
    append(*fresh, np.zeros(BATCH, np.int32), *caches, block_table=table, **raw)
    query, lengths = draw.standard_normal((BATCH, 4, DIM)).astype(np.float16), np.full(BATCH, 20, np.int32)
    recent = dict(recent_counts=np.full(BATCH, 13, np.int32))
    raw["raw_block_table"][:, 3:] = 10 ** 6  # of no token
    out = attention(query, *caches, lengths, block_table=table, **raw, **recent)
    dense = decode(*caches, lengths, block_table=table, tokens=20, **raw, **recent)
    for given, rows in zip(fresh, dense):
        np.testing.assert_array_equal(rows[:, :, 7:], given.swapaxes(1, 2)[:, :, 7:])
    slots = {name: np.zeros((BATCH, KV_HEADS, 20, DIM), np.float16) for name in ("raw_keys", "raw_values")}
    append, attention, _ = ops(host, PAGE, recent_tokens=20)
    append(*fresh, np.zeros(BATCH, np.int32), *caches, block_table=table, **slots)
    np.testing.assert_array_equal(out, attention(query, *caches, lengths, block_table=table, **slots, **recent))


def test_wrong_pages_of_rows_are_named(host, draw):
    (append, attention, _), (caches, table) = raw_ops(host), coded_pages(draw)
    raw, pool = raw_pages(draw)
    query, lengths = np.zeros((BATCH, 4, DIM), np.float16), np.full(BATCH, 30, np.int32)

    def attend(words, **more):
        with pytest.raises(vqgen.Error, match=words):
            attention(query, *caches, lengths, block_table=table,
                      **{**raw, "recent_counts": np.full(BATCH, 5, np.int32), **more})

    attend("'raw_block_table' is missing", raw_block_table=None)
    wrong = raw["raw_block_table"].copy()
    wrong[1, 3] = len(pool)
    attend(rf"raw_block_table\[1\]\[3\] is {len(pool)}, and the pool has pages 0 to {len(pool) - 1}", raw_block_table=wrong)
    attend("raw_pages.columns times raw_page_tokens", raw_block_table=raw["raw_block_table"][:, :4].copy())
    attend("lay both out alike", raw_values=np.zeros(raw["raw_keys"].shape, np.float16))
    wrong = raw["raw_block_table"].copy()
    wrong[2] = wrong[0]
    new = np.zeros((BATCH, 20, KV_HEADS, DIM), np.float16)
    with pytest.raises(vqgen.BadInput, match=r"is appended to by sequences 0 and 2 \(raw_block_table\[2\]"):
        append(new, new, np.zeros(BATCH, np.int32), *caches, block_table=table, **{**raw, "raw_block_table": wrong})
