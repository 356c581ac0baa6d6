"""A VQCache is passed, but set_attn_implementation("vqgen") was forgotten or undone: an error, or logits near
sdpa's. Without the error, each step would attend to its own token alone."""

import vqgen
from hfkit import cache, end, relative, steps, tiny, with_attention

model = with_attention(tiny(), "sdpa")
want = steps(model)
try:
    off = relative(steps(model, cache(model)), want)
except vqgen.Error as error:
    print(error)
    end("set_attn_implementation" in str(error))
print(f"no error; logits are off by {off:.2f}")
end(off < 0.05)
