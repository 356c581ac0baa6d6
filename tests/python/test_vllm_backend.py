"""The backend of vqgen.vllm between stand-ins of vLLM's modules."""

import importlib
import sys
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

import reference
import vqgen
import vqgen.torch as vt
from vllm_models import LAYERS, TOKENS, Fields, configuration, model, refused
from vllm_reference import DEVICE, DIM, HEADS, KV_HEADS, PAGE, SCALE, attend, dense, expected, tensor
from vqgen._sights import Sight
from vqgen.vllm import _engine

__all__ = ["model"]  # the fixture
MAX_BUCKETS = 1  # of the fixture own_cache


@pytest.fixture
def backend(monkeypatch):
    """vqgen.vllm._backend, imported between stand-ins of the modules of vLLM 0.26 that it takes names from."""
    def module(name, **names):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        vars(sys.modules[name]).update(names)

    class Builder:
        def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
            self.vllm_config = vllm_config

        def _init_reorder_batch_threshold(self, threshold, supports_spec_as_decode):
            self.reorder_batch_threshold = threshold

    def flash(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal, window_size, softcap,
              return_softmax_lse, fa_version):
        left, right = window_size
        assert return_softmax_lse and fa_version == 3 and right == (0 if causal and left >= 0 else -1)
        return attend(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, softmax_scale, left, softcap)

    attention = type("Attention", (Fields,), {"get_kv_cache_spec": lambda self, config: "theirs"})
    current = Fields(config=None, raw=None)
    module("vllm")
    module("vllm.config", get_current_vllm_config=lambda: current.config)
    module("vllm.distributed", get_tensor_model_parallel_rank=lambda: 0, get_tensor_model_parallel_world_size=lambda: 1)
    module("vllm.forward_context", get_forward_context=lambda: Fields(attn_metadata=current.raw))
    module("vllm.model_executor.layers.attention_layer_base", AttentionLayerBase=object)
    module("vllm.v1.attention.backend", AttentionBackend=object, AttentionImpl=object, AttentionMetadataBuilder=Builder,
           AttentionCGSupport=Fields(UNIFORM_BATCH=2))
    module("vllm.v1.attention.backends.fa_utils", flash_attn_varlen_func=flash, get_flash_attn_version=lambda head_size: 3)
    module("vllm.model_executor.models.utils", extract_layer_index=lambda name: int(name.split(".")[2]))
    module("vllm.model_executor.layers.attention.attention", Attention=attention)
    module("vllm.v1.kv_cache_interface", TQFullAttentionSpec=lambda **fields: Fields(**fields),
           SlidingWindowSpec=lambda **fields: Fields(**fields))
    monkeypatch.setattr(_engine.importlib.metadata, "version", lambda name: "0.26.0")
    for name in ("_backend", "_raw"):
        monkeypatch.delitem(sys.modules, f"vqgen.vllm.{name}", raising=False)
    loaded = importlib.import_module("vqgen.vllm._backend")
    loaded.current, loaded.attention_class = current, attention
    yield loaded
    for name in ("_backend", "_raw"):
        sys.modules.pop(f"vqgen.vllm.{name}", None)


def step(builders, caches, impls, counts, lengths, tables, query, key, value, capture=False):
    """A step of all layers; the rows of sequence b are the newest of `lengths`[b] tokens."""
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    outs = []
    for builder, cache, impl, table in zip(builders, caches, impls, tables):
        common = Fields(num_reqs=len(counts), query_start_loc=tensor(starts), query_start_loc_cpu=torch.from_numpy(starts),
                        seq_lens=tensor(np.array(lengths, np.int32)), seq_lens_cpu_upper_bound=torch.tensor(lengths),
                        block_table_tensor=tensor(table), max_seq_len=max(lengths))
        batch = builder.build_for_cudagraph_capture(common) if capture else builder.build(0, common)
        output = torch.full((len(query), HEADS * DIM), torch.nan, dtype=query.dtype, device=DEVICE)
        assert impl.forward(None, query, key, value, cache, batch, output) is output
        outs.append(output.view(-1, HEADS, DIM).cpu().numpy())
    return outs


SINKS = torch.tensor([2.0, -1.0, 0.5, 3.0], dtype=torch.bfloat16)
KINDS = {"plain": [{}, {}], "gemma": [{"sliding_window": 9, "logits_soft_cap": 3.0}, {"logits_soft_cap": 3.0}],
         "gpt": [{"sliding_window": 4, "sinks": SINKS}, {"sinks": SINKS}]}


@pytest.mark.parametrize("kinds, recent", [("plain", 0), ("plain", 4), ("gemma", 4), ("gpt", 0), ("gpt", 4)])
def test_the_backend_loads_a_model_and_steps(backend, model, draw, tmp_path, kinds, recent):
    before = vt.runtime(DEVICE)
    vt.use_runtime(vqgen.Runtime(before.device, cache_dir=tmp_path / "kernels", max_buckets=1))
    refused("before a model has loaded", lambda: backend.Backend.get_kv_cache_shape(3, PAGE, KV_HEADS, DIM))
    config = backend.current.config = configuration(model, additional_config={"vqgen": {"recent_tokens": recent}})
    kinds = KINDS[kinds]
    windows = [kind.get("sliding_window", 0) for kind in kinds]
    impls = [backend.Backend.get_impl_cls()(HEADS, DIM, SCALE, KV_HEADS, **kind) for kind in kinds]
    layers = [backend.attention_class(impl=impl, attn_backend=backend.Backend, num_kv_heads=KV_HEADS, head_size=DIM,
                                      head_size_v=DIM, sliding_window=window or None) for impl, window in zip(impls, windows)]
    held = config.compilation_config.static_forward_context
    held |= {f"model.layers.{number}.self_attn.attn": layer for number, layer in enumerate(layers)}
    layers[0].head_size_v = 2 * DIM
    refused(r"layers.0.self_attn.attn has keys of 64 numbers and values of 128 .head_size_v", lambda: impls[0]
            .process_weights_after_loading(torch.float16), vqgen.Infeasible)
    assert impls[0].engine.kernels is None  # before minutes of compiling
    layers[0].head_size_v = DIM
    for impl in impls:
        impl.process_weights_after_loading(torch.float16)
    vt.runtime(DEVICE).freeze()  # nothing is compiled from here on
    # With full-precision tokens, blocks have equal bytes: 48 rows of 256 bytes in a head, and 512 of 24.
    blocks, page, block = (7, 256, 512) if recent else (9, PAGE, PAGE)
    shape = backend.Backend.get_kv_cache_shape(blocks * block // page, page, KV_HEADS, DIM)
    assert shape == (blocks * block // page, KV_HEADS, page, 6)
    assert backend.attention_class(attn_backend=object).get_kv_cache_spec(config) == "theirs"
    specs = [layer.get_kv_cache_spec(config) for layer in layers]
    for spec, window in zip(specs, windows):
        assert (spec.block_size, spec.dtype, spec.num_kv_heads, getattr(spec, "sliding_window", 0)) == (
            block, torch.int32, KV_HEADS, window)
        assert 24 == (4 * (spec.head_size + spec.head_size_v) if window else spec.tq_slot_size)  # bytes of a row
    if recent:
        words = "vLLM has blocks of 64 tokens, and full-precision tokens need 512"
        refused(words, lambda: backend.engine_of().prepare(DEVICE, 64))
    builders = [backend.Backend.get_builder_cls()(spec, ["a"], config, DEVICE) for spec in specs]
    assert [builder.reorder_batch_threshold for builder in builders] == [1, 1]
    caches = [tensor(draw.integers(0, 1 << 31, shape).astype(np.int32)) for _ in impls]
    for number, cache in enumerate(caches if recent else ()):
        layer = held[f"model.layers.{number}.self_attn.attn.raw"]
        spec, raw_backend = layer.get_kv_cache_spec(config), layer.get_attn_backend()
        assert (spec.block_size, spec.sliding_window, spec.dtype, spec.num_kv_heads) == (48, recent, torch.float16, KV_HEADS)
        layer.kv_cache = cache.view(torch.float16).view(raw_backend.get_kv_cache_shape(3 * blocks, 16, KV_HEADS, DIM))
        raw_builder = raw_backend.get_builder_cls()(Fields(block_size=48), ["a.raw"], config, DEVICE)
    profile = torch.ones(3, HEADS * DIM)
    assert not impls[0].forward(None, profile, None, None, None, None, profile).any()  # a run that measures memory

    halves = lambda *shape: draw.standard_normal(shape).astype(np.float16)
    fresh, queries = halves(2, 2, TOKENS, KV_HEADS, DIM), halves(2, TOKENS, HEADS, DIM)
    table = np.array([[3, 1, 5, 0], [7, 2, 4, 6]] if not recent else [[2, 3], [10, 11]], np.int32)
    # Blocks 1 and 5 hold codes, the others rows; none is there before the window.
    raw_tables = [[[6, 7, 8, 9, 10], [0, 1, 2, 12, 13]]] * 2 + [[[99, 7, 8, 9, 10], [99, 1, 2, 12, 13]]] * 2
    books = [{name: safetensors_torch.load_file(model / "vqgen.bundle")[f"layer{number}.{name}"]
              for name in ("keys.codebooks", "values.codebooks")} for number in range(LAYERS)]
    done, steps = [0, 0], 0
    for counts, capture in (((20, 13), False), ((1, 17), False), ((1, 1), False), ((1, 1), True)):
        spans = [slice(first, first + count) for first, count in zip(done, counts)]
        rows = lambda each: tensor(np.concatenate([each[b, span] for b, span in enumerate(spans)]))
        tables = [table.copy() for _ in impls]
        for own, window in zip(tables, windows):  # vLLM's null block takes the places of blocks behind the window
            for b in range(2):
                own[b, :max(done[b] + 1 - window, 0) // page if window else 0] = 8
        done = [first + count for first, count in zip(done, counts)]
        if recent:
            raw = Fields(num_reqs=2, block_table_tensor=tensor(np.array(raw_tables[steps], np.int32)))
            made = raw_builder.build_for_cudagraph_capture(raw) if capture else raw_builder.build(0, raw)
            backend.current.raw = {f"model.layers.{number}.self_attn.attn.raw": made for number in range(LAYERS)}
        steps += 1
        outs = step(builders, caches, impls, counts, done, tables, rows(queries).flatten(1), rows(fresh[0]).flatten(1),
                    rows(fresh[1]).flatten(1), capture)
        for out, cache, own, impl in zip(outs, caches, books, impls):
            row = 0
            for b, span in enumerate(spans):
                kept = dense(cache, own, table[b], span.stop)
                first_raw = max(span.start - max(recent - 1, 0), 0)  # of a decode with a window, too
                if counts[b] > 1 or recent:
                    kept = [np.concatenate([each[:first_raw], new[b, first_raw:span.stop]]) for each, new in zip(kept, fresh)]
                for token in range(span.start, span.stop):
                    wanted = expected(queries[b, token], kept[0][:token + 1], kept[1][:token + 1], impl.sight,
                                      None if impl.sinks is None else impl.sinks.double().numpy())
                    assert reference.worst(out[row], wanted) < 4e-3
                    row += 1
    vt.use_runtime(before)


def test_layers_of_other_classes_and_backends_are_refused(backend, model):
    config = backend.current.config = configuration(model)
    impl = backend.Impl(HEADS, DIM, SCALE, KV_HEADS)
    others = {"ChunkedLocalAttention": (type("ChunkedLocalAttention", (backend.attention_class,), {}), backend.Backend),
              "Chunks8_Backend": (backend.attention_class, type("Chunks8_Backend", (backend.Backend,), {}))}
    for name, (kind, attn_backend) in others.items():
        layer = kind(impl=impl, attn_backend=attn_backend, head_size=DIM, head_size_v=DIM)
        with pytest.raises(vqgen.Infeasible, match=f"a.attn is a .*{name}.*only plain decoders' attention is served"):
            backend._require_plain(layer, "a.attn")
    assert impl.sight == Sight() and config is backend.engine_of().config
