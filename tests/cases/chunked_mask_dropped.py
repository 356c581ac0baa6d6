"""Llama 4's local layers see only their own chunk of tokens, here 8: logits near sdpa's, or a refusal."""

import transformers

import vqgen
from hfkit import BASE, SIZES, cache, end, filled, relative, steps, with_attention

layers = SIZES["num_hidden_layers"]
config = transformers.Llama4TextConfig(
    **BASE, **SIZES, intermediate_size_mlp=128, num_local_experts=1, num_experts_per_tok=1,
    interleave_moe_layer_step=100, moe_layers=[], attention_chunk_size=8, no_rope_layers=[1] * layers,
    layer_types=["chunked_attention"] * layers)
model = filled(transformers.Llama4ForCausalLM(config))
want = steps(with_attention(model, "sdpa"))
with_attention(model, "vqgen")
try:
    got = steps(model, cache(model))
except vqgen.Error as error:
    print(error)
    end("chunk" in str(error))
print("first chunk", relative(got[:, :3], want[:, :3]), "later", relative(got[:, 4:], want[:, 4:]))
end(relative(got, want) < 0.05)
