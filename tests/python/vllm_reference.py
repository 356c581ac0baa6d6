"""What tests of vqgen.vllm hold its results against: plain attention in double precision over what pages hold."""

import numpy as np
import torch

import reference
import vqgen

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HEADS, KV_HEADS, DIM, PAGE, SCALE = 4, 2, 64, 16, 0.17
FORM = vqgen.format_fields({"vector_size": 4, "index_bits": 6, "scope": "head"})


def tensor(array, kind=None):
    return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE, kind)


def attend(query, key, value, query_starts, key_starts, most_query, most_key, causal, scale):
    """Attention of sequences' rows in double precision, with the arguments of Layer's `attend`."""
    assert most_query == max(np.diff(query_starts.tolist())) and most_key == max(np.diff(key_starts.tolist()))
    out, lse = torch.empty_like(query), torch.empty(query.shape[1], len(query), dtype=torch.float32, device=query.device)
    for (q0, q1), (k0, k1) in zip(*(zip(each.tolist(), each.tolist()[1:]) for each in (query_starts, key_starts))):
        keys, values = (each[k0:k1].double().repeat_interleave(HEADS // each.shape[1], 1) for each in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[q0:q1].double(), keys) * scale
        if causal:
            scores += torch.full_like(scores[0], -torch.inf).triu(1)
        out[q0:q1] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(out.dtype)
        lse[:, q0:q1] = scores.logsumexp(-1)
    return out, lse


def books_of(draw, heads=KV_HEADS):
    return {f"{name}.codebooks": torch.from_numpy(draw.standard_normal((heads, 1, 64, 4)).astype(np.float16))
            for name in ("keys", "values")}


def dense(pages, books, table, tokens):
    """Keys and values of the first tokens of a sequence, [tokens, kv_heads, dim] each, float64."""
    held = pages.cpu().numpy().view(np.uint32)[table[:-(-tokens // pages.shape[2])]]
    held = held.swapaxes(1, 2).reshape(-1, KV_HEADS, held.shape[-1])[:tokens]
    return [np.stack([reference.decoded(held[:, head, words], books[f"{name}.codebooks"][head:head + 1].numpy(), DIM, 6)
                      for head in range(KV_HEADS)], 1)
            for name, words in (("keys", slice(0, 3)), ("values", slice(3, 6)))]


def require_nearest(fresh, held, codebooks, rounding=1e-4):
    """Asserts that rows [n, kv_heads, dim] are held as entries that are nearest, but for `rounding` of squared distances."""
    for head in range(KV_HEADS):
        vectors, given = (each[:, head].reshape(-1, 1, 4) for each in (fresh.astype(np.float64), held))
        least = ((vectors - codebooks[head, 0].numpy()) ** 2).sum(-1).min(1)
        assert (((vectors - given) ** 2).sum(-1)[:, 0] <= least * (1 + 1e-3) + rounding).all()


def expected(query, keys, values):
    """query [heads, dim] over keys and values [tokens, kv_heads, dim]; [heads, dim]."""
    out, _ = reference.attention(query[None] * (SCALE * DIM**0.5), keys[None].swapaxes(1, 2), values[None].swapaxes(1, 2),
                                 [len(keys)])
    return out[0]
