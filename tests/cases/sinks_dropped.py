"""A model with learned attention sinks (one logit per head in the softmax's denominator), which transformers
passes to the attention function as `s_aux`: logits near eager's, or a refusal that names it."""

import torch
import transformers

import vqgen
from hfkit import bundle, cache, end, relative, steps, tiny, with_attention

model = tiny(transformers.GptOssConfig, transformers.GptOssForCausalLM, num_local_experts=2,
             num_experts_per_tok=1, layer_types=["full_attention"] * 2)
with torch.no_grad():
    for layer in model.model.layers:
        layer.self_attn.sinks.fill_(4.0)
want = steps(with_attention(model, "eager"))
codebooks = bundle()  # of a plain model of the same heads, which has no sinks to calibrate with
with_attention(model, "vqgen")
try:
    off = relative(steps(model, cache(model, codebooks)), want)
except vqgen.Error as error:
    print(error)
    end(True)
print(f"against the model {off:.3f}")
end(off < 0.05)
