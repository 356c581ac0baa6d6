"""What vqgen.vllm makes of an engine's configuration, and its backend between stand-ins of vLLM's modules."""

import importlib
import json
import sys
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

import reference
import vqgen
import vqgen.torch as vt
from vllm_reference import (DEVICE, DIM, FORM, HEADS, KV_HEADS, PAGE, SCALE, attend, books_of, dense, expected,
                            tensor)
from vqgen.vllm import __main__ as command
from vqgen.vllm import _engine, _identity, _pages, bind

MAX_BUCKETS = 1  # of the fixture own_cache
LAYERS, TOKENS = 2, 64
Fields = types.SimpleNamespace


def write_model(folder, draw, **config):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": LAYERS, **config}))
    names = [f"model.layers.{layer}.self_attn.{part}_proj.weight" for layer in range(LAYERS) for part in "qkvo"]
    tensors = {name: torch.from_numpy(draw.standard_normal((8, 8)).astype(np.float16)) for name in names}
    tensors["model.embed_tokens.weight"] = torch.zeros(4, 8)
    safetensors_torch.save_file(tensors, folder / "model.safetensors")
    return folder


def write_bundle(path, draw, layers=LAYERS, heads=KV_HEADS, form=FORM, dtype=torch.float16, forms=None):
    items, tensors = [], {}
    for layer in range(layers):
        own = (forms or {}).get(layer, form)
        items.append({"name": f"layer{layer}", "kind": "attention", "dtype": "f16", "keys": own, "values": own,
                      "cache_batch": 1, "kv_heads": heads, "tokens": 0, "head_dim": DIM})
        tensors |= {f"layer{layer}.{name}": each.to(dtype) for name, each in books_of(draw, heads).items()}
    safetensors_torch.save_file(tensors, path, {"vqgen.bundle": json.dumps({"schema": 1, "items": items})})
    return path


def configuration(folder, **more):
    """The fields of vLLM's configuration that are read. Names a.b set a field of a part."""
    config = Fields(
        additional_config={}, speculative_config=None, device_config=Fields(device_type=DEVICE.type),
        compilation_config=Fields(static_forward_context={}),
        parallel_config=Fields(decode_context_parallel_size=1), cache_config=Fields(block_size=PAGE, kv_cache_dtype_skip_layers=[]),
        scheduler_config=Fields(max_num_seqs=2, max_num_batched_tokens=40),
        model_config=Fields(model=str(folder), dtype=torch.float16, max_model_len=TOKENS - 5, get_head_size=lambda: DIM,
                            get_total_num_kv_heads=lambda: KV_HEADS, get_total_num_hidden_layers=lambda: LAYERS,
                            get_num_attention_heads=lambda parallel: HEADS))
    for name, value in more.items():
        owner, _, field = name.rpartition("__")
        setattr(getattr(config, owner) if owner else config, field, value)
    return config


@pytest.fixture
def model(tmp_path, draw):
    folder = write_model(tmp_path / "model", draw)
    bind(write_bundle(tmp_path / "books", draw), folder)
    return folder


def refused(words, call, kind=vqgen.Error):
    with pytest.raises(kind, match=words) as found:
        call()
    assert "\n" not in str(found.value)


def test_a_bound_bundle_is_the_bundle(model, tmp_path):
    assert vt.read_bundle(model / "vqgen.bundle") == vt.read_bundle(tmp_path / "books")
    first, second = (safetensors_torch.load_file(path) for path in (model / "vqgen.bundle", tmp_path / "books"))
    assert all(torch.equal(first[name], second[name]) for name in first.keys() | second.keys())
    assert len(_engine.Engine(configuration(model)).items) == LAYERS
    assert sorted(path.name for path in model.iterdir()) == ["config.json", "model.safetensors", "vqgen.bundle"]


def test_a_bundle_of_another_model_is_refused(model, tmp_path, draw):
    engine = lambda: _engine.Engine(configuration(model))
    write_model(model, draw)
    refused(r"self_attn.k_proj.weight has other numbers there; calibrate this model: python3 -m vqgen.vllm", engine, vqgen.BadInput)
    bind(tmp_path / "books", model)
    write_model(tmp_path / "other", draw, rope_theta=5)
    (model / "config.json").write_bytes((tmp_path / "other" / "config.json").read_bytes())
    refused("another config.json", engine, vqgen.BadInput)
    write_model(model, draw)
    bind(tmp_path / "books", model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "transformers_version": "9", "torch_dtype": "bfloat16"}))
    engine()  # which say nothing about keys and values
    (model / "model.safetensors").unlink()
    refused("k_proj.weight is in the bundle's model alone", engine, vqgen.BadInput)
    bind(tmp_path / "books", model)
    engine()  # a folder without weights, as for random ones
    write_model(model, draw, transformers_version="9", torch_dtype="bfloat16")
    refused("k_proj.weight is not in the bundle's model", engine, vqgen.BadInput)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt", "consolidated.00.pth"])
def test_weights_that_are_no_safetensors_bind_no_bundle(model, tmp_path, name):
    (model / "model.safetensors").unlink()
    (model / "training_args.bin").touch()
    bind(tmp_path / "books", model)
    engine = lambda: _engine.Engine(configuration(model))
    engine()  # a folder without weights
    (model / name).write_bytes(b"of another fine-tune")
    words = f"its weights are {name}, no safetensors.* save_pretrained"
    refused(words, engine, vqgen.BadInput)
    refused(words, lambda: bind(tmp_path / "books", model), vqgen.BadInput)


def test_a_place_that_cannot_be_written_is_found_before_training(model, tmp_path, monkeypatch, capsys):
    from vqgen.vllm import __main__
    monkeypatch.setattr(__main__, "_calibrate", lambda *_: pytest.fail("trains"))
    before = (model / "vqgen.bundle").read_bytes()

    def said(folder):
        assert __main__.main([str(folder), "--text", "text"]) == 2
        return capsys.readouterr().err

    assert "its config.json cannot be read" in said(tmp_path / "nowhere")
    (model / "pytorch_model.bin").touch()
    (model / "model.safetensors").rename(tmp_path / "kept")
    assert "pytorch_model.bin, no safetensors" in said(model)
    (tmp_path / "kept").rename(model / "model.safetensors")
    monkeypatch.setattr("os.access", lambda *_: False)
    assert f"vqgen.bundle cannot be written: {model} is no folder that can be written; choose another" in said(model)
    refused("is no folder that can be written", lambda: bind(tmp_path / "books", model), vqgen.BadInput)
    monkeypatch.undo()
    monkeypatch.setattr("shutil.copyfileobj", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    refused("vqgen.bundle: it cannot be written: .*No space left", lambda: bind(tmp_path / "books", model), vqgen.BadInput)
    assert (model / "vqgen.bundle").read_bytes() == before
    assert sorted(path.name for path in model.iterdir()) == ["config.json", "model.safetensors", "pytorch_model.bin", "vqgen.bundle"]


def test_shards_are_read_by_their_index(model, tmp_path, draw):
    whole = safetensors_torch.load_file(model / "model.safetensors")
    before = _identity.identity(model)
    assert list(before["tensors"]) == ["model.layers.0.self_attn.k_proj.weight", f"model.layers.{LAYERS - 1}.self_attn.v_proj.weight"]
    (model / "model.safetensors").unlink()
    files = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(whole)}
    for file in set(files.values()):
        safetensors_torch.save_file({name: each for name, each in whole.items() if files[name] == file}, model / file)
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    assert _identity.identity(model) == before
    index.write_text(json.dumps({"weight_map": {**files, "a.k_proj.weight": "model-0.safetensors"}}))
    refused("has no tensor a.k_proj.weight, which the model's index promises", lambda: _identity.identity(model), vqgen.BadInput)
    index.write_text("{}")
    refused("it has no weight_map", lambda: _identity.identity(model), vqgen.BadInput)


@pytest.mark.parametrize("words, more", [
    ("model: nowhere is no folder", {"model_config__model": "nowhere"}),
    ("additional_config: vqgen.recent_tokens is -1, and has to be 0 to 4081", {"additional_config": {"vqgen": {"recent_tokens": -1}}}),
    ("additional_config: vqgen.recent_tokens is '128'", {"additional_config": {"vqgen": {"recent_tokens": "128"}}}),
    ("additional_config: vqgen is {'bundel': 'a'}; it takes bundle", {"additional_config": {"vqgen": {"bundel": "a"}}}),
    ("a: there is no such bundle; calibrate the model: python3 -m vqgen.vllm", {"additional_config": {"vqgen": {"bundle": "a"}}}),
    ("has 2 layers, and the model 3", {"model_config__get_total_num_hidden_layers": lambda: 3}),
    ("layer0 is of 2 heads of 64, and the model has 4 of 64", {"model_config__get_total_num_kv_heads": lambda: 4}),
    ("layer0 is of f16, and the model runs in torch.bfloat16; calibrate in that dtype", {"model_config__dtype": torch.bfloat16}),
    ("method eagle drafts by layers", {"speculative_config": Fields(method="eagle", num_speculative_tokens=2)}),
    ("decode_context_parallel_size", {"parallel_config__decode_context_parallel_size": 2}),
    ("kv_cache_dtype_skip_layers", {"cache_config__kv_cache_dtype_skip_layers": ["0"]}),
])
def test_an_engine_that_is_not_served_is_refused(model, words, more):
    refused(words, lambda: _engine.Engine(configuration(model, **more)))


def test_what_pages_cannot_hold_is_refused_before_weights_are_loaded(model, tmp_path, draw):
    def load(**more):
        _engine.Engine(configuration(model, **more))
    codes_alone = {"additional_config": {"vqgen": {"recent_tokens": 0}}}
    for more in ({}, codes_alone):
        refused("block_size: 24 is none of 16, 32, 64, 128, 256", lambda: load(cache_config__block_size=24, **more))
    refused("head_dim 32 is none of 64", lambda: _pages.require_pages(
        _pages.Shape(HEADS, KV_HEADS, 32, PAGE, TOKENS, 1, 40), FORM, FORM), vqgen.Infeasible)
    assert _engine.Engine(configuration(model, cache_config__block_size=384, **codes_alone)).shape().page_tokens == 128
    refused("a step verifies 17 tokens", lambda: load(speculative_config=Fields(method="ngram", num_speculative_tokens=16)))
    refused("max_num_batched_tokens: 70000 is more than 65536", lambda: load(scheduler_config__max_num_batched_tokens=70000))
    for form, words in (({**FORM, "layout": {"rows": 4, "words": 1}}, "groups of 4 rows"),
                        (vqgen.format_fields("int4-kivi-keys"), "encoded 32 tokens at a time")):
        bind(write_bundle(tmp_path / "books", draw, form=form), model)
        refused(words, load, vqgen.Infeasible)
    other = vqgen.format_fields({"vector_size": 8, "index_bits": 6})
    bind(write_bundle(tmp_path / "books", draw, forms={1: other}), model)
    refused("layer1 has other formats than layer0", load, vqgen.Infeasible)


def test_the_selectors_questions_are_answered_by_name():
    ask = dict(head_size=DIM, dtype=torch.float16, kv_cache_dtype="auto", block_size=None, use_mla=False, has_sink=False,
               device_capability=Fields(major=9, minor=0), attn_type="decoder")
    assert _engine.refusals(**ask) == []
    for name, value, words in (("head_size", 80, "head_dim 80"), ("dtype", torch.float32, "torch.float32"),
                               ("kv_cache_dtype", "fp8", "kv_cache_dtype fp8"), ("block_size", 8, "block_size 8"),
                               ("device_capability", Fields(major=7, minor=5), "capability 7.5"),
                               ("attn_type", "encoder_decoder", "type encoder_decoder"), ("use_mla", True, "MLA"),
                               ("has_sink", True, "sinks"), ("has_sliding_window", True, "sliding window"),
                               ("use_dcp", True, "context parallel"), ("use_magic", True, "use_magic: what is unknown")):
        line, = _engine.refusals(**{**ask, name: value})
        assert words in line and ";" in line
    assert _engine.refusals(**{**ask, "kv_cache_dtype": "vqgen"}, own_dtypes=("vqgen",)) == []


def test_a_layers_wishes_are_refused_by_name():
    _engine.require_layer(logits_soft_cap=0.0, attn_type="decoder", sinks=None)
    for name, value, words in (("alibi_slopes", [1.0], "ALiBi"), ("sliding_window", 128, "sliding window"),
                               ("logits_soft_cap", 30.0, "soft cap"), ("sinks", torch.ones(2), "sinks"),
                               ("attn_type", "encoder_only", "other than a decoder"),
                               ("kv_sharing_target_layer_name", "a", "another layer"), ("chunk_lookback", 3, "chunk_lookback")):
        refused(words, lambda: _engine.require_layer(**{name: value}), vqgen.Infeasible)


def test_another_version_of_vllm_is_refused():
    assert [_engine.require_version(each) for each in ("0.26.0", "0.26.1+cu130", "0.33.0")] == ["0.26", "0.26", "0.33"]
    refused("vLLM 0.27.0 is not served; install vLLM 0.26 or 0.33", lambda: _engine.require_version("0.27.0"), vqgen.Infeasible)


def test_the_command_binds_a_bundle_or_says_why_not(model, tmp_path, draw, capsys):
    (model / "vqgen.bundle").unlink()
    assert command.main([str(model), "--bundle", str(tmp_path / "books")]) == 0
    assert capsys.readouterr().out.strip() == str(model / "vqgen.bundle")
    (tmp_path / "broken").write_bytes(b"x" * 20)
    for bundle, folder, words in (("broken", model, "cannot be read as safetensors"), ("books", tmp_path, "its config.json cannot"),
                                  ("model/model.safetensors", model, "it is no bundle")):
        assert command.main([str(folder), "--bundle", str(tmp_path / bundle)]) == 2
        error = capsys.readouterr().err
        assert words in error and error.startswith("vqgen.vllm: ") and error.count("\n") == 1


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

    def flash(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal, return_softmax_lse,
              fa_version):
        assert return_softmax_lse and fa_version == 3
        return attend(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, softmax_scale)

    attention = type("Attention", (), {"get_kv_cache_spec": lambda self, config: "theirs"})
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


def step(builder, caches, impls, counts, lengths, table, query, key, value, capture=False):
    """A step of all layers; the rows of sequence b are the newest of `lengths`[b] tokens."""
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    common = Fields(num_reqs=len(counts), query_start_loc=tensor(starts), query_start_loc_cpu=torch.from_numpy(starts),
                    seq_lens=tensor(np.array(lengths, np.int32)), seq_lens_cpu_upper_bound=torch.tensor(lengths),
                    block_table_tensor=table, max_seq_len=max(lengths))
    batch = builder.build_for_cudagraph_capture(common) if capture else builder.build(0, common)
    outs = []
    for cache, impl in zip(caches, impls):
        output = torch.full((len(query), HEADS * DIM), torch.nan, dtype=query.dtype, device=DEVICE)
        assert impl.forward(None, query, key, value, cache, batch, output) is output
        outs.append(output.view(-1, HEADS, DIM).cpu().numpy())
    return outs


def test_a_rank_has_its_heads(model):
    config = configuration(model)
    heads = lambda ranks: [_engine.Engine(config, rank, ranks).heads for rank in range(ranks)]
    assert heads(1) == [(0, 2)] and heads(2) == [(0, 1), (1, 1)]
    assert heads(4) == [(0, 1), (0, 1), (1, 1), (1, 1)]  # more ranks than heads: several have the same


@pytest.mark.parametrize("recent", [0, 4])
def test_the_backend_loads_a_model_and_steps(backend, model, draw, tmp_path, recent):
    before = vt.runtime(DEVICE)
    vt.use_runtime(vqgen.Runtime(before.device, cache_dir=tmp_path / "kernels", max_buckets=1))
    refused("before a model has loaded", lambda: backend.Backend.get_kv_cache_shape(3, PAGE, KV_HEADS, DIM))
    config = backend.current.config = configuration(model, additional_config={"vqgen": {"recent_tokens": recent}})
    impls = [backend.Backend.get_impl_cls()(HEADS, DIM, SCALE, KV_HEADS) for _ in range(LAYERS)]
    for number, impl in enumerate(impls):
        config.compilation_config.static_forward_context[f"model.layers.{number}.self_attn.attn"] = Fields(impl=impl)
    for impl in impls:
        impl.process_weights_after_loading(torch.float16)
    vt.runtime(DEVICE).freeze()  # nothing is compiled from here on
    # With full-precision tokens, blocks have equal bytes: 48 rows of 256 bytes in a head, and 512 of 24.
    blocks, page, block = (7, 256, 512) if recent else (9, PAGE, PAGE)
    shape = backend.Backend.get_kv_cache_shape(blocks * block // page, page, KV_HEADS, DIM)
    assert shape == (blocks * block // page, KV_HEADS, page, 6)
    layer = backend.attention_class()
    layer.attn_backend = object
    assert layer.get_kv_cache_spec(config) == "theirs"
    layer.attn_backend, layer.num_kv_heads, layer.head_size = backend.Backend, KV_HEADS, DIM
    spec = layer.get_kv_cache_spec(config)
    assert (spec.tq_slot_size, spec.block_size, spec.dtype) == (24, block, torch.int32)
    if recent:
        refused("vLLM has blocks of 64 tokens, and full-precision tokens need 512", lambda: backend.engine_of().prepare(DEVICE, 64))
    builder = backend.Backend.get_builder_cls()(Fields(block_size=block), ["a"], config, DEVICE)
    assert builder.reorder_batch_threshold == 1
    caches = [tensor(draw.integers(0, 1 << 31, shape).astype(np.int32)) for _ in impls]
    raw_layers = [config.compilation_config.static_forward_context[f"model.layers.{number}.self_attn.attn.raw"]
                  for number in range(LAYERS if recent else 0)]
    for layer, cache in zip(raw_layers, caches):
        spec, raw_backend = layer.get_kv_cache_spec(config), layer.get_attn_backend()
        assert (spec.block_size, spec.sliding_window, spec.dtype, spec.num_kv_heads) == (48, recent, torch.float16, KV_HEADS)
        layer.kv_cache = cache.view(torch.float16).view(raw_backend.get_kv_cache_shape(3 * blocks, 16, KV_HEADS, DIM))
        raw_builder = raw_backend.get_builder_cls()(Fields(block_size=48), ["a.raw"], config, DEVICE)
    profile = torch.ones(3, HEADS * DIM)
    assert not impls[0].forward(None, profile, None, None, None, None, profile).any()  # a run that measures memory

    halves = lambda *shape: draw.standard_normal(shape).astype(np.float16)
    fresh, queries = halves(2, 2, TOKENS, KV_HEADS, DIM), halves(2, TOKENS, HEADS, DIM)
    table = tensor(np.array([[3, 1, 5, 0], [7, 2, 4, 6]] if not recent else [[2, 3], [10, 11]], np.int32))
    # Blocks 1 and 5 hold codes, the others rows; none is there before the window.
    raw_tables = [[[6, 7, 8, 9, 10], [0, 1, 2, 12, 13]]] * 2 + [[[99, 7, 8, 9, 10], [99, 1, 2, 12, 13]]] * 2
    books = [{name: safetensors_torch.load_file(model / "vqgen.bundle")[f"layer{number}.{name}"]
              for name in ("keys.codebooks", "values.codebooks")} for number in range(LAYERS)]
    done, steps = [0, 0], 0
    for counts, capture in (((20, 13), False), ((1, 17), False), ((1, 1), False), ((1, 1), True)):
        spans = [slice(first, first + count) for first, count in zip(done, counts)]
        rows = lambda each: tensor(np.concatenate([each[b, span] for b, span in enumerate(spans)]))
        done = [first + count for first, count in zip(done, counts)]
        if recent:
            raw = Fields(num_reqs=2, block_table_tensor=tensor(np.array(raw_tables[steps], np.int32)))
            made = raw_builder.build_for_cudagraph_capture(raw) if capture else raw_builder.build(0, raw)
            backend.current.raw = {f"model.layers.{number}.self_attn.attn.raw": made for number in range(LAYERS)}
        steps += 1
        outs = step(builder, caches, impls, counts, done, table, rows(queries).flatten(1), rows(fresh[0]).flatten(1),
                    rows(fresh[1]).flatten(1), capture)
        for out, cache, own in zip(outs, caches, books):
            row = 0
            for b, span in enumerate(spans):
                held = dense(cache, own, table[b].cpu().numpy(), span.stop)
                first_raw = max(span.start - max(recent - 1, 0), 0)  # of a decode with a window, too
                if counts[b] > 1 or recent:
                    held = [np.concatenate([each[:first_raw], new[b, first_raw:span.stop]]) for each, new in zip(held, fresh)]
                for token in range(span.start, span.stop):
                    wanted = expected(queries[b, token], held[0][:token + 1], held[1][:token + 1])
                    assert reference.worst(out[row], wanted) < 4e-3
                    row += 1
    vt.use_runtime(before)
