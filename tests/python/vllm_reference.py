"""What tests of vqgen.vllm hold its results against: plain attention in double precision over what pages hold."""

import contextlib

import numpy as np
import pytest
import torch
import torch.distributed as dist

import reference
import vqgen
import vqgen.torch as vt
from vqgen._sights import Sight

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HEADS, KV_HEADS, DIM, PAGE, SCALE = 4, 2, 64, 16, 0.17
FORM = vqgen.format_fields({"vector_size": 4, "index_bits": 6, "scope": "head"})


@contextlib.contextmanager
def rank_of(rank, ranks, cache_dir, out):
    """The device of a process that is one of `ranks`, which meet in the folder `out`, with vqgen's runtime on it."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float16)  # as vLLM has it
    device = torch.device("cpu") if DEVICE.type == "cpu" else torch.device("cuda", rank % torch.cuda.device_count())
    vt.use_runtime(vqgen.Runtime("host" if device.type == "cpu" else device.index, cache_dir=cache_dir, max_buckets=1))
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{out}/meet", rank=rank, world_size=ranks)
    yield device
    if ranks > 1:
        dist.destroy_process_group()


@pytest.fixture(scope="module", autouse=True)
def half_by_default():
    """vLLM loads models, and so makes layers and launches their kernels, with the model's dtype as PyTorch's default."""
    torch.set_default_dtype(torch.float16)
    yield
    torch.set_default_dtype(torch.float32)


def tensor(array, kind=None):
    return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE, kind)


def attend(query, key, value, query_starts, key_starts, most_query, most_key, causal, scale, left=-1, softcap=0.0):
    """Attention of sequences' rows in double precision, with the arguments of Layer's `attend`. A group of heads has the
    same keys and values."""
    assert most_query == max(np.diff(query_starts.tolist())) and most_key == max(np.diff(key_starts.tolist()))
    assert left >= -1 and len(query) == query_starts[-1] and len(key) == key_starts[-1]
    out, lse = torch.empty_like(query), torch.empty(query.shape[1], len(query), dtype=torch.float32, device=query.device)
    for (q0, q1), (k0, k1) in zip(*(zip(each.tolist(), each.tolist()[1:]) for each in (query_starts, key_starts))):
        keys, values = (each[k0:k1].double().repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[q0:q1].double(), keys) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        beside = torch.arange(q1 - q0, device=query.device)[:, None] + (k1 - k0) - (q1 - q0)
        ahead = torch.arange(k1 - k0, device=query.device) - beside  # of a query row's own place
        unseen = (causal & (ahead > 0)) | ((left >= 0) & (ahead < -left))
        scores = scores.masked_fill(unseen, -torch.inf)
        assert not unseen.all(1).any()
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


def expected(query, keys, values, sight=Sight(), sinks=None):
    """query [heads, dim] over keys and values [tokens, kv_heads, dim], all that it may see; [heads, dim]. sinks: [heads]."""
    first = sight.first_seen(len(keys))
    keys, values = (each[first:].astype(np.float64).repeat(len(query) // each.shape[1], 1) for each in (keys, values))
    scores = np.einsum("hd,thd->ht", query.astype(np.float64), keys) * SCALE
    if sight.logit_softcap:
        scores = sight.logit_softcap * np.tanh(scores / sight.logit_softcap)
    most = scores.max(1, keepdims=True)
    weights = np.exp(scores - most)
    total = weights.sum(1, keepdims=True)
    if sinks is not None:
        total += np.exp(np.asarray(sinks, np.float64)[:, None] - most)
    return np.einsum("ht,thd->hd", weights / total, values)
