"""A decode step over a quantized cache in a CUDA graph: append one token, attend to all so far.

    python3 examples/python/attention_graph.py

Without a GPU the same runs on the host backend, uncaptured.
"""
import torch

import vqgen.torch as vt

device = "cuda" if torch.cuda.is_available() else "cpu"
batch, query_heads, kv_heads, head_dim = 2, 4, 2, 64
form = {"vector_size": 4, "index_bits": 8}
codebooks = torch.randn(2, 1, 1, 256, 4, dtype=torch.float16, device=device)  # trained ones, in earnest
cache = vt.VQCache(batch=batch, query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim,
                   tokens=64, keys=form, values=form, key_codebooks=codebooks[0],
                   value_codebooks=codebooks[1], recent_tokens=16)
query = torch.zeros(batch, query_heads, head_dim, dtype=torch.float16, device=device)
key, value = (torch.zeros(batch, 1, kv_heads, head_dim, dtype=torch.float16, device=device)
              for _ in range(2))


def step():
    cache.append(key, value)
    return cache.attend(query)[0]


out = step()  # compiles what the cache has not
cache.lengths.zero_()
graph = None
if device == "cuda":
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()

for _ in range(10):
    for tensor in (query, key, value):
        tensor.normal_()
    if graph is None:
        out = step()
    else:
        graph.replay()
print(f"{cache.lengths.tolist()} tokens, output {tuple(out.shape)}, {cache.bytes_per_token():.0f} bytes "
      "of codes per token")
