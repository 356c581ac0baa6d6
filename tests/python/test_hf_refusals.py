"""What vqgen's attention does not serve is refused by name, before a token comes out, and leaves the
cache as it was; what it serves is near transformers' own attention."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers import masking_utils
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import vqgen
import vqgen.hf
import vqgen.torch as vt
from vqgen._attention import REFUSED, require_causal
from vqgen._masks import MASKS, causal_mask
from vqgen._models import attending, heads_of, require_served
from vqgen._opaque import Mask, Sealed

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BASE = {"vocab_size": 64, "pad_token_id": 0, "eos_token_id": None, "bos_token_id": 1}
SIZES = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 64, "num_attention_heads": 4,
         "num_key_value_heads": 2}
IDS = torch.randint(1, 64, (2, 16), generator=torch.Generator().manual_seed(1)).to(DEVICE)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    device = "host" if DEVICE == "cpu" else torch.cuda.current_device()
    vt.use_runtime(vqgen.Runtime(device, cache_dir=tmp_path_factory.mktemp("kernels")))


def tiny(kind="Qwen2", **fields):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**BASE, **SIZES, **fields})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(DEVICE, torch.float16).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.dim() >= 2:
                tensor.normal_(0, 1.0 if "emb" in name else 0.08)
    model.set_attn_implementation("vqgen")
    return model


@pytest.fixture(scope="module")
def layers():
    """What layers_of() reads of a bundle whose int8 keys and values, by token, need no training."""
    item = {"kv_heads": 2, "head_dim": 64, "keys": "int8-token", "values": "int8-token"}
    op = vt.prepare(vt.config_text({"op": "kv_append", "dtype": "f16", "keys": "int8-token", "values": "int8-token",
                                    "shape": {"batch": 1, "kv_heads": 2, "head_dim": 64, "tokens": 1}}), DEVICE)
    shapes = {argument.name: argument.shape for argument in op.arguments}
    books = {name: torch.ones(shapes[name], dtype=torch.float16, device=DEVICE)
             for name in ("keys.codebooks", "values.codebooks")}
    return [(item, books)] * 2


@pytest.fixture(scope="module")
def model():
    return tiny()


def new_cache(model, layers, batch=2, tokens=32, **options):
    return vqgen.hf.VQCache(model.config, layers, batch=batch, tokens=tokens, device=DEVICE, **options)


def steps(model, cache, ids=IDS, prompt=5):
    """Logits of a prompt's last token and of the single ones after it."""
    with torch.no_grad():
        parts = [ids[:, :prompt], *ids[:, prompt:].split(1, 1)]
        return torch.stack([model(part, past_key_values=cache).logits[:, -1].float() for part in parts], 1)


def near(ours, theirs):
    return (ours - theirs).norm() / theirs.norm() < 0.05


def untouched(cache):
    return cache.get_seq_length() == 0 and not cache.lengths.any()


# What update() hands on.


def test_a_cache_that_another_attention_reads_is_an_error(model, layers):
    names = sorted({"eager", "sdpa", *ALL_ATTENTION_FUNCTIONS.valid_keys()} - {"vqgen", "vqgen_simulated"})
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
    with pytest.raises(vqgen.Infeasible, match="layer 0 attends where layer 1 is next"):
        ALL_ATTENTION_FUNCTIONS["vqgen"](first.self_attn, query, *cache.update(states, states, 0), None)


def test_what_cannot_be_moved_is_refused_in_words(model, layers):
    cache = new_cache(model, layers)
    for refused in (lambda: cache.reorder_cache(torch.zeros(2, dtype=torch.long)), lambda: cache.batch_repeat_interleave(2),
                    lambda: cache.batch_select_indices(torch.zeros(1, dtype=torch.long)), lambda: cache.offload(0, False)):
        with pytest.raises(vqgen.Infeasible, match="cannot be reordered, repeated"):
            refused()


# What a model asks of attention by keyword.


@pytest.mark.parametrize("name, value", [*((name, 1.0) for name in sorted(REFUSED) if name != "is_causal"),
                                         ("is_causal", False), ("a_new_one", 0), ("another", False)])
def test_a_keyword_that_is_not_served_is_refused_by_name(model, name, value):
    module = model.model.layers[0].self_attn
    with pytest.raises(vqgen.Infeasible, match=f"Qwen2Attention: '{name}'"):
        require_causal(module, None, {name: value})
    require_causal(module, None, {name: None})


def test_keywords_that_ask_for_nothing_are_taken(model):
    module = model.model.layers[0].self_attn
    assert require_causal(module, None, {"dropout": 0.0, "is_causal": True, "output_attentions": False, "softcap": None,
                                         "position_ids": IDS, "use_cache": True}) is None


def test_a_refused_keyword_leaves_the_cache_empty(layers):
    model = tiny("GptOss", num_local_experts=2, num_experts_per_tok=1, layer_types=["full_attention"] * 2)
    cache = new_cache(model, layers)
    for _ in range(2):
        with pytest.raises(vqgen.Infeasible, match="GptOssAttention: 's_aux' asks for learned attention sinks"):
            steps(model, cache)
        assert untouched(cache)
    with pytest.raises(vqgen.Infeasible, match="s_aux"):
        vqgen.hf.calibrate(model, [IDS], "nowhere", keys="int8-token", values="int8-token")


# Masks.


def test_a_mask_that_is_not_plain_causal_is_refused_in_words(model):
    window = torch.zeros(2, dtype=torch.long)
    makers = {"sliding_window_causal_mask_function": (4,), "sliding_window_overlay": (4,),
              "sliding_window_bidirectional_overlay": (4,), "sliding_window_bidirectional_mask_function": (4,),
              "chunked_causal_mask_function": (4, window), "chunked_overlay": (4, window),
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
    for name, function in functions.items():
        with pytest.raises(vqgen.Infeasible, match=MASKS[name].replace("(", r"\(").replace(")", r"\)")):
            require_causal(module, causal_mask(2, 3, 3, mask_function=function), {})
    with pytest.raises(vqgen.Infeasible, match="test_a_mask_that"):
        require_causal(module, causal_mask(2, 3, 3, mask_function=functions["or_masks"]), {})


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
        require_causal(module, None, {})
    require_causal(module, Mask(None), {})  # its mask is causal
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
    ({"sliding_window": 8}, "0, 1 .sliding_attention"),
    ({"kv_lora_rank": 512}, "latent attention .MLA, kv_lora_rank 512"),
    ({"layer_types": ["linear_attention", "full_attention"]}, "0 .linear_attention"),
    ({"attention_chunk_size": 8}, "0, 1 .*chunked_attention"),
    ({"layer_types": ["a_new_kind", "full_attention"]}, "a_new_kind"),
    ({"attn_logit_softcapping": 30.0}, "soft cap"),
    ({"use_bidirectional_attention": True}, "see later"),
    ({"is_causal": False}, "not causal"),
    ({"v_head_dim": 32}, "values of 32"),
    ({"is_encoder_decoder": True}, "encoder"),
    ({"num_key_value_heads": [2, 1]}, "all have the same")])
def test_models_are_judged_when_a_cache_is_made(layers, fields, words, tmp_path):
    config = transformers.MistralConfig(**{**BASE, **SIZES, "sliding_window": None})
    assert require_served(config) == (4, 2, 64)
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


# What a call refuses, it leaves as it was.


@pytest.mark.parametrize("window, drafts", [(0, 0), (8, 0), (8, 3)])
def test_a_pass_that_fails_midway_is_told_of(model, layers, window, drafts, monkeypatch):
    cache = new_cache(model, layers, window=window, drafts=drafts)
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
    expected = steps(model, new_cache(model, layers, window=window, drafts=drafts))
    assert torch.equal(steps(model, cache), expected)
    monkeypatch.setattr(type(broken), "write", fails)
    with pytest.raises(vqgen.DeviceError):
        model(IDS[:, :5], past_key_values=cache)
    monkeypatch.setattr(type(broken), "write", write)
    with pytest.raises(vqgen.BadInput, match="failed midway.*reset"):
        model(IDS[:, :1], past_key_values=cache)
    cache.reset()
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
    caches = [vt.VQCache(batch=3, query_heads=4, kv_heads=2, head_dim=64, tokens=16, window=4, sinks=1, keys=item["keys"],
                         values=item["values"], key_codebooks=tensors["keys.codebooks"],
                         value_codebooks=tensors["values.codebooks"]) for _ in range(2)]
    positions = torch.tensor([2, 5, -1], dtype=torch.int32, device=DEVICE)
    for cache, most in zip(caches, (65536, 2)):
        cache.append(*new[:, :, :5])
        monkeypatch.setattr(_appends, "MOST", most)
        assert _appends.sizes(7) == ({8} if most > 7 else {1, 2})
        cache.write(*new, positions, counts)
        cache.append(*new, counts)
    for ours, theirs in zip(caches[0].decode(16), caches[1].decode(16)):
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
    first = new_cache(model, layers, window=4, drafts=1)
    expected = steps(model, new_cache(model, layers, window=4, drafts=1))
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
