"""A model with linear-attention layers beside attention, such as Qwen3-Next: calibrate() and VQCache take the
attention layers, or refuse by one of vqgen's errors."""

import transformers

from hfkit import bundle, cache, end, refused, steps, tiny, with_attention

model = tiny(transformers.Qwen3NextConfig, transformers.Qwen3NextForCausalLM, num_experts=0,
             layer_types=["linear_attention", "full_attention"])
calibrated = refused(lambda: bundle(model))
codebooks = bundle()
with_attention(model, "vqgen")
cached = refused(lambda: steps(model, cache(model, codebooks)))
end(bool(calibrated) and bool(cached))
