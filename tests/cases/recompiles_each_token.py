"""torch.compile of a model over a VQCache compiles a bounded number of graphs, as for a static cache, or
leaves
attention out of the graph: after four single tokens nothing is compiled."""

import torch
import torch._dynamo
import torch._logging

from hfkit import IDS, cache, end, tiny, with_attention


def compiled():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


model = with_attention(tiny(), "vqgen")
past = cache(model)
fast = torch.compile(model, backend="eager")
torch._logging.set_logs(dynamo=50)
graphs = []
with torch.no_grad():
    fast(IDS[:, :4], past_key_values=past)
    for k in range(4, 24):
        before = compiled()
        fast(IDS[:, k:k + 1], past_key_values=past)
        graphs.append(compiled() - before)
print("graphs compiled by step:", graphs)
end(compiled() > 0 and sum(graphs[4:]) == 0)
