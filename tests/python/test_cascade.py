"""Cascade attention in PyTorch: prefixes that sequences share, against attention that reads them once per sequence."""

import pytest

torch = pytest.importorskip("torch")

import vqgen  # noqa: E402
import vqgen.torch as vt  # noqa: E402

MAX_BUCKETS = 1  # each size is a kernel
HEADS, KV_HEADS, DIM, PAGE, COLUMNS = 4, 2, 64, 16, 8
FORM = {"vector_size": 4, "index_bits": 8, "entry_type": "int8", "stage_scales": True}
WORDS = DIM // 16


def shape_of(batch, **more):
    return dict(batch=batch, kv_heads=KV_HEADS, head_dim=DIM, tokens=COLUMNS * PAGE, page_tokens=PAGE) | more


def config_of(batch, **more):
    return vt.config_text({"op": "attention_decode", "keys": FORM, "values": FORM,
                           "shape": shape_of(batch, query_heads=HEADS) | more})


class Pool:
    """Random codes in pages, and a table of sequences of which members of a group begin with the same pages."""

    def __init__(self, draw, groups, batch):
        self.pages = batch * COLUMNS + 1
        codes = draw.integers(-1 << 31, 1 << 31, (2, self.pages, KV_HEADS, PAGE, WORDS))
        books = draw.integers(-127, 128, (2, 1, 1, 256, 4))
        self.cache = []
        for own, book in zip(codes, books):
            self.cache += [torch.tensor(own, dtype=torch.int32), torch.tensor(book, dtype=torch.int8).to(torch.float16),
                           torch.full((1, 1), 0.01)]
        order = torch.tensor(draw.permutation(self.pages)[:batch * COLUMNS].reshape(batch, COLUMNS), dtype=torch.int32)
        for members, pages in groups:
            order[members, :pages] = order[members[0], :pages]
        self.table = order

    def query(self, draw, rows):
        return torch.tensor(draw.standard_normal((rows, HEADS, DIM)), dtype=torch.float16)


def near(given, expected):
    assert len(given) == len(expected)
    for own, other, bound in zip(given, expected, (4e-3, 2e-2)):
        assert own.shape == other.shape and torch.equal(own.isinf(), other.isinf())
        finite = other.isfinite()
        worst = (own.float() - other.float())[finite].abs().max().item() if finite.any() else 0.0
        if not worst < bound * max(1.0, other.float()[finite].abs().max().item() if bound < 1e-2 else 1.0):  # NaN fails
            return False
    return True


@pytest.mark.parametrize("size", [7, 70])
def test_a_cascade_is_attention_over_the_same_pages(draw, size):
    groups = [([1, *range(4, size)], 5), ([0, 3], 2)]
    pool = Pool(draw, groups, size)
    lengths = torch.tensor(draw.integers(5 * PAGE, COLUMNS * PAGE + 1, size), dtype=torch.int32)
    lengths[4], lengths[2] = 5 * PAGE, 0  # no tokens of its own; inactive
    cascade, query = vt.Cascade(config_of(size)), pool.query(draw, size)
    shared = cascade.prefixes(pool.table, lengths, least_tokens=PAGE)
    assert sorted(shared.groups) == sorted((sorted(members), pages * PAGE) for members, pages in groups)
    assert shared.rows is not None and len(shared.prefix_lengths) == (2 if size == 7 else 4)  # 64 query tokens at once
    expected = torch.ops.vqgen.attention(cascade.config, query, *pool.cache, lengths, block_table=pool.table)
    assert near(cascade.attention(shared, query, *pool.cache), expected)
    given = cascade.prefixes(pool.table, lengths, groups=[([3, 0], 2 * PAGE), ([5, 4, 1], 3 * PAGE), ([6], PAGE)])
    assert near(cascade.attention(given, query, *pool.cache), expected)


def test_random_groups(draw):
    size, query_tokens = 12, 2
    order, groups = draw.permutation(size).tolist(), []
    while order:
        members, order = order[:(number := int(draw.integers(1, 6)))], order[number:]
        groups.append((members, int(draw.integers(0, COLUMNS))))
    pool = Pool(draw, groups, size)
    counts = draw.integers(0, query_tokens + 1, size)
    lengths = torch.tensor([draw.integers(counts[each], COLUMNS * PAGE + 1) for each in range(size)], dtype=torch.int32)
    starts = torch.tensor([0, *counts.cumsum()], dtype=torch.int32)
    cascade, query = vt.Cascade(config_of(size, query_tokens=query_tokens)), pool.query(draw, int(starts[-1]))
    shared = cascade.prefixes(pool.table, lengths, query_start=starts, least_tokens=PAGE)
    own = dict(zip(range(size), [0] * size)) | {each: tokens for members, tokens in shared.groups for each in members}
    assert all(tokens <= lengths[each] - counts[each] or not tokens for each, tokens in own.items())
    expected = torch.ops.vqgen.attention(cascade.config, query, *pool.cache, lengths, block_table=pool.table, query_start=starts)
    assert near(cascade.attention(shared, query, *pool.cache), expected)
    # Groups that are given, and cut short at random.
    given = [(members, tokens) for members, pages in groups
             if (tokens := min([pages * PAGE, *(int(lengths[each] - counts[each]) for each in members)]) // PAGE * PAGE)]
    checked = cascade.prefixes(pool.table, lengths, query_start=starts, groups=given)
    assert near(cascade.attention(checked, query, *pool.cache), expected)


def test_one_group_of_all_copies_nothing(draw):
    pool = Pool(draw, [([0, 1, 2], 6)], 3)
    lengths = torch.tensor([100, 128, 97], dtype=torch.int32)
    cascade, query = vt.Cascade(config_of(3)), pool.query(draw, 3)
    shared = cascade.prefixes(pool.table, lengths, least_tokens=PAGE)
    assert shared.groups == [([0, 1, 2], 96)] and shared.rows is None and shared.own_tokens == 33
    expected = torch.ops.vqgen.attention(cascade.config, query, *pool.cache, lengths, block_table=pool.table)
    assert near(cascade.attention(shared, query, *pool.cache), expected)
    # What would be wrong is found: own tokens that begin at 0, so that the prefix counts twice, or a page late.
    twice = cascade.prefixes(pool.table, lengths, groups=[([0, 1, 2], 96)])
    twice.lengths, twice.table, twice.own_tokens = lengths, pool.table, 128
    assert not near(cascade.attention(twice, query, *pool.cache), expected)
    late = cascade.prefixes(pool.table, lengths, groups=[([0, 1, 2], 80)])
    late.lengths = late.lengths - PAGE
    late.table = late.table.roll(-1, 1)
    assert not near(cascade.attention(late, query, *pool.cache), expected)


def test_without_a_prefix_it_is_the_config_s_attention(draw):
    pool = Pool(draw, [], 3)
    lengths = torch.tensor([100, 128, 0], dtype=torch.int32)
    cascade, query = vt.Cascade(config_of(3)), pool.query(draw, 3)
    expected = torch.ops.vqgen.attention(cascade.config, query, *pool.cache, lengths, block_table=pool.table)
    for groups in (None, [], [([0, 1], 0)]):
        shared = cascade.prefixes(pool.table, lengths, groups=groups)
        assert shared.groups == []
        for own, other in zip(cascade.attention(shared, query, *pool.cache), expected):
            assert torch.equal(own, other)


@pytest.mark.parametrize("fresh", [False, True])
def test_several_query_tokens(draw, fresh):
    pool = Pool(draw, [([0, 1, 3], 4)], 4)
    lengths = torch.tensor([64 + 3, 128 - 3, 40, 90], dtype=torch.int32)
    counts = [3, 2, 3, 0]
    starts = torch.tensor([0, 3, 5, 8, 8], dtype=torch.int32)
    cascade, query = vt.Cascade(config_of(4, query_tokens=3)), pool.query(draw, 8)
    new = {}
    if fresh:
        new = {name: torch.tensor(draw.standard_normal((8, KV_HEADS, DIM)), dtype=torch.float16)
               for name in ("new_keys", "new_values")}
    shared = cascade.prefixes(pool.table, lengths, query_start=starts, least_tokens=PAGE)
    assert shared.groups == [([0, 1], 64)]
    expected = torch.ops.vqgen.attention(cascade.config, query, *pool.cache, lengths, block_table=pool.table,
                                         query_start=starts, **new)
    assert near(cascade.attention(shared, query, *pool.cache, **new), expected)
    assert sum(counts) == starts[-1]


def test_windows_stay_each_sequence_s_own(draw):
    pool = Pool(draw, [([0, 1, 2], 6)], 3)
    lengths = torch.tensor([100, 128, 97], dtype=torch.int32)
    query = pool.query(draw, 3)
    slots = {name: torch.tensor(draw.standard_normal((3, KV_HEADS, 32, DIM)), dtype=torch.float16)
             for name in ("raw_keys", "raw_values")}
    pages = {name: torch.tensor(draw.standard_normal((30, KV_HEADS, 32, DIM)), dtype=torch.float16)
             for name in ("raw_keys", "raw_values")}
    raw_table = torch.tensor(draw.permutation(30)[:12].reshape(3, 4), dtype=torch.int32)
    counts = {"recent_counts": torch.tensor([32, 7, 0], dtype=torch.int32)}
    for more, raw, table in (({"recent_tokens": 32}, slots, {}),
                             ({"recent_tokens": 32, "raw_page_tokens": 32}, pages, {"raw_block_table": raw_table})):
        cascade = vt.Cascade(config_of(3, **more))
        shared = cascade.prefixes(pool.table, lengths, least_tokens=PAGE, **table)
        assert shared.groups == [([0, 1, 2], 64)] and cascade.unit == 32
        expected = torch.ops.vqgen.attention(cascade.config, query, *pool.cache, lengths, block_table=pool.table, **raw,
                                             **counts, **table)
        assert near(cascade.attention(shared, query, *pool.cache, **raw, **counts), expected)


def test_sink_logits_count_once(draw):
    pool = Pool(draw, [([0, 1], 6)], 2)
    lengths = torch.tensor([100, 96], dtype=torch.int32)
    cascade, query = vt.Cascade(config_of(2, sink_logits=True, logit_softcap=20)), pool.query(draw, 2)
    sinks = torch.tensor(draw.standard_normal(HEADS) + 4, dtype=torch.float32)
    shared = cascade.prefixes(pool.table, lengths, least_tokens=PAGE)
    assert shared.groups == [([0, 1], 96)]
    expected = torch.ops.vqgen.attention(cascade.config, query, *pool.cache, lengths, block_table=pool.table, sink_logits=sinks)
    assert near(cascade.attention(shared, query, *pool.cache, sink_logits=sinks), expected)


def test_what_no_prefix_is_is_named(draw):
    pool = Pool(draw, [([0, 1, 2], 3)], 3)
    lengths = torch.tensor([100, 70, 33], dtype=torch.int32)
    cascade = vt.Cascade(config_of(3))
    for groups, words in (
            ([([0, 1], 20)], r"groups\[0\] has a prefix of 20 tokens, no multiple of 16, .* give 16"),
            ([([0, 2], 48)], r"groups\[0\] has a prefix of 48 tokens, and sequence 2 has 33; give a prefix that all"),
            ([([0, 1], 64)], r"sequences 0 and 1 have pages \d+ and \d+ in column 3 of the block table"),
            ([([0, 1], 16), ([2, 1], 16)], r"groups\[1\] has sequence 1, which groups\[0\] has too"),
            ([([0, 3], 16)], r"a sequence of groups\[0\] is 3; it is a whole number within 0 to 2"),
            ([([0, 1], -16)], r"tokens of groups\[0\] is -16")):
        with pytest.raises(vqgen.BadInput, match=words):
            cascade.prefixes(pool.table, lengths, groups=groups)
    with pytest.raises(vqgen.BadInput, match=r"block_table is \[2, 8\] and lengths \[3\], and the config has batch 3"):
        cascade.prefixes(pool.table[:2], lengths)
    recent = vt.Cascade(config_of(3, recent_tokens=16))
    with pytest.raises(vqgen.BadInput, match="prefix of 32 tokens, and sequence 2 can share 16 of its 33, .* give 16 at most"):
        recent.prefixes(pool.table, lengths, groups=[([0, 2], 32)])
    with pytest.raises(vqgen.BadInput, match="query_start is missing"):
        vt.Cascade(config_of(3, query_tokens=2)).prefixes(pool.table, lengths)
    for more in ({"sliding_window": 64}, {"attention_chunk": 64}, {"sinks": 4}, {"batch_invariant": True}):
        with pytest.raises(vqgen.Infeasible, match=f"Cascade: {next(iter(more))} of the config"):
            vt.Cascade(config_of(3, **more))
    grouped = vt.parsed(config_of(3)) | {"keys": "int4-kivi-keys", "values": "int4-kivi-values"}
    with pytest.raises(vqgen.Infeasible, match="Cascade: keys of the config are encoded group_tokens at a time"):
        vt.Cascade(vt.config_text(grouped))
    with pytest.raises(vqgen.BadInput, match="no attention_decode with page_tokens"):
        vt.Cascade(config_of(3, page_tokens=0))
