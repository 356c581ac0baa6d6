"""vqgen's ops for PyTorch: torch.ops.vqgen.attention, append, dequantize, linear, weight_dequantize and rotate, with
fakes and mutation marks, so that torch.compile and captured CUDA graphs take them; and modules over them.

An op is named by its config's JSON (`config_text()`), and prepared by the first call with it. Inside a capture nothing
can be compiled: call once before, or `prepare()`. Tensors on the CPU take the host backend, which is slow and for
tests. All functions may be called from several threads.
"""

from __future__ import annotations

import functools
import threading

import torch

import vqgen
from vqgen import _appends, _arrays, _basis, _gradients, _kmeans, _linear, _rotations
from vqgen._arguments import merge_arguments
from vqgen._bundles import bundle_tensors, read_bundle
from vqgen._cascade import Cascade, Prefixes
from vqgen._config_text import config_text
from vqgen._fused import FusedMLP, join_layers
from vqgen._layers import DTYPES, VQLinear
from vqgen._linear import MOST_ROWS
from vqgen._op_configs import SCHEMAS, cache_shapes, in_order, parsed, size, value_dim, y_columns
from vqgen._runtime import _CLASSES
from vqgen._training import SEEDS, refuse_transforms

__all__ = ["Cascade", "FusedMLP", "Prefixes", "VQCache", "VQLinear", "bundle_tensors", "config_text", "join_layers",
           "prepare", "read_bundle", "runtime", "train_codebooks", "use_runtime"]

_runtimes: dict[int, vqgen.Runtime] = {}  # by GPU; -1 is the host
_ops: dict[tuple[str, int], vqgen.Op] = {}
_lock = threading.Lock()


def _number(device: torch.device) -> int:
    if device.type == "cpu":
        return -1
    if device.type != "cuda":
        raise vqgen.BadInput(f"tensors are on {device}; vqgen runs on cuda, and on cpu for tests")
    return torch.cuda.current_device() if device.index is None else device.index


def runtime(device: torch.device | str) -> vqgen.Runtime:
    """The runtime of the ops on `device`, made with the defaults where use_runtime() gave none."""
    number = _number(torch.device(device))
    with _lock:
        if number not in _runtimes:
            _runtimes[number] = vqgen.Runtime("host" if number < 0 else number)
        return _runtimes[number]


_rotators = _rotations.Rotators(runtime)


def use_runtime(own: vqgen.Runtime) -> None:
    """Ops on the device of `own` are prepared by it from now on."""
    with _lock:
        number = -1 if own.device == "host" else own.device
        _runtimes[number] = own
        for key in [key for key in _ops if key[1] == number]:
            del _ops[key]
        _rotators.drop(torch.device("cpu") if number < 0 else torch.device("cuda", number))


def prepare(config: str, device: torch.device | str, stream: int = 0) -> vqgen.Op:
    """The op of a config's JSON on `device`; compiled, unless memory or cache have it. With the gemm of a VQLinear
    comes what it takes for many rows."""
    op = _prepared(config, device, stream)
    if op.many_rows and _linear.takes_any(config):
        _prepared(_linear.dense_config(config, op.many_rows["part"]), device, stream)
    return op


def _prepared(config, device, stream):
    device = torch.device(device)
    key = (config, _number(device))
    if key not in _ops:
        _ops[key] = runtime(device)._prepare(parsed(config), tuple(_CLASSES), stream)
    return _ops[key]


def train_codebooks(vectors: torch.Tensor, format, *, dtype: torch.dtype = torch.float16,
                    seed: int = 1, iterations: int = 30) -> vqgen.Codebooks:
    """vqgen.train_codebooks() where `vectors` are: on their GPU, by PyTorch where no kernel trains them
    (docs/guides/quantize.md), or on all cores. Codebooks and scales come on the same device."""
    if dtype not in DTYPES:
        raise vqgen.BadInput(f"dtype is {dtype}; it is torch.float16 or torch.bfloat16")
    _require_tensor("vectors", vectors)
    fields = vqgen.format_fields(format)
    if vectors.is_cuda and _kmeans.takes(fields):
        refuse_transforms(fields)
        seed, iterations = _arrays.whole("seed", seed, 0, SEEDS), _arrays.whole("iterations", iterations, 1)
        return vqgen.Codebooks(*_kmeans.trained(vectors, fields, dtype, seed, iterations))
    own = None if vectors.device.type == "cpu" else runtime(vectors.device)
    trained = vqgen.train_codebooks(vectors, fields, dtype=DTYPES[dtype], seed=seed, iterations=iterations, runtime=own)
    return vqgen.Codebooks(*(None if each is None else each.to(vectors.device) for each in trained))


def _require_tensor(name, tensor):
    if not isinstance(tensor, torch.Tensor):
        raise vqgen.BadInput(f"'{name}' is of type {type(tensor).__name__}; it has to be a torch.Tensor")


def _op(config, tensor):
    op = _ops.get((config, -1 if tensor.device.type == "cpu" else tensor.device.index))
    if op is not None:
        return op
    cuda = tensor.device.type == "cuda"
    return _prepared(config, tensor.device,
                     torch.cuda.current_stream(tensor.device).cuda_stream if cuda else 0)


def _launch(name, op, positional, named, *numbers):
    """Launch `op` with what the op `name` for PyTorch was given and has made."""
    op._launch_in_order(in_order(name, op.name, positional, named), *numbers)


_library = torch.library.Library("vqgen", "FRAGMENT")
for _schema in SCHEMAS:
    _library.define(_schema)


def _attention(config, query, *arrays, tokens=None, softmax_scale=0.0, **named):
    out, lse = _attended(config, query)
    _launch("attention", _op(config, query), (query, *arrays), {**named, "out": out, "lse": lse}, tokens,
            softmax_scale)
    return out, lse


def _attended(config, query):
    shape = query.shape[:2]
    return query.new_empty(*shape, value_dim(config)), query.new_empty(shape, dtype=torch.float32)


def _append(config, new_keys, *arrays, tokens=None, **named):
    _launch("append", _op(config, new_keys), (new_keys, *arrays), named, tokens)


def _dequantize(config, key_codes, key_codebooks, *arrays, tokens, zeroed=True, **named):
    out_keys, out_values = _dense(config, key_codebooks, tokens, zeroed)
    _launch("dequantize", _op(config, key_codes), (key_codes, key_codebooks, *arrays),
            {**named, "out_keys": out_keys, "out_values": out_values}, tokens)
    return out_keys, out_values


def _dense(config, like, tokens, zeroed):
    if isinstance(tokens, int) and tokens < 0:
        raise vqgen.BadInput(f"tokens is {tokens}; it has to be 0 or more")
    make = like.new_zeros if zeroed else like.new_empty
    return tuple(make((*heads, tokens, channels)) for *heads, channels in cache_shapes(config))


def _merge(config, outs, lses):
    if len(outs) != len(lses) or not outs:
        raise vqgen.BadInput(f"{len(outs)} outs and {len(lses)} lses; give one of each for each part")
    out, lse = _merged(outs, lses)
    _op(config, out)._launch(merge_arguments(out, lse, outs, lses))
    return out, lse


def _merged(outs, lses):
    return tuple(torch.empty_like(each[0], memory_format=torch.contiguous_format)
                 for each in (outs, lses))


def _gemm(config, x, *weights, expert_rows=None, residual=None):
    y = x.new_empty(len(x), y_columns(config))
    op = _op(config, x)
    def launch(x, y, residual):
        _launch("linear", op, (x, *weights), {"expert_rows": expert_rows, "residual": residual, "y": y})
    def dequantize(part, out, first_row):
        _launch("weight_dequantize", _op(_linear.dense_config(config, part), x), weights, {"out": out}, first_row)
    if len(x) > MOST_ROWS and expert_rows is None and _linear.takes_any(config):
        _linear.of_many_rows(config, op.many_rows, launch, dequantize, x, y, residual)
    else:
        launch(x, y, residual)
    return y


def _weight_rows(config, *weights, first_row=0, rows=None):
    out = _dense_rows(config, weights[1], first_row, rows)
    _launch("weight_dequantize", _op(config, weights[0]), weights, {"out": out}, first_row)
    return out


def _dense_rows(config, like, first_row, rows):
    if rows is None:
        rows = min(size(config, "rows"), size(config, "out_features") - first_row)
    return like.new_empty(max(rows, 0), size(config, "in_features"))


for _name, _function in (("attention", _attention), ("append", _append), ("dequantize", _dequantize),
                         ("merge", _merge), ("linear", _gemm), ("weight_dequantize", _weight_rows), ("rotate", _rotators.rotate)):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _function, _key)


@torch.library.register_fake("vqgen::attention", lib=_library)
def _(config, query, *_, **__):
    return _attended(config, query)


@torch.library.register_fake("vqgen::append", lib=_library)
def _(*_, **__):
    return None


@torch.library.register_fake("vqgen::dequantize", lib=_library)
def _(config, key_codes, key_codebooks, *_, tokens, zeroed=True, **__):
    return _dense(config, key_codebooks, tokens, zeroed)


@torch.library.register_fake("vqgen::merge", lib=_library)
def _(config, outs, lses):
    return _merged(outs, lses)


@torch.library.register_fake("vqgen::linear", lib=_library)
def _(config, x, *_, **__):
    return x.new_empty(x.shape[0], y_columns(config))


@torch.library.register_fake("vqgen::weight_dequantize", lib=_library)
def _(config, codes, codebooks, *_, first_row=0, rows=None):
    return _dense_rows(config, codebooks, first_row, rows)


@torch.library.register_fake("vqgen::rotate", lib=_library)
def _(x, signs, back):
    return torch.empty_like(x)


_gradients.register(_library)


class VQCache:
    """The quantized KV cache of one layer: codes, full-precision window and sinks, and sequences' lengths. These
    and positions are on the device: a captured step goes on where the last replay ended.

    key_codebooks, value_codebooks: [units, stages, entries, vector_size]; *_scales: [units, stages] where the formats
    have stage_scales; key_smooth: float32 [kv_heads, head_dim] where the keys' has smooth; key_mean and value_mean of
    that shape where they have center, *_rotation: float32 [kv_heads, head_dim, head_dim], aligned to 16 bytes, where
    they have klt; those of values have value_head_dim, if it is given. key_gain: float32 [units], by which entries are
    longer where keys are read than where they are encoded. A sequence has room for `tokens`. query_tokens: of one in an
    attend(), at most 16. batch_invariant: their results have the same bits whatever comes with them, by one kernel.
    lengths: int32 [batch], where layers share theirs; who shares them writes by write() and counts himself.
    flush_block: tokens that leave the window together (docs/guides/kv-cache.md). sliding_window, attention_chunk,
    logit_softcap: as in a config's shape, 0 for none. tree_tokens: drafts of a sequence that an attend() with tree_mask
    takes, 2 to 64. attention_plan: fields of its plan, {"schedule": "balanced"} for long sequences beside short ones
    (docs/guides/serving.md). A cache can be copied and saved. It passes no gradients on: backward() raises.
    """

    @torch.inference_mode(False)  # what is made in that mode cannot be written outside of it
    def __init__(self, *, batch: int, query_heads: int, kv_heads: int, head_dim: int, tokens: int,
                 keys, values, key_codebooks, value_codebooks, key_scales=None, value_scales=None,
                 key_smooth=None, key_mean=None, key_rotation=None, value_mean=None, value_rotation=None,
                 key_gain=None, recent_tokens: int = 0, sinks: int = 0, query_tokens: int = 1,
                 batch_invariant: bool = False, lengths=None, flush_block: int = 1,
                 sliding_window: int = 0, attention_chunk: int = 0, logit_softcap: float = 0.0,
                 tree_tokens: int = 0, attention_plan: dict | None = None, value_head_dim: int | None = None):
        _require_tensor("key_codebooks", key_codebooks)
        for name, mean, rotation in (("key", key_mean, key_rotation), ("value", value_mean, value_rotation)):
            _basis.require(name, mean, rotation)
        dtype, device = key_codebooks.dtype, key_codebooks.device
        if dtype not in DTYPES:
            raise vqgen.BadInput(f"key_codebooks is of {dtype}; it is float16 or bfloat16")
        shape = {"batch": batch, "kv_heads": kv_heads, "head_dim": head_dim, "tokens": tokens,
                 "recent_tokens": recent_tokens, "flush_block": flush_block, "sinks": sinks}
        shape |= {} if value_head_dim in (None, head_dim) else {"value_head_dim": value_head_dim}
        both = {"dtype": DTYPES[dtype], "keys": vqgen.format_fields(keys),
                "values": vqgen.format_fields(values)}
        seen = {"sliding_window": sliding_window, "attention_chunk": attention_chunk, "logit_softcap": logit_softcap}
        attended = {"op": "attention_decode", **both, "plan": attention_plan or {}, "shape": shape | dict(
            query_heads=query_heads, query_tokens=query_tokens, batch_invariant=batch_invariant) | {
                name: value for name, value in seen.items() if value}}
        self.attention_config = config_text(attended)
        more = {"sink_logits": {"sink_logits": True}, "tree_mask": {"tree_mask": True, "query_tokens": tree_tokens}}
        self._more_configs = {names: config_text(attended | {"shape": functools.reduce(dict.__or__, (
            more[name] for name in names), attended["shape"])}) for names in (("sink_logits",), ("tree_mask",), tuple(more))}
        self.tree_tokens = tree_tokens
        self._shape, self._formats, self._append_configs = shape, both, {}
        self._dequantize_config = config_text({"op": "kv_dequantize", "shape": shape, **both})
        self.tokens, self.batch_invariant = tokens, batch_invariant
        self._written_with_gradient = False
        attention = prepare(self.attention_config, device)
        prepare(self._append_config(1), device)
        shapes = {each.name: each.shape for each in attention.arguments}

        def zeros(name, kind):
            return torch.zeros(shapes[name], dtype=kind, device=device) if name in shapes else None

        self.keys = vqgen.Quantized(zeros("keys.codes", torch.int32), key_codebooks, key_scales)
        self.values = vqgen.Quantized(zeros("values.codes", torch.int32), value_codebooks,
                                      value_scales)
        # Codes are the nearest entries without the gain: chosen by entries with it, they would lose half of it again.
        self._encoding = (key_codebooks, key_scales)
        if key_gain is not None:
            read = _basis.with_gain(both["keys"], key_codebooks, key_scales, key_gain, kv_heads)
            self.keys = vqgen.Quantized(self.keys.codes, *read)
        self.transforms = {"key_smooth": key_smooth, "key_mean": key_mean, "key_rotation": key_rotation,
                           "value_mean": value_mean, "value_rotation": value_rotation}
        self.raw_keys, self.raw_values = zeros("raw_keys", dtype), zeros("raw_values", dtype)
        self.lengths = (torch.zeros(batch, dtype=torch.int32, device=device) if lengths is None
                        else lengths)
        self._windows = torch.full_like(self.lengths, recent_tokens - flush_block + 1) if recent_tokens else None
        self._sinks = torch.full_like(self.lengths, sinks) if sinks > 0 else None

    def _append_config(self, new_tokens: int) -> str:
        if new_tokens not in self._append_configs:
            self._append_configs[new_tokens] = config_text(
                {"op": "kv_append", "shape": {**self._shape, "new_tokens": new_tokens}, **self._formats})
        return self._append_configs[new_tokens]

    def append_drafts(self, new_keys, new_values, query_start, drafts, counts=None) -> None:
        """append() of the accepted drafts of a tree, whose keys and values attend() was given, [rows, kv_heads,
        head_dim]. drafts: integers [batch, most], the numbers of each sequence's accepted drafts, from 0 on in
        their order. counts: int32 [batch], how many of them are real; what is behind may hold anything."""
        rows = (query_start[:-1, None] + drafts.clamp(min=0)).clamp(max=len(new_keys) - 1)
        self.append(new_keys[rows], new_values[rows], counts)

    def append(self, new_keys, new_values, counts=None) -> None:
        """write() behind what each sequence has."""
        self.write(new_keys, new_values, self.lengths, counts)
        self.lengths.add_(new_keys.shape[1] if counts is None else counts).clamp_(max=self.tokens)

    def write(self, new_keys, new_values, positions, counts=None) -> None:
        """new_keys, new_values: [batch, new_tokens, kv_heads, head_dim]. positions: int32 [batch], of
        a sequence's first new token. counts: int32 [batch], how many of them are real; all without
        it. Tokens beyond the room are left out. There is a kernel for each power of two of
        new_tokens up to 65,536: what is between is padded, and more come in parts. Lengths stay as they
        are."""
        if torch.is_grad_enabled() and (new_keys.requires_grad or new_values.requires_grad):
            self._written_with_gradient = True
        for keys, values, at, real in _appends.parts(new_keys, new_values, positions, counts):
            torch.ops.vqgen.append(self._append_config(keys.shape[1]), keys, values, at, self.keys.codes,
                                   *self._encoding, *self.values,
                                   counts=real, **self.transforms, raw_keys=self.raw_keys,
                                   raw_values=self.raw_values)

    def new_tokens(self, count: int):
        """(keys, values) of `count` new tokens of each sequence, as write() takes them, of zeros."""
        return tuple(self.keys.codebooks.new_zeros(batch, count, *head) for batch, *head in cache_shapes(self.attention_config))

    def bucket(self, tokens: int) -> int:
        """The tokens of the kernel that attend() takes for `tokens`."""
        return prepare(self.attention_config, self.lengths.device).bucket(self.tokens if self.batch_invariant else tokens)

    def prepare_sinks(self) -> None:
        """Compiles what attend() with sink_logits takes; nothing once that is done."""
        prepare(self._config_with(sink_logits=True), self.lengths.device)

    def prepare_tree(self, sink_logits: bool = False) -> None:
        """Compiles what attend() with tree_mask takes, or with both; nothing once that is done."""
        prepare(self._config_with(sink_logits=sink_logits, tree_mask=True), self.lengths.device)

    def _config_with(self, **given: bool) -> str:
        names = tuple(name for name, value in given.items() if value)
        if "tree_mask" in names and not self.tree_tokens:
            raise vqgen.BadInput("tree_mask is given, and tree_tokens of the cache is 0; make it with the most drafts "
                                 "of a sequence, 2 to 64")
        return self._more_configs[names] if names else self.attention_config

    def attend(self, query, *, tokens: int | None = None, softmax_scale: float = 0.0,
               query_start=None, new_keys=None, new_values=None, sink_logits=None, tree_mask=None):
        """(out, lse) of query [batch, query_heads, head_dim]. `tokens` is at least the longest
        sequence's, and picks the kernel, unless `batch_invariant`. With query_tokens above 1, query has a
        row per query token; query_start, new_keys, new_values, sink_logits and tree_mask are those of vqgen.Attention.
        With tree_mask there are up to tree_tokens of a sequence. The first call with sink_logits or tree_mask compiles,
        unless prepare_sinks() or prepare_tree() has."""
        config = self._config_with(sink_logits=sink_logits is not None, tree_mask=tree_mask is not None)
        return self._read(lambda: torch.ops.vqgen.attention(
            config, query, *self.keys, *self.values, self.lengths,
            **self.transforms, raw_keys=self.raw_keys, raw_values=self.raw_values,
            recent_counts=self._windows, sinks=self._sinks, softmax_scale=softmax_scale,
            tokens=None if self.batch_invariant else tokens, query_start=query_start,
            new_keys=new_keys, new_values=new_values, sink_logits=sink_logits, tree_mask=tree_mask))

    def dequantize(self, tokens: int, lengths=None, *, zeroed: bool = True):
        """(keys, values) of the first `tokens` of each sequence, [batch, kv_heads, tokens, head_dim]:
        what attend() reads, raw tokens too. lengths: int32 [batch], by default as many as each
        sequence has. Rows from a sequence's length on are zeros, or with zeroed=False uninitialised,
        which saves a write of all rows. The first call compiles, and may not be in a capture."""
        return self._read(lambda: torch.ops.vqgen.dequantize(
            self._dequantize_config, *self.keys, *self.values,
            self.lengths if lengths is None else lengths, tokens=tokens,
            **self.transforms, raw_keys=self.raw_keys, raw_values=self.raw_values,
            recent_counts=self._windows, sinks=self._sinks, zeroed=zeroed))

    def _read(self, call):
        """Tokens that were written with a gradient have none here: backward() raises, and drops nothing."""
        if not (self._written_with_gradient and torch.is_grad_enabled()):
            return call()
        return _gradients.without_gradient("append", call, torch.ones((), dtype=torch.float32, requires_grad=True))

    def bytes_per_token(self) -> float:
        """The bytes that codes take in this layer, for one token of one sequence."""
        rows = self.lengths.numel() * self.tokens
        return 4 * (self.keys.codes.numel() + self.values.codes.numel()) / rows
