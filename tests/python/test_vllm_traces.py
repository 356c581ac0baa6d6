"""Traces of batches as vLLM describes them, through layers of every kind that vqgen.vllm serves, on the host backend or a
GPU."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import vqgen
from vqgen._sights import Sight
from vqgen.vllm._batch import Batches
from vqgen.vllm._pages import Kernels, Layer, Shape
from vllm_reference import DEVICE, DIM, HEADS, KV_HEADS, PAGE, SCALE, attend, half_by_default, tensor
from vllm_traces import run

__all__ = ["half_by_default"]  # the fixture
MAX_BUCKETS = 1  # of the fixture own_cache

HAPPENS = ("prompt", "chunk", "mixed", "preempted", "hit", "hit in its step")


@pytest.mark.parametrize("drafts, recent", [(0, 0), (2, 0), (0, 20), (2, 13), (0, 1)])
def test_a_trace_is_attention_over_what_the_pages_hold(draw, drafts, recent):
    events = run(draw, drafts, recent)
    assert recent < 2 or events["hit without a window"] >= 1, events
    assert min(events[each] for each in HAPPENS) >= 1, events


# Windows within a page, that end at an edge of pages, shorter and longer than the full-precision tokens, and of one token;
# together as in Gemma 2, Gemma 3 and GPT-OSS.
@pytest.mark.parametrize("drafts, recent, sights", [
    (0, 0, [Sight(7), Sight(logit_softcap=2.0), Sight(sink_logits=True)]),
    (2, 0, [Sight(16), Sight(21, logit_softcap=3.0), Sight(logit_softcap=3.0)]),
    (0, 20, [Sight(33), Sight(), Sight(17)]),
    (2, 13, [Sight(5), Sight(20, logit_softcap=2.0)]),
    (0, 13, [Sight(13, sink_logits=True), Sight(sink_logits=True), Sight(1)]),
    (2, 8, [Sight(8, sink_logits=True), Sight(30, logit_softcap=2.0, sink_logits=True)]),
])
def test_layers_see_their_windows_and_bound_their_scores(draw, drafts, recent, sights):
    events = run(draw, drafts, recent, sights, count=10)
    assert min(events[each] for each in (*HAPPENS[:4], "evicted", "later piece")) >= 1, events


def test_what_vllms_null_block_holds_does_not_matter(draw):
    form, window, tokens = vqgen.format_fields("int8-token"), 5, 4 * PAGE  # whose scales may be no numbers
    shape = Shape(HEADS, KV_HEADS, DIM, PAGE, tokens, 1, tokens, piece_tokens=tokens)
    kernels = Kernels(shape, form, form, torch.float16, DEVICE, (Sight(window),))
    books = {name: torch.ones(tuple(size), dtype=torch.float32 if name.endswith("scales") else torch.float16)
             for name, size in kernels.arguments.items() if name.split(".")[-1] in ("codebooks", "scales")}
    layer = Layer(kernels, {name.replace(".scales", ".stage_scales"): each for name, each in books.items()}, attend, SCALE,
                  Sight(window))
    batches = Batches(sequences=1, columns=4, page_tokens=PAGE, query_tokens=1, piece_tokens=tokens, device=DEVICE,
                      sliding_window=window)
    rows = tensor(draw.standard_normal((tokens, HEADS + 2 * KV_HEADS, DIM)).astype(np.float16))
    outs = {fill: torch.empty(tokens, HEADS, DIM, dtype=torch.float16, device=DEVICE) for fill in (0, -1)}
    for fill, out in outs.items():
        pages = torch.full(kernels.cache_shape(5), fill, dtype=torch.int32, device=DEVICE)
        done = 0
        for count in (40, 10, 1, 1):
            span = slice(done, done + count)
            table = np.array([[0 if PAGE * page + PAGE <= done + 1 - window else page + 1 for page in range(4)]], np.int32)
            starts, done = np.array([0, count], np.int32), done + count
            batch = batches.build([0, count], [done], tensor(starts), tensor(np.array([done], np.int32)), tensor(table), done)
            layer.forward(batch, *rows[span].split([HEADS, KV_HEADS, KV_HEADS], 1), pages, out[span])
        assert (pages[0] == fill).all() and table[0].tolist() == [0, 0, 3, 4]
    assert torch.equal(outs[0][:done], outs[-1][:done]) and torch.isfinite(outs[0][:done]).all()
