"""What bench/vllm_compare.py does beside vLLM: the reference that its tokens are held against, and its stand-ins."""

import json
import os
import pathlib
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

import vqgen
import vqgen.hf
import vqgen.torch as vt
from hf_models import DEVICE, layers, model, near  # noqa: F401
from vqgen._folders import Quantization
from vqgen._models import attending
from vqgen.vllm import _identity

sys.path.insert(0, str(pathlib.Path(os.environ.get("VQGEN_SOURCE_DIR", pathlib.Path(__file__).parents[2])) / "bench"))
import vllm_compare  # noqa: E402
import vllm_experts  # noqa: E402
import vllm_judge  # noqa: E402
import vllm_kinds  # noqa: E402
import vllm_random  # noqa: E402

Fields = types.SimpleNamespace
PROMPTS, CHOSEN = [[5, 0, 7, 0, 0, 9, 11, 3], [0, 0, 2, 8, 0, 1, 4, 6]], [[1, 0, 2, 9], [7, 7, 0, 3]]  # 0 pads elsewhere
WHOLE = [(0, 8)]


@pytest.fixture
def caches(monkeypatch):
    """The caches that are made, in order."""
    made, plain = [], vqgen.hf.VQCache
    monkeypatch.setattr(vqgen.hf, "VQCache", lambda *given, **more: made.append(plain(*given, **more)) or made[-1])
    return made


def codes_of(cache, tokens):
    return torch.stack([torch.cat([each.codes[:, :, :tokens] for each in (layer.cache.keys, layer.cache.values)], -1)
                        for layer in cache.layers])


def test_a_cache_reads_the_codes_that_it_is_given(model, layers, caches):
    plain, _ = vllm_judge.logits_of(model, layers, PROMPTS, CHOSEN, WHOLE)
    codes = codes_of(caches[0], 11)
    same, share = vllm_judge.logits_of(model, layers, PROMPTS, CHOSEN, WHOLE, codes)
    assert torch.equal(same, plain) and share == 0
    roomy, _ = vllm_judge.logits_of(model, layers, PROMPTS, CHOSEN, WHOLE, codes, room=64)
    assert near(roomy, plain)
    codes[0, 1, 0, 3, 0] ^= 0xFF
    other, share = vllm_judge.logits_of(model, layers, PROMPTS, CHOSEN, WHOLE, codes)
    assert 1 / codes.view(torch.uint8).numel() <= share < 0.1
    assert torch.equal(other[0], plain[0]) and torch.equal(other[1, 0], plain[1, 0])  # prompts do not read codes
    assert not torch.equal(other[1, 1], plain[1, 1])


def test_tokens_like_the_padding_are_tokens(model, layers, caches):
    assert model.config.pad_token_id == 0
    vllm_judge.logits_of(model, layers, PROMPTS, CHOSEN, WHOLE)
    assert caches[0].lengths.tolist() == [11, 11]


def test_sequences_are_read_in_their_own_parts(model, layers, caches):
    parts = [[(0, 5), (5, 3)], WHOLE]
    run = {"prompts": PROMPTS, "tokens": CHOSEN, "pieces": parts}
    logits, _ = vllm_judge.reference(model, layers, run, 2)
    assert len(caches) == 2 and logits.shape == (2, 4, 64)
    for each in range(2):
        alone, _ = vllm_judge.logits_of(model, layers, PROMPTS[each:each + 1], CHOSEN[each:each + 1], parts[each])
        assert torch.equal(logits[each], alone[0])
    vllm_judge.reference(model, layers, {**run, "pieces": [WHOLE, WHOLE]}, 2)
    assert len(caches) == 5


def test_a_gap_is_of_the_chosen_token():
    logits = torch.tensor([[[1.0, 3.0, 2.99], [0.0, 0.0, 4.0]], [[1.0, 1.0, 0.0], [5.0, 2.0, 5.5]]])
    row = vllm_judge.judged(logits, torch.tensor([[2, 2], [1, 0]]), 0.02)
    assert row == {"steps": 4, "same": 2, "beyond": 1, "largest_gap": 0.5}


def test_a_schedule_is_recorded():
    steps = [Fields(scheduled_new_reqs=[Fields(req_id="a", prompt_token_ids=[1] * 9, num_computed_tokens=4),
                                        Fields(req_id="b", prompt_token_ids=[2] * 3, num_computed_tokens=0)],
                    num_scheduled_tokens={"a": 2, "b": 3}),
             Fields(scheduled_new_reqs=[], num_scheduled_tokens={"a": 3, "b": 1}),
             Fields(scheduled_new_reqs=[], num_scheduled_tokens={"a": 1, "b": 1})]
    pages = {"a": [[3], [5]], "b": [[4], [6]]}
    pool = Fields(free_blocks=lambda blocks: pytest.fail("freed"))
    scheduler = Fields(schedule=iter(steps).__next__, kv_cache_manager=Fields(get_block_ids=pages.get, block_pool=pool))
    found = vllm_compare.recorded(scheduler)
    for number, step in enumerate(steps):
        assert scheduler.schedule() is step
        pages["a"][0].append(number + 1)
        pages["a"][1][number] = 0  # the null block, behind a window
        pages["a"][1].append(number + 7)
        pool.free_blocks([5])
    assert found[(1,) * 9] == {"pieces": [(0, 4), (4, 2), (6, 3)], "blocks": [[3, 1, 2], [5, 7, 8]], "decodes": 1}
    assert found[(2,) * 3] == {"pieces": [(0, 3)], "blocks": [[4], [6]], "decodes": 2}


def test_codes_are_read_from_blocks_of_their_group():
    group = lambda block, *names: Fields(kv_cache_spec=Fields(block_size=block), layer_names=[
        f"model.layers.{name}" for name in names])
    found = [{"blocks": [[2, 0], [1, 3], [9]]}, {"blocks": [[4, 1], [2, 0], [9]]}]
    layers = vllm_compare.blocks_of([group(4, "10.attn"), group(4, "2.attn"), group(2, "2.attn.raw", "10.attn.raw")], found)
    assert list(layers.items()) == [("model.layers.2.attn", (4, [[1, 3], [2, 0]])),
                                    ("model.layers.10.attn", (4, [[2, 0], [4, 1]]))]
    # Blocks of 4 tokens are 2 pages of 2, and a word says whose it is: layer, page, head, token.
    words = torch.arange(10 * 2 * 2, dtype=torch.int32).view(10, 2, 2, 1)
    held = {name: Fields(kv_cache=words + 100 * number) for number, name in enumerate(layers)}
    worker = Fields(vllm_config=Fields(compilation_config=Fields(static_forward_context=held)))
    codes = vllm_compare.codes_of(worker, layers, 7)
    assert codes.shape == (2, 2, 2, 7, 1)
    for layer, (_, numbers) in enumerate(layers.values()):
        for sequence, blocks in enumerate(numbers):
            for token in range(7):
                page = blocks[token // 4] * 2 + token % 4 // 2
                assert codes[layer, sequence, :, token, 0].tolist() == [100 * layer + 4 * page + 2 * head + token % 2
                                                                       for head in range(2)]


@pytest.mark.parametrize("kind", ["mistral", "gemma2", "gpt-oss"])
def test_random_models_are_judged_as_their_own_attention_would(kind, layers):
    window = {"sliding_window": 6} if "sliding_window" in vllm_kinds.KINDS[kind][1] else {}
    model = vllm_kinds.made(kind, torch.float16, **window).to(DEVICE)
    model.set_attn_implementation("vqgen")
    prompts, chosen = vllm_kinds.random_ids(2, 24, 512, 5).to(DEVICE).split([20, 4], 1)
    logits, _ = vllm_judge.logits_of(model, layers * 2, prompts.tolist(), chosen.tolist(), [(0, 9), (9, 11)])
    with attending(model, "eager"), torch.no_grad():
        whole = model(torch.cat([prompts, chosen], 1), use_cache=False).logits.float()[:, 19:23]
    assert near(logits, whole) and logits.std() > 0.3


def test_prompts_may_share_their_beginnings():
    prompts = vllm_compare.prompts_of(list(range(100)), 4, 6, 10, True)
    assert [each[0] for each in prompts] == [60, 70, 60, 70] and [each[-1] for each in prompts] == [65, 75, 85, 95]
    assert prompts[2] == [60, 61, 62, 83, 84, 85]
    with pytest.raises(SystemExit, match="the text has 39 tokens"):
        vllm_compare.prompts_of(list(range(39)), 4, 6, 10, False)


def test_prompts_of_timed_steps_are_there_but_for_a_token():
    cached = vllm_random.Cached()
    assert cached.get_num_new_matched_tokens(Fields(num_tokens=10), 3) == (6, False)
    assert cached.request_finished(None, []) == (False, None) and cached.on_new_request(None) is None


def test_random_codebooks_are_of_all_layers(tmp_path):
    config = {"num_key_value_heads": 1, "head_dim": 64, "num_hidden_layers": 3}
    vllm_random.random_bundle(tmp_path / "books", config, "vecinfer-d4b8i8", "vecinfer-d4b8i8")
    items = vqgen.hf.layers_of(tmp_path / "books")
    assert [item["name"] for item, _ in items] == ["layer0", "layer1", "layer2"]
    assert all(torch.equal(items[0][1][name], items[2][1][name]) for name in items[0][1])
    assert not any("codes" in name.split(".") for name in safetensors_torch.load_file(tmp_path / "books"))


def test_random_weights_are_of_a_folder(tmp_path):
    config = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "num_attention_heads": 8, "num_key_value_heads": 2}
    told = Quantization(vllm_random.quantization_of(config, "aqlm-2x8i8", "bfloat16"))
    assert told.dtype == "bf16" and told.format == vqgen.format_fields("aqlm-2x8i8")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config, num_hidden_layers=1, vocab_size=8))
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            size = (module.out_features, module.in_features)
            assert told.is_dense(name) if name == "lm_head" else told.shape_of(name) == size, name


def test_a_random_model_is_a_folder(tmp_path):
    config = {"model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "head_dim": 64, "num_attention_heads": 2,
              "num_key_value_heads": 1, "num_hidden_layers": 3, "vocab_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = {"config": tmp_path / "config.json", "cache": "vecinfer-d4b8i8", "layers": 1}
    plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**config, "num_hidden_layers": 1}))
    for weights in ("fp16", "aqlm-2x8i8"):
        assert vllm_random.run_folder(Fields(**asked, out=tmp_path / weights, weights=weights)) == 0
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / weights, dtype=torch.float16)
        assert (type(model.model.layers[0].mlp.down_proj) is torch.nn.Linear) == (weights == "fp16")
        assert len(model.model.layers) == 1 and model.lm_head.weight.std() < 0.03
        assert {name: list(shape) for name, shape in vllm_random.shapes_of(model.config.to_dict()).items()} == {
            name: list(tensor.shape) for name, tensor in plain.state_dict().items()}
        _identity.require_same(tmp_path / weights / "vqgen.bundle", tmp_path / weights)


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
def test_a_random_mixture_is_a_folder(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(vllm_random, "bound_bundle", lambda *given: None)
    config = {"model_type": kind, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 96, "head_dim": 64,
              "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 3, "vocab_size": 8, "num_experts": 3,
              "num_local_experts": 3, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = {"config": tmp_path / "config.json", "cache": "vecinfer-d4b8i8", "layers": 2}
    tensors = {}
    for weights in ("fp16", "aqlm-2x8i8"):
        assert vllm_random.run_folder(Fields(**asked, out=tmp_path / weights, weights=weights)) == 0
        tensors[weights] = safetensors_torch.load_file(tmp_path / weights / "model.safetensors")
    told = Quantization(json.loads((tmp_path / "aqlm-2x8i8" / "config.json").read_text())["quantization_config"])
    for name, tensor in tensors["fp16"].items():
        module = name.removesuffix(".weight")
        linear = tensor.dim() == 2 and module.rpartition(".")[2] not in ("gate", "lm_head", "embed_tokens")
        assert (f"{module}.codes" in tensors["aqlm-2x8i8"]) == linear == (name not in tensors["aqlm-2x8i8"])
        assert not linear or told.shape_of(module) == tuple(tensor.shape)
    assert sum(".experts." in name for name in tensors["fp16"]) == 2 * 3 * 3
    # transformers finds all tensors.
    model, about = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "fp16", dtype=torch.float16,
                                                                     output_loading_info=True)
    assert not about["missing_keys"] and not about["unexpected_keys"]
    with pytest.raises(vqgen.BadInput, match="experts.0.*is of an expert, and .*serve the folder by vqgen.vllm"):
        vqgen.hf.load(tmp_path / "aqlm-2x8i8")
    # Dense weights in a folder beside it.
    vt.use_runtime(vqgen.Runtime(vt.runtime(DEVICE).device, cache_dir=tmp_path.parent / "kernels", max_buckets=1))
    vllm_experts.dequantize(tmp_path / "aqlm-2x8i8", tmp_path / "dense")
    dense = safetensors_torch.load_file(tmp_path / "dense" / "model.safetensors")
    assert {name: tensor.shape for name, tensor in dense.items()} == {name: each.shape for name, each in tensors["fp16"].items()}
    assert all(0.01 < tensor.float().std() < 0.1 for tensor in dense.values() if tensor.dim() == 2)
    other = vllm_experts.with_others(dense)
    assert sum(not torch.equal(tensor, dense[name]) for name, tensor in other.items()) == 2 * 3
    assert "quantization_config" not in json.loads((tmp_path / "dense" / "config.json").read_text())


def test_ranks_hold_their_heads():
    codes = [torch.full((1, 2, 1, 3, 4), rank) for rank in (0, 1)]
    assert vllm_compare.of_ranks(codes, 2)[0, 0, :, 0, 0].tolist() == [0, 1]
    assert vllm_compare.of_ranks([codes[0], codes[0].clone(), codes[1], codes[1]], 2).shape == (1, 2, 2, 3, 4)
    with pytest.raises(SystemExit, match="rank 1 has other codes of its heads than rank 0"):
        vllm_compare.of_ranks(codes, 1)
