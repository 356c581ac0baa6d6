"""A Hugging Face model over a quantized KV cache:

    calibrate(model, batches, "codebooks", keys="vecinfer-d4b8i8", values="vecinfer-d4b8i8")
    model.set_attn_implementation("vqgen")
    cache = VQCache(model.config, "codebooks", batch=2, tokens=4096, recent_tokens=128)
    model.generate(**inputs, past_key_values=cache)

Importing this registers the attention function "vqgen" and its masks with transformers. A prompt is
attended to raw and encoded at once; a later part of it attends to the earlier ones decoded; a single
token is encoded, and attends to codes. Padding is never stored. Models are decoders whose layers all
have causal attention, such as Llama's and Qwen's, also within sliding windows or chunks, with a soft cap or
sink logits, as those of Gemma, Llama 4 and GPT-OSS, and prompts whose images or prefixes see later tokens of
their own, as those of PaliGemma and Gemma 3, read in one pass; what else a model asks for is refused by name
(docs/guides/huggingface.md). For inference alone; beams are not reordered.

With `drafts`, generate() takes prompt_lookup_num_tokens or an assistant_model, inside captured().
"""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile

import torch
from transformers import Cache

import vqgen
import vqgen.torch
from vqgen import _appends, _shares, _tool
from vqgen._attention import prompt_attention
from vqgen._bundles import layers_of
from vqgen._calibration import (basis_dtype, can_write, can_write_by_torch, has_basis, require_runs, states_of,
                                write_basis_bundle, write_bundle, write_torch_bundle)
from vqgen._fused import fuse
from vqgen._models import require_served, sizes_text, value_dim_of
from vqgen._paths import require_place
from vqgen._quantizer import load
from vqgen._shares import Shares
from vqgen._sights import Sight
from vqgen._steps import captured
from vqgen._tokens import Tokens, TokensLayer
from vqgen._weights import quantize

__all__ = ["Shares", "VQCache", "calibrate", "captured", "fuse", "klt_format", "layers_of", "load", "quantize"]


class _Layer(TokensLayer):
    is_croppable = True  # by VQCache.crop(), which says what it cannot take back; transformers asks

    def __init__(self, cache: vqgen.torch.VQCache, tokens: Tokens, number: int, query_heads: int, sight: Sight):
        super().__init__(tokens, number, sight)
        self.sinks = None  # logits of the pass that goes on, float32
        self.cache, self.query_heads = cache, query_heads
        self.shapes = [each.shape for each in cache.new_tokens(0)]  # of keys and values, [batch, 0, kv_heads, channels]
        self.held = cache.new_tokens(tokens.drafts + 1) if tokens.drafts else ()
        if self.held:
            self.prepare(tokens.drafts + 1)

    def prepare(self, new_tokens: int, *, decodes: bool = False) -> None:
        """Compiles what appends as many, and with `decodes` what reads them dense; nothing once that is done."""
        configs = [self.cache._append_config(size) for size in _appends.sizes(new_tokens)]
        for config in configs + [self.cache._dequantize_config] * decodes:
            vqgen.torch.prepare(config, self.cache.lengths.device)

    def settle(self) -> None:
        """What stays of the step before is appended."""
        if self.held:
            self.cache.write(*self.held, self.tokens.settled_at, self.tokens.settled)

    def require(self, query, key, value) -> None:
        """Refuses what is not of the cache's batch, heads, dtype and device."""
        like, ((batch, _, kv_heads, head_dim), (*_, value_dim)) = self.cache.keys.codebooks, self.shapes
        for name, each, heads, channels in (("queries", query, self.query_heads, head_dim), ("keys", key, kv_heads, head_dim),
                                            ("values", value, kv_heads, value_dim)):
            if each.shape != (batch, heads, key.shape[2], channels) or each.dtype != like.dtype or (
                    each.device != like.device):
                raise vqgen.BadInput(
                    f"layer {self.number}: {name} [batch, heads, tokens, head_dim] are {list(each.shape)} of {each.dtype} on "
                    f"{each.device}, and the VQCache is of batch {batch}, {heads} heads of {channels}, {like.dtype} on "
                    f"{like.device}; make one for the model and its batch")

    def take_sinks(self, sinks) -> None:
        """The pass's sink logits, or None. Their kernel is compiled in the first pass that has any."""
        if sinks is not None and self.sinks is None:
            self.cache.prepare_sinks()
        self.sinks = None if sinks is None else sinks.detach().float()

    def attend(self, query, key, value, scaling, padding, sinks, sees=None):
        self.require(query, key, value)
        self.take_sinks(sinks)
        tokens, state = key.shape[2], self.tokens
        if self.number == 0:
            if tokens > 1 and (padding is not None or tokens > state.drafts + 1):
                # No step: what can fail does so before anything has changed.
                self.prepare(tokens, decodes=state.seen > 0)
            state.begin(tokens, padding, steps=sees is None)
        self.settle()
        if state.is_step:
            return self.step(query, key, value, scaling)
        if state.order is not None:  # real tokens first
            order = state.order[:, None, :, None]
            query, key, value = (each.take_along_dim(order, 2) for each in (query, key, value))
            if sees is not None:
                sees = sees.take_along_dim(order, 2).take_along_dim(order.mT, 3)
        dense = None
        if tokens > 1 and state.earlier > 0:  # before the raw window is written over
            dense = self.cache.dequantize(state.longest, state.positions, zeroed=False)
        self.cache.write(key.transpose(1, 2), value.transpose(1, 2), state.positions, state.counts)
        if tokens == 1:
            out, _ = self.cache.attend(query[:, :, 0].contiguous(), tokens=state.longest, softmax_scale=scaling,
                                       sink_logits=self.sinks)
            return out[:, None]
        out = prompt_attention(query, key, value, dense, state, scaling, self.sight, self.sinks,
                               sees).transpose(1, 2)
        if state.order is not None:
            out = out.take_along_dim(state.order_back[..., None, None], 1)
        return out.contiguous()

    def step(self, query, key, value, scaling):
        """Tokens attend to the cache and to those before them, and are held."""
        batch, _, tokens, _ = key.shape
        for held, new in zip(self.held, (key, value)):
            held[:, :tokens] = new.transpose(1, 2)
        query, new_keys, new_values = (
            rows.flatten(0, 1).contiguous()
            for rows in (query.transpose(1, 2), *(held[:, :tokens] for held in self.held)))
        out, _ = self.cache.attend(
            query, tokens=self.tokens.longest, softmax_scale=scaling,
            query_start=self.tokens.starts[tokens], new_keys=new_keys, new_values=new_values,
            sink_logits=self.sinks)
        return out.unflatten(0, (batch, tokens))


class VQCache(Cache):
    """The cache of a model, for `past_key_values`.

    config: the model's. codebooks: a bundle that calibrate() or `vqgen quantize` wrote, with an item
    for each layer, in the order of their numbers; or what layers_of() reads of it. A batch has
    `batch` sequences with room for `tokens` each; `recent_tokens` and `sinks` tokens are also in full
    precision, which recent ones leave `flush_block` at a time (docs/guides/kv-cache.md). On `device`, with
    elements of the bundle's dtype, which has to be the model's.

    drafts: tokens, up to 15, that a step may draft, and take back by crop(); it has room for as many
    more. Attention reads the newest tokens in full precision until the next pass appends them. Drafts
    cost least where drafts + 1 is a power of two. batch_invariant: as of vqgen.torch.VQCache; with it, a window larger
    than `drafts` and captured(), greedy tokens with drafts are those without.

    A call that raises leaves the cache as it was, or, where layers have written already, refuses all but
    reset(). copy.deepcopy() and pickle make caches of their own. Raises Infeasible, by name, for a model
    that is not served, when it is made or in the first pass.
    """

    @torch.inference_mode(False)
    def __init__(self, config, codebooks: str | os.PathLike | list, *, batch: int, tokens: int,
                 recent_tokens: int = 0, sinks: int = 0, drafts: int = 0, flush_block: int = 1,
                 batch_invariant: bool = False, device: torch.device | str = "cpu"):
        query_heads, kv_heads, head_dim, sights = require_served(config)
        config = config.get_text_config(decoder=True)
        room = tokens + drafts  # a step has drafts + 1 rows, of which one is real
        self.tokens = Tokens(batch, room, device, drafts, config.num_hidden_layers)
        given = isinstance(codebooks, list)
        items = codebooks if given else layers_of(codebooks)
        source = "what is given" if given else codebooks
        if len(items) != config.num_hidden_layers:
            raise vqgen.BadInput(f"{source} has {len(items)} layers, and the model "
                                 f"{config.num_hidden_layers}; calibrate the model itself")
        self.head_dim, self.value_head_dim = head_dim, value_dim_of(config, head_dim)
        layers = []
        for (item, tensors), sight in zip(items, sights):
            held = item["kv_heads"], item["head_dim"], item.get("value_head_dim", item["head_dim"])
            if held != (kv_heads, head_dim, self.value_head_dim):
                raise vqgen.BadInput(
                    f"{source} is of {held[0]} heads of {sizes_text(*held[1:])}, and the "
                    f"model has {kv_heads} of {sizes_text(head_dim, self.value_head_dim)}; calibrate the model itself")
            on_device = {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}
            layers.append(_Layer(vqgen.torch.VQCache(
                batch=batch, query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim,
                value_head_dim=self.value_head_dim, tokens=room, recent_tokens=recent_tokens, sinks=sinks, query_tokens=drafts + 1,
                flush_block=flush_block, batch_invariant=batch_invariant, keys=item["keys"],
                values=item["values"],
                key_codebooks=on_device["keys.codebooks"],
                value_codebooks=on_device["values.codebooks"],
                key_scales=on_device.get("keys.stage_scales"),
                value_scales=on_device.get("values.stage_scales"),
                key_smooth=on_device.get("keys.smooth"), key_mean=on_device.get("keys.mean"),
                key_rotation=on_device.get("keys.rotation"), key_gain=on_device.get("keys.gain"),
                value_mean=on_device.get("values.mean"), value_rotation=on_device.get("values.rotation"),
                lengths=self.tokens.lengths, **sight.shape), self.tokens, len(layers), query_heads, sight))
        super().__init__(layers=layers)

    @property
    def lengths(self) -> torch.Tensor:
        """int32 [batch], tokens of each sequence, on the device; those that a step holds too."""
        return self.tokens.lengths + self.tokens.held

    def settle(self) -> None:
        """Tokens that the newest step holds are appended, as the next pass would do it."""
        for layer in self.layers:
            with self.tokens.turn(layer.number):
                if layer.number == 0:
                    self.tokens.begin(0, None)
                layer.settle()

    def crop(self, tokens_to_remove: int) -> None:
        """Takes back the newest -tokens_to_remove tokens of each sequence, which have to be of the
        newest step; a positive number is how many are to stay, as transformers has it."""
        tokens_to_remove = int(tokens_to_remove)  # of transformers a number on the device
        self.tokens.take_back(-tokens_to_remove if tokens_to_remove <= 0 else
                              max(self.tokens.seen - tokens_to_remove, 0))

    def bytes_per_token(self) -> float:
        """The bytes that codes take in all layers, for one token of one sequence."""
        return sum(layer.cache.bytes_per_token() for layer in self.layers)

    def bits_per_element(self) -> float:
        """The bits that codes take for one number of a key or value."""
        shape = self.layers[0].cache.keys.codes.shape
        return self.bytes_per_token() * 8 / (len(self.layers) * shape[1] * (self.head_dim + self.value_head_dim))

    def bucket(self, tokens: int) -> int:
        """The tokens up to which every layer attends by the kernels that it has for sequences of `tokens`."""
        kinds = {layer.cache.attention_config: layer.cache for layer in self.layers}  # layers may have formats of their own
        return min(cache.bucket(tokens) for cache in kinds.values())


def klt_format(operand: str, bits: float, head_dim: int) -> dict:
    """The format of "keys" or "values" in a KLT cache: rows less their mean, rotated into eigenvectors of their
    covariance that are mixed so that each code has as much to say. bits: of the cache, the mean of keys and values: 1
    (keys 1.25, values 0.75), 1.5 (2 and 1), 2, 3 (4 and 2) or 4; rows are whole words in each part, so small heads may store
    up to a word more. head_dim: a multiple of 16. Raises BadInput for others. The presets klt-1bit-keys and the like are
    those of 128 channels; from 1.5 bits on they serve any.

    Example: calibrate(model, batches, out, keys=klt_format("keys", 1, 64), values=klt_format("values", 1, 64))
    """
    from vqgen._klt import form_of
    from vqgen._partitions import OF_BITS, runs_of

    if operand not in ("keys", "values") or isinstance(bits, bool) or bits not in list(OF_BITS):
        raise vqgen.BadInput(f"klt_format({operand!r}, {bits!r}): give keys or values, and bits of "
                             f"{', '.join(map(str, OF_BITS))}")
    return form_of(runs_of(OF_BITS[bits][operand == "values"], head_dim))


def calibrate(model, batches, out: str | os.PathLike, *, keys=None, values=None, bits: float | None = None,
              by: str = "loss", seed: int = 1, key_gain: bool = True, rsimvq: dict | None = None,
              start: list | None = None, judged_by=None) -> Shares | None:
    """Trains codebooks of the model's own keys and values, for all layers, and writes a bundle.

    batches: tensors of token numbers [sequences, tokens], without padding. A model that a VQCache would not
    serve is refused before anything is trained. keys, values: formats, as of a config. Of a model on a GPU,
    keys and values stay there, and so does training: through PyTorch for sizes other than 2, 4, 8 and 16. The
    tool trains lattices, layouts and int8 entries of such sizes, and models of float32 or on the CPU. The
    bundle is the same (docs/guides/quantize.md).

    bits: instead of keys and values: layers, keys and values get KLT formats of their own (klt_format()), with
    `bits` stored per element in the mean, at the least sum of what each loses alone; codebooks of the measurement are
    trained on a sample. Returns Shares then, else None. by: "attention" measures the error of the attention's
    output in one pass, which does not make layers comparable; "loss" multiplies it by what it costs the loss of
    the next token, by four passes more for each operand of each layer: the default, since layers are comparable then.

    key_gain: False stores no gain of the keys' entries (docs/guides/quantize.md).

    rsimvq: arguments of vqgen.train_rsimvq(), which trains then, as {"steps": 1000}; of a model of float16 or
    bfloat16. start: layers_of() a bundle by k-means of the same formats, which saves its training. judged_by: as
    batches, of another text, by which steps are judged, or the shares of `bits`; these by default by some 16,384
    tokens of `batches`.

    out: a file, written at the end, whole or not at all. Raises BadInput at once where none can be written.

    Example: print(calibrate(model, batches, "codebooks", bits=2.0)) shows the bits and the rise of each layer.
    """
    if bits is None and (keys is None or values is None):
        raise vqgen.BadInput("calibrate() got neither keys and values nor bits; give both formats, or bits=2.0")
    if bits is None and rsimvq is None and (start is not None or judged_by is not None):
        raise vqgen.BadInput("start and judged_by are of rsimvq, which is not given")
    if bits is not None:
        given = {"keys": keys, "values": values, "rsimvq": rsimvq, "start": start}
        if named := [name for name, each in given.items() if each is not None]:
            raise vqgen.BadInput(f"bits takes no {', '.join(named)}: it chooses the formats; leave either out")
    out = require_place("calibrate(out)", out)
    if bits is not None:
        return _shared(model, batches, out, bits, by, seed, key_gain, judged_by)
    on_device = model.device.type == "cuda"
    if has_basis(keys, values):
        if rsimvq is not None:
            raise vqgen.BadInput("formats with center or klt are trained by k-means; leave rsimvq out")
        write_basis_bundle(out, states_of(model, batches, model.device, keys), itertools.repeat({"keys": keys, "values": values}),
                           seed, key_gain)
        return
    if rsimvq is not None or (on_device and not can_write(model.dtype, keys, values)
                              and can_write_by_torch(model.dtype, keys, values)):
        judges = None if judged_by is None else states_of(model, judged_by, model.device)
        write_torch_bundle(out, states_of(model, batches, model.device, keys), keys, values, seed, rsimvq, start,
                           judges, key_gain)
        return
    on_device = on_device and can_write(model.dtype, keys, values)
    if not on_device:
        _tool.path()  # refuses a missing tool before the model runs
    layers = states_of(model, batches, model.device if on_device else "cpu", keys)
    (write_bundle if on_device else _quantize)(out, layers, keys, values, seed, key_gain)


def _shared(model, batches, out, bits, by, seed, key_gain, judged_by) -> Shares:
    _, heads, head_dim, _ = require_served(model.config)
    _shares.require_one_size(head_dim, value_dim_of(model.config.get_text_config(decoder=True), head_dim))
    _shares.require(head_dim, bits, by)
    dtype = basis_dtype(model.dtype)
    forms = {operand: klt_format(operand, 2, head_dim) for operand in ("keys", "values")}
    require_runs(forms, dtype, model.device, {"kv_heads": heads, "head_dim": head_dim}, 1024)  # before minutes of measurement
    batches = list(batches)
    judges = _shares.judging(batches, judged_by)
    layers = list(states_of(model, batches, model.device, forms["keys"]))
    rises = _shares.measured(model, layers, judges, by, seed, key_gain)
    shares = _shares.shared(rises, bits, by, head_dim)
    write_basis_bundle(out, layers, shares.formats(), seed, key_gain)
    return shares


def _quantize(out, layers, keys, values, seed, key_gain=True):
    import json

    from safetensors.torch import save_file
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "calibration.safetensors")
        save_file({f"layer{number}.{name}": states for number, layer in enumerate(layers)
                   for name, states in zip("kv", layer)}, file)

        def text(form):
            return form if isinstance(form, str) else json.dumps(form)

        done = subprocess.run(
            [_tool.path(), "quantize", "--input", file, "--out", os.fspath(out), "--seed", str(seed),
             "--keys", "layer*.k", "--key-format", text(keys), "--values", "layer*.v",
             "--value-format", text(values), *(() if key_gain else ("--no-key-gain",))], capture_output=True, text=True)
    if done.returncode != 0:
        raise vqgen.Error(done.stderr.strip().splitlines()[-1].removeprefix("vqgen: ") if done.stderr.strip() else
                          f"vqgen quantize ended with {done.returncode}")
