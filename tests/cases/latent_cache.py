"""DeepSeek's latent attention caches a latent of kv_lora_rank and one rotated key of 64, not heads:
calibrate() refuses and says so."""

import transformers

from hfkit import bundle, cache, end, refused, tiny

right = True
for rank in (64, 512):
    model = tiny(transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM, num_key_value_heads=4,
                 q_lora_rank=32, kv_lora_rank=rank, qk_rope_head_dim=64, qk_nope_head_dim=128,
                 v_head_dim=128, first_k_dense_replace=2)
    said = refused(lambda: cache(model, bundle(model))) or ""
    right = right and any(word in said.lower() for word in ("latent", "mla", "lora"))
end(right)
