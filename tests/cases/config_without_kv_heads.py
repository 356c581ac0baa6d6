"""Models with as many KV heads as heads, whose config has no num_key_value_heads: GPT-NeoX, OPT, GPT-2 and
GPT-J. Logits are near those of transformers' attention. GPT-J is refused by name in versions that give it an
attention of its own."""

import transformers as T

from hfkit import BASE, bundle, cache, end, filled, relative, steps, with_attention

TWO = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 256}
GPT2 = {"n_embd": 256, "n_layer": 2, "n_head": 4}
right = True
for model in (T.GPTNeoXForCausalLM(T.GPTNeoXConfig(**BASE, **TWO, intermediate_size=128)),
              T.OPTForCausalLM(T.OPTConfig(**BASE, **TWO, ffn_dim=128)),
              T.GPT2LMHeadModel(T.GPT2Config(**BASE, **GPT2)),
              T.GPTJForCausalLM(T.GPTJConfig(**BASE, **GPT2, rotary_dim=32))):
    model = filled(model)
    want = steps(with_attention(model, "sdpa" if model._supports_sdpa else "eager"))
    try:
        codebooks = bundle(model)
        off = relative(steps(with_attention(model, "vqgen"), cache(model, codebooks)), want)
        right = right and off < 0.05
        print(type(model).__name__, off)
    except Exception as error:  # pylint: disable=broad-except
        print(type(model).__name__, type(error).__name__, error)
        right = right and not model._supports_attention_backend and "attention of its own" in str(error)
end(right)
