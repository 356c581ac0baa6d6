"""vqgen's KV cache in vLLM (docs/guides/vllm.md)."""
