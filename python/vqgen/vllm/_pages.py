"""A paged cache of codes under an engine: its kernels, which all layers share, and the codebooks of one layer."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

import vqgen
import vqgen.torch
from vqgen import _basis
from vqgen._appends import power_of_two
from vqgen._sights import Sight
from vqgen.vllm._batch import Batch
from vqgen.vllm._rows import Fused, first

PAGES = (16, 32, 64, 128, 256)
HEAD_DIMS = (64, 80, 96, 112, 128, 160, 192, 256)
MOST_NEW = 65536   # new_tokens of a kv_append
MOST_QUERIES = 16  # query_tokens of an attention_decode
PIECE = 16384      # tokens of a context that are dense at once


@dataclass(frozen=True)
class Shape:
    """A rank's part of a cache. tokens: that a sequence has room for, whole pages. sequences: of a step, at most.
    prompt_tokens: rows of a step, at most. piece_tokens: of a context that are dense at once, whole pages.
    recent_tokens: the newest, which are read in full precision, in pages of raw_page_tokens."""

    query_heads: int
    kv_heads: int
    head_dim: int
    page_tokens: int
    tokens: int
    sequences: int
    prompt_tokens: int
    query_tokens: int = 1
    piece_tokens: int = PIECE
    recent_tokens: int = 0
    raw_page_tokens: int = 0


def append_sizes(prompt_tokens: int) -> list[int]:
    """The new_tokens of the kernels that append prompts: powers of four from 64 on, and all rows of a step."""
    sizes = [64 * 4 ** n for n in range(8) if 64 * 4 ** n < prompt_tokens]
    return [*sizes, prompt_tokens]


class Kernels:
    """All kernels that a cache of `shape` will need, compiled and loaded when this is made.

    keys, values: formats with all their fields, as a bundle has them. sights: those of the layers, each of which
    has kernels of attention of its own. Raises Infeasible, by name, for formats that an engine's pages cannot hold
    and for what no kernel can do on `device`.
    """

    def __init__(self, shape: Shape, keys: dict, values: dict, dtype: torch.dtype, device: torch.device,
                 sights: tuple[Sight, ...] = (Sight(),)):
        require_pages(shape, keys, values)
        self.shape, self.dtype, self.device = shape, dtype, torch.device(device)
        self.keys, self.values = keys, values
        self.sizes = [1 << n for n in range(power_of_two(shape.sequences).bit_length())]
        self.append_sizes = append_sizes(shape.prompt_tokens)
        cache = {"kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "page_tokens": shape.page_tokens}
        if shape.recent_tokens:
            cache |= {"recent_tokens": shape.recent_tokens, "raw_page_tokens": shape.raw_page_tokens}
        self._both = {"dtype": vqgen.torch.DTYPES[dtype], "keys": keys, "values": values}
        whole, step = {**cache, "tokens": shape.tokens}, shape.query_tokens
        # The first of several query tokens has a window further back.
        recent = {"recent_tokens": shape.recent_tokens + step - 1} if shape.recent_tokens else {}
        self._configs = {("attention", sight, size): self._config(
            "attention_decode", {**whole, **recent, **sight.shape, "batch": size, "query_heads": shape.query_heads,
                                 "query_tokens": step}) for sight in sights for size in self.sizes}
        self._configs |= {("append", size, step): self._config(
            "kv_append", {**whole, "batch": size, "new_tokens": step}) for size in self.sizes}
        self._configs |= {("append", 1, size): self._config("kv_append", {**whole, "batch": 1, "new_tokens": size})
                          for size in self.append_sizes}
        self._configs["dequantize"] = self._config(
            "kv_dequantize", {**cache, "batch": 1, "tokens": min(shape.piece_tokens, shape.tokens)})
        self._configs["merge"] = vqgen.torch.config_text(
            {"op": "attention_merge", "dtype": self._both["dtype"], "shape": {
                "rows": shape.prompt_tokens, "heads": shape.query_heads, "head_dim": shape.head_dim, "parts": 2}})
        runtime = vqgen.torch.runtime(self.device)
        runtime.prefetch(map(vqgen.torch.parsed, dict.fromkeys(self._configs.values())),
                         threads=min(16, os.cpu_count() or 1))
        self._ops = {name: vqgen.torch.prepare(config, self.device) for name, config in self._configs.items()}
        self.fused = {size: Fused(size, shape.query_heads, shape.kv_heads, self.device) for size in self.sizes[1:]}
        self.arguments = {each.name: each.shape for each in self._ops["append", 1, step].arguments}
        self.key_words, self.value_words = (self.arguments[f"{name}.codes"][-1] for name in ("keys", "values"))
        counts = lambda tokens, size: torch.full((size,), tokens, dtype=torch.int32, device=self.device)
        # A decode reads all of its window; the context of a later token has one less, since that token is in its window.
        self.recent, self.recent_before = counts(shape.recent_tokens, self.sizes[-1]), counts(max(shape.recent_tokens - 1, 0), 1)
        like = dict(dtype=dtype, device=self.device)
        self.lse = torch.empty(self.sizes[-1] * step, shape.query_heads, dtype=torch.float32, device=self.device)
        self.dense = torch.empty(2, shape.kv_heads * min(shape.piece_tokens, shape.tokens) * shape.head_dim, **like)

    def _config(self, op, shape):
        return vqgen.torch.config_text({"op": op, **self._both, "shape": shape})

    def __call__(self, *name) -> vqgen.Op:
        return self._ops[name if len(name) > 1 else name[0]]

    def size(self, sequences: int) -> int:
        """The batch of the kernels for as many sequences that decode."""
        size = power_of_two(sequences)
        if size > self.sizes[-1]:
            raise vqgen.RangeError(f"a step decodes {sequences} sequences, and kernels are prepared for {self.sizes[-1]}; "
                                   "raise max_num_seqs")
        return size

    def append_size(self, rows: int) -> int:
        return next(size for size in self.append_sizes if size >= rows)

    def cache_shape(self, pages: int) -> tuple[int, int, int, int]:
        """The shape of a layer's pages, int32: each token has, in each head, the codes of its key and then of its value."""
        return pages, self.shape.kv_heads, self.shape.page_tokens, self.key_words + self.value_words

    def raw_shape(self, pages: int) -> tuple[int, int, int, int]:
        """The shape of a layer's raw pages, of the model's dtype: each token has its key and then its value."""
        return pages, self.shape.kv_heads, self.shape.raw_page_tokens, 2 * self.shape.head_dim

    @property
    def token_bytes(self) -> int:
        """The bytes that one token takes in one head of one layer."""
        return 4 * (self.key_words + self.value_words)


def require_pages(shape: Shape, keys: dict, values: dict) -> None:
    """Refuse, by name, what an engine's pages cannot hold."""
    for name, form in (("keys", keys), ("values", values)):
        if form.get("group_tokens"):
            raise vqgen.Infeasible(f"bundle: {name} are encoded {form['group_tokens']} tokens at a time (group_tokens), "
                                   "and wait for that in slots, which vqgen.vllm has none of; calibrate vecinfer-d4b8i8")
        if (form.get("layout") or {}).get("rows", 1) > 1:
            raise vqgen.Infeasible(f"bundle: {name} are laid out in groups of {form['layout']['rows']} rows, and vqgen.vllm "
                                   "takes plain rows; calibrate without 'layout'")
    if shape.head_dim not in HEAD_DIMS:
        raise vqgen.Infeasible(f"model: head_dim {shape.head_dim} is none of {', '.join(map(str, HEAD_DIMS))}; "
                               "take another attention backend")
    if shape.page_tokens not in PAGES:
        raise vqgen.Infeasible(f"block_size: {shape.page_tokens} is none of {', '.join(map(str, PAGES))}; set one of these")
    if not 1 <= shape.query_tokens <= MOST_QUERIES:
        raise vqgen.Infeasible(f"speculative_config: a step verifies {shape.query_tokens} tokens of a sequence, and kernels "
                               f"take {MOST_QUERIES}; set num_speculative_tokens to at most {MOST_QUERIES - 1}")
    if shape.prompt_tokens > MOST_NEW:
        raise vqgen.Infeasible(f"max_num_batched_tokens: {shape.prompt_tokens} is more than {MOST_NEW}, which an append "
                               f"takes; set at most {MOST_NEW}")


def of_heads(form: dict, tensors: dict, name: str, kv_heads: int, head_dim: int, first: int, count: int) -> dict:
    """The tensors of an operand, "keys" or "values", that the KV heads [first, first + count) of `kv_heads` need."""
    parts = _basis.parts_of(form, head_dim)
    units = [_basis.units_of(part, kv_heads) for part in parts]
    own = lambda each: each if len(each) % kv_heads else (  # one unit for all heads, or as many for each
        each.unflatten(0, (kv_heads, -1))[first:first + count].flatten(0, 1))

    out = {}
    for key, tensor in tensors.items():
        operand, _, what = key.partition(".")
        if operand != name:
            continue
        if what in ("smooth", "mean", "rotation"):
            tensor = tensor[first:first + count]
        elif what == "gain":
            tensor = torch.cat([own(each) for each in tensor.split(units)])
        elif what == "stage_scales" and form.get("parts"):
            tensor = torch.cat([own(each).flatten() for each in _basis.scales_of_parts(parts, tensor, kv_heads)])
        elif what == "codebooks" and form.get("parts"):
            tensor = torch.cat([own(books).flatten() for _, books in _basis.books_of_parts(parts, tensor, kv_heads)])
        else:
            tensor = own(tensor)
        out[key] = tensor
    return out


class Raw:
    """The full-precision tokens of a layer, for one step. pages: as of Kernels.raw_shape(); each new token is written,
    and only those of the window are read. table: int32 [sequences, columns], of the step's sequences."""

    def __init__(self, pages: torch.Tensor, table: torch.Tensor):
        head_dim = pages.shape[-1] // 2
        self._held = pages, table
        self._pages = {"raw_keys": pages[..., :head_dim], "raw_values": pages[..., head_dim:]}
        self._decoding = {}  # tables of the first sequences, by their number

    def is_of(self, pages: torch.Tensor, table: torch.Tensor) -> bool:
        return self._held[0] is pages and self._held[1] is table

    def rows(self, sequences: slice, recent=None, column: int = 0) -> dict:
        """Arguments of an op for those sequences, from a column of their table on. recent: the op's recent_counts."""
        if sequences.start is None:
            table = self._decoding.get(sequences.stop)
            if table is None:
                table = self._decoding[sequences.stop] = self._held[1][sequences]
        else:
            table = self._held[1][sequences, column:].contiguous()
        return {**self._pages, "raw_block_table": table, **({} if recent is None else {"recent_counts": recent})}


class _NoRaw:
    def rows(self, *_) -> dict:
        return {}


_NO_RAW = _NoRaw()


class Layer:
    """The cache of one layer in an engine's pages: codebooks, and what a step does with them.

    tensors: of the bundle's item, by name, of this rank's heads; they are copied to the kernels' device.
    attend: full-precision attention of new tokens, attend(query, key, value, query_starts, key_starts, most_query,
    most_key, causal, scale, left, softcap) -> (out [rows, query_heads, head_dim], lse float32 [query_heads, rows]).
    The last of n query rows is beside the last of k keys: row i sees keys from i + k - n - left on, or all if left
    is -1; causal: up to i + k - n. softcap bounds scores unless it is 0.
    sight: of the kernels' sights. sinks: [query_heads], logits that add to the denominators, if it has any.
    """

    @torch.inference_mode(False)
    def __init__(self, kernels: Kernels, tensors: dict, attend, scale: float, sight: Sight = Sight(), sinks=None):
        self.kernels, self.attend, self.scale, self.sight = kernels, attend, scale, sight
        self.sinks = None if sinks is None else sinks.detach().to(kernels.device, torch.float32, copy=True)
        held = {name: tensor.to(kernels.device, copy=True) for name, tensor in tensors.items()}
        for name, shape in kernels.arguments.items():
            kind = name.split(".")[-1]
            if kind in ("codebooks", "scales"):
                given = held.get(name.replace(".scales", ".stage_scales"))
                if given is None or tuple(given.shape) != tuple(shape):
                    raise vqgen.BadInput(f"bundle: {name} are {'missing' if given is None else list(given.shape)}, and the "
                                         f"kernels of this rank take {list(shape)}; calibrate again")
        for name in ("key", "value"):
            _basis.require(name, held.get(f"{name}s.mean"), held.get(f"{name}s.rotation"))
        self.transforms = {"key_smooth": held.get("keys.smooth"), "key_mean": held.get("keys.mean"),
                           "key_rotation": held.get("keys.rotation"), "value_mean": held.get("values.mean"),
                           "value_rotation": held.get("values.rotation")}
        # Codes are the nearest entries without the gain; attention reads entries with it.
        self._encode = held["keys.codebooks"], held.get("keys.stage_scales")
        self._read = self._encode if held.get("keys.gain") is None else _basis.with_gain(
            kernels.keys, *self._encode, held["keys.gain"], kernels.shape.kv_heads)
        self._values = held["values.codebooks"], held.get("values.stage_scales")
        self._pages = self._held = None

    def forward(self, batch: Batch, query, key, value, pages, output, raw: Raw | None = None) -> None:
        """Encode the new tokens of all sequences into `pages`, then attend.

        query, output: [rows, query_heads, head_dim]; key, value: [rows, kv_heads, head_dim]; rows may be strided views
        and more than the batch has. pages: int32, of Kernels.cache_shape(). Sequences of one batch may share pages
        that another of them fills: all is written before anything is read. raw: where the full-precision tokens are,
        if the cache has recent_tokens.
        """
        written, read = self._caches(pages)
        raw, asked = raw or _NO_RAW, query
        if batch.decodes:
            asked, *new = self._decoding_rows(batch, query, key, value)
            self._append_decodes(batch, *new, written, raw)
        if batch.prompts:
            self._append_prompts(batch, key, value, written, raw)
        if batch.decodes:
            self._decode(batch, asked, read, output, raw)
        if batch.prompts:
            self._attend_prompts(batch, query, key, value, read, output, raw)

    def _caches(self, pages):
        """((keys, values) to write, (keys, values) to read), made once for an engine's tensor."""
        if self._pages is not pages:
            words = self.kernels.key_words
            keys, values = pages[..., :words], vqgen.Quantized(pages[..., words:], *self._values)
            self._held = (vqgen.Quantized(keys, *self._encode), values), (vqgen.Quantized(keys, *self._read), values)
            self._pages = pages
        return self._held

    def _decoding_rows(self, batch, query, key, value):
        """Queries, keys and values of the sequences that decode, contiguous: ops take no strides."""
        step, size = self.kernels.shape.query_tokens, self.kernels.size(batch.decodes)
        if step > 1:  # queries are flat rows, as many as there are; an append takes [batch, new_tokens]
            gather = batch.decoding(size)["gather"]
            return query[:batch.decode_rows].contiguous(), *(
                each.index_select(0, gather).unflatten(0, (size, step)) for each in (key, value))
        fused = self.kernels.fused.get(size)
        parts = fused and fused.parts(query, key, value)
        query, *new = parts or (first(each, size) for each in (query, key, value))
        return query, *(each.unsqueeze(1) for each in new)

    def _append_decodes(self, batch, key, value, caches, raw):
        size = len(key)
        own = batch.decoding(size)
        self.kernels("append", size, self.kernels.shape.query_tokens)(
            key, value, own["positions"], *caches, counts=own["counts"], block_table=own["table"], **raw.rows(slice(size)),
            **self.transforms)

    def _append_prompts(self, batch, key, value, caches, raw):
        begin, ends = batch.prompts[0].first, []
        for prompt in batch.prompts:
            ends.append(prompt.first - begin + self.kernels.append_size(prompt.rows))
        # One copy for all prompts, long enough that each has the rows of its kernel: those beyond its own do not count.
        new = [first(each[begin:], max(ends)) for each in (key, value)]
        for prompt, end in zip(batch.prompts, ends):
            one, size = slice(prompt.sequence, prompt.sequence + 1), self.kernels.append_size(prompt.rows)
            self.kernels("append", 1, size)(
                *(each[None, end - size:end] for each in new), batch.positions[one], *caches,
                counts=batch.new_tokens[one], block_table=batch.table[one], **raw.rows(one), **self.transforms)

    def _decode(self, batch, query, caches, output, raw):
        size, rows = self.kernels.size(batch.decodes), batch.decode_rows
        own, more = batch.decoding(size), raw.rows(slice(size), self.kernels.recent[:size])
        held = len(query)
        if self.kernels.shape.query_tokens > 1:
            more["query_start"] = own["starts"]
        if self.sinks is not None:
            more["sink_logits"] = self.sinks
        # Rows behind those that decode are written too: prompts write theirs later, and padding is nobody's.
        in_place = held <= len(output) and output.is_contiguous()
        out = output[:held] if in_place else torch.empty_like(query)
        self.kernels("attention", self.sight, size)(query, *caches, own["lengths"], out=out, lse=self.kernels.lse[:held],
                                        block_table=own["table"], tokens=batch.tokens, softmax_scale=self.scale,
                                        **self.transforms, **more)
        if not in_place:
            output[:rows].copy_(out[:rows])

    def _attend_prompts(self, batch, query, key, value, caches, output, raw):
        first, rows, longest = batch.prompts[0].first, batch.rows, batch.longest_prompt
        left = self.sight.sliding_window - 1  # -1 without a window, as `attend` has it
        out, lse = self.attend(query[first:rows], key[first:rows], value[first:rows], batch.prompt_starts,
                               batch.prompt_starts, longest, longest, True, self.scale, left, self.sight.logit_softcap)
        if self.sinks is not None or any(prompt.pieces for prompt in batch.prompts):
            lse = lse.t().contiguous()
        for prompt in batch.prompts:
            own = slice(prompt.first - first, prompt.first - first + prompt.rows)
            for piece in prompt.pieces:
                self._merge_piece(prompt, piece, query[prompt.first:prompt.first + prompt.rows], caches, out[own], lse[own], raw)
        if self.sinks is not None:  # once, since parts are merged without
            out.mul_(torch.sigmoid(lse - self.sinks)[..., None])
        output[first:rows].copy_(out)

    def _merge_piece(self, prompt, piece, query, caches, out, lse, raw):
        """Attend to a piece of the context, made dense, and merge the result into out and lse."""
        rows, left, starts = prompt.rows, -1, prompt.starts
        if self.sight.sliding_window:
            newest = piece.begin + piece.tokens - prompt.before + self.sight.sliding_window - 1
            rows = min(rows, newest)  # those that see the piece's last token
            if rows <= 0:
                return
            left = newest - rows
            starts = starts if rows == prompt.rows else starts.clamp(max=rows)
        shape = 1, self.kernels.shape.kv_heads, piece.tokens, self.kernels.shape.head_dim
        dense = [each[:shape[1] * shape[2] * shape[3]].view(shape) for each in self.kernels.dense]
        self.kernels("dequantize")(*caches, piece.lengths, out_keys=dense[0], out_values=dense[1],
                                   block_table=piece.table.contiguous(), tokens=piece.tokens, **self.transforms,
                                   **raw.rows(slice(prompt.sequence, prompt.sequence + 1), self.kernels.recent_before,
                                              piece.begin // max(self.kernels.shape.raw_page_tokens, 1)))
        part, part_lse = self.attend(query[:rows], *(each[0].transpose(0, 1) for each in dense), starts, piece.starts,
                                     rows, piece.tokens, False, self.scale, left, self.sight.logit_softcap)
        out, lse = out[:rows], lse[:rows]
        self.kernels("merge")([out, part], [lse, part_lse.t().contiguous()], out=out, lse=lse)


def warm(kernels: Kernels, layer: Layer) -> None:
    """Launch every kernel of the layer once for inactive sequences, so that modules and workspaces are there, and what
    cannot run on the pages is refused now."""
    shape, device = kernels.shape, kernels.device
    pages = torch.zeros(kernels.cache_shape(1), dtype=torch.int32, device=device)
    new = lambda *heads: torch.zeros(*heads, shape.head_dim, dtype=kernels.dtype, device=device)
    caches, _ = layer._caches(pages)
    columns, raw = shape.tokens // shape.page_tokens, _NO_RAW
    if shape.recent_tokens:
        raw = Raw(torch.zeros(kernels.raw_shape(1), dtype=kernels.dtype, device=device),
                  torch.zeros(kernels.sizes[-1], -(-shape.tokens // shape.raw_page_tokens), dtype=torch.int32, device=device))
    for name in kernels._ops:
        if name[0] == "append":
            _, size, step = name
            rows = new(size, step, shape.kv_heads)
            whole = torch.full((size,), -1, dtype=torch.int32, device=device)
            kernels(*name)(rows, rows, whole, *caches, counts=torch.zeros_like(whole), **layer.transforms,
                           **raw.rows(slice(size)), block_table=whole.new_zeros(size, columns))
        elif name[:2] == ("attention", layer.sight):
            rows, whole = new(name[2], shape.query_heads), torch.zeros(name[2], dtype=torch.int32, device=device)
            more = raw.rows(slice(name[2]), kernels.recent[:name[2]])
            if shape.query_tokens > 1:
                more["query_start"] = whole.new_zeros(name[2] + 1)
            if layer.sinks is not None:
                more["sink_logits"] = layer.sinks
            kernels(*name)(rows, *caches, whole, block_table=whole.new_zeros(name[2], columns), **layer.transforms, **more)
    whole = torch.zeros(1, dtype=torch.int32, device=device)
    kernels("dequantize")(*caches, whole, block_table=whole.new_zeros(1, 1), tokens=1, **layer.transforms,
                          **raw.rows(slice(1), kernels.recent_before))
    rows, lse = new(1, shape.query_heads), torch.zeros(1, shape.query_heads, dtype=torch.float32, device=device)
    kernels("merge")([rows, rows.clone()], [lse, lse.clone()])

