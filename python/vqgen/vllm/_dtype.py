"""The cache dtype `vqgen` of vLLM 0.33: pages are 32-bit words, whose kernels are the backend's alone."""

NAME = "vqgen"


def register() -> None:
    import torch
    from vllm.config.cache import register_kv_cache_dtype
    from vllm.v1.kv_cache_interface import KVQuantMode

    @register_kv_cache_dtype(NAME)
    class Words:
        name = NAME

        def torch_dtype(self):
            return torch.int32

        def quant_mode(self):
            return KVQuantMode.CUSTOM
