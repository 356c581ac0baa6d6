"""A Hugging Face model over a quantized KV cache:

    calibrate(model, batches, "codebooks", keys="vecinfer-d4b8i8", values="vecinfer-d4b8i8")
    model.set_attn_implementation("vqgen")
    cache = VQCache(model.config, "codebooks", batch=2, tokens=4096, window=128)
    model.generate(**inputs, past_key_values=cache)

Importing this registers the attention function "vqgen" and its masks with transformers. A prompt is
attended to raw and encoded at once; a later part of it attends to the earlier ones decoded; a single
token is encoded, and attends to codes. Padding is never stored. Models are those whose attention
calls its attention function with rotated keys, such as Llama's and Qwen's. For inference alone; beams
are not reordered.

With `drafts`, generate() takes prompt_lookup_num_tokens or an assistant_model, inside captured().
"""

from __future__ import annotations

import os
import subprocess
import tempfile

import torch
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.cache_utils import CacheLayerMixin
from transformers.masking_utils import flash_attention_mask

import vqgen
import vqgen.torch
from vqgen import _tool
from vqgen._calibration import can_write, can_write_by_torch, states_of, write_bundle, write_torch_bundle
from vqgen._models import heads_of
from vqgen._steps import captured

__all__ = ["VQCache", "calibrate", "captured", "layers_of"]


class Tokens:
    """How many tokens the sequences have, which all layers share; and what the layers share of the
    prompt that is being read. With `drafts`, a pass over up to drafts + 1 tokens is a step: they are
    held beside the cache until the next pass, which appends what was not taken back meanwhile."""

    @torch.inference_mode(False)  # as of vqgen.torch.VQCache
    def __init__(self, batch: int, room: int, device, drafts: int = 0):
        self.room, self.drafts = room, drafts
        self.seen = 0  # of the batch so far, with padding
        self.earlier = 0  # what it was before the pass that goes on
        self.padded = False  # some sequence is shorter than `seen`
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=device)  # in the cache
        self.positions = torch.zeros_like(self.lengths)  # of each sequence's first new token
        self.counts = self.order = self.order_back = None
        self.is_step = False  # the pass that goes on
        self.held = torch.zeros_like(self.lengths)  # tokens of the newest step
        self.most_taken_back = 0
        # How many of the step before are appended, and where.
        self.settled, self.settled_at = torch.zeros_like(self.held), torch.zeros_like(self.held)
        self.starts = {tokens: torch.arange(batch + 1, dtype=torch.int32, device=device) * tokens
                       for tokens in range(1, drafts + 2)}  # of each sequence's rows in a step

    @property
    def longest(self) -> int:
        """No sequence is longer."""
        return min(self.seen, self.room)

    def require_room(self, tokens: int, counts=None) -> None:
        """For as many more; counts: int32 [batch], where sequences get fewer."""
        if self.seen + tokens > self.room:
            new = tokens if counts is None else counts
            if (self.lengths + self.held + new > self.room).any():
                raise vqgen.RangeError(f"the cache has room for {self.room} tokens a sequence, and "
                                       "they are more now; make a larger one")

    def begin(self, tokens: int, padding) -> None:
        """A forward pass over `tokens` more. padding: [batch, tokens], true where one is real."""
        self.counts = self.order = self.order_back = None
        if tokens > 1 and padding is not None:
            real = padding[:, -tokens:].bool()
            self.counts = real.sum(1, dtype=torch.int32)
            self.order = real.long().argsort(dim=1, descending=True, stable=True)
            self.order_back = self.order.argsort(1)
            self.padded = True
        self.require_room(tokens, self.counts)
        self.is_step = self.counts is None and tokens <= self.drafts + 1 and self.drafts > 0
        if self.drafts:
            self.settled_at.copy_(self.lengths)
            self.settled.copy_(self.held)
            self.lengths.add_(self.held)
            self.held.fill_(tokens if self.is_step else 0)
        self.positions.copy_(self.lengths)
        if not self.is_step:
            self.lengths.add_(tokens if self.counts is None else self.counts)
        self.earlier = self.seen
        self.seen += tokens
        self.most_taken_back = tokens if self.is_step else 0

    def stepped(self, before: int, tokens: int) -> None:
        """A step was of `tokens`, and `before` of the batch came before it; what its rows have beyond
        is taken back."""
        self.seen = before + tokens
        if self.drafts:
            self.held.fill_(tokens)
            self.most_taken_back = tokens

    def take_back(self, tokens: int) -> None:
        """The newest of each sequence, which a step held."""
        if tokens > self.most_taken_back:
            raise vqgen.Infeasible(
                f"{tokens} tokens are to be taken back, and the cache can take back "
                f"{self.most_taken_back}: make it with drafts of as many tokens, and generate inside "
                "vqgen.hf.captured()")
        self.held.sub_(tokens)
        self.seen -= tokens
        self.most_taken_back -= tokens

    def reset(self) -> None:
        self.seen, self.padded, self.most_taken_back = 0, False, 0
        self.lengths.zero_()
        self.held.zero_()

    def kept(self):
        """What restore() brings back, where no tokens are held."""
        return self.seen, self.lengths.clone()

    def restore(self, kept) -> None:
        self.seen = kept[0]
        self.lengths.copy_(kept[1])
        self.held.zero_()


class TokensLayer(CacheLayerMixin):
    """One layer of a cache whose layers share their Tokens; the first one counts. What update() hands
    on is met again by the attention function, as `vqgen_layer` of the keys."""

    def __init__(self, tokens: Tokens, first: bool):
        super().__init__()
        self.tokens, self.first, self.is_initialized = tokens, first, True

    def lazy_initialization(self, key_states, value_states):
        pass

    def update(self, key_states, value_states, *_, **__):
        key_states.vqgen_layer = self
        return key_states, value_states

    def get_mask_sizes(self, query_length):
        return self.tokens.seen + query_length, 0

    def get_seq_length(self):
        return self.tokens.seen

    def get_max_length(self):
        return self.tokens.room

    def reset(self):
        self.tokens.reset()


class _Layer(TokensLayer):
    is_croppable = True  # by VQCache.crop(), which says what it cannot take back; transformers asks

    def __init__(self, cache: vqgen.torch.VQCache, tokens: Tokens, first: bool):
        super().__init__(tokens, first)
        self.cache = cache
        self.held = cache.new_tokens(tokens.drafts + 1) if tokens.drafts else ()

    def settle(self) -> None:
        """What stays of the step before is appended."""
        if self.held:
            self.cache.write(*self.held, self.tokens.settled_at, self.tokens.settled)

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
            query_start=self.tokens.starts[tokens], new_keys=new_keys, new_values=new_values)
        return out.unflatten(0, (batch, tokens))

    def reorder_cache(self, beam_idx):
        raise vqgen.Infeasible("a VQCache cannot be reordered; generate without beams")


class VQCache(Cache):
    """The cache of a model, for `past_key_values`.

    config: the model's. codebooks: a bundle that calibrate() or `vqgen quantize` wrote, with an item
    for each layer, in the order of their numbers; or what layers_of() reads of it. A batch has
    `batch` sequences with room for `tokens` each; `window` and `sinks` tokens are kept raw too, and
    those of the window leave it `window_batch` at a time (docs/embedding.md). On `device`, with
    elements of the bundle's dtype, which has to be the model's.

    drafts: tokens, up to 15, that a step may draft, and take back by crop(); it has room for as many
    more. The newest tokens are attended to raw until the next pass appends them. Where drafts + 1 is
    a power of two they cost least. independent: as of vqgen.torch.VQCache; with it, a window larger
    than `drafts` and captured(), greedy tokens with drafts are those without.
    """

    @torch.inference_mode(False)
    def __init__(self, config, codebooks: str | os.PathLike | list, *, batch: int, tokens: int,
                 window: int = 0, sinks: int = 0, drafts: int = 0, window_batch: int = 1,
                 independent: bool = False, device: torch.device | str = "cpu"):
        config = config.get_text_config(decoder=True)
        room = tokens + drafts  # a step has drafts + 1 rows, of which one is real
        self.tokens = Tokens(batch, room, device, drafts)
        given = isinstance(codebooks, list)
        items = codebooks if given else layers_of(codebooks)
        source = "what is given" if given else codebooks
        if len(items) != config.num_hidden_layers:
            raise vqgen.BadInput(f"{source} has {len(items)} layers, and the model "
                                 f"{config.num_hidden_layers}; calibrate the model itself")
        query_heads, kv_heads, head_dim = heads_of(config)
        self.head_dim = head_dim
        layers = []
        for item, tensors in items:
            if (item["kv_heads"], item["head_dim"]) != (kv_heads, head_dim):
                raise vqgen.BadInput(
                    f"{source} is of {item['kv_heads']} heads of {item['head_dim']}, and the "
                    f"model has {kv_heads} of {head_dim}; calibrate the model itself")
            on_device = {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}
            layers.append(_Layer(vqgen.torch.VQCache(
                batch=batch, query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim,
                tokens=room, window=window, sinks=sinks, query_tokens=drafts + 1,
                window_batch=window_batch, independent=independent, keys=item["keys"],
                values=item["values"],
                key_codebooks=on_device["keys.codebooks"],
                value_codebooks=on_device["values.codebooks"],
                key_scales=on_device.get("keys.stage_scales"),
                value_scales=on_device.get("values.stage_scales"),
                key_smooth=on_device.get("keys.smooth"), lengths=self.tokens.lengths),
                self.tokens, first=not layers))
        super().__init__(layers=layers)

    @property
    def lengths(self) -> torch.Tensor:
        """int32 [batch], tokens of each sequence, on the device; those that a step holds too."""
        return self.tokens.lengths + self.tokens.held

    def settle(self) -> None:
        """Tokens that the newest step holds are appended, as the next pass would do it."""
        self.tokens.begin(0, None)
        for layer in self.layers:
            layer.settle()

    def crop(self, tokens_to_remove: int) -> None:
        """Takes back the newest -tokens_to_remove tokens of each sequence, which have to be of the
        newest step; a positive number is how many are to stay, as transformers has it."""
        tokens_to_remove = int(tokens_to_remove)  # of transformers a number on the device
        self.tokens.take_back(-tokens_to_remove if tokens_to_remove <= 0 else
                              max(self.tokens.seen - tokens_to_remove, 0))

    def bytes_per_token(self) -> float:
        """Of codes in all layers, for one token of one sequence."""
        return sum(layer.cache.bytes_per_token() for layer in self.layers)

    def bits_per_element(self) -> float:
        """Of codes, for one number of a key or value."""
        shape = self.layers[0].cache.keys.codes.shape
        return self.bytes_per_token() * 8 / (len(self.layers) * 2 * shape[1] * self.head_dim)

    def bucket(self, tokens: int) -> int:
        """The tokens of the kernel by which sequences of up to `tokens` are attended to."""
        return self.layers[0].cache.bucket(tokens)


def layers_of(path) -> list[tuple[dict, dict]]:
    """The attention items of a bundle, in the order of their numbers, each with its tensors but the
    codes, by name."""
    import re

    bundle = vqgen.torch.read_bundle(path)
    items = [item for item in bundle if item["kind"] == "attention"]
    items.sort(key=lambda item: [int(number) for number in re.findall(r"\d+", item["name"])])
    wanted = [f"{operand}.{name}" for operand in ("keys", "values")
              for name in ("codebooks", "stage_scales", "smooth")]
    return [(item, vqgen.torch.bundle_tensors(path, item["name"], wanted)) for item in items]


def _attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0,
               sliding_window=None, softcap=None, **_):
    layer = getattr(key, "vqgen_layer", None)
    if layer is None:
        raise vqgen.BadInput("attention 'vqgen' got no VQCache; pass one as past_key_values")
    if sliding_window is not None or softcap is not None:
        raise vqgen.Infeasible("sliding windows and soft caps of a model are not built yet")
    if scaling is None:
        scaling = query.shape[-1]**-0.5
    tokens, state = key.shape[2], layer.tokens
    if layer.first:
        state.begin(tokens, attention_mask)
    layer.settle()
    if state.is_step:
        return layer.step(query, key, value, scaling), None
    if state.order is not None:  # real tokens first
        order = state.order[:, None, :, None]
        query, key, value = (each.take_along_dim(order, 2) for each in (query, key, value))
    dense = None
    if tokens > 1 and state.earlier > 0:  # before the raw window is written over
        dense = layer.cache.decode(state.longest, state.positions, zeroed=False)
    layer.cache.write(key.transpose(1, 2), value.transpose(1, 2), state.positions, state.counts)
    if tokens == 1:
        out, _ = layer.cache.attend(query[:, :, 0].contiguous(), tokens=state.longest,
                                    softmax_scale=scaling)
        return out[:, None], None
    out = prompt_attention(query, key, value, dense, state, scaling).transpose(1, 2)
    if state.order is not None:
        out = out.take_along_dim(state.order_back[..., None, None], 1)
    return out.contiguous(), None


def prompt_attention(query, key, value, dense, state, scaling):
    """Tokens of a prompt attend to each other raw, and to earlier ones as `dense` has them; None
    where there are none."""
    options = {"scale": scaling, "enable_gqa": query.shape[1] != key.shape[1]}
    attend = torch.nn.functional.scaled_dot_product_attention
    if dense is None:
        return attend(query, key, value, is_causal=True, **options)
    tokens = query.shape[2]
    if not state.padded:
        for held, new in zip(dense, (key, value)):
            held[:, :, state.earlier:] = new
        return attend(query, *dense, attn_mask=causal_lower_right(tokens, state.seen), **options)
    out = torch.zeros_like(query)
    ends = state.lengths.tolist()
    for row, (length, end) in enumerate(zip(state.positions.tolist(), ends)):
        new = end - length  # the real ones, which stand first
        if new == 0:
            continue
        one = slice(row, row + 1)
        for held, fresh in zip(dense, (key, value)):
            held[row, :, length:end] = fresh[row, :, :new]
        out[one, :, :new] = attend(query[one, :, :new], *(held[one, :, :end] for held in dense),
                                   attn_mask=causal_lower_right(new, end), **options)
    return out


AttentionInterface.register("vqgen", _attention)
AttentionMaskInterface.register("vqgen", flash_attention_mask)  # the padding alone, or None


def calibrate(model, batches, out: str | os.PathLike, *, keys, values, seed: int = 1,
              rsimvq: dict | None = None, start: list | None = None, judged_by=None) -> None:
    """Trains codebooks of the model's own keys and values, for all layers, and writes a bundle.

    batches: tensors of token numbers [sequences, tokens], without padding. keys, values: formats,
    as of a config. Of a model on a GPU, keys and values stay there, and so does training: of other
    sizes than 2, 4, 8 and 16 through PyTorch. Lattices, layouts and int8 entries of such sizes, and a
    model of float32 or on the CPU, are trained by the tool. The bundle is the same
    (docs/quantizing.md).

    rsimvq: arguments of vqgen.train_rsimvq(), which trains then, as {"steps": 1000}; of a model of
    float16 or bfloat16. The bundle is written at the end, or not at all. start: layers_of() a bundle by
    k-means of the same formats, which saves its training. judged_by: as batches, of another text, by
    which steps are judged.
    """
    if rsimvq is None and (start is not None or judged_by is not None):
        raise vqgen.BadInput("start and judged_by are of rsimvq, which is not given")
    on_device = model.device.type == "cuda"
    if rsimvq is not None or (on_device and not can_write(model.dtype, keys, values)
                              and can_write_by_torch(model.dtype, keys, values)):
        judges = None if judged_by is None else states_of(model, judged_by, model.device)
        write_torch_bundle(out, states_of(model, batches, model.device), keys, values, seed, rsimvq, start,
                           judges)
        return
    on_device = on_device and can_write(model.dtype, keys, values)
    layers = states_of(model, batches, model.device if on_device else "cpu")
    (write_bundle if on_device else _quantize)(out, layers, keys, values, seed)


def _quantize(out, layers, keys, values, seed):
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
             "--value-format", text(values)], capture_output=True, text=True)
    if done.returncode != 0:
        raise vqgen.Error(done.stderr.strip().splitlines()[-1].removeprefix("vqgen: ") if done.stderr.strip() else
                          f"vqgen quantize ended with {done.returncode}")
