"""vqgen's attention refuses by name what it does not support, before it makes a token, and leaves the cache
as it
was."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers import masking_utils
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import vqgen
import vqgen.hf
from hf_models import BASE, DEVICE, IDS, SIZES, layers, model, near, new_cache, steps, tiny, untouched
from vqgen._attention import REFUSED, require_sight
from vqgen._masks import MASKS, causal_mask
from vqgen._models import attending, heads_of, require_served
from vqgen._opaque import Mask, Sealed
from vqgen._sights import Sight


# Arguments that update() passes on.


def test_a_cache_that_another_attention_reads_is_an_error(model, layers):
    names = {"eager", "sdpa", *ALL_ATTENTION_FUNCTIONS.valid_keys()} - {"vqgen", "vqgen_simulated"}
    names = sorted(name for name in names if not name.startswith("paged|"))  # of continuous batching's own cache
    states = torch.ones(1, 4, 3, 64, dtype=torch.float16)
    module = model.model.layers[0].self_attn
    modeling = __import__(type(module).__module__, fromlist=["eager_attention_forward"])
    refused = 0
    for name in names:
        attend = modeling.eager_attention_forward if name == "eager" else ALL_ATTENTION_FUNCTIONS[name]
        try:
            attend(module, states, Sealed(None, states[:, :2]), Sealed(None, states[:, :2]), None, scaling=1.0)
        except vqgen.Infeasible as error:
            assert "set_attn_implementation('vqgen')" in str(error)
            refused += 1
        except (ImportError, AttributeError, KeyError):  # a backend that is not installed
            assert name not in ("eager", "sdpa", "flex_attention"), name
    assert refused >= 3, names
    for name in ("sdpa", "eager"):
        cache = new_cache(model, layers)
        with attending(model, name), pytest.raises(vqgen.Infeasible, match="past_key_values.*set_attn_implementation"):
            steps(model, cache)
        assert untouched(cache)


@pytest.mark.parametrize("use", [
    lambda each: each.shape, lambda each: each.transpose(1, 2), lambda each: each[:, :, -1], lambda each: each * 2.0,
    lambda each: 2.0 * each, lambda each: torch.ones(4, 4) @ each, lambda each: each @ torch.ones(4, 4), lambda each: -each,
    lambda each: torch.cat([each, each]), lambda each: torch.matmul(torch.ones(4, 4), each), lambda each: list(each),
    lambda each: len(each), lambda each: torch.nn.functional.pad(each, (0, 1)), lambda each: each.to(torch.float32),
    lambda each: torch.ones(3) + each, lambda each: bool(each), lambda each: each.size(1), lambda each: torch.ones(3) > each])
def test_nothing_opens_what_update_hands_on(use):
    for opaque in (Sealed(None, torch.ones(4, 4)), Mask(None)):
        with pytest.raises(vqgen.Infeasible, match="past_key_values|attention_mask"):
            use(opaque)
        assert not hasattr(opaque, "device")


def test_layers_attend_once_and_in_order(model, layers):
    cache = new_cache(model, layers)
    first, second = model.model.layers
    states = torch.ones(2, 2, 3, 64, dtype=torch.float16, device=DEVICE)
    sealed = cache.update(states, states, 1)
    with pytest.raises(vqgen.Infeasible, match="layer 1 attends where layer 0 is next"):
        ALL_ATTENTION_FUNCTIONS["vqgen"](second.self_attn, states.repeat(1, 2, 1, 1), *sealed, None)
    assert untouched(cache)
    query = states.repeat(1, 2, 1, 1)
    ALL_ATTENTION_FUNCTIONS["vqgen"](first.self_attn, query, *cache.update(states, states, 0), None)
    with pytest.raises(vqgen.BadInput, match="attend more than once.*reset"):
        ALL_ATTENTION_FUNCTIONS["vqgen"](first.self_attn, query, *cache.update(states, states, 0), None)


def test_what_cannot_be_moved_is_refused_in_words(model, layers):
    cache = new_cache(model, layers)
    for refused in (lambda: cache.reorder_cache(torch.zeros(2, dtype=torch.long)), lambda: cache.batch_repeat_interleave(2),
                    lambda: cache.batch_select_indices(torch.zeros(1, dtype=torch.long)), lambda: cache.offload(0, False)):
        with pytest.raises(vqgen.Infeasible, match="cannot be reordered, repeated"):
            refused()


# Attention arguments that a model passes by keyword.


@pytest.mark.parametrize("name, value", [*((name, 1.0) for name in sorted(REFUSED) if name != "is_causal"),
                                         ("is_causal", False), ("a_new_one", 0), ("another", False)])
def test_a_keyword_that_is_not_served_is_refused_by_name(model, name, value):
    module = model.model.layers[0].self_attn
    with pytest.raises(vqgen.Infeasible, match=f"Qwen2Attention: '{name}'"):
        require_sight(module, None, {name: value})
    require_sight(module, None, {name: None})


def test_keywords_that_ask_for_nothing_are_taken(model):
    module = model.model.layers[0].self_attn
    assert require_sight(module, None, {"dropout": 0.0, "is_causal": True, "output_attentions": False, "softcap": None,
                                         "position_ids": IDS, "use_cache": True}) is None


def test_keywords_agree_with_the_config(model):
    module = model.model.layers[0].self_attn
    for name, value in (("softcap", 30.0), ("sliding_window", 8)):
        with pytest.raises(vqgen.Infeasible, match=f"'{name}' is {value}.*its config says none"):
            require_sight(module, None, {name: value})
    capped = Sight(sliding_window=8, logit_softcap=30.0)
    assert require_sight(module, None, {"softcap": 30.0, "sliding_window": 8}, capped) is None
    with pytest.raises(vqgen.Infeasible, match="'softcap' is 20.0.*says 30.0"):
        require_sight(module, None, {"softcap": 20.0}, capped)


def test_a_refused_keyword_leaves_the_cache_empty(model, layers):
    for _ in range(2):
        cache = new_cache(model, layers)
        with pytest.raises(vqgen.Infeasible, match="Qwen2Attention: 'position_bias' asks for a bias"):
            model(IDS, past_key_values=cache, position_bias=torch.ones(1))
        assert untouched(cache)


# Masks.


def test_a_mask_that_is_not_plain_causal_is_refused_in_words(model):
    recent_tokens = torch.zeros(2, dtype=torch.long)
    makers = {"sliding_window_causal_mask_function": (4,), "sliding_window_overlay": (4,),
              "sliding_window_bidirectional_overlay": (4,), "sliding_window_bidirectional_mask_function": (4,),
              "chunked_causal_mask_function": (4, recent_tokens), "chunked_overlay": (4, recent_tokens),
              "blockwise_overlay": (IDS,), "packed_sequence_mask_function": (IDS,), "padding_mask_function": (IDS,),
              "remap_positions_for_packed_sequence": (masking_utils.causal_mask_function, IDS)}
    functions = {name: getattr(masking_utils, name)(*given) for name, given in makers.items()
                 if hasattr(masking_utils, name)}
    functions["bidirectional_mask_function"] = masking_utils.bidirectional_mask_function
    own = lambda batch, head, query, key: key >= 0  # noqa: E731
    for name in ("or_masks", "and_masks"):
        functions[name] = getattr(masking_utils, name)(masking_utils.causal_mask_function, own)
    assert {*MASKS} - {*functions} <= {"causal_mask_function", "remap_positions_for_packed_sequence"}
    module = model.model.layers[0].self_attn
    for name in ("sliding_window_causal_mask_function", "chunked_causal_mask_function"):
        mask = causal_mask(2, 3, 3, mask_function=functions.pop(name))
        with pytest.raises(vqgen.Infeasible, match=r"mask is of (sliding_window|attention_chunk) 4, and its config says full"):
            require_sight(module, mask, {})
        window = Sight(**{"sliding_window" if "sliding" in name else "attention_chunk": 4})
        assert require_sight(module, mask, {}, window) is None
        with pytest.raises(vqgen.Infeasible, match="all tokens before a token's own, and its config says"):
            require_sight(module, Mask(None), {}, window)
    for name, function in functions.items():
        with pytest.raises(vqgen.Infeasible, match=MASKS[name].replace("(", r"\(").replace(")", r"\)")):
            require_sight(module, causal_mask(2, 3, 3, mask_function=function), {})
    with pytest.raises(vqgen.Infeasible, match="test_a_mask_that"):
        require_sight(module, causal_mask(2, 3, 3, mask_function=functions["or_masks"]), {})


def test_masks_of_ones_own_and_attention_to_both_sides_are_refused(model, layers):
    for batch in (1, 2):
        cache = new_cache(model, layers, batch=batch)
        mask = torch.zeros(batch, 1, 8, 8, dtype=torch.float16, device=DEVICE)
        with pytest.raises(vqgen.Infeasible, match=rf"a mask of one's own, Tensor \[{batch}, 1, 8, 8\]"):
            model(IDS[:batch, :8], attention_mask=mask, past_key_values=cache)
        assert untouched(cache)
    module = torch.nn.Module()
    module.is_causal = False
    with pytest.raises(vqgen.Infeasible, match="not causal"):
        require_sight(module, None, {})
    require_sight(module, Mask(None), {})  # its mask is causal
    with pytest.raises(vqgen.Infeasible, match="later ones"):
        model(IDS, past_key_values=new_cache(model, layers), is_causal=False)


def test_a_mask_that_changes_what_was_stored_is_refused(model, layers):
    mask = torch.ones(2, 6, dtype=torch.long, device=DEVICE)
    mask[0, :2] = 0
    cache = new_cache(model, layers)

    def run(ids, mask):
        with torch.no_grad():
            return model(ids, attention_mask=mask, past_key_values=cache,
                         position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1]:]).logits

    run(IDS[:, :6], mask)
    one = torch.ones(2, 1, dtype=torch.long, device=DEVICE)
    hidden = torch.cat([mask, one], 1)
    hidden[1, 3] = 0
    for wrong in (hidden, torch.ones_like(hidden)):
        with pytest.raises(vqgen.BadInput, match="differs from that of earlier passes"):
            run(IDS[:, 6:7], wrong)
        assert cache.lengths.tolist() == [4, 6] and cache.get_seq_length() == 6
    with pytest.raises(vqgen.BadInput, match=r"attention_mask is \[2, 1\]; give \[2, 7\]"):
        run(IDS[:, 6:7], one)
    mask = torch.cat([mask, one * torch.tensor([[1], [0]], device=DEVICE)], 1)
    run(IDS[:, 6:7], mask)  # the second sequence's newest token is padding
    assert cache.lengths.tolist() == [5, 6]
    mask = torch.cat([mask, one], 1)
    ours = run(IDS[:, 7:8], mask)
    with attending(model, "sdpa"), torch.no_grad():
        theirs = model(IDS[:, :8], attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits[:, -1:]
    assert near(ours.float(), theirs.float())


# Models, when a cache is made for them.


@pytest.mark.parametrize("fields, words", [
    ({"kv_lora_rank": 512}, "latent attention .MLA, kv_lora_rank 512"),
    ({"layer_types": ["linear_attention", "full_attention"]}, "0 .linear_attention"),
    ({"layer_types": ["a_new_kind", "full_attention"]}, "a_new_kind"),
    ({"use_bidirectional_attention": True}, "see later"),
    ({"is_causal": False}, "not causal"),
    ({"is_encoder_decoder": True}, "encoder"),
    ({"num_key_value_heads": [2, 1]}, "all have the same")])
def test_models_are_judged_when_a_cache_is_made(layers, fields, words, tmp_path):
    config = transformers.MistralConfig(**{**BASE, **SIZES, "sliding_window": None})
    assert require_served(config) == (4, 2, 64, [Sight()] * 2)
    for name, value in fields.items():
        object.__setattr__(config, name, value)
    with pytest.raises(vqgen.Infeasible, match=words):
        vqgen.hf.VQCache(config, layers, batch=1, tokens=8, device=DEVICE)


def test_heads_without_a_number_of_kv_heads():
    plain = transformers.GPT2Config(n_embd=256, n_layer=2, n_head=4)
    assert heads_of(plain) == (4, 4, 64)
    assert heads_of(transformers.GPTBigCodeConfig(n_embd=256, n_layer=2, n_head=4, multi_query=True)) == (4, 1, 64)


def test_a_batch_or_dtype_that_is_not_the_caches_is_refused(model, layers):
    cache = new_cache(model, layers, batch=1)
    with pytest.raises(vqgen.BadInput, match=r"layer 0: queries .*\[2, 4, 16, 64\].*batch 1, 4 heads of 64"):
        model(IDS, past_key_values=cache)
    with pytest.raises(vqgen.BadInput, match="bfloat16"):
        copy.deepcopy(model).to(torch.bfloat16)(IDS[:1], past_key_values=cache)
    assert untouched(cache)


@pytest.mark.parametrize("formats", [{"keys": "vecinfer-d4b8", "values": "vecinfer-d4b8"}, {"bits": 2.0},
                                     {"keys": "klt-2bit-keys", "values": "klt-2bit-values"},
                                     {"keys": "vecinfer-d4b8", "values": "vecinfer-d4b8", "rsimvq": {"steps": 1}}])
def test_a_place_that_cannot_be_written_is_found_before_training(model, tmp_path, monkeypatch, formats):
    def refused(out, words):
        with pytest.raises(vqgen.BadInput, match=words):
            vqgen.hf.calibrate(model, [IDS], out, **formats)

    monkeypatch.setattr(type(model), "forward", lambda *_, **__: pytest.fail("runs the model"))
    (tmp_path / "file").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    refused("", "is empty; name a file")
    refused(tmp_path, "is a folder; name a file")
    refused(tmp_path / "a" / "b", r"in a folder that is not there; make .*/a \(mkdir -p\)")
    refused(tmp_path / "file" / "b", "file is no folder that can be written; choose another")
    refused(tmp_path / "link", "is no regular file; name another")
    refused("/dev/null", "is no regular file; name another")
    monkeypatch.setattr("os.access", lambda *_: False)
    refused(str(tmp_path / "b"), "is no folder that can be written; choose another")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_a_bundle_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    from vqgen import _bundles
    out = tmp_path / "out"
    _bundles.write_items(str(out), [], {"a": torch.ones(4)})
    before = out.read_bytes()

    def half(tensors, path, metadata):
        with open(path, "wb") as file:
            file.write(b"half")
        raise RuntimeError("I/O error")

    monkeypatch.setattr("safetensors.torch.save_file", half)
    with pytest.raises(vqgen.BadInput, match="out: it cannot be written: I/O error; make room, or choose another place"):
        _bundles.write_items(str(out), [], {"a": torch.ones(5)})
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
