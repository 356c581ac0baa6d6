"""A common prompt is read once and its cache copied for each request by copy.deepcopy, as the documentation
of
transformers does: each copy continues independently."""

import copy

import torch

import vqgen
from hfkit import IDS, cache, end, relative, steps, tiny, with_attention

model = tiny()
want = steps(with_attention(model, "sdpa"))
with_attention(model, "vqgen")
first = cache(model)
with torch.no_grad():
    model(IDS[:, :12], past_key_values=first)
try:
    copies = [copy.deepcopy(first), copy.deepcopy(first)]
except Exception as error:  # pylint: disable=broad-except
    print(f"{type(error).__name__}: {error}")
    end(isinstance(error, vqgen.Error))
off = []
with torch.no_grad():
    for each in copies:
        logits = [model(IDS[:, k:k + 1], past_key_values=each).logits[:, -1] for k in range(12, 24)]
        off.append(relative(torch.stack(logits, 1).float(), want[:, -12:]))
print("each copy against sdpa:", off)
end(max(off) < 0.05)
