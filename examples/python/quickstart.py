"""A 2-bit KV cache on the CPU, in NumPy: tokens are encoded into it, and attended to.

    pip install . numpy && python examples/python/quickstart.py

Random keys and values stand for a model's. Codebooks are sampled from them; `vqgen quantize` trains
better ones. The result is compared with attention over the decoded cache in double precision.
"""

import numpy as np

import vqgen

BATCH, HEADS, KV_HEADS, DIM, TOKENS = 2, 4, 2, 64, 40
FORMAT = {"vector_size": 4, "index_bits": 8}  # 256 entries of 4 numbers each: 2 bits a number

runtime = vqgen.Runtime("host")  # vqgen.Runtime(0) and arrays of PyTorch or CuPy for a GPU
cache_shape = {"batch": BATCH, "kv_heads": KV_HEADS, "head_dim": DIM, "tokens": TOKENS}
append = runtime.append({"shape": {**cache_shape, "new_tokens": TOKENS},
                         "keys": FORMAT, "values": FORMAT})
attention = runtime.attention({"shape": {**cache_shape, "query_heads": HEADS},
                               "keys": FORMAT, "values": FORMAT})

random = np.random.default_rng(7)
new_keys, new_values = random.standard_normal((2, BATCH, TOKENS, KV_HEADS, DIM)).astype(np.float16)
query = random.standard_normal((BATCH, HEADS, DIM)).astype(np.float16)


def empty_cache(vectors):
    """Room for the codes, and a codebook of 256 of the vectors."""
    entries = random.permutation(vectors.reshape(-1, 4))[:256].reshape(1, 1, 256, 4)
    codes = np.zeros((BATCH, KV_HEADS, TOKENS, DIM // 4 * 8 // 32), np.uint32)
    return vqgen.Quantized(codes, np.ascontiguousarray(entries))


keys, values = empty_cache(new_keys), empty_cache(new_values)
append(new_keys, new_values, np.zeros(BATCH, np.int32), keys, values)
lengths = np.array([TOKENS, TOKENS - 7], np.int32)
out = attention(query, keys, values, lengths)


def decoded(cache):
    """[batch, kv_heads, tokens, dim] of what the codes stand for: a byte is a code."""
    return cache.codebooks[0, 0].astype(np.float64)[cache.codes.view(np.uint8)].reshape(
        BATCH, KV_HEADS, TOKENS, DIM)


all_keys, all_values = (np.repeat(decoded(each), HEADS // KV_HEADS, axis=1)
                        for each in (keys, values))
scores = np.einsum("bhd,bhtd->bht", query.astype(np.float64), all_keys) / DIM**0.5
scores[np.arange(TOKENS) >= lengths[:, None, None].repeat(HEADS, axis=1)] = -np.inf
weights = np.exp(scores - scores.max(-1, keepdims=True))
expected = np.einsum("bht,bhtd->bhd", weights / weights.sum(-1, keepdims=True), all_values)
error = np.abs(out - expected).max() / np.abs(expected).max()
print(f"{attention}: relative error {error:.1e}, cache of "
      f"{8 * keys.codes.nbytes / new_keys.size:.0f} bits a number")
assert error < 2e-3
