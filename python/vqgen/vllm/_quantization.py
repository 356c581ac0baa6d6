"""The quantization method `vqgen` as vLLM 0.26 and 0.33 have it: signatures, and nothing else (_weights.py)."""

from __future__ import annotations

from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

import vqgen
from vqgen import _folders
from vqgen.vllm import _engine, _experts
from vqgen.vllm._weights import Folder


@register_quantization_config(_folders.METHOD)
class Config(QuantizationConfig):
    """The quantization_config of a folder that `vqgen quantize` wrote."""

    def __init__(self, folder: Folder):
        super().__init__()
        _engine.require_version()
        self.folder = folder

    @classmethod
    def from_config(cls, config) -> Config:
        try:
            return cls(Folder(config))
        except vqgen.BadInput as error:  # a ValueError, which pydantic would wrap in lines of its own
            raise vqgen.Infeasible(f"vqgen.vllm: {error}") from None

    def get_name(self) -> str:
        return _folders.METHOD

    def get_supported_act_dtypes(self) -> list:
        return [self.folder.dtype]

    @classmethod
    def get_min_capability(cls) -> int:
        return 75

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []  # config.json has it all

    def get_quant_method(self, layer, prefix):
        import vllm.envs
        from vllm.config import get_current_vllm_config
        from vllm.model_executor.layers.fused_moe import RoutedExperts
        from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
        if not isinstance(layer, (LinearBase, RoutedExperts)):  # embeddings, lm_head and attention
            return None
        if vllm.envs.VLLM_BATCH_INVARIANT:
            raise vqgen.Infeasible("vqgen.vllm: quantized weights have no equal bits in any batch; unset VLLM_BATCH_INVARIANT")
        config = get_current_vllm_config()
        self.folder.open(config)
        if isinstance(layer, RoutedExperts):
            if _experts.are_dense(self.folder, layer, prefix):
                return None  # as vLLM has them
            _experts.require_served(layer, prefix, config.model_config.hf_text_config)
            from vqgen.vllm._experts_method import ExpertsMethod
            return ExpertsMethod(self.folder, prefix, layer.moe_config)
        stem, dot, last = prefix.rpartition(".")
        modules = [stem + dot + each for each in self.packed_modules_mapping.get(last, [last])]
        if self.folder.is_dense(prefix, modules):
            return UnquantizedLinearMethod()
        from vqgen.vllm._method import Method
        return Method(self.folder, prefix, modules)
