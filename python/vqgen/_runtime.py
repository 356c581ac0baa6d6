"""Runtime and the ops that it prepares."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from vqgen import _arrays, _core
from vqgen._arguments import (Argument, Quantized, cache_arguments, merge_arguments, parts_list, parts_of,
                              quantized, slots)
from vqgen._config_text import config_text as _text
from vqgen._errors import BadInput
from vqgen._paths import nvrtc_folder, path_of

if TYPE_CHECKING:
    from vqgen import configs
    Config = (dict | str | os.PathLike | configs.AttentionConfig | configs.AppendConfig | configs.DequantizeConfig
              | configs.MergeConfig | configs.LinearConfig | configs.ScalarConfig | configs.WeightRowsConfig)

_POLICIES = {"compile": 0, "fail": 1, "fallback": 2}
_PROVENANCES = ("compiled", "disk", "memory", "baseline")


class Op:
    """A prepared op. Calls take arrays of any library that speaks DLPack, without copying them, and
    queue on the stream that the library works on, unless `stream` names another. Thread-safe."""

    def __init__(self, core: _core.Op):
        self._core = core
        description = self.description
        self._problem, self.many_rows = description["problem"], description.get("many_rows")
        self._dtype = self._problem["dtype"]
        self._slots = slots(core.name)

    @property
    def name(self) -> str:
        """The op's name, such as "attention_decode"."""
        return self._core.name

    @property
    def description(self) -> dict:
        """Problem, arguments, and each bucket's plan, kernels and provenance (docs/guides/embedding.md)."""
        return json.loads(self._core.description)

    @property
    def arguments(self) -> list[Argument]:
        """What a call takes, with types ("f16", "bf16", "f32", "i32", "i64", "u32") and shapes."""
        return [Argument(each["name"], each["type"], tuple(each["shape"]))
                for each in self.description["arguments"]]

    @property
    def provenance(self) -> str:
        """Where the kernels came from: "compiled", "disk", "memory" or "baseline"."""
        return _PROVENANCES[self._core.provenance]

    def bucket(self, count: int) -> int:
        """The tokens or rows of the kernel that a call with `count` takes; 0 where none does."""
        return self._core.bucket(count)

    def _launch(self, arrays, tokens=None, softmax_scale=0.0, stream=None):
        """arrays: by the names of the description; those left out, or None, are not given."""
        if not arrays.keys() <= self._slots.keys():
            raise BadInput(f"{self.name} has no '{next(iter(arrays.keys() - self._slots.keys()))}'")
        self._launch_in_order(tuple(map(arrays.get, self._slots)), tokens, softmax_scale, stream)

    def _launch_in_order(self, arrays, tokens=None, softmax_scale=0.0, stream=None):
        """arrays: by the order of the slots, None for those that are not given."""
        self._core.launch(arrays, tokens, softmax_scale, _arrays.current_stream if stream is None else stream)

    def __repr__(self):
        return f"<vqgen {self.name}, {self.provenance}>"


class Attention(Op):
    """Attention of the newest tokens of each sequence, usually one, over a quantized cache."""

    def __call__(self, query, keys: Quantized, values: Quantized, lengths, *, out=None, lse=None,
                 key_smooth=None, key_mean=None, key_rotation=None, value_mean=None, value_rotation=None,
                 raw_keys=None, raw_values=None, recent_counts=None, sinks=None,
                 query_start=None, new_keys=None, new_values=None, block_table=None, raw_block_table=None, sink_logits=None,
                 tree_mask=None, tokens: int | None = None, softmax_scale: float = 0.0, return_lse: bool = False, stream: int | None = None):
        """softmax(query keys^T) values.

        query, out: [batch, query_heads, head_dim] in the op's dtype.
        lengths: int32 [batch], tokens of each sequence, 0 for an inactive one.
        lse: float32 [batch, query_heads], the natural logarithm of the sum of exponentials.
        key_smooth: float32 [kv_heads, head_dim], where the format of the keys has smooth.
        key_mean, value_mean: float32 [kv_heads, head_dim], where the formats have center. key_rotation,
            value_rotation: float32 [kv_heads, head_dim, head_dim], orthogonal, aligned to 16 bytes, where they
            have klt. The cache, raw rows too, holds (x - mean) @ rotation.
        raw_keys, raw_values: [batch, kv_heads, sinks + recent_tokens, head_dim], with recent_counts and sinks,
            int32 [batch] each, where the config has them; [pages, kv_heads, raw_page_tokens, head_dim] where it
            has raw_page_tokens.
        query_start: int32 [batch + 1], where the config's query_tokens is more than 1: rows
            query_start[b] .. query_start[b + 1] - 1 of query, out and lse are the newest tokens of
            sequence b, each of which sees the tokens up to its own. Other rows are left as they
            are: uninitialised where the arrays are made here.
        new_keys, new_values: [rows, kv_heads, head_dim], those of the query's rows, which `lengths`
            does not count then. Without them they have been appended.
        block_table: int32 [batch, columns], where the config has page_tokens: token t of sequence b
            is in page block_table[b, t // page_tokens]. Entries past a sequence's tokens are
            not read. A kernel trusts the others; the host backend names those that are no page's.
        raw_block_table: int32 [batch, columns], where the config has raw_page_tokens: the page of raw_keys and
            raw_values that token t's row is in, as block_table. Entries of tokens in no window are not read.
        sink_logits: float32 [query_heads], where the config has them: exp(logit) is added to each head's
            denominator, and to its lse.
        tree_mask: int64 [rows], where the config has it: the query tokens of a sequence are drafts in a tree, with
            new_keys and new_values. Bit j of a draft's says that it sees draft j of its sequence: its ancestors,
            which come first, and itself. Its position is lengths[b] + its number of ancestors. Append the rows
            of those that are accepted.
        tokens: at least the most that a query token sees, which picks the kernel; by default all
            that the codes, or the pages of the block table, have room for.
        softmax_scale: 0 stands for 1 / sqrt(head_dim).

        Returns out, or (out, lse) with return_lse. Both are made where they are not given.
        """
        shape = _arrays.shape_of("query", query, 3)
        if out is None:
            dim = self._problem["shape"].get("value_head_dim", shape[2])
            out = _arrays.empty(query, (*shape[:2], dim), self._dtype)
        if lse is None:
            lse = _arrays.empty(query, shape[:2], "f32")
        given = dict(query=query, out=out, lse=lse, key_smooth=key_smooth, key_mean=key_mean,
                     key_rotation=key_rotation, value_mean=value_mean, value_rotation=value_rotation,
                     raw_keys=raw_keys, raw_values=raw_values, lengths=lengths, recent_counts=recent_counts, sinks=sinks,
                     query_start=query_start, new_keys=new_keys, new_values=new_values, block_table=block_table, raw_block_table=raw_block_table,
                     sink_logits=sink_logits, tree_mask=tree_mask)
        self._launch(given | cache_arguments(keys, values), tokens, softmax_scale, stream)
        return (out, lse) if return_lse else out


class Append(Op):
    """New tokens encoded and written to the cache that an attention of the same formats reads."""

    def __call__(self, new_keys, new_values, positions, keys: Quantized, values: Quantized, *,
                 counts=None, key_smooth=None, key_mean=None, key_rotation=None, value_mean=None,
                 value_rotation=None, raw_keys=None, raw_values=None, block_table=None, raw_block_table=None,
                 tokens: int | None = None, stream: int | None = None) -> None:
        """new_keys, new_values: [batch, new_tokens, kv_heads, head_dim] in the op's dtype.

        positions: int32 [batch], the token that a sequence's first new one becomes; a negative one
            leaves the sequence alone.
        counts: int32 [batch], how many new tokens are real; all without it.
        keys, values: their codes are written, their codebooks read.
        key_smooth, key_mean, key_rotation, value_mean, value_rotation: as of the attention.
        raw_keys, raw_values, raw_block_table: as of the attention; written, in pages the row of each new token.
        block_table: as of the attention. No two sequences append to one page.
        tokens: that a sequence has room for; by default what the codes, or the pages of the block
            table, have.
        """
        given = dict(new_keys=new_keys, new_values=new_values, positions=positions, counts=counts,
                     key_smooth=key_smooth, key_mean=key_mean, key_rotation=key_rotation, value_mean=value_mean,
                     value_rotation=value_rotation, raw_keys=raw_keys, raw_values=raw_values,
                     block_table=block_table, raw_block_table=raw_block_table)
        self._launch(given | cache_arguments(keys, values), tokens, stream=stream)


class Dequantize(Op):
    """Cached tokens as dense keys and values: what an attention of the same formats reads."""

    def __call__(self, keys: Quantized, values: Quantized, lengths, *, out_keys=None,
                 out_values=None, key_smooth=None, key_mean=None, key_rotation=None, value_mean=None,
                 value_rotation=None, raw_keys=None, raw_values=None, recent_counts=None,
                 sinks=None, block_table=None, raw_block_table=None, tokens: int | None = None,
                 stream: int | None = None):
        """out_keys, out_values: [batch, kv_heads, tokens, head_dim] in the op's dtype, aligned to 16
        bytes; the keys as attention compares them with a query. Rows of tokens from a sequence's
        length on are left as they are: uninitialised where the arrays are made here.

        lengths: int32 [batch], tokens of each sequence, which may be more than are decoded.
        key_smooth, key_mean, key_rotation, value_mean, value_rotation, raw_keys, raw_values,
            recent_counts, sinks, block_table, raw_block_table: as of the attention.
        tokens: that are decoded, from the first on; without arrays for them all that the codes, or
            the pages of the block table, have room for and the op takes.

        Returns (out_keys, out_values). Both are made where they are not given.
        """
        keys, values = quantized("keys", keys), quantized("values", values)
        given = {name: _arrays.shape_of(name, out, 4)[2]
                 for name, out in (("out_keys", out_keys), ("out_values", out_values)) if out is not None}
        if tokens is not None:
            tokens = _arrays.whole("tokens", tokens, 0)
        else:
            tokens = next(iter(given.values())) if given else self._room(keys, values, block_table)
        for name in (name for name, held in given.items() if held != tokens):
            raise BadInput(f"'{name}' has {given[name]} tokens, and tokens is {tokens}; make them equal")
        sizes = self._problem["shape"]
        dims = sizes["head_dim"], sizes.get("value_head_dim", sizes["head_dim"])
        out_keys, out_values = (_arrays.empty(keys.codes, (sizes["batch"], sizes["kv_heads"], tokens, dim), self._dtype)
                                if out is None else out for out, dim in zip((out_keys, out_values), dims))
        given = dict(out_keys=out_keys, out_values=out_values, key_smooth=key_smooth, key_mean=key_mean,
                     key_rotation=key_rotation, value_mean=value_mean, value_rotation=value_rotation,
                     raw_keys=raw_keys, raw_values=raw_values, lengths=lengths, recent_counts=recent_counts, sinks=sinks,
                     block_table=block_table, raw_block_table=raw_block_table)
        self._launch(given | cache_arguments(keys, values), tokens, stream=stream)
        return out_keys, out_values

    def _room(self, keys, values, block_table):
        """Tokens that the cache has room for and the op takes."""
        shape = self._problem["shape"]
        page_tokens = shape.get("page_tokens", 0)
        if page_tokens:
            return min(shape["tokens"], _arrays.shape_of("block_table", block_table, 2)[1] * page_tokens)
        room = [shape["tokens"]]
        for name, each in (("keys", keys), ("values", values)):
            codes = _arrays.shape_of(f"{name}.codes", each.codes)
            if len(codes) not in (4, 6):
                raise BadInput(f"'{name}.codes' has shape {list(codes)}; Op.arguments says what it takes")
            room.append(codes[2] * (codes[4] if len(codes) == 6 else 1))
        return min(room)


class Merge(Op):
    """Results of attention over disjoint sets of tokens become one, by their log-sum-exp."""

    def __call__(self, outs, lses, *, out=None, lse=None, stream: int | None = None):
        """outs: as many arrays as the config has parts, [rows, heads, head_dim] each, in the op's
            dtype and aligned to 16 bytes; as many rows as the config has, or fewer.

        lses: as many, float32 [rows, heads], natural logarithms, as Attention gives them. A part
            whose lse is -inf counts nothing in that row and head, whatever its out holds.
        out, lse: the result; each may be one of outs, or of lses.

        Returns (out, lse), which are made where they are not given.
        """
        parts = self._problem["shape"]["parts"]
        outs, lses = parts_list("outs", outs, parts), parts_list("lses", lses, parts)
        shape = _arrays.shape_of("outs.0", outs[0], 3)
        if out is None:
            out = _arrays.empty(outs[0], shape, self._dtype)
        if lse is None:
            lse = _arrays.empty(outs[0], shape[:2], "f32")
        self._launch(merge_arguments(out, lse, outs, lses), stream=stream)
        return out, lse


class Linear(Op):
    """GEMM or GEMV y = x W^T with quantized weights."""

    def __call__(self, x, weights: Quantized, *, out=None, output_scales=None, expert_rows=None,
                 residual=None, stream: int | None = None):
        """x: [rows, in_features], out (the argument y): [rows, out_features], with a gate half, in the op's dtype;
            as many rows as the config has, or fewer. Returns out, which is made where it is not given.

        output_scales: float32 [out_features], or [experts, out_features], where there are some.
        expert_rows: int32 [experts + 1], of experts: where each one's rows begin, and their end.
        residual: as out, which it may be: is added, where the config has it."""
        rows = _arrays.shape_of("x", x, 2)[0]
        if out is None:
            halves = 1 if self._problem["shape"].get("gate", "none") == "none" else 2
            out = _arrays.empty(x, (rows, self._problem["shape"]["out_features"] // halves), self._dtype)
        given = {"x": x, "y": out, "output_scales": output_scales, "expert_rows": expert_rows, "residual": residual}
        self._launch(given | parts_of("weights", quantized("weights", weights)), stream=stream)
        return out


class WeightRows(Op):
    """Rows of quantized weights as dense ones, for a GEMM of any library."""

    def __call__(self, weights: Quantized, first_row: int = 0, *, rows: int | None = None, out=None,
                 output_scales=None, stream: int | None = None):
        """out: [rows, in_features] in the op's dtype, rows first_row .. first_row + rows - 1 of the
            weights. Returns out, which is made where it is not given.

        rows: without out, by default the config's, or those from first_row on if they are fewer.
        output_scales: float32 [out_features], where there are some.
        """
        weights, shape = quantized("weights", weights), self._problem["shape"]
        first_row = _arrays.whole("first_row", first_row, 0, shape["out_features"])
        if rows is not None:
            rows = _arrays.whole("rows", rows, 0)
        if out is None:
            if rows is None:
                rows = min(shape["rows"], shape["out_features"] - first_row)
            out = _arrays.empty(weights.codes, (rows, shape["in_features"]), self._dtype)
        elif rows is not None and (held := _arrays.shape_of("out", out, 2)[0]) != rows:
            raise BadInput(f"'out' has {held} rows, and rows is {rows}; make them equal")
        given = {"out": out, "output_scales": output_scales} | parts_of("weights", weights)
        self._launch(given, first_row, stream=stream)
        return out


class Scalar(Op):
    """A matrix to or from int8 with a scale for each channel."""

    def __call__(self, matrix, scales=None, *, out=None, stream: int | None = None):
        """matrix: [tokens, channels], aligned to 16 bytes, 0 to the config's tokens; in
            the op's dtype, of int8_dequantize int8.
        scales: float32 [channels]; written, or made here, where the config computes them.

        Returns (codes, scales) of int8_quantize, the elements of int8_dequantize.
        """
        size = _arrays.shape_of("matrix", matrix, 2)
        quantizes = self.name == "int8_quantize"
        shape = self._problem["shape"]
        if scales is None and shape.get("scales") == "computed":
            scales = _arrays.empty(matrix, (shape["channels"],), "f32")
        if out is None:
            out = _arrays.empty(matrix, size, "i8" if quantizes else self._dtype)
        self._launch({"from": matrix, "to": out, "scales": scales}, stream=stream)
        return (out, scales) if quantizes else out


_CLASSES = {"attention_decode": Attention, "kv_append": Append, "kv_dequantize": Dequantize,
            "attention_merge": Merge, "gemv": Linear, "gemm": Linear,
            "int8_quantize": Scalar, "int8_dequantize": Scalar, "weight_dequantize": WeightRows}


class Runtime:
    """One device, where ops are prepared and called.

    device: the number of a GPU, or "host", the CPU, which is slow and judges every access.
    on_miss: what happens where a kernel is in no cache: "compile", "fail", or "fallback", which
        serves a plain kernel until the wanted one is compiled in the background.
    cache_dir: folder of compiled kernels; None for the usual place, "" for none.
    max_buckets: kernels an op at most. threads: that compile those of one op.
    nvrtc, compiler: libnvrtc and the compiler of the host backend; None looks in the usual places.

    Workspaces are the runtime's, one for each stream. Ops keep what they need of it. Synchronize
    before the last of runtime and ops goes. A process that is forked makes its own.
    """

    def __init__(self, device: int | str = 0, *, on_miss: str = "compile",
                 cache_dir: str | os.PathLike | None = None, max_buckets: int = 16,
                 threads: int = 1, nvrtc: str | os.PathLike | None = None,
                 compiler: str | os.PathLike | None = None):
        if on_miss not in _POLICIES:
            raise BadInput(f"on_miss is {on_miss!r}; it is one of {', '.join(_POLICIES)}")
        host = device == "host"
        if not host and (not isinstance(device, int) or isinstance(device, bool)):
            raise BadInput(f"device is {device!r}; it is the number of a GPU, or 'host'")
        self.device = device
        self._core = _core.Runtime(int(host), 0 if host else device, _POLICIES[on_miss], max_buckets,
                                   threads, path_of("cache_dir", cache_dir),
                                   path_of("nvrtc", nvrtc or nvrtc_folder()), path_of("compiler", compiler))

    def attention(self, config: Config, *, stream: int = 0) -> Attention:
        """Prepare the attention of `config`: a dict, a dataclass of vqgen.configs, or a file's path. It is
        compiled, unless memory or cache have it. `stream` is one that may be being captured."""
        return self._prepare(config, ("attention_decode",), stream)

    def append(self, config: Config, *, stream: int = 0) -> Append:
        """Prepare an append, as attention(), of a config of op kv_append."""
        return self._prepare(config, ("kv_append",), stream)

    def dequantize(self, config: Config, *, stream: int = 0) -> Dequantize:
        """Prepare a dequantize, as attention(), of a config of op kv_dequantize."""
        return self._prepare(config, ("kv_dequantize",), stream)

    def merge(self, config: Config, *, stream: int = 0) -> Merge:
        """Prepare a merge, as attention(), of a config of op attention_merge."""
        return self._prepare(config, ("attention_merge",), stream)

    def scalar(self, config: Config, *, stream: int = 0) -> Scalar:
        """Prepare a scalar op, as attention(), of a config of op int8_quantize or int8_dequantize."""
        return self._prepare(config, ("int8_quantize", "int8_dequantize"), stream)

    def linear(self, config: Config, *, stream: int = 0) -> Linear:
        """Prepare a linear op, as attention(), of a config of op gemm or gemv; without an op, whichever
        takes its rows."""
        return self._prepare(config, ("gemm", "gemv"), stream)

    def weight_rows(self, config: Config, *, stream: int = 0) -> WeightRows:
        """Prepare a weight_dequantize, as attention()."""
        return self._prepare(config, ("weight_dequantize",), stream)

    def prefetch(self, configs, threads: int = 1) -> None:
        """Prepares all configs, `threads` at a time, and keeps them."""
        self._core.prefetch([_text(each) for each in configs], threads)

    def enumerate(self, config: Config, least: int, most: int) -> list[dict]:
        """The plans that calls with `least` to `most` tokens or rows can reach; compiles nothing."""
        return json.loads(self._core.enumerate(_text(config), least, most))

    def freeze(self) -> None:
        """From now on an op that this runtime does not have yet raises Miss."""
        self._core.freeze()

    def synchronize(self, stream: int = 0) -> None:
        """Waits for all work on the stream."""
        self._core.synchronize(stream)

    def close(self) -> None:
        """Lets go of the device, once the ops are gone too. Calls raise from here on."""
        self._core.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _prepare(self, config, ops, stream):
        path = isinstance(config, (str, os.PathLike))
        text = os.fsdecode(config) if path else _text(config, ops[0])
        core = self._core.prepare(text, path, stream)
        if core.name not in ops:
            raise BadInput(f"the config is of op {core.name}, and not {' or '.join(ops)}")
        return _CLASSES[core.name](core)
