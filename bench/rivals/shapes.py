"""The problems of the table: products by rows and attention over a cache, with vqgen's twins.

A problem is a dict: its `name`, its `part`, and the `config` without formats. A twin is that config with a
format, as vqgen takes it.
"""
import problems  # of bench/flagship

MATRICES = ((28672, 8192), (14336, 4096), (4096, 4096))  # outputs, inputs
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Sequences, query heads, KV heads, tokens; 128 channels.
CACHES = ((1, 32, 8, 196608), (1, 32, 8, 32768), (8, 32, 8, 4096), (16, 32, 8, 16384), (64, 32, 8, 8192),
          (128, 32, 8, 1024), (4, 64, 8, 131072), (1, 28, 4, 32768))
HEAD_DIM = 128
PAGE_TOKENS = 64  # as FlashInfer's

TWINS = {"products": {"aqlm-2x8": {"weights": "aqlm-2x8"}, "aqlm-2x8i8": {"weights": "aqlm-2x8i8"}},
         "attention": {"d4b8": {"keys": "vecinfer-d4b8", "values": "vecinfer-d4b8"},
                       "d4b8i8": {"keys": "vecinfer-d4b8i8", "values": "vecinfer-d4b8i8"},
                       "d4b8i8-paged": {"keys": "vecinfer-d4b8i8", "values": "vecinfer-d4b8i8",
                                        "shape": {"page_tokens": PAGE_TOKENS}},
                       "int8": {"keys": "int8-channel", "values": "int8-channel"}}}
BITS_OF_TWINS = {"int8": 8}  # of those that have not BITS
BITS = 2
PARTS = tuple(TWINS)


def products():
    for outputs, inputs in MATRICES:
        for rows in ROWS:
            shape = {"m": rows, "out_features": outputs, "in_features": inputs}
            yield {"name": f"products/{outputs}x{inputs}-{rows}", "part": "products",
                   "config": problems.of_rows({"op": "gemv", "dtype": "f16", "shape": shape})}


def attention():
    for batch, query_heads, kv_heads, tokens in CACHES:
        shape = {"batch": batch, "query_heads": query_heads, "kv_heads": kv_heads, "head_dim": HEAD_DIM,
                 "tokens": tokens}
        yield {"name": f"attention/B{batch}-H{query_heads}-K{kv_heads}-N{tokens}", "part": "attention",
               "config": {"op": "attention_decode", "dtype": "f16", "shape": shape}}


def everything():
    return [*products(), *attention()]


def selected(pattern):
    """The problems whose names the pattern finds; all without a pattern."""
    return [each for each in everything() if pattern is None or pattern.search(each["name"])]


def twins(problem):
    """(name, config) of each format in which vqgen is timed."""
    config = problem["config"]
    return [(name, {**config, **formats, "shape": {**config["shape"], **formats.get("shape", {})}})
            for name, formats in TWINS[problem["part"]].items()]


def bits_of(twin):
    return BITS_OF_TWINS.get(twin, BITS)
