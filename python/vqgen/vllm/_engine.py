"""What an engine's configuration means for its cache: what is refused, by name, when the model loads, and the codebooks
and kernels of a rank. It reads the fields of vLLM's configuration, and imports nothing of vLLM."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import pathlib

import torch

import vqgen
import vqgen.torch
from vqgen._basis import row_words
from vqgen._bundles import layers_of
from vqgen._sights import Sight, require_bounds
from vqgen.vllm import _identity
from vqgen.vllm._batch import Batches, Table
from vqgen.vllm._pages import HEAD_DIMS, MOST_QUERIES, PAGES, PIECE, Kernels, Layer, Shape, of_heads, require_pages, warm

VERSIONS = ("0.26", "0.33")
OTHER = "take another attention backend"
_SETTINGS = ("bundle", "recent_tokens")  # of additional_config["vqgen"]
RECENT = 128  # tokens
_MOST_RECENT = 4096 - MOST_QUERIES + 1
# What a layer or an engine may ask for, by the names of vLLM's selector, and the remedy.
_ASKED = {
    "use_mla": ("multi-head latent attention (MLA), which caches latents, not heads", OTHER),
    "use_sparse": ("attention to some tokens", OTHER),
    "use_mm_prefix": ("tokens that see later ones", OTHER),
    "use_per_head_quant_scales": ("scales of the cache from the checkpoint", OTHER),
    "use_non_causal": ("tokens that see later ones", OTHER),
    "use_batch_invariant": ("equal bits in any batch", "unset VLLM_BATCH_INVARIANT"),
    "use_kv_connector": ("transfer of the cache", "leave kv_transfer_config out"),
    "use_pcp": ("context parallel prompts", "set prefill_context_parallel_size to 1"),
    "use_dcp": ("a context parallel cache", "set decode_context_parallel_size to 1"),
    "use_adaptive_verification": ("drafts that the device trims", "leave enable_adaptive_verification out"),
    "use_rswa": ("a sliding window beside the prompt", OTHER),
}
# What layers say of themselves once they are made (sight_of()).
_SAID_BY_LAYERS = ("has_sink", "has_sliding_window")
# Drafts of these come without a model, whose layers would need codebooks.
_DRAFTERS = ("ngram", "ngram_gpu", "suffix")


def require_version(version: str | None = None) -> str:
    """The major and minor version of the installed vLLM, "0.26" or "0.33"; others are refused."""
    try:
        found = importlib.metadata.version("vllm") if version is None else version
    except importlib.metadata.PackageNotFoundError:
        raise vqgen.Infeasible(f"vqgen.vllm: vLLM is not installed; install {' or '.join(VERSIONS)}") from None
    short = ".".join(found.split(".")[:2])
    if short not in VERSIONS:
        raise vqgen.Infeasible(f"vqgen.vllm: vLLM {found} is not served; install vLLM {' or '.join(VERSIONS)}, or the vqgen "
                               "that is made for it")
    return short


def refusals(*, head_size: int, dtype: torch.dtype, kv_cache_dtype: str | None, block_size: int | None,
             device_capability, attn_type: str = "decoder", own_dtypes: tuple = (), **asked) -> list[str]:
    """Why a layer is not served, one line for each reason. The arguments are those of vLLM's
    AttentionBackend.validate_configuration(); what it will ask for in addition is refused too. own_dtypes: names of
    cache dtypes beside "auto"."""
    lines = []
    if head_size not in HEAD_DIMS and not asked.get("use_mla"):
        lines.append(f"head_dim {head_size} is none of {', '.join(map(str, HEAD_DIMS))}; {OTHER}")
    if dtype not in vqgen.torch.DTYPES:
        lines.append(f"dtype {dtype} is neither float16 nor bfloat16; set dtype to one of them")
    if kv_cache_dtype not in (None, "auto", *own_dtypes):
        lines.append(f"kv_cache_dtype {kv_cache_dtype} is none of vqgen's: the bundle says the format; leave it out")
    if block_size is not None and all(block_size % each for each in PAGES):
        lines.append(f"block_size {block_size} is no multiple of {PAGES[0]}; set {', '.join(map(str, PAGES))}")
    if device_capability is not None and (device_capability.major, device_capability.minor) < (8, 0):
        lines.append(f"the GPU has compute capability {device_capability.major}.{device_capability.minor}, and full-precision "
                     f"attention of prompts needs 8.0; {OTHER}")
    if getattr(attn_type, "value", attn_type) != "decoder":
        lines.append(f"attention of type {getattr(attn_type, 'value', attn_type)} is not served; {OTHER}")
    for name, value in asked.items():
        if value and name not in _SAID_BY_LAYERS:
            what, remedy = _ASKED.get(name, ("what is unknown to this vqgen", OTHER))
            lines.append(f"{name}: {what} is not served; {remedy}")
    return lines


def sight_of(*, alibi_slopes=None, sliding_window=None, logits_soft_cap=None, attn_type="decoder",
             kv_sharing_target_layer_name=None, sinks=None, **more) -> Sight:
    """What a layer sees. The arguments are those of vLLM's AttentionImpl; what else they ask for is refused by name."""
    asked = {"alibi_slopes": (alibi_slopes, "a bias by position (ALiBi)"),
             "kv_sharing_target_layer_name": (kv_sharing_target_layer_name, "the keys and values of another layer"),
             "attn_type": (None if getattr(attn_type, "value", attn_type) == "decoder" else attn_type,
                           "attention other than a decoder's"),
             **{name: (value, "what is unknown to this vqgen") for name, value in more.items()}}
    for name, (value, what) in asked.items():
        if value is not None and value is not False:
            raise vqgen.Infeasible(f"vqgen.vllm: a layer asks by {name} for {what}, which is not served; {OTHER}")
    if sliding_window is not None and (type(sliding_window) is not int or sliding_window < 1):
        raise vqgen.Infeasible(f"vqgen.vllm: a layer has a sliding_window of {sliding_window!r}, and kernels take whole tokens "
                               f"from 1 on; {OTHER}")
    return Sight(sliding_window=sliding_window or 0, logit_softcap=float(logits_soft_cap or 0), sink_logits=sinks is not None)


class Engine:
    """The cache of an engine's rank: its bundle, and once prepare() was called its kernels.

    config: vLLM's configuration. rank, ranks: of tensor parallelism. Raises BadInput or Infeasible, in one line, for
    what is not served.
    """

    def __init__(self, config, rank: int = 0, ranks: int = 1):
        self.config = config
        model = config.model_config
        settings = (config.additional_config or {}).get("vqgen", {}) if isinstance(config.additional_config, dict) else {}
        if not isinstance(settings, dict) or settings.keys() - set(_SETTINGS):
            raise vqgen.BadInput(f"additional_config: vqgen is {settings!r}; it takes {', '.join(_SETTINGS)}")
        folder = pathlib.Path(model.model)
        if not folder.is_dir():
            raise vqgen.BadInput(f"model: {model.model} is no folder, and vqgen.vllm compares the bundle with its files; "
                                 "download it (hf download), and give the folder")
        self.bundle = pathlib.Path(settings.get("bundle") or folder / _identity.BUNDLE)
        if not self.bundle.is_file():
            raise vqgen.BadInput(f"{self.bundle}: there is no such bundle; calibrate the model: python3 -m vqgen.vllm "
                                 f"{folder} --text FILE, or name a bundle by additional_config")
        self._require_engine(config)
        _identity.require_same(self.bundle, folder)
        self.items = layers_of(self.bundle)
        self.kv_heads, self.head_dim, self.dtype = model.get_total_num_kv_heads(), model.get_head_size(), model.dtype
        self._require_items(model.get_total_num_hidden_layers())
        if self.kv_heads % ranks and ranks % self.kv_heads:
            raise vqgen.Infeasible(f"tensor_parallel_size: the model has {self.kv_heads} heads of keys and values, which {ranks} "
                                   f"ranks do not share; set a divisor or a multiple of {self.kv_heads}")
        first = rank * self.kv_heads // ranks  # where ranks are more than heads, several have the same
        self.heads = first, max(1, self.kv_heads // ranks)
        self.query_heads = model.get_num_attention_heads(config.parallel_config)
        self.keys, self.values = self.items[0][0]["keys"], self.items[0][0]["values"]
        self.recent_tokens = settings.get("recent_tokens", RECENT)
        if type(self.recent_tokens) is not int or not 0 <= self.recent_tokens <= _MOST_RECENT:
            raise vqgen.BadInput(f"additional_config: vqgen.recent_tokens is {self.recent_tokens!r}, and has to be 0 to "
                                 f"{_MOST_RECENT}; {RECENT} is the default, and 0 reads all tokens from their codes")
        self.blocks = self._blocks(config.cache_config.block_size)
        self.one_kind = bool(config.scheduler_config.disable_hybrid_kv_cache_manager)
        if self.recent_tokens and self.one_kind:
            raise vqgen.Infeasible("disable_hybrid_kv_cache_manager: full-precision tokens have blocks of their own kind; "
                                   "leave it out, or set vqgen.recent_tokens to 0")
        require_pages(self.shape(), self.keys, self.values)
        self.sights: dict[Sight, None] = {}  # of the layers, in the order of their first
        self.kernels, self._warm = None, set()

    def _require_engine(self, config):
        drafts = config.speculative_config
        self.query_tokens = 1
        if drafts is not None and drafts.num_speculative_tokens is not None:
            if drafts.method not in _DRAFTERS:
                raise vqgen.Infeasible(f"speculative_config: method {drafts.method} drafts by layers that the bundle has no "
                                       f"codebooks for; take {' or '.join(_DRAFTERS)}, or none")
            self.query_tokens += (2 if getattr(drafts, "parallel_drafting", False) else 1) * drafts.num_speculative_tokens
        if getattr(config.parallel_config, "decode_context_parallel_size", 1) > 1:
            raise vqgen.Infeasible("decode_context_parallel_size: a context parallel cache is not served; set 1")
        if config.model_config.attention_chunk_size:
            raise vqgen.Infeasible(f"attention_chunk_size: attention within chunks of tokens (Llama 4) is not served; {OTHER}")
        if getattr(config.cache_config, "kv_cache_dtype_skip_layers", None):
            raise vqgen.Infeasible("kv_cache_dtype_skip_layers: layers without codes are not served; leave it out")

    def _require_items(self, layers):
        remedy = "calibrate this model again"
        if len(self.items) != layers:
            raise vqgen.BadInput(f"{self.bundle}: it has {len(self.items)} layers, and the model {layers}; {remedy}")
        for item, _ in self.items:
            if item.get("value_head_dim", item["head_dim"]) != item["head_dim"]:
                raise vqgen.Infeasible(f"{self.bundle}: {item['name']} has keys of {item['head_dim']} numbers and values of "
                                       f"{item['value_head_dim']}; heads of one size are served: {OTHER}")
            if (item["kv_heads"], item["head_dim"]) != (self.kv_heads, self.head_dim):
                raise vqgen.BadInput(f"{self.bundle}: {item['name']} is of {item['kv_heads']} heads of {item['head_dim']}, and "
                                     f"the model has {self.kv_heads} of {self.head_dim}; {remedy}")
            if item["dtype"] != vqgen.torch.DTYPES.get(self.dtype):
                raise vqgen.BadInput(f"{self.bundle}: {item['name']} is of {item['dtype']}, and the model runs in {self.dtype}; "
                                     "calibrate in that dtype, or set dtype to the bundle's")
            if any(item[name] != self.items[0][0][name] for name in ("keys", "values")):
                raise vqgen.Infeasible(f"{self.bundle}: {item['name']} has other formats than {self.items[0][0]['name']}, and "
                                       "an engine's pages are of one size; calibrate all layers in one format")

    def add(self, sight: Sight, query_heads: int, kv_heads: int, head_dim: int) -> None:
        """A layer with that sight and as many heads will come; what no kernel can do for it is refused."""
        if (query_heads, kv_heads, head_dim) != (self.query_heads, self.heads[1], self.head_dim):
            raise vqgen.Infeasible(f"vqgen.vllm: a layer has {query_heads} query heads and {kv_heads} KV heads of {head_dim}, "
                                   f"and the model {self.query_heads} and {self.heads[1]} of {self.head_dim}; layers of one "
                                   f"shape are served: {OTHER}")
        if sight.sliding_window and self.one_kind:
            raise vqgen.Infeasible("disable_hybrid_kv_cache_manager: sliding windows have blocks of their own kind; leave it "
                                   "out")
        require_bounds(sight, self.keys, self.bundle)
        self.sights[sight] = None

    def _blocks(self, block_size: int) -> tuple[int, int]:
        """The tokens of a block of codes, and of a block of full-precision tokens, 0 without. vLLM takes both from one
        pool, so they have equal bytes: `block_size` is that of the latter where there are any."""
        if not self.recent_tokens or block_size % PAGES[0]:  # which is refused
            return block_size, 0
        codes = 4 * sum(row_words(form, self.head_dim) for form in (self.keys, self.values))
        rows = 2 * self.head_dim * self.dtype.itemsize
        raw = next(size for size in itertools.count(block_size, block_size) if size * rows % (PAGES[0] * codes) == 0)
        return raw * rows // codes, raw

    def block_of(self, block_size: int) -> int:
        """The tokens of a block of codes, where vLLM has blocks of block_size for a cache of one kind."""
        return self.blocks[0] if self.recent_tokens else block_size

    def prepare(self, device: torch.device | str, block_size: int | None = None) -> Kernels:
        """Compile and load all kernels; nothing if they are there. block_size: of a block of codes, as vLLM has
        made it."""
        if block_size is not None and block_size != self.blocks[0]:
            if self.recent_tokens:
                raise vqgen.Infeasible(f"block_size: vLLM has blocks of {block_size} tokens, and full-precision tokens need "
                                       f"{self.blocks[0]}; leave block_size out, or set vqgen.recent_tokens to 0")
            self.blocks = block_size, 0
        shape = self.shape()
        if self.kernels is None or self.kernels.shape != shape:
            self.kernels = Kernels(shape, self.keys, self.values, self.dtype, device, tuple(self.sights))
            self._warm.clear()
        return self.kernels

    def shape(self) -> Shape:
        """The rank's part of the cache; a block that is not built is several pages, as vLLM splits it."""
        page, raw = page_of(self.blocks[0]), page_of(self.blocks[1]) if self.recent_tokens else 0
        scheduler, room = self.config.scheduler_config, self.config.model_config.max_model_len
        tokens = -(-room // page) * page
        return Shape(self.query_heads, self.heads[1], self.head_dim, page, tokens, scheduler.max_num_seqs,
                     scheduler.max_num_batched_tokens, self.query_tokens, min(PIECE, tokens), self.recent_tokens, raw)

    def layer(self, number: int, attend, scale: float, sight: Sight = Sight(), sinks: torch.Tensor | None = None) -> Layer:
        """The cache of a layer, of which add() and then prepare() have been called. sinks: [query_heads] of the rank."""
        if not 0 <= number < len(self.items):
            raise vqgen.BadInput(f"{self.bundle}: layer {number} is not in it; it has {len(self.items)}: calibrate this model")
        item, tensors = self.items[number]
        held = {}
        for name in ("keys", "values"):
            held |= of_heads(item[name], tensors, name, self.kv_heads, self.head_dim, *self.heads)
        layer = Layer(self.kernels, held, attend, scale, sight, sinks)
        if sight not in self._warm:
            warm(self.kernels, layer)
            self._warm.add(sight)
        return layer

    def batches(self, sliding_window: int = 0) -> Batches:
        """Make the Batches of a group of layers with that window, or with none."""
        shape = self.kernels.shape
        return Batches(sequences=shape.sequences, columns=shape.tokens // shape.page_tokens, page_tokens=shape.page_tokens,
                       query_tokens=shape.query_tokens, piece_tokens=shape.piece_tokens, device=self.kernels.device,
                       begin_tokens=max(shape.page_tokens, shape.raw_page_tokens), sliding_window=sliding_window)

    def raw_table(self) -> Table:
        shape = self.kernels.shape
        return Table(shape.sequences, -(-shape.tokens // shape.raw_page_tokens), self.kernels.device)


def page_of(block: int) -> int:
    """The tokens of a page of kernels, several of which a block may have: as vLLM splits it."""
    return block if block in PAGES else next((each for each in reversed(PAGES) if block % each == 0), block)
