"""A caller's mask [batch, 1, tokens, tokens], as for trees and documents packed in one row, is refused by one
of
vqgen's errors."""

import torch

from hfkit import IDS, cache, end, refused, tiny, with_attention

model = with_attention(tiny(), "vqgen")
right = True
for batch in (1, 2):
    mask = torch.full((batch, 1, 8, 8), float("-inf"), dtype=torch.float16).triu(1)
    mask[:, :, 5, 2] = float("-inf")
    positions = torch.arange(8)[None].expand(batch, 8)
    right = bool(refused(lambda: model(IDS[:batch, :8], attention_mask=mask, position_ids=positions,
                                       past_key_values=cache(model, batch=batch)).logits.shape)) and right
end(right)
