"""The newest tokens in full precision, as vLLM 0.26 and 0.33 have them: for each layer of attention one more, of a group of
the cache that keeps a sliding window. vLLM allocates, finds and frees its blocks, and nothing computes in it."""

from __future__ import annotations

import torch

from vqgen.vllm._backend import Backend, engine_of, kernels
from vqgen.vllm._pages import Raw

from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadataBuilder
from vllm.v1.kv_cache_interface import SlidingWindowSpec


class RawRows(torch.nn.Module, AttentionLayerBase):
    """The full-precision tokens of one layer. layers: the engine's, where this enters itself as `name`.

    vLLM sets kv_cache, of Kernels.raw_shape(), when it allocates the cache."""

    def __init__(self, name: str, engine, layers: dict):
        super().__init__()
        self.name, self.engine, self.kv_cache, self.held = name, engine, torch.tensor([]), None
        layers[name] = self

    def get_attn_backend(self):
        return RawBackend

    def get_kv_cache_spec(self, vllm_config) -> SlidingWindowSpec:
        engine = self.engine
        return SlidingWindowSpec(block_size=engine.blocks[1], num_kv_heads=engine.heads[1], head_size=engine.head_dim,
                                 dtype=engine.dtype, sliding_window=engine.recent_tokens)


def rows_of_step(layer: RawRows) -> Raw:
    """The rows and the block table of the current step. Both stay in place, so views of them are made once."""
    table = get_forward_context().attn_metadata[layer.name]  # as RawBuilder made it
    if layer.held is None or not layer.held.is_of(layer.kv_cache, table):
        layer.held = Raw(layer.kv_cache, table)
    return layer.held


class RawBackend(Backend):
    """A backend that only stores."""

    @staticmethod
    def get_name() -> str:
        return "VQGEN_RAW"

    @staticmethod
    def get_impl_cls():
        raise NotImplementedError("vqgen.vllm: full-precision tokens have no attention of their own")

    @staticmethod
    def get_builder_cls():
        return RawBuilder

    @staticmethod
    def get_kv_cache_shape(num_blocks: int, block_size: int, num_kv_heads: int, head_size: int,
                           cache_dtype_str: str = "auto") -> tuple[int, ...]:  # of 0.26
        return kernels().raw_shape(num_blocks)

    @classmethod
    def customize_spec(cls, spec):  # of 0.33
        return spec


class RawBuilder(AttentionMetadataBuilder):
    """Metadata are the step's block table."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        engine = engine_of()
        engine.prepare(device)
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)
        self.reorder_batch_threshold = engine.query_tokens
        self._table = engine.raw_table()

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        return self._table.take(common_attn_metadata.block_table_tensor, common_attn_metadata.num_reqs)

    def build_for_cudagraph_capture(self, common_attn_metadata):
        return self.build(0, common_attn_metadata)
