"""The attention backend as vLLM 0.26 and 0.33 have it: signatures, and nothing else (_engine.py, _pages.py, _batch.py)."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

import vqgen
from vqgen.vllm import _dtype, _engine
from vqgen.vllm._pages import PAGES

VERSION = _engine.require_version()  # before anything of another version is imported

from vllm.config import get_current_vllm_config  # noqa: E402
from vllm.v1.attention.backend import (AttentionBackend, AttentionCGSupport, AttentionImpl,  # noqa: E402
                                       AttentionMetadataBuilder)

_engines: list[_engine.Engine] = []  # the newest; a process runs one engine at a time


def engine_of(config=None) -> _engine.Engine:
    """The engine of vLLM's configuration; without one, the newest."""
    if config is not None and (not _engines or _engines[0].config is not config):
        from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
        _engines[:] = [_engine.Engine(config, get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size())]
    if not _engines:
        raise vqgen.Error("vqgen.vllm: the cache is asked for before a model has loaded; load the model first")
    return _engines[0]


def kernels():
    engine = engine_of()
    if engine.kernels is None:
        raise vqgen.Error("vqgen.vllm: the cache's size is asked for before a model has loaded; load the model first")
    return engine.kernels


class Backend(AttentionBackend):
    """Attention over vqgen's codes."""

    accept_output_buffer = True
    forward_includes_kv_cache_update = True
    supported_dtypes = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes = ["auto", _dtype.NAME]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM" if VERSION == "0.26" else "VQGEN"  # a member of AttentionBackendEnum

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None) -> list[int]:
        return list(PAGES)

    @staticmethod
    def get_impl_cls():
        return Impl

    @staticmethod
    def get_builder_cls():
        return Builder

    @classmethod
    def validate_configuration(cls, **asked) -> list[str]:
        own = () if VERSION == "0.26" else (_dtype.NAME,)
        return [f"vqgen.vllm: {line}" for line in _engine.refusals(own_dtypes=own, **asked)]

    @staticmethod
    def get_kv_cache_shape(num_blocks: int, block_size: int, num_kv_heads: int, head_size: int,
                           cache_dtype_str: str = "auto") -> tuple[int, ...]:  # of 0.26
        pages, _, _, words = kernels().cache_shape(num_blocks)
        return pages, num_kv_heads, block_size, words

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:  # of 0.26
        return (0, 1, 2, 3, 4) if include_num_layers_dimension else (0, 1, 2, 3)

    @classmethod
    def customize_spec(cls, spec):  # of 0.33
        if spec.state_content_bytes is not None:
            return spec
        # vLLM would take the smallest blocks for sliding windows; pages of all layers have one size.
        engine = engine_of()
        return replace(spec, block_size=engine.block_of(engine.config.cache_config.block_size), dtype=torch.int32,
                       state_content_bytes=kernels().token_bytes)

    @classmethod
    def supported_kv_cache_layouts(cls):  # of 0.33
        from vllm.v1.kv_cache_layout import KVCacheLayout
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def supports_kv_connector(cls) -> bool:
        return False


class Builder(AttentionMetadataBuilder):
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        engine = engine_of()
        engine.prepare(device, kv_cache_spec.block_size)
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)
        self.reorder_batch_threshold = engine.query_tokens
        self.batches = engine.batches(getattr(kv_cache_spec, "sliding_window", None) or 0)

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False, capture=False):
        common = common_attn_metadata
        bound = common.seq_lens_cpu_upper_bound
        return self.batches.build(common.query_start_loc_cpu[:common.num_reqs + 1].tolist(),
                                  None if bound is None else bound.tolist(), common.query_start_loc, common.seq_lens,
                                  common.block_table_tensor, common.max_seq_len, capture=capture)

    def build_for_cudagraph_capture(self, common_attn_metadata):
        return self.build(0, common_attn_metadata, capture=True)


class Impl(AttentionImpl):
    def __init__(self, num_heads, head_size, scale, num_kv_heads=None, alibi_slopes=None, sliding_window=None,
                 kv_cache_dtype="auto", logits_soft_cap=None, attn_type="decoder", kv_sharing_target_layer_name=None,
                 **more):
        self.sight = _engine.sight_of(
            alibi_slopes=alibi_slopes, sliding_window=sliding_window, logits_soft_cap=logits_soft_cap, attn_type=attn_type,
            kv_sharing_target_layer_name=kv_sharing_target_layer_name, **more)
        self.sinks = more.get("sinks")  # not loaded yet
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads, self.kv_cache_dtype = num_kv_heads or num_heads, kv_cache_dtype
        self.engine, self.cache, self.raw = engine_of(get_current_vllm_config()), None, None
        self.engine.add(self.sight, self.num_heads, self.num_kv_heads, head_size)

    def process_weights_after_loading(self, act_dtype):
        from vllm.model_executor.models.utils import extract_layer_index
        config = self.engine.config
        layers = config.compilation_config.static_forward_context
        name, layer = next(each for each in layers.items() if getattr(each[1], "impl", None) is self)
        _require_plain(layer, name)
        self.engine.prepare(torch.device(config.device_config.device_type),
                            self.engine.block_of(config.cache_config.block_size))
        self.cache = self.engine.layer(extract_layer_index(name), attention(self.head_size), self.scale, self.sight, self.sinks)
        if self.engine.recent_tokens:
            from vqgen.vllm._raw import RawRows, rows_of_step
            self.raw = functools.partial(rows_of_step, RawRows(f"{name}.raw", self.engine, layers))

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None,
                output_block_scale=None):
        if attn_metadata is None:  # a run that measures memory
            return output.fill_(0)
        if output_scale is not None or output_block_scale is not None:
            raise vqgen.Infeasible("vqgen.vllm: quantized results of attention are not served; turn fuse_attn_quant off")
        heads = lambda rows, count: rows.view(-1, count, self.head_size)
        self.cache.forward(attn_metadata, heads(query, self.num_heads), heads(key, self.num_kv_heads),
                           heads(value, self.num_kv_heads), kv_cache, heads(output, self.num_heads),
                           None if self.raw is None else self.raw())
        return output


def _require_plain(layer, name: str) -> None:
    """Refuse layers with caches, masks or values that their arguments of AttentionImpl do not tell."""
    from vllm.model_executor.layers.attention.attention import Attention
    if type(layer) is not Attention or layer.attn_backend is not Backend:
        raise vqgen.Infeasible(f"vqgen.vllm: {name} is a {type(layer).__name__} over {layer.attn_backend.__name__}, and only "
                               f"plain decoders' attention is served; {_engine.OTHER}")
    if layer.head_size_v != layer.head_size:
        raise vqgen.Infeasible(f"vqgen.vllm: {name} has keys of {layer.head_size} numbers and values of {layer.head_size_v} "
                               f"(head_size_v); heads of one size are served: {_engine.OTHER}")


def attention(head_size: int):
    """vLLM's FlashAttention, as Layer has its `attend`."""
    from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func, get_flash_attn_version
    version = get_flash_attn_version(head_size=head_size)
    if version is None:
        raise vqgen.Infeasible("vqgen.vllm: vLLM has no FlashAttention for this GPU, which prompts need; "
                               "take another attention backend")

    def attend(query, key, value, query_starts, key_starts, most_query, most_key, causal, scale, left, softcap):
        out, lse, *_ = flash_attn_varlen_func(
            q=query, k=key, v=value, cu_seqlens_q=query_starts, cu_seqlens_k=key_starts, max_seqlen_q=most_query,
            max_seqlen_k=most_key, softmax_scale=scale, causal=causal, window_size=[left, 0 if causal and left >= 0 else -1],
            softcap=softcap, return_softmax_lse=True, fa_version=version)
        return out, lse
    return attend


def _patch_spec() -> None:
    """vLLM 0.26 has no hook for the bytes of a page; 0.33 asks customize_spec()."""
    from vllm.model_executor.layers.attention.attention import Attention
    from vllm.v1.kv_cache_interface import SlidingWindowSpec, TQFullAttentionSpec
    before = Attention.get_kv_cache_spec

    def get_kv_cache_spec(self, vllm_config):
        if self.attn_backend is not Backend:
            return before(self, vllm_config)
        held = {"block_size": engine_of(vllm_config).block_of(vllm_config.cache_config.block_size),
                "num_kv_heads": self.num_kv_heads, "dtype": torch.int32}
        if self.sliding_window is not None:  # a row is as long as keys and values of so many words
            return SlidingWindowSpec(**held, head_size=kernels().key_words, head_size_v=kernels().value_words,
                                     sliding_window=self.sliding_window)
        return TQFullAttentionSpec(**held, head_size=self.head_size, head_size_v=self.head_size,
                                   tq_slot_size=kernels().token_bytes)
    Attention.get_kv_cache_spec = get_kv_cache_spec


if VERSION == "0.26":
    _patch_spec()
