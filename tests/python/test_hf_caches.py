"""Caches of models after failed calls, with long prompts, copied, and under torch.compile."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import vqgen
import vqgen.torch as vt
from hf_models import DEVICE, IDS, layers, model, near, new_cache, steps, untouched
from vqgen._models import attending


# A refused call leaves the cache as it was.


@pytest.mark.parametrize("recent_tokens, drafts", [(0, 0), (8, 0), (8, 3)])
def test_a_pass_that_fails_midway_is_told_of(model, layers, recent_tokens, drafts, monkeypatch):
    cache = new_cache(model, layers, recent_tokens=recent_tokens, drafts=drafts)
    broken = cache.layers[1].cache
    write = type(broken).write

    def fails(self, *arguments):
        if self is broken:
            raise vqgen.DeviceError("out of memory")
        return write(self, *arguments)

    monkeypatch.setattr(type(broken), "write", fails)
    with pytest.raises(vqgen.DeviceError):
        steps(model, cache)
    assert untouched(cache)  # nothing was there before
    monkeypatch.setattr(type(broken), "write", write)
    expected = steps(model, new_cache(model, layers, recent_tokens=recent_tokens, drafts=drafts))
    assert torch.equal(steps(model, cache), expected)
    monkeypatch.setattr(type(broken), "write", fails)
    with pytest.raises(vqgen.DeviceError):
        model(IDS[:, :5], past_key_values=cache)
    monkeypatch.setattr(type(broken), "write", write)
    with pytest.raises(vqgen.BadInput, match="failed midway.*reset"):
        model(IDS[:, :1], past_key_values=cache)
    cache.reset()
    assert torch.equal(steps(model, cache), expected)


def test_a_later_layer_that_is_refused_empties_a_new_cache(model, layers):
    attention = model.model.layers[1].self_attn
    expected, cache = steps(model, new_cache(model, layers)), new_cache(model, layers)
    attention.sliding_window = 4
    try:
        with pytest.raises(vqgen.Infeasible, match="'sliding_window' is 4, and its config says none"):
            steps(model, cache)
    finally:
        attention.sliding_window = None
    assert untouched(cache)
    assert torch.equal(steps(model, cache), expected)


def test_what_is_not_compiled_leaves_the_cache_as_it_was(model, layers, monkeypatch):
    cache = new_cache(model, layers)
    expected = steps(model, new_cache(model, layers))
    prepare = vt.prepare

    def refuses(config, *rest):
        if '"new_tokens": 8' in config:
            raise vqgen.Miss("the op is new")
        return prepare(config, *rest)

    monkeypatch.setattr(vt, "prepare", refuses)
    with pytest.raises(vqgen.Miss):
        model(IDS[:, :5], past_key_values=cache)
    assert untouched(cache)
    monkeypatch.undo()
    assert torch.equal(steps(model, cache), expected)
    with pytest.raises(vqgen.RangeError, match="room for 32"):
        model(torch.ones(2, 17, dtype=torch.long, device=DEVICE), past_key_values=cache)
    assert cache.lengths.tolist() == [16, 16]


@pytest.mark.parametrize("counts", [None, (7, 3, 0)])
def test_tokens_beyond_what_one_append_takes_come_in_parts(layers, counts, monkeypatch):
    from vqgen import _appends
    item, tensors = layers[0]
    torch.manual_seed(2)
    new = torch.randn(2, 3, 7, 2, 64, device=DEVICE).half()
    if counts is not None:
        counts = torch.tensor(counts, dtype=torch.int32, device=DEVICE)
    caches = [vt.VQCache(batch=3, query_heads=4, kv_heads=2, head_dim=64, tokens=16, recent_tokens=4, sinks=1, keys=item["keys"],
                         values=item["values"], key_codebooks=tensors["keys.codebooks"],
                         value_codebooks=tensors["values.codebooks"]) for _ in range(2)]
    positions = torch.tensor([2, 5, -1], dtype=torch.int32, device=DEVICE)
    for cache, most in zip(caches, (65536, 2)):
        cache.append(*new[:, :, :5])
        monkeypatch.setattr(_appends, "MOST", most)
        assert _appends.sizes(7) == ({8} if most > 7 else {1, 2})
        cache.write(*new, positions, counts)
        cache.append(*new, counts)
    for ours, theirs in zip(caches[0].dequantize(16), caches[1].dequantize(16)):
        assert torch.equal(ours, theirs)
    assert torch.equal(caches[0].keys.codes, caches[1].keys.codes)
    assert torch.equal(caches[0].raw_keys, caches[1].raw_keys)
    assert torch.equal(caches[0].lengths, caches[1].lengths)


@pytest.mark.skipif(DEVICE == "cpu", reason="65,540 tokens take minutes on the CPU; parts of other sizes are tested above")
def test_a_prompt_above_65536_tokens(model, layers):
    cache = new_cache(model, layers, batch=1, tokens=65544)
    ids = torch.randint(1, 64, (1, 65540), device=DEVICE)
    with torch.no_grad():
        model(ids, past_key_values=cache, logits_to_keep=1)
        ours = model(ids[:, :1], past_key_values=cache).logits
        with attending(model, "sdpa"):
            theirs = model(torch.cat([ids, ids[:, :1]], 1), logits_to_keep=1).logits
    assert cache.lengths.tolist() == [65541]
    assert near(ours.float(), theirs.float())


# Copies, and torch.compile.


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))])
def test_copies_of_a_cache_go_on_by_themselves(model, layers, copied):
    first = new_cache(model, layers, recent_tokens=4, drafts=1)
    expected = steps(model, new_cache(model, layers, recent_tokens=4, drafts=1))
    with torch.no_grad():
        model(IDS[:, :5], past_key_values=first)
    copies = [copied(first) for _ in range(2)]
    first.reset()
    for each in copies:
        assert all(layer.tokens is each.tokens and layer.cache.lengths is each.tokens.lengths for layer in each.layers)
        with torch.no_grad():
            logits = [model(IDS[:, now:now + 1], past_key_values=each).logits[:, -1].float() for now in range(5, 16)]
        assert torch.equal(torch.stack(logits, 1), expected[:, 1:])
        assert each.lengths.tolist() == [16, 16]
    assert untouched(first)


def test_a_compiled_model_is_not_compiled_for_each_token(model, layers):
    import torch._dynamo
    torch._dynamo.reset()
    expected = steps(model, new_cache(model, layers))
    fast, cache, graphs = torch.compile(model, backend="eager"), new_cache(model, layers), []
    logits = []
    with torch.no_grad():
        for part in (IDS[:, :5], *IDS[:, 5:].split(1, 1)):
            before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            logits.append(fast(part, past_key_values=cache).logits[:, -1].float())
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"] - before)
    assert sum(graphs[5:]) == 0, graphs
    assert near(torch.stack(logits, 1), expected)
