"""PyTorch ops, on a GPU if there is one, otherwise on the host backend."""

import copy
import os
import subprocess

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import reference
import vqgen
import vqgen.torch as vt

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORM = {"vector_size": 4, "index_bits": 8}
SHAPE = {"batch": 2, "kv_heads": 2, "head_dim": 64, "tokens": 40}


def tensor(array, kind=None):
    return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE, kind)


def cache_arguments(draw):
    codes = draw.integers(0, 1 << 32, (2, 2, 2, 40, 4), dtype=np.uint32).view(np.int32)
    books = draw.standard_normal((2, 1, 1, 256, 4)).astype(np.float16)
    return codes, books


def attention_call(draw):
    config = vt.config_text({"op": "attention_decode", "shape": {**SHAPE, "query_heads": 4},
                             "keys": FORM, "values": FORM})
    codes, books = cache_arguments(draw)
    query = draw.standard_normal((2, 4, 64)).astype(np.float16)
    lengths = np.array([40, 11], np.int32)
    arguments = (config, tensor(query), tensor(codes[0]), tensor(books[0]), None, tensor(codes[1]),
                 tensor(books[1]), None, tensor(lengths))
    rows = [reference.decoded(codes[i].view(np.uint32), books[i], 64, 8) for i in range(2)]
    return arguments, reference.attention(query, *rows, lengths)


def linear_call(draw, rows=3):
    config = vt.config_text({"op": "gemm",
                             "shape": {"m": 8, "out_features": 24, "in_features": 64},
                             "weights": FORM})
    codes = draw.integers(0, 256, (24, 16))
    books = draw.standard_normal((1, 1, 256, 4)).astype(np.float16)
    packed = reference.pack(codes, 8)
    x = draw.standard_normal((rows, 64)).astype(np.float16)
    expected = x.astype(np.float64) @ reference.decoded(packed, books, 64, 8).T
    return (config, tensor(x), tensor(packed.view(np.int32)), tensor(books), None, None), expected


def append_call(draw):
    config = vt.config_text({"op": "kv_append", "shape": {**SHAPE, "new_tokens": 2}, "keys": FORM,
                             "values": FORM})
    codes, books = cache_arguments(draw)
    fresh = draw.standard_normal((2, 2, 2, 2, 64)).astype(np.float16)
    return (config, tensor(fresh[0]), tensor(fresh[1]), tensor(np.array([3, 38], np.int32)),
            tensor(codes[0]), tensor(books[0]), None, tensor(codes[1]), tensor(books[1]), None)


def dequantize_call(draw):
    config = vt.config_text({"op": "kv_dequantize", "shape": SHAPE, "keys": FORM, "values": FORM})
    codes, books = cache_arguments(draw)
    return (config, tensor(codes[0]), tensor(books[0]), None, tensor(codes[1]), tensor(books[1]),
            None, tensor(np.array([40, 11], np.int32)))


PAGE, COLUMNS, PAGES = 16, 3, 8


def paged_call(draw, op, **shape):
    """Return config, the arguments of codes, and the block table, of an op in pages."""
    config = vt.config_text({"op": op, "shape": {**SHAPE, "page_tokens": PAGE, **shape},
                             "keys": FORM, "values": FORM})
    pools = draw.integers(0, 1 << 32, (2, PAGES, 2, PAGE, 4), dtype=np.uint32).view(np.int32)
    books = draw.standard_normal((2, 1, 1, 256, 4)).astype(np.float16)
    codes = (tensor(pools[0]), tensor(books[0]), None, tensor(pools[1]), tensor(books[1]), None)
    table = draw.permutation(PAGES)[:2 * COLUMNS].reshape(2, COLUMNS)
    return config, codes, {"block_table": tensor(table.astype(np.int32))}


def paged_attention_call(draw):
    config, codes, table = paged_call(draw, "attention_decode", query_heads=4)
    query = tensor(draw.standard_normal((2, 4, 64)).astype(np.float16))
    return (config, query, *codes, tensor(np.array([40, 11], np.int32))), table


def paged_append_call(draw):
    config, codes, table = paged_call(draw, "kv_append", new_tokens=2)
    fresh = [tensor(each) for each in draw.standard_normal((2, 2, 2, 2, 64)).astype(np.float16)]
    return (config, *fresh, tensor(np.array([3, 38], np.int32)), *codes), table


def paged_decode_call(draw):
    config, codes, table = paged_call(draw, "kv_dequantize")
    return (config, *codes, tensor(np.array([40, 11], np.int32))), {"tokens": 23, **table}


def merge_call(draw):
    config = vt.config_text({"op": "attention_merge",
                             "shape": {"rows": 5, "heads": 3, "head_dim": 64, "parts": 2}})
    outs = draw.standard_normal((2, 4, 3, 64)).astype(np.float16)
    lses = draw.standard_normal((2, 4, 3)).astype(np.float32)
    lses[1, 2] = -np.inf
    return (config, list(map(tensor, outs)), list(map(tensor, lses))), reference.merge(outs, lses)


@pytest.mark.parametrize("name, call, named", [
    ("attention", lambda draw: attention_call(draw)[0], {}), ("append", append_call, {}),
    ("dequantize", dequantize_call, {"tokens": 23}), ("merge", lambda draw: merge_call(draw)[0], {}),
    ("linear", lambda draw: linear_call(draw)[0], {})])
def test_opcheck(draw, name, call, named):
    arguments = call(draw)
    vt.prepare(arguments[0], DEVICE)
    torch.library.opcheck(getattr(torch.ops.vqgen, name), arguments, named)


@pytest.mark.parametrize("name, call", [("attention", paged_attention_call),
                                        ("append", paged_append_call),
                                        ("dequantize", paged_decode_call)])
def test_opcheck_of_pages(draw, name, call):
    arguments, named = call(draw)
    vt.prepare(arguments[0], DEVICE)
    torch.library.opcheck(getattr(torch.ops.vqgen, name), arguments, named)


@pytest.mark.parametrize("order", reference.ORDERS)
def test_pages_are_a_contiguous_cache(draw, order):
    keys, values, whole = reference.pool(order, PAGES, 2, PAGE, 4, 4, lambda shape: torch.randint(
        -1 << 31, 1 << 31, shape, dtype=torch.int32, device=DEVICE))
    before = [each.clone() for each in whole]
    cache = new_cache(draw)
    places = draw.permutation(PAGES)
    table = tensor(places[:2 * COLUMNS].reshape(2, COLUMNS).astype(np.int32))
    books = (cache.keys.codebooks, None), (cache.values.codebooks, None)
    codes = (keys, *books[0], values, *books[1])

    def config(op, **more):
        return vt.config_text({"op": op, "shape": {**SHAPE, "page_tokens": PAGE, **more},
                               "keys": FORM, "values": FORM})

    for tokens in (16, 4, 16):
        fresh = [tensor(each) for each in
                 draw.standard_normal((2, 2, tokens, 2, 64)).astype(np.float16)]
        counts = tensor(np.array([tokens, tokens // 3], np.int32))
        torch.ops.vqgen.append(config("kv_append", new_tokens=tokens), *fresh, cache.lengths, *codes,
                               counts=counts, block_table=table)
        cache.append(*fresh, counts)
    query = tensor(draw.standard_normal((2, 4, 64)).astype(np.float16))
    out, lse = torch.ops.vqgen.attention(config("attention_decode", query_heads=4), query, *codes,
                                         cache.lengths, block_table=table, tokens=40)
    expected, expected_lse = cache.attend(query)
    assert reference.worst(out.cpu(), expected.double().cpu().numpy()) < 2e-3
    torch.testing.assert_close(lse, expected_lse, atol=1e-3, rtol=0)
    for got, wanted in zip(torch.ops.vqgen.dequantize(config("kv_dequantize"), *codes, cache.lengths,
                                                  tokens=36, block_table=table), cache.dequantize(36)):
        assert torch.equal(got, wanted) and got.any()
    nobody = torch.from_numpy(places[2 * COLUMNS:]).to(DEVICE)
    assert all(torch.equal(each[nobody], was[nobody]) for each, was in zip(whole, before))


def test_attention_and_products_are_right(draw):
    arguments, (expected, expected_lse) = attention_call(draw)
    out, lse = torch.ops.vqgen.attention(*arguments)
    assert reference.worst(out.cpu(), expected) < 4e-3
    assert np.abs(lse.cpu().numpy() - expected_lse).max() < 2e-2
    arguments, (expected, expected_lse) = merge_call(draw)
    out, lse = torch.ops.vqgen.merge(*arguments)
    assert reference.worst(out.cpu(), expected) < 2e-3
    assert np.abs(lse.cpu().numpy() - expected_lse).max() < 1e-4
    for rows in (1, 3, 5, 8):
        arguments, expected = linear_call(draw, rows)
        y = torch.ops.vqgen.linear(*arguments)
        assert y.shape == (rows, 24) and reference.worst(y.cpu(), expected) < 4e-3


def test_several_query_tokens(draw):
    arguments, (expected, _) = attention_call(draw)
    config, *others = arguments
    config = config.replace('"tokens"', '"query_tokens":4,"tokens"')
    starts = tensor(np.array([0, 1, 2], np.int32))
    out, _ = torch.ops.vqgen.attention(config, *others, query_start=starts)
    assert reference.worst(out.cpu(), expected) < 4e-3
    fresh = tensor(draw.standard_normal((2, 2, 2, 64)).astype(np.float16))
    others[-1] = others[-1] - 1
    torch.library.opcheck(torch.ops.vqgen.attention, (config, *others),
                          {"query_start": starts, "new_keys": fresh[0], "new_values": fresh[1]})


def test_a_server_keeps_the_accepted_path_of_a_tree(draw):
    cache = new_cache(draw, 8, 2, tree_tokens=6)
    chain = copy.deepcopy(cache)
    def fresh(*shape):
        return [tensor(draw.standard_normal((*shape, 2, 64)).astype(np.float16)) for _ in range(2)]
    prompt = fresh(2, 9)
    for each in (cache, chain):
        each.append(*prompt)
    starts, drafts = tensor(np.array([0, 4, 6], np.int32)), fresh(6)
    query = tensor(draw.standard_normal((6, 4, 64)).astype(np.float16))
    # 0 - 1 - 3 and 0 - 2; 0 and 1, both of the cache's last token.
    mask = tensor(np.array([1, 3, 5, 11, 1, 2], np.int64))
    out, lse = cache.attend(query, query_start=starts, new_keys=drafts[0], new_values=drafts[1], tree_mask=mask)
    cache.append_drafts(*drafts, starts, tensor(np.array([[0, 1, 3], [1, -1, 99]])), tensor(np.array([3, 1], np.int32)))
    assert cache.lengths.tolist() == [12, 10]
    for step, (row, other) in enumerate(((0, 5), (1, None), (3, None))):
        counts = tensor(np.array([1, int(other is not None)], np.int32))
        rows = [row, 5 if other is None else other]
        chain.append(*(each[rows][:, None] for each in drafts), counts)
        expected, expected_lse = chain.attend(query[rows])
        for at, row in enumerate(rows[:1 + (other is not None)]):
            assert reference.worst(out[row].cpu(), expected[at].double().cpu().numpy()) < 4e-3, (step, row)
            torch.testing.assert_close(lse[row], expected_lse[at], atol=2e-2, rtol=0)
    assert torch.equal(cache.keys.codes, chain.keys.codes) and torch.equal(cache.raw_values, chain.raw_values)
    with pytest.raises(vqgen.BadInput, match="tree_mask is given, and tree_tokens of the cache is 0"):
        new_cache(draw).attend(query, query_start=starts, new_keys=drafts[0], new_values=drafts[1], tree_mask=mask)


def test_whole_graphs_compile(draw):
    arguments, _ = attention_call(draw)
    config, query, *others = arguments

    def step(query):
        return torch.ops.vqgen.attention(config, 2 * query, *others)[0] + 1

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(query), step(query))


def new_cache(draw, recent_tokens=0, sinks=0, flush_block=1, **options):
    books = [tensor(draw.standard_normal((1, 1, 256, 4)).astype(np.float16)) for _ in range(2)]
    return vt.VQCache(**SHAPE, query_heads=4, keys=FORM, values=FORM, key_codebooks=books[0],
                      value_codebooks=books[1], recent_tokens=recent_tokens, sinks=sinks,
                      flush_block=flush_block, **options)


@pytest.mark.parametrize("recent_tokens, sinks, batch", [(0, 0, 1), (8, 2, 1), (8, 2, 3)])
def test_a_cache_grows_token_by_token(draw, recent_tokens, sinks, batch):
    cache = new_cache(draw, recent_tokens, sinks, batch)
    assert cache.bytes_per_token() == 2 * 2 * 16
    raw = draw.standard_normal((2, 2, 14, 2, 64)).astype(np.float16)
    for token in range(14):
        counts = None if token < 9 else tensor(np.array([1, 0], np.int32))
        cache.append(tensor(raw[0, :, token:token + 1]), tensor(raw[1, :, token:token + 1]), counts)
    assert cache.lengths.tolist() == [14, 9]
    query = draw.standard_normal((2, 4, 64)).astype(np.float16)
    out, _ = cache.attend(tensor(query), tokens=14)
    rows = []
    for held, given in zip((cache.keys, cache.values), raw):
        decoded = reference.decoded(held.codes.cpu().numpy().view(np.uint32),
                                    held.codebooks.cpu().numpy(), 64, 8)[:, :, :14]
        for sequence, length in enumerate((14, 9)):
            for token in range(length):
                if token < sinks or token >= (length - (recent_tokens - batch + 1)) // batch * batch:
                    decoded[sequence, :, token] = given[sequence, token]
        rows.append(decoded)
    expected, _ = reference.attention(query, *rows, [14, 9])
    assert reference.worst(out.cpu(), expected) < 4e-3


@pytest.mark.parametrize("recent_tokens, sinks, batch", [(0, 0, 1), (8, 2, 1), (8, 2, 3)])
def test_attention_over_a_decoded_cache_is_attend(draw, recent_tokens, sinks, batch):
    cache = new_cache(draw, recent_tokens, sinks, batch)
    fresh = [tensor(each) for each in draw.standard_normal((2, 2, 14, 2, 64)).astype(np.float16)]
    cache.append(*fresh, tensor(np.array([14, 9], np.int32)))
    keys, values = cache.dequantize(14)
    assert keys.shape == values.shape == (2, 2, 14, 64)
    assert not keys[1, :, 9:].any() and not values[1, :, 9:].any()
    query = draw.standard_normal((2, 4, 64)).astype(np.float16)
    out, lse = cache.attend(tensor(query), tokens=14)
    dense = [each.double().cpu().numpy() for each in (keys, values)]
    expected, expected_lse = reference.attention(query, *dense, [14, 9])
    assert reference.worst(out.cpu(), expected) < 4e-3
    assert np.abs(lse.cpu().numpy() - expected_lse).max() < 1e-2
    first = cache.dequantize(5, zeroed=False)  # of longer sequences
    assert torch.equal(first[0], keys[:, :, :5]) and torch.equal(first[1], values[:, :, :5])
    with pytest.raises(vqgen.BadInput, match="room for 40"):
        cache.dequantize(41)


def test_a_cache_attends_by_the_plan_that_is_asked_for(draw):
    seed = draw.integers(1 << 30)
    fresh = [tensor(each) for each in draw.standard_normal((2, 2, 40, 2, 64)).astype(np.float16)]
    query = tensor(draw.standard_normal((2, 4, 64)).astype(np.float16))
    results, plans = [], []
    for asked in (None, {"schedule": "balanced"}):
        cache = new_cache(np.random.default_rng(seed), attention_plan=asked)
        cache.append(*fresh, tensor(np.array([40, 3], np.int32)))
        results.append(cache.attend(query)[0])
        op = vt.prepare(cache.attention_config, torch.device(DEVICE))
        plans.append({each["plan"]["schedule"] for each in op.description["buckets"]})
    assert plans == [{"per_sequence"}, {"balanced"}]
    assert torch.allclose(*(each.float() for each in results), atol=2e-3)
    with pytest.raises(vqgen.Infeasible, match="schedule 'balanced'"):
        new_cache(draw, attention_plan={"schedule": "balanced"}, batch_invariant=True)


def test_several_tokens_at_once_are_those_one_by_one(draw):
    seed = draw.integers(1 << 30)
    one, many = (new_cache(np.random.default_rng(seed)) for _ in range(2))
    fresh = [tensor(each) for each in draw.standard_normal((2, 2, 5, 2, 64)).astype(np.float16)]
    many.append(*fresh)
    for token in range(5):
        one.append(*(each[:, token:token + 1].contiguous() for each in fresh))
    assert torch.equal(one.keys.codes, many.keys.codes) and one.keys.codes.any()
    assert torch.equal(one.values.codes, many.values.codes)
    assert torch.equal(one.lengths, many.lengths)


def test_a_layer_of_a_bundle(tmp_path):
    from safetensors import safe_open
    source = os.environ["VQGEN_SOURCE_DIR"] + "/tests/data/tinycode-weight.safetensors"
    name = "blocks.2.down.weight"
    subprocess.run([os.environ["VQGEN_TOOL"], "quantize", "--input", source, "--out",
                    tmp_path / "w", "--weights", name, "--format", "quip-2"], check=True,
                   capture_output=True)
    with safe_open(source, "np") as file:
        dense, x = (file.get_tensor(key).astype(np.float64) for key in (name, "x"))
    item = name.removesuffix(".weight")
    layer = vt.VQLinear.from_bundle(tmp_path / "w", item, device=DEVICE)
    y = layer(tensor(x.reshape(2, 4, -1), torch.float16))
    assert y.shape == (2, 4, dense.shape[0])
    expected = (x @ dense.T).reshape(y.shape)
    # 2 bits cost some 30 % (docs/guides/quantize.md); layers in a wrong order would cost over 100 %.
    assert np.linalg.norm(y.cpu().numpy() - expected) < 0.4 * np.linalg.norm(expected)
    with pytest.raises(vqgen.BadInput, match="it has " + item):
        vt.VQLinear.from_bundle(tmp_path / "w", "other")


def test_what_does_not_fit_is_refused_in_words(draw):
    arguments, _ = attention_call(draw)
    wrong = list(arguments)
    wrong[1] = arguments[1].float()
    with pytest.raises(vqgen.BadInput, match="'query' is float32"):
        torch.ops.vqgen.attention(*wrong)
    (config, x, *others), _ = linear_call(draw)
    with pytest.raises(vqgen.RangeError, match=r"m is \d+, and the op was prepared for 0 to \d+"):
        torch.ops.vqgen.linear(config, x.new_zeros(9, 64), *others)
    arguments, named = paged_attention_call(draw)
    with pytest.raises(vqgen.BadInput, match="'block_table' is missing"):
        torch.ops.vqgen.attention(*arguments)
    with pytest.raises(vqgen.BadInput, match="'block_table' is int64"):
        torch.ops.vqgen.attention(*arguments, block_table=named["block_table"].long())
    with pytest.raises(vqgen.BadInput, match="meta"):
        vt.runtime("meta")


@pytest.mark.skipif(DEVICE == "cpu", reason="there is no GPU")
def test_a_captured_step_goes_on_where_it_ended(draw):
    cache = new_cache(draw, recent_tokens=4)
    keys, values = (tensor(draw.standard_normal((2, 1, 2, 64)).astype(np.float16)) for _ in "kv")
    query = tensor(draw.standard_normal((2, 4, 64)).astype(np.float16))
    plain = new_cache(np.random.default_rng(1), recent_tokens=4)
    plain.keys, plain.values = (held._replace(codes=held.codes.clone())
                                for held in (cache.keys, cache.values))
    cache.attend(query)  # what is warmed up is prepared
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cache.append(keys, values)
        out, _ = cache.attend(query)
    for _ in range(6):
        graph.replay()
        plain.append(keys, values)
        expected, _ = plain.attend(query)
        torch.cuda.synchronize()
        assert torch.equal(cache.lengths, plain.lengths)
        assert torch.allclose(out.float(), expected.float(), atol=2e-3)


def test_codebooks_of_tensors():
    vectors = torch.randn(2, 40, 16, device=DEVICE)
    form = {"vector_size": 4, "index_bits": 4, "stage_scales": True}
    trained = vt.train_codebooks(vectors, form, dtype=torch.bfloat16, seed=5)
    assert trained.codebooks.dtype == torch.bfloat16 and trained.codebooks.shape == (2, 1, 16, 4)
    assert trained.scales.shape == (2, 1)
    assert trained.codebooks.device == vectors.device
    torch.testing.assert_close(trained.scales[:, 0], vectors.square().mean((1, 2)).sqrt())
    again = vt.train_codebooks(vectors, form, dtype=torch.bfloat16, seed=5)
    assert (again.codebooks == trained.codebooks).all()
    with pytest.raises(vqgen.BadInput, match="torch.float32"):
        vt.train_codebooks(vectors, form, dtype=torch.float32)
