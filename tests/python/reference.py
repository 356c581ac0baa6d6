"""Plain references in NumPy, in double precision, without vqgen's code."""

import numpy as np


def hadamard(size):
    """Return the orthogonal Hadamard matrix of a power of two, its own inverse."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / size**0.5


def unpack(words, count, bits):
    """Return codes of `bits` bits from packed 32-bit words, least significant first; [..., count]."""
    spread = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    spread = spread[..., :count * bits].reshape(*words.shape[:-1], count, bits).astype(np.int64)
    return spread @ (1 << np.arange(bits))


def pack(codes, bits):
    """Return the inverse of unpack(), with the last word padded by zeros."""
    spread = (codes[..., None] >> np.arange(bits)) & 1
    spread = spread.reshape(*codes.shape[:-1], -1).astype(np.uint8)
    spread = np.pad(spread, [(0, 0)] * (spread.ndim - 1) + [(0, -spread.shape[-1] % 32)])
    return np.packbits(spread, axis=-1, bitorder="little").view(np.uint32)


def decoded(codes, codebooks, columns, bits):
    """Return rows of a tensor with one set of codebooks. codes: packed [..., words]; codebooks: [1, stages,
    entries, vector]; the stages of a vector are adjacent."""
    _, stages, _, vector = codebooks.shape
    numbers = unpack(codes, columns // vector * stages, bits)
    numbers = numbers.reshape(*codes.shape[:-1], columns // vector, stages)
    entries = sum(codebooks[0, stage].astype(np.float64)[numbers[..., stage]]
                  for stage in range(stages))
    return entries.reshape(*codes.shape[:-1], columns)


def pool(order, pages, heads, page_tokens, key_words, value_words, empty):
    """Lay out keys' and values' codes in pages, [pages, heads, page_tokens, words], as engines do: in two
    tensors
    by heads ("hnd") or by tokens ("nhd"), in one tensor ("joint"), or a token's key and value side by side.
    empty(shape) makes an array of uint32 or int32. Return the two views and their arrays."""
    if order == "hnd":
        whole = [empty((pages, heads, page_tokens, words)) for words in (key_words, value_words)]
        return *whole, whole
    if order == "nhd":
        whole = [empty((pages, page_tokens, heads, words)) for words in (key_words, value_words)]
        return *(each.swapaxes(1, 2) for each in whole), whole
    if order == "joint":
        assert key_words == value_words
        whole = empty((pages, 2, heads, page_tokens, key_words))
        return whole[:, 0], whole[:, 1], [whole]
    assert order == "side by side"
    whole = empty((pages, heads, page_tokens, key_words + value_words))
    return whole[..., :key_words], whole[..., key_words:], [whole]


ORDERS = ("hnd", "nhd", "joint", "side by side")


def attention(query, keys, values, lengths):
    """query: [batch, heads, dim]; keys, values: [batch, kv_heads, tokens, dim]. Return (out, lse)."""
    group = query.shape[1] // keys.shape[1]
    keys, values = (np.repeat(each, group, axis=1) for each in (keys, values))
    scores = np.einsum("bhd,bhtd->bht", query.astype(np.float64), keys) / query.shape[-1]**0.5
    past = np.arange(keys.shape[2]) >= np.asarray(lengths)[:, None, None]
    scores = np.where(past, -np.inf, scores)
    most = scores.max(-1, keepdims=True)
    weights = np.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    out = np.einsum("bht,bhtd->bhd", weights / total, values)
    return out, (most + np.log(total))[..., 0]


def merge(outs, lses):
    """outs: [parts, rows, heads, dim]; lses: [parts, rows, heads], where a part with -inf does not count.
    Return
    (out, lse)."""
    lses = np.asarray(lses, np.float64)
    counts = lses > -np.inf
    most = np.where(counts.any(0), lses.max(0), 0)
    weights = np.exp(lses - most)
    total = weights.sum(0)
    outs = np.where(counts[..., None], np.asarray(outs, np.float64), 0)
    out = (weights[..., None] * outs).sum(0) / np.where(total > 0, total, 1)[..., None]
    with np.errstate(divide="ignore"):
        return out, most + np.log(total)


def worst(result, expected):
    """Return the largest error relative to the largest expected magnitude; NaN if there is one."""
    error = np.abs(np.asarray(result, np.float64) - expected).max()
    return error / np.abs(expected).max()
