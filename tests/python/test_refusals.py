"""Invalid numbers, texts and arrays, and arrays in the wrong memory: one line, and nothing done."""

import importlib
import sys

import numpy as np
import pytest

import vqgen
from test_ops import small

FORM = {"vector_size": 4, "index_bits": 4}
VECTORS = np.random.default_rng(1).standard_normal((2, 40, 16)).astype(np.float32)


def refused(call, words):
    with pytest.raises(vqgen.BadInput, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def linear_of(host, rows=4):
    op = host.linear({"op": "gemm", "shape": {"m": rows, "out_features": 64, "in_features": 64},
                      "weights": {"vector_size": 4, "index_bits": 8}})
    return op, vqgen.Quantized(np.zeros((64, 4), np.uint32), np.ones((1, 1, 256, 4), np.float16))


def test_numbers(host):
    op, arrays = small(host)
    for tokens in (-1, -5, -2**70, 2**70, 2.5, "8"):
        refused(lambda tokens=tokens: op(*arrays, tokens=tokens), "^tokens is ")
    refused(lambda: op(*arrays, softmax_scale="1"), "^softmax_scale is '1'")
    refused(lambda: op.bucket(2**70), "^count is")
    for seed in (-1, 2**64, 2**70, 1.5, "one", True):
        refused(lambda seed=seed: vqgen.train_codebooks(VECTORS, FORM, seed=seed), "^seed is ")
    for iterations in (0, -3, 2**40, "x"):
        refused(lambda n=iterations: vqgen.train_codebooks(VECTORS, FORM, iterations=n), "^iterations is ")
    assert vqgen.train_codebooks(VECTORS, FORM, seed=2**64 - 1).codebooks.any()
    for name, value in (("threads", 2**40), ("threads", "2"), ("max_buckets", 1.5)):
        refused(lambda name=name, value=value: vqgen.Runtime("host", **{name: value}), f"^{name} is ")
    for device in (2**40, True, 1.5):
        refused(lambda device=device: vqgen.Runtime(device), "^device is ")
    for stream in (-1, 2**70, "s"):
        refused(lambda stream=stream: host.synchronize(stream), "^stream is ")
        refused(lambda stream=stream: host.attention({"op": "x"}, stream=stream), "^stream is ")
    refused(lambda: host.enumerate(op.description["problem"], 1, 2**70), "^most is ")
    refused(lambda: host.prefetch([op.description["problem"]], threads=2**40), "^threads is ")


def test_texts(host, tmp_path):
    for name in ("a\0b", "aqlm-2x8\0x"):
        refused(lambda name=name: vqgen.format_fields(name), "holds a NUL character")
        refused(lambda name=name: vqgen.train_codebooks(VECTORS, name), "holds a NUL character")
        refused(lambda name=name: vqgen.Runtime("host", cache_dir=name), "^cache_dir holds a NUL")
        refused(lambda name=name: vqgen.Runtime("host", compiler=name), "^compiler holds a NUL")
        refused(lambda name=name: host.attention(name), "holds a NUL character")
        refused(lambda name=name: host.prefetch([name]), "null|NUL")
    refused(lambda: vqgen.format_fields("\ud800"), "no text that UTF-8 has")
    refused(lambda: vqgen.Runtime("host", cache_dir=5), "^cache_dir is no path")
    refused(lambda: host.prefetch(["/nowhere/config.json"]), "/nowhere/config.json")
    path = tmp_path / "config.json"
    path.write_bytes(b'{"op": "\xff"}')
    refused(lambda: host.prefetch([path]), "cannot be read")


class Strange:
    """Has a __dlpack__ and nothing else of an array."""

    def __init__(self, gives):
        self.gives = gives

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_):
        if isinstance(self.gives, BaseException):
            raise self.gives
        return self.gives


class Otherwise(np.ndarray):
    """Reports another shape than DLPack does."""

    @property
    def shape(self):
        return (1, *super().shape[1:])


@pytest.mark.parametrize("bad", [
    np.array([object()]), np.zeros((1, 1, 64), ">f2"), np.zeros((1, 1, 64), "S3"), np.zeros((1, 1, 64), "M8[s]"),
    Strange(5), Strange(None), Strange(ValueError("no")), Strange(RuntimeError("two\nlines")), 5, "x", {}, object(),
    np.float16(1), np.array(1, np.float16), [np.ones(3)]], ids=str)
def test_arrays(host, bad):
    attention, arrays = small(host)
    linear, weights = linear_of(host)
    good = np.ones((1, 64), np.float16)
    merge = host.merge({"shape": {"rows": 2, "heads": 1, "head_dim": 64, "parts": 2}})
    scalar = host.scalar({"op": "int8_quantize", "dtype": "f32",
                          "shape": {"tokens": 8, "channels": 64, "scales": "computed"}})
    for number in range(4):
        given = list(arrays)
        given[number] = bad if number in (0, 3) else arrays[number]._replace(codes=bad)
        refused(lambda given=given: attention(*given), "'")
    refused(lambda: attention(*arrays, out=bad), "'out'")
    refused(lambda: linear(bad, weights), "'x'")
    refused(lambda: linear(good, weights, out=bad), "'y'")
    refused(lambda: linear(good, weights._replace(codebooks=bad)), "'weights.codebooks'")
    refused(lambda: merge(bad, bad), "'outs")
    refused(lambda: merge([bad, bad], [bad, bad]), "'outs.0'")
    refused(lambda: scalar(bad), "'matrix'|'from'")
    refused(lambda: vqgen.scalar_errors(bad, good), "'original'")
    refused(lambda: vqgen.train_codebooks(bad, FORM), "'vectors'")


def test_an_interruption_is_not_made_an_error(host):
    linear, weights = linear_of(host)
    with pytest.raises(KeyboardInterrupt):
        linear(np.ones((1, 64), np.float16), weights, out=Strange(KeyboardInterrupt()))


def test_shapes_that_are_not_those_of_dlpack(host):
    odd = VECTORS.view(Otherwise)
    assert odd.shape == (1, 40, 16)
    refused(lambda: vqgen.train_codebooks(odd, FORM), r"'codebooks' is float16 .1, 1, 16, 4.*it has to be .2, 1, 16")
    refused(lambda: vqgen.train_codebooks(odd, {**FORM, "stage_scales": True}), "it has to be .2, 1, 16")
    linear, weights = linear_of(host)
    refused(lambda: linear(np.ones((3, 64), np.float16).view(Otherwise), weights, out=np.ones((1, 64), np.float16)),
            "'y' has 1 rows, and 'x' 3")


def test_a_format_file_is_read_once(tmp_path, monkeypatch):
    """The text that set the sizes is what trains, whatever the file contains by then."""
    path = tmp_path / "form.json"
    path.write_text('{"vector_size": 4, "index_bits": 4}')
    fields = vqgen._core.format_fields

    class Core:
        def __getattr__(self, name):
            return getattr(vqgen._core, name)

        def format_fields(self, text):
            told = fields(text)
            path.write_text('{"vector_size": 4, "index_bits": 7, "num_codebooks": 2}')
            return told

    monkeypatch.setattr(vqgen._training, "_core", Core())
    assert vqgen.train_codebooks(VECTORS, str(path)).codebooks.shape == (2, 1, 16, 4)
    assert '"index_bits": 7' in path.read_text()


def test_transforms_that_training_does_not_apply():
    for form, words in (("vecinfer-d4b8", '"smooth": False, "hadamard": False'),
                        ({**FORM, "output_scales": True}, '"output_scales": False'),
                        ("aqlm-2x8", "output_scales, which training does not apply")):
        refused(lambda form=form: vqgen.train_codebooks(VECTORS, form), words)
    many = np.random.default_rng(2).standard_normal((1, 80, 64)).astype(np.float32)
    trained = vqgen.train_codebooks(many, {"preset": "vecinfer-d4b8", "smooth": False, "hadamard": False})
    assert trained.codebooks.shape == (1, 1, 256, 4)


def test_what_is_written_has_memory_of_its_own(host):
    linear, weights = linear_of(host)
    memory = np.zeros((9, 64), np.float16)
    refused(lambda: linear(memory[:4], weights, out=memory[:4]), "'y' is written, and shares memory with 'x'")
    refused(lambda: linear(memory[:4], weights, out=memory[3:7]), "shares memory with 'x'")
    assert linear(memory[:4], weights, out=memory[4:8]) is not None
    refused(lambda: linear(memory[:1], weights, out=weights.codebooks.reshape(-1)[:64].reshape(1, 64)),
            "shares memory with 'weights.codebooks'")
    attention, arrays = small(host)
    refused(lambda: attention(*arrays, out=arrays[0]), "'out' is written, and shares memory with 'query'")
    merge = host.merge({"shape": {"rows": 2, "heads": 1, "head_dim": 64, "parts": 2}})
    outs, lses = np.zeros((2, 2, 1, 64), np.float16), np.zeros((2, 2, 1), np.float32)
    merge(list(outs), list(lses), out=outs[1], lse=lses[0])  # in place
    whole = np.zeros((3, 1, 64), np.float16)
    refused(lambda: merge([whole[:2], outs[1]], list(lses), out=whole[1:]), "shares memory with 'outs.0'")
    scalar = host.scalar({"op": "int8_quantize", "dtype": "f32",
                          "shape": {"tokens": 8, "channels": 64, "scales": "computed"}})
    x = np.ones((8, 64), np.float32)
    refused(lambda: scalar(x, out=x.reshape(-1).view(np.int8)[:512].reshape(8, 64)),
            "'to' is written, and shares memory with 'from'")
    refused(lambda: scalar(x, x[0]), "'scales' is written, and shares memory with 'from'")


def test_sequences_that_overlap(host):
    shape = {"batch": 2, "kv_heads": 2, "head_dim": 64, "tokens": 8}
    form = {"vector_size": 4, "index_bits": 8}
    op = host.append({"shape": {**shape, "new_tokens": 1}, "keys": form, "values": form})
    fresh, books = np.ones((2, 1, 2, 64), np.float16), np.ones((1, 1, 256, 4), np.float16)
    strided = np.lib.stride_tricks.as_strided
    memory = np.zeros(1024, np.uint32)

    def append(keys, values):
        op(fresh, fresh.copy(), np.zeros(2, np.int32), *(vqgen.Quantized(each, books) for each in (keys, values)))

    apart = np.zeros((2, 2, 8, 4), np.uint32)
    for strides in ((100, 32, 4, 1), (32, 32, 4, 1), (32, 16, 4, 1), (0, 64, 4, 1), (16, 256, 4, 1)):
        keys = strided(memory, (2, 2, 8, 4), [4 * each for each in strides], writeable=True)
        if strides[0] == 100:
            append(keys, apart)
        else:
            refused(lambda keys=keys: append(keys, apart), "'keys.codes' is written, and has elements at one place")
            refused(lambda keys=keys: append(apart, keys), "'values.codes' is written")
    both = np.zeros((2, 2, 2, 8, 4), np.uint32)  # keys and values between each other
    append(both[:, :, 0], both[:, :, 1])
    side = np.zeros((2, 2, 16, 4), np.uint32)
    append(side[:, :, :8], side[:, :, 8:])
    refused(lambda: append(side[:, :, :8], side[:, :, 7:15]), "shares memory with")
    refused(lambda: append(apart, apart), "'keys.codes' is written, and shares memory with 'values.codes'")


def test_nothing_comes_of_nothing(host):
    linear, weights = linear_of(host)
    assert linear(np.zeros((0, 64), np.float16), weights).shape == (0, 64)
    experts = host.linear({"op": "gemm", "weights": {"vector_size": 4, "index_bits": 8}, "shape": {
        "m": 2, "out_features": 64, "in_features": 64, "experts": 2, "total_rows": 4}})
    own = vqgen.Quantized(np.zeros((2, 64, 4), np.uint32), np.ones((2, 1, 256, 4), np.float16))
    assert experts(np.zeros((0, 64), np.float16), own, expert_rows=np.zeros(3, np.int32)).shape == (0, 64)
    merge = host.merge({"shape": {"rows": 2, "heads": 1, "head_dim": 64, "parts": 2}})
    outs, lses = np.zeros((2, 0, 1, 64), np.float16), np.zeros((2, 0, 1), np.float32)
    assert [each.shape for each in merge(list(outs), list(lses))] == [(0, 1, 64), (0, 1)]
    config = {"op": "int8_quantize", "dtype": "f32", "shape": {"tokens": 8, "channels": 64}}
    codes, scales = host.scalar({**config, "shape": {**config["shape"], "scales": "computed"}})(
        np.zeros((0, 64), np.float32))
    assert codes.shape == (0, 64) and (scales == 1).all()
    back = host.scalar({**config, "op": "int8_dequantize"})
    assert back(codes, scales).shape == (0, 64)
    empty = np.zeros((0, 3), np.float32)
    assert vqgen.scalar_errors(empty, empty, empty) == (0, 0, 0)
    form = {"vector_size": 4, "index_bits": 8}
    shape = {"batch": 1, "kv_heads": 1, "head_dim": 64, "tokens": 8}
    cache = vqgen.Quantized(np.zeros((1, 1, 8, 4), np.uint32), np.ones((1, 1, 256, 4), np.float16))
    decode = host.dequantize({"shape": shape, "keys": form, "values": form})
    assert decode(cache, cache, np.array([3], np.int32), tokens=0)[0].shape == (1, 1, 0, 64)
    append = host.append({"shape": {**shape, "new_tokens": 1}, "keys": form, "values": form})
    other = cache._replace(codes=cache.codes.copy())
    append(*np.ones((2, 1, 1, 1, 64), np.float16), np.zeros(1, np.int32), cache, other, tokens=0)
    assert not cache.codes.any() and not other.codes.any()


def test_errors_are_the_same_after_another_import():
    before, ours = vqgen.BadInput, {name: each for name, each in sys.modules.items() if name.startswith("vqgen")}
    for name in ours:
        del sys.modules[name]
    try:
        again = importlib.import_module("vqgen")
        assert again is not vqgen and again.BadInput is before
        for module in (again, vqgen):
            with pytest.raises(module.BadInput):
                module.format_fields("nothing")
        importlib.reload(sys.modules["vqgen._errors"])
        with pytest.raises(again.BadInput):
            again.format_fields("nothing")
    finally:
        for name in [name for name in sys.modules if name.startswith("vqgen")]:
            del sys.modules[name]
        sys.modules.update(ours)
    assert issubclass(vqgen.BadInput, ValueError) and issubclass(vqgen.RangeError, vqgen.BadInput)
    assert vqgen.BadInput.__module__ == "vqgen" and vqgen.BadInput.__doc__
