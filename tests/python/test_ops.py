"""Ops on NumPy and the host backend, against plain references."""

import json
import os
import threading

import numpy as np
import pytest

import reference
import vqgen
from vqgen import configs


def random_cache(draw, batch, kv_heads, tokens, dim, vector, bits, stages=1):
    codes = draw.integers(0, 1 << bits, (batch, kv_heads, tokens, dim // vector * stages))
    books = draw.standard_normal((1, stages, 1 << bits, vector)).astype(np.float16)
    return vqgen.Quantized(reference.pack(codes, bits), books)


def test_attention_of_random_problems(host, draw):
    for _ in range(3):
        batch, kv_heads, group = (int(draw.integers(1, high)) for high in (4, 4, 5))
        tokens = int(draw.integers(1, 200))
        vector, bits = draw.permutation([(4, 8), (2, 8), (8, 8), (4, 6), (8, 12)])[0].tolist()
        dim = int(draw.permutation([64, 96, 128])[0])
        shape = configs.AttentionShape(batch, kv_heads * group, kv_heads, dim, tokens)
        form = configs.Format(vector, bits)
        op = host.attention(configs.AttentionConfig(shape, form, form))
        keys, values = (random_cache(draw, batch, kv_heads, tokens, dim, vector, bits)
                        for _ in range(2))
        query = draw.standard_normal((batch, kv_heads * group, dim)).astype(np.float16)
        lengths = draw.integers(1, tokens + 1, batch).astype(np.int32)
        out, lse = op(query, keys, values, lengths, return_lse=True)
        rows = [reference.decoded(each.codes, each.codebooks, dim, bits) for each in (keys, values)]
        expected, expected_lse = reference.attention(query, *rows, lengths)
        assert reference.worst(out, expected) < 4e-3, (shape, form)
        assert np.abs(lse - expected_lse).max() < 2e-2, (shape, form)


def test_sequences_and_heads_may_lie_apart(host, draw):
    batch, kv_heads, tokens, dim = 2, 2, 50, 64
    config = {"shape": {"batch": batch, "query_heads": 4, "kv_heads": kv_heads, "head_dim": dim,
                        "tokens": 64},
              "keys": {"vector_size": 4, "index_bits": 8},
              "values": {"vector_size": 4, "index_bits": 8}}
    op = host.attention(config)
    # Keys and values side by side in one tensor with spare room, as a server keeps them.
    whole = draw.integers(0, 1 << 32, (batch, kv_heads, 2, 64, dim // 16), dtype=np.uint32)
    books = draw.standard_normal((2, 1, 1, 256, 4)).astype(np.float16)
    keys, values = (vqgen.Quantized(whole[:, :, i], books[i]) for i in range(2))
    query = draw.standard_normal((batch, 4, dim)).astype(np.float16)
    lengths = np.array([tokens, 3], np.int32)
    out = op(query, keys, values, lengths, tokens=tokens)
    rows = [reference.decoded(each.codes, each.codebooks, dim, 8) for each in (keys, values)]
    assert reference.worst(out, reference.attention(query, *rows, lengths)[0]) < 4e-3


def test_several_query_tokens(host, draw):
    batch, kv_heads, tokens, dim, most = 3, 2, 40, 64, 3
    form = configs.Format(4, 6)
    op = host.attention(configs.AttentionConfig(
        configs.AttentionShape(batch, 4, kv_heads, dim, 48, query_tokens=most), form, form))
    caches = [random_cache(draw, batch, kv_heads, 48, dim, 4, 6) for _ in range(2)]
    lengths, counts = np.array([40, 7, 21], np.int32), [3, 0, 2]
    starts = np.cumsum([0, *counts]).astype(np.int32)
    query = draw.standard_normal((5, 4, dim)).astype(np.float16)
    rows = [reference.decoded(each.codes, each.codebooks, dim, 6) for each in caches]
    fresh = [np.stack([each[b, :, lengths[b] - counts[b] + j] for b in range(batch)
                       for j in range(counts[b])]).astype(np.float16) for each in rows]
    before = lengths - np.array(counts, np.int32)
    results = [op(query, *caches, lengths, query_start=starts, tokens=tokens, return_lse=True),
               op(query, *caches, before, query_start=starts, new_keys=fresh[0],
                  new_values=fresh[1], return_lse=True)]
    for b, j in ((b, j) for b in range(batch) for j in range(counts[b])):
        expected, expected_lse = reference.attention(
            query[starts[b] + j][None], *(each[b:b + 1] for each in rows), [before[b] + j + 1])
        for out, lse in results:
            assert reference.worst(out[starts[b] + j], expected[0]) < 4e-3, (b, j)
            assert np.abs(lse[starts[b] + j] - expected_lse[0]).max() < 2e-2, (b, j)
    with pytest.raises(vqgen.BadInput, match="'query_start' is missing"):
        op(query, *caches, lengths)
    with pytest.raises(vqgen.BadInput, match="'new_keys' has 4 rows, and 'query' 5"):
        op(query, *caches, before, query_start=starts, new_keys=fresh[0][:4], new_values=fresh[1])
    with pytest.raises(vqgen.BadInput, match="'new_values' is null"):
        op(query, *caches, before, query_start=starts, new_keys=fresh[0])
    out, lse = op(query, *caches, np.array([1, 0, 2], np.int32), query_start=starts, return_lse=True)
    assert not out[:2].any() and (lse[:2] == -np.inf).all()  # these have no key
    assert out[2:].any(axis=(1, 2)).all() and np.isfinite(lse[2:]).all()
    with pytest.raises(vqgen.BadInput, match=r"lengths\[0\] is 40, 43 with its new_keys, and "
                       "`tokens` is 42"):
        op(query, *caches, lengths, query_start=starts, new_keys=fresh[0], new_values=fresh[1],
           tokens=42)
    with pytest.raises(vqgen.BadInput, match=r"lengths\[0\] is 40, and `tokens` is 39"):
        op(query, *caches, lengths, query_start=starts, tokens=39)
    with pytest.raises(vqgen.Error, match="allocation"):  # rows that the query has not
        op(query[:3], *caches, lengths, query_start=starts)
    plain = host.attention(configs.AttentionConfig(
        configs.AttentionShape(batch, 4, kv_heads, dim, 48), form, form))
    with pytest.raises(vqgen.BadInput, match="'query_start' is given, and the config has none"):
        plain(query[:3], *caches, lengths, query_start=starts)


def test_append_writes_what_attention_reads(host, draw):
    batch, kv_heads, tokens, dim, new = 2, 2, 20, 64, 3
    shape = {"batch": batch, "kv_heads": kv_heads, "head_dim": dim, "tokens": tokens}
    form = {"vector_size": 4, "index_bits": 6, "num_codebooks": 2}
    append = host.append({"shape": {**shape, "new_tokens": new}, "keys": form, "values": form})
    caches = [vqgen.Quantized(np.zeros((batch, kv_heads, tokens, 6), np.uint32),
                              draw.standard_normal((1, 2, 64, 4)).astype(np.float16))
              for _ in range(2)]
    fresh = draw.standard_normal((2, batch, new, kv_heads, dim)).astype(np.float16)
    positions = np.array([5, -1], np.int32)
    append(fresh[0], fresh[1], positions, *caches, counts=np.array([2, 3], np.int32))
    for cache, raw in zip(caches, fresh):
        rows = reference.decoded(cache.codes, cache.codebooks, dim, 6)
        assert not cache.codes[1].any() and not cache.codes[0, :, 7:].any()
        books = cache.codebooks[0].astype(np.float64)
        for token in range(2):
            vectors = raw[0, token].astype(np.float64).reshape(kv_heads, -1, 4)
            for stage in range(2):  # each stage takes the nearest entry of what is left
                near = ((vectors[..., None, :] - books[stage])**2).sum(-1).argmin(-1)
                vectors = vectors - books[stage][near]
            left = raw[0, token].astype(np.float64) - rows[0, :, 5 + token]
            assert np.allclose((left**2).sum(), (vectors**2).sum(), rtol=1e-3)


def test_decoded_tensors_are_what_attention_reads(host, draw):
    batch, kv_heads, tokens, dim, recent_tokens, sinks = 2, 3, 50, 96, 8, 2
    form = configs.Format(4, 6, num_codebooks=2)
    op = host.dequantize(configs.DequantizeConfig(
        configs.DequantizeShape(batch, kv_heads, dim, 64, recent_tokens, sinks), form, form))
    caches = [random_cache(draw, batch, kv_heads, tokens, dim, 4, 6, 2) for _ in range(2)]
    raw = draw.standard_normal((2, batch, kv_heads, sinks + recent_tokens, dim)).astype(np.float16)
    lengths, recent_counts, firsts = (np.array(each, np.int32) for each in ([50, 21], [8, 3], [1, 2]))
    arguments = dict(raw_keys=raw[0], raw_values=raw[1], recent_counts=recent_counts, sinks=firsts)
    results = op(*caches, lengths, **arguments)
    given = np.full((2, batch, kv_heads, 30, dim), 7, np.float16)
    assert op(*caches, lengths, out_keys=given[0], out_values=given[1], **arguments)[0] is not None
    for result, fewer, cache, slots in zip(results, given, caches, raw):
        rows = reference.decoded(cache.codes, cache.codebooks, dim, 6)
        assert result.shape == (batch, kv_heads, tokens, dim) and result.dtype == np.float16
        for sequence, length in enumerate(lengths):
            for token in range(length):
                if token < firsts[sequence]:
                    rows[sequence, :, token] = slots[sequence, :, token]
                elif token >= length - recent_counts[sequence]:
                    rows[sequence, :, token] = slots[sequence, :, sinks + token % recent_tokens]
            assert reference.worst(result[sequence, :, :length], rows[sequence, :, :length]) < 1e-3
            assert np.array_equal(fewer[sequence, :, :length], result[sequence, :, :min(length, 30)])
        assert (fewer[1, :, 21:] == 7).all()  # no token is there
    with pytest.raises(vqgen.BadInput, match="room for 50"):
        op(*caches, lengths, tokens=51, **arguments)
    with pytest.raises(vqgen.BadInput, match="'out_keys' has 30 tokens, and tokens is 20"):
        op(*caches, lengths, tokens=20, out_keys=given[0], **arguments)
    with pytest.raises(vqgen.BadInput, match="'out_values' has 29 tokens"):
        op(*caches, lengths, out_keys=given[0], out_values=given[1][:, :, :29].copy(), **arguments)


@pytest.mark.parametrize("op", ["gemv", "gemm"])
def test_products(host, draw, op):
    rows, features, columns = 7, int(draw.integers(1, 70)), 96
    linear = host.linear({"op": op, "shape": {"m": rows, "out_features": features,
                                              "in_features": columns},
                          "weights": {"vector_size": 8, "index_bits": 8, "num_codebooks": 2,
                                      "output_scales": True}})
    codes = draw.integers(0, 256, (features, columns // 8 * 2))
    weights = vqgen.Quantized(reference.pack(codes, 8),
                              draw.standard_normal((1, 2, 256, 8)).astype(np.float16))
    scales = draw.uniform(0.5, 2, features).astype(np.float32)
    x = draw.standard_normal((rows, columns)).astype(np.float16)
    dense = reference.decoded(weights.codes, weights.codebooks, columns, 8) * scales[:, None]
    expected = x.astype(np.float64) @ dense.T
    assert reference.worst(linear(x, weights, output_scales=scales), expected) < 4e-3
    # Sizes between the buckets too; x and out are views with other rows behind them.
    assert [linear.bucket(count) for count in (1, 3, 5, 7, 8)] == [1, 4, 7, 7, 0]
    for count in range(1, rows):
        around = np.full((rows, columns), np.nan, np.float16)
        around[:count] = x[:count]
        out = np.full((rows, features), np.nan, np.float16)
        given = out[:count]
        assert linear(around[:count], weights, out=given, output_scales=scales) is given
        assert reference.worst(given, expected[:count]) < 4e-3
        assert np.isnan(out[count:]).all()
    with pytest.raises(vqgen.BadInput, match="'y' has 7 rows, and 'x' 3; make them equal"):
        linear(x[:3], weights, out=out, output_scales=scales)
    with pytest.raises(vqgen.BadInput, match="'weights' is of type tuple; it has to be vqgen.Quant"):
        linear(x, tuple(weights), output_scales=scales)
    with pytest.raises(vqgen.BadInput, match="'x' is of type list"):
        linear([1.0], weights, output_scales=scales)
    with pytest.raises(vqgen.RangeError, match="m is"):
        linear(np.zeros((8, columns), np.float16), weights, output_scales=scales)


def test_bfloat16_comes_as_its_bits(host, draw):
    linear = host.linear({"dtype": "bf16",
                          "shape": {"m": 1, "out_features": 8, "in_features": 32},
                          "weights": {"vector_size": 4, "index_bits": 8}})
    bits = lambda values: (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    floats = lambda values: (values.astype(np.uint32) << 16).view(np.float32)
    weights = vqgen.Quantized(reference.pack(draw.integers(0, 256, (8, 8)), 8),
                              bits(draw.standard_normal((1, 1, 256, 4))))
    x = bits(draw.standard_normal((1, 32)))
    dense = reference.decoded(weights.codes, floats(weights.codebooks), 32, 8)
    expected = floats(x).astype(np.float64) @ dense.T
    assert reference.worst(floats(linear(x, weights)), expected) < 2e-2


def small(host):
    op = host.attention({"shape": {"batch": 1, "query_heads": 1, "kv_heads": 1, "head_dim": 64,
                                   "tokens": 8},
                         "keys": {"vector_size": 4, "index_bits": 8},
                         "values": {"vector_size": 4, "index_bits": 8}})
    cache = vqgen.Quantized(np.zeros((1, 1, 8, 4), np.uint32),
                            np.ones((1, 1, 256, 4), np.float16))
    return op, [np.ones((1, 1, 64), np.float16), cache, cache, np.array([8], np.int32)]


def test_an_op_says_what_it_takes_and_where_it_is_from(host):
    op, _ = small(host)
    again, _ = small(host)
    assert again.provenance == "memory" and op.name == "attention_decode"
    shapes = {each.name: each for each in op.arguments}
    assert shapes["keys.codes"] == ("keys.codes", "u32", (1, 1, 8, 4))
    assert shapes["lse"].dtype == "f32"
    assert op.bucket(5) == 8 and op.bucket(9) == 0
    assert op.description["buckets"][0]["plan"]["dataflow"]


@pytest.mark.parametrize("number, value, words", [
    (0, np.ones((1, 1, 64), np.float32),
     "'query' is float32 [1, 1, 64] on cpu; it has to be float16 [1, 1, 64] on cpu"),
    (0, np.ones((2, 1, 32), np.float16), "[2, 1, 32]"),
    (0, np.ones((1, 1, 128), np.float16)[..., ::2], "'query' is not contiguous"),
    (0, None, "'query' is missing"),
    (0, [1.0], "no array that speaks DLPack"),
    (3, np.array([8], np.int64), "'lengths' is int64 [1]"),
    (3, np.zeros(0, np.int32), "'lengths' is int32 [0]"),
    (1, vqgen.Quantized(np.zeros((1, 1, 8, 8), np.uint32)[..., ::2],
                        np.ones((1, 1, 256, 4), np.float16)), "'keys.codes' has gaps"),
    (1, vqgen.Quantized(np.zeros((1, 1, 0, 4), np.uint32), np.ones((1, 1, 256, 4), np.float16)),
     "uint32 [1, 1, 1 or more, 4]"),
    (2, vqgen.Quantized(np.zeros((1, 1, 8, 4), np.uint32), np.ones((1, 1, 256, 4), np.float16),
                        np.ones((1, 1), np.float32)),
     "'values.scales' is given, and the config has none"),
])
def test_arrays_of_the_wrong_kind_are_named(host, number, value, words):
    op, arrays = small(host)
    arrays[number] = value
    out = np.full((1, 1, 64), 7, np.float16)
    with pytest.raises(vqgen.BadInput) as caught:
        op(*arrays, out=out, lse=np.zeros((1, 1), np.float32))
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert (out == 7).all()


def test_sizes_beyond_what_was_prepared(host):
    op, arrays = small(host)
    with pytest.raises(vqgen.BadInput, match="room for 8"):
        op(*arrays, tokens=9)
    larger = vqgen.Quantized(np.zeros((1, 1, 20, 4), np.uint32), arrays[1].codebooks)
    assert (op(arrays[0], larger, larger, arrays[3]) == 1).all()
    with pytest.raises(vqgen.RangeError):
        op(arrays[0], larger, larger, arrays[3], tokens=20)


def test_read_only_arrays_are_read_and_not_written(host):
    op, arrays = small(host)
    arrays[0].flags.writeable = False
    try:
        assert (op(*arrays) == 1).all()
    except BufferError:
        pytest.skip("this NumPy does not lend read-only arrays")
    out = np.zeros((1, 1, 64), np.float16)
    out.flags.writeable = False
    with pytest.raises(vqgen.BadInput, match="'out' is read-only"):
        op(*arrays, out=out)


@pytest.mark.parametrize("config, error, words", [
    ({"shape": {"batch": 1}}, vqgen.BadInput, "query_heads"),
    ({"op": "gemm", "shape": {"m": 2, "out_features": 8, "in_features": 32},
      "weights": {"vector_size": 4, "index_bits": 8}}, vqgen.BadInput, "is of op gemm"),
    (17, vqgen.BadInput, "a config is a dict"),
    ({"shape": {"batch": object()}}, vqgen.BadInput, "no JSON"),
    ("/nowhere/config.json", vqgen.BadInput, "/nowhere/config.json"),
])
def test_configs_that_are_none(host, config, error, words):
    with pytest.raises(error, match=words):
        host.attention(config)


def test_configs_from_files_and_beforehand(host, tmp_path):
    config = {"op": "gemm", "shape": {"m": 2, "out_features": 8, "in_features": 32},
              "weights": {"vector_size": 4, "index_bits": 8}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    host.prefetch([config, str(path)], threads=2)
    assert host.linear(path).provenance == "memory"
    assert [each["most"] for each in host.enumerate(config, 1, 2)] == [1, 2]


def test_dataclasses_have_the_fields_of_the_schema():
    import dataclasses
    with open(os.environ["VQGEN_SOURCE_DIR"] + "/docs/config.schema.json", encoding="utf-8") as file:
        schema = json.load(file)
    names = lambda cls: {field.name for field in dataclasses.fields(cls)}
    assert names(configs.Format) == set(schema["$defs"]["format"]["properties"])
    ops = {each["properties"]["op"]["const"]: each["properties"] for each in schema["oneOf"]}
    for op, whole, shape in [("attention_decode", configs.AttentionConfig, configs.AttentionShape),
                             ("kv_append", configs.AppendConfig, configs.AppendShape),
                             ("kv_dequantize", configs.DequantizeConfig, configs.DequantizeShape),
                             ("attention_merge", configs.MergeConfig, configs.MergeShape),
                             ("int8_quantize", configs.ScalarConfig, configs.ScalarShape),
                             ("weight_dequantize", configs.WeightRowsConfig, configs.WeightRowsShape),
                             ("gemm", configs.LinearConfig, configs.LinearShape)]:
        assert names(whole) == set(ops[op]), op
        assert names(shape) == set(ops[op]["shape"]["properties"]), op


def test_a_frozen_runtime_compiles_nothing(tmp_path):
    with vqgen.Runtime("host", cache_dir=tmp_path) as runtime:
        runtime.freeze()
        with pytest.raises(vqgen.Miss, match="frozen"):
            small(runtime)


def test_a_closed_runtime_refuses_and_its_ops_end_well(tmp_path):
    runtime = vqgen.Runtime("host", cache_dir=tmp_path)
    op, arrays = small(runtime)
    runtime.close()
    for call in (lambda: op(*arrays), lambda: small(runtime), runtime.freeze):
        with pytest.raises(vqgen.BadInput, match="closed"):
            call()
    runtime.close()


@pytest.mark.parametrize("options, words", [
    ({"device": "cpu"}, "'host'"), ({"device": -1}, "negative"),
    ({"device": "host", "on_miss": "never"}, "never"), ({"device": "host", "threads": 0}, "threads"),
])
def test_runtimes_that_there_are_not(options, words):
    with pytest.raises(vqgen.BadInput, match=words):
        vqgen.Runtime(**options)


def test_threads_call_one_op_at_once(host, draw):
    shape = {"batch": 1, "query_heads": 2, "kv_heads": 1, "head_dim": 64, "tokens": 64}
    form = {"vector_size": 4, "index_bits": 8}
    # Splits make the launches share a workspace.
    op = host.attention({"shape": shape, "keys": form, "values": form,
                         "plan": {"dataflow": "simt", "splits": 4}})
    cache = random_cache(draw, 1, 1, 64, 64, 4, 8)
    rows = reference.decoded(cache.codes, cache.codebooks, 64, 8)
    queries = draw.standard_normal((8, 1, 2, 64)).astype(np.float16)
    outs = [None] * 8

    def work(i):
        for _ in range(4):
            outs[i] = op(queries[i], cache, cache, np.array([64], np.int32))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for query, out in zip(queries, outs):
        assert reference.worst(out, reference.attention(query, rows, rows, [64])[0]) < 4e-3


def test_a_fork_makes_its_own_runtime(host):
    op, arrays = small(host)
    child = os.fork()
    if child == 0:
        try:
            op(*arrays)
            os._exit(1)
        except vqgen.BadInput as error:
            os._exit(0 if "forked" in str(error) else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (op(*arrays) == 1).all()


def test_without_a_driver_the_first_cuda_call_says_so():
    try:
        vqgen.Runtime(0).close()
    except vqgen.DeviceError as error:
        assert "\n" not in str(error) and str(error)
    else:
        pytest.skip("there is a GPU")
