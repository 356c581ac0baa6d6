"""What vqgen.vllm makes of an engine's configuration: what it refuses, and whose bundle it takes."""

import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

import vqgen
import vqgen.torch as vt
from vllm_models import LAYERS, TOKENS, Fields, configuration, model, refused, write_bundle, write_model
from vllm_reference import DIM, FORM, HEADS, KV_HEADS, PAGE
from vqgen._sights import Sight
from vqgen.vllm import __main__ as command
from vqgen.vllm import _engine, _identity, _pages, bind

__all__ = ["model"]  # the fixture
MAX_BUCKETS = 1  # of the fixture own_cache


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
    ("attention_chunk_size: attention within chunks", {"model_config__attention_chunk_size": 8192}),
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
    assert _engine.refusals(**ask) == _engine.refusals(**{**ask, "has_sink": True, "has_sliding_window": True}) == []
    for name, value, words in (("head_size", 72, "head_dim 72"), ("dtype", torch.float32, "torch.float32"),
                               ("kv_cache_dtype", "fp8", "kv_cache_dtype fp8"), ("block_size", 8, "block_size 8"),
                               ("device_capability", Fields(major=7, minor=5), "capability 7.5"),
                               ("attn_type", "encoder_decoder", "type encoder_decoder"), ("use_mla", True, "MLA"),
                               ("use_mm_prefix", True, "tokens that see later ones"),
                               ("use_dcp", True, "context parallel"), ("use_magic", True, "use_magic: what is unknown")):
        line, = _engine.refusals(**{**ask, name: value})
        assert words in line and ";" in line
    assert _engine.refusals(**{**ask, "kv_cache_dtype": "vqgen"}, own_dtypes=("vqgen",)) == []


def test_a_layers_wishes_are_served_or_refused_by_name():
    assert _engine.sight_of(logits_soft_cap=0.0, attn_type="decoder", sinks=None) == Sight()
    assert _engine.sight_of(sliding_window=128, logits_soft_cap=50, sinks=torch.ones(2)) == Sight(128, 0, 50.0, True)
    for name, value, words in (("alibi_slopes", [1.0], "ALiBi"), ("sliding_window", 0, "sliding_window of 0"),
                               ("sliding_window", [3, 0], "sliding_window of .3, 0."),
                               ("attn_type", "encoder_only", "other than a decoder"),
                               ("kv_sharing_target_layer_name", "a", "another layer"), ("chunk_lookback", 3, "chunk_lookback")):
        refused(words, lambda: _engine.sight_of(**{name: value}), vqgen.Infeasible)


def test_what_kernels_cannot_do_for_a_layer_is_refused_when_it_is_made(model, tmp_path, draw):
    engine = _engine.Engine(configuration(model))
    engine.add(Sight(16, 0, 30.0), HEADS, KV_HEADS, DIM)
    for heads in ((HEADS, KV_HEADS, 2 * DIM), (HEADS, 1, DIM), (2 * HEADS, KV_HEADS, DIM)):
        refused("layers of one shape are served", lambda: engine.add(Sight(), *heads), vqgen.Infeasible)
    one_kind = {"scheduler_config__disable_hybrid_kv_cache_manager": True}
    refused("disable_hybrid_kv_cache_manager: full-precision tokens", lambda: _engine.Engine(configuration(model, **one_kind)))
    engine = _engine.Engine(configuration(model, **one_kind, additional_config={"vqgen": {"recent_tokens": 0}}))
    engine.add(Sight(), HEADS, KV_HEADS, DIM)
    refused("disable_hybrid_kv_cache_manager: sliding windows", lambda: engine.add(Sight(16), HEADS, KV_HEADS, DIM))
    centered = vqgen.format_fields({**FORM, "center": True})
    bind(write_bundle(tmp_path / "centered", draw, form=centered), model)
    engine = _engine.Engine(configuration(model))
    engine.add(Sight(16, sink_logits=True), HEADS, KV_HEADS, DIM)
    refused("keys are centered, and the model bounds scores .soft cap 50.*values of the format vecinfer-d4b8i8",
            lambda: engine.add(Sight(0, 0, 50.0), HEADS, KV_HEADS, DIM), vqgen.Infeasible)


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


def test_a_model_that_is_not_served_is_found_before_training(model, tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.setattr(command, "_calibrate", lambda _, out: (tmp_path / "books").rename(out))

    def said(config, *more):
        (model / "config.json").write_text(json.dumps(config))
        code = command.main([str(model), "--text", "text", *more])
        return code, capsys.readouterr().err

    gemma = {"model_type": "gemma2", "num_hidden_layers": 2, "attn_logit_softcapping": 50.0}
    code, error = said(gemma)
    assert code == 2 and "--keys klt-2bit-keys: its keys are centered" in error and "format vecinfer-d4b8i8" in error
    code, error = said({"model_type": "llama4_text", "num_hidden_layers": 4, "attention_chunk_size": 64})
    assert code == 2 and "its layers see chunks of 64 tokens" in error
    code, error = said(gemma, "--keys", "vecinfer-d4b8i8", "--values", "vecinfer-d4b8i8")
    assert (code, error) == (0, "") and not (tmp_path / "books").exists()


def test_a_rank_has_its_heads(model):
    config = configuration(model)
    heads = lambda ranks: [_engine.Engine(config, rank, ranks).heads for rank in range(ranks)]
    assert heads(1) == [(0, 2)] and heads(2) == [(0, 1), (1, 1)]
    assert heads(4) == [(0, 1), (0, 1), (1, 1), (1, 1)]  # more ranks than heads: several have the same
    refused("the model has 2 heads of keys and values, which 3 ranks do not share", lambda: _engine.Engine(config, 2, 3))
