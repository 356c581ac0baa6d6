"""A model with random weights over a VQCache, on a GPU if there is one, against the model in eager PyTorch
over
the cache's dequantized contents."""

import contextlib

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.cache_utils import CacheLayerMixin

import reference
import vqgen
import vqgen.hf
import vqgen.torch as vt

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORM = {"vector_size": 4, "index_bits": 8}
PAD = 0


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(11)
    config = transformers.Qwen2Config(
        vocab_size=64, hidden_size=256, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.08, pad_token_id=PAD,
        eos_token_id=None, bos_token_id=None)
    return transformers.Qwen2ForCausalLM(config).to(DEVICE, torch.float16).eval()


@pytest.fixture(scope="module")
def codebooks(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("bundle") / "codebooks"
    torch.manual_seed(3)
    vqgen.hf.calibrate(model, [torch.randint(1, 64, (2, 96)) for _ in range(2)], out, keys=FORM,
                       values=FORM)
    return out


def new_cache(model, codebooks, batch, tokens=48, **options):
    model.set_attn_implementation("vqgen")
    return vqgen.hf.VQCache(model.config, codebooks, batch=batch, tokens=tokens, device=DEVICE,
                            **options)


def prompts(lengths):
    """Return left-padded prompts with their mask."""
    longest = max(lengths)
    tokens = torch.full((len(lengths), longest), PAD)
    for row, length in zip(tokens, lengths):
        row[longest - length:] = torch.randint(1, 64, (length,))
    return {"input_ids": tokens.to(DEVICE), "attention_mask": (tokens != PAD).long().to(DEVICE)}


def decoded(held, dim):
    return torch.from_numpy(reference.decoded(
        held.codes.cpu().numpy().view(np.uint32), held.codebooks.cpu().numpy(), dim, 8))


class Decoded(CacheLayerMixin):
    """Fixed keys and values, including the newest token's."""

    def __init__(self, keys, values):
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True

    def lazy_initialization(self, *_):
        pass

    def update(self, *_, **__):
        return self.keys, self.values

    def get_mask_sizes(self, query_length):
        return self.keys.shape[2], 0

    def get_seq_length(self):
        return self.keys.shape[2] - 1

    def get_max_length(self):
        return -1


def eager_logits(model, cache, tokens, lengths):
    """Return logits of each sequence's newest token by eager attention over the decoded cache."""
    logits = []
    model.set_attn_implementation("eager")
    for sequence, length in enumerate(lengths):
        past = transformers.Cache(layers=[
            Decoded(*(decoded(held, 64)[sequence:sequence + 1, :, :length].to(DEVICE, torch.float16)
                      for held in (layer.cache.keys, layer.cache.values)))
            for layer in cache.layers])
        with torch.no_grad():
            out = model(tokens[sequence:sequence + 1], past_key_values=past,
                        position_ids=torch.tensor([[length - 1]], device=DEVICE))
        logits.append(out.logits[0, -1].float())
    model.set_attn_implementation("vqgen")
    return torch.stack(logits)


def test_steps_agree_with_eager_attention_over_the_decoded_cache(model, codebooks):
    torch.manual_seed(5)
    lengths = [9, 4, 12]
    cache = new_cache(model, codebooks, 3)
    inputs = prompts(lengths)
    mask = inputs["attention_mask"]
    with torch.no_grad():
        model(**inputs, position_ids=(mask.cumsum(1) - 1).clamp(min=0), past_key_values=cache)
    assert cache.layers[0].cache.lengths.tolist() == lengths, "padding was stored"
    for _ in range(3):
        tokens = torch.randint(1, 64, (3, 1), device=DEVICE)
        mask = torch.cat([mask, torch.ones_like(tokens)], 1)
        position = torch.tensor(lengths, device=DEVICE)[:, None]
        with torch.no_grad():
            logits = model(tokens, attention_mask=mask, position_ids=position,
                           past_key_values=cache).logits[:, -1].float()
        lengths = [length + 1 for length in lengths]
        expected = eager_logits(model, cache, tokens, lengths)
        error = (logits - expected).norm() / expected.norm()
        assert error < 1e-2, error
    assert cache.layers[1].cache.lengths.tolist() == lengths


class Growing(Decoded):
    """Decoded keys and values of earlier tokens, followed by new ones unchanged."""

    def update(self, keys, values, *_, **__):
        return torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)

    def get_mask_sizes(self, query_length):
        return self.keys.shape[2] + query_length, 0

    def get_seq_length(self):
        return self.keys.shape[2]


def test_a_later_part_of_a_prompt_sees_the_earlier_one_decoded(model, codebooks):
    torch.manual_seed(9)
    inputs = prompts([9, 14, 11])
    tokens, mask = inputs["input_ids"], inputs["attention_mask"]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache = new_cache(model, codebooks, 3)
    begin, lengths = 0, torch.zeros(3, dtype=torch.long)
    for end in (4, 8, 12, 14):  # of the first sequence nothing is in the first part
        held = [[decoded(each, 64) for each in (layer.cache.keys, layer.cache.values)]
                for layer in cache.layers]
        with torch.no_grad():
            logits = model(tokens[:, begin:end], attention_mask=mask[:, :end],
                           position_ids=positions[:, begin:end], past_key_values=cache).logits
        model.set_attn_implementation("eager")
        for row in range(3):
            real = mask[row, begin:end].bool()
            if not real.any():
                continue
            past = transformers.Cache(layers=[Growing(*(
                each[row:row + 1, :, :lengths[row]].to(DEVICE, torch.float16) for each in layer))
                for layer in held])
            with torch.no_grad():
                expected = model(tokens[row:row + 1, begin:end][:, real], past_key_values=past,
                                 position_ids=positions[row:row + 1, begin:end][:, real]).logits[0]
            error = (logits[row][real] - expected).float().norm() / expected.float().norm()
            assert error < 1e-2, (row, end, error)
            lengths[row] += real.sum().item()
        model.set_attn_implementation("vqgen")
        begin = end
    assert cache.lengths.tolist() == [9, 14, 11]


def test_with_a_window_that_holds_all_it_is_the_unquantized_model(model, codebooks):
    torch.manual_seed(6)
    inputs = prompts([7, 5])
    options = {"max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True,
               "output_logits": True}
    out, parts = (
        model.generate(**inputs, past_key_values=new_cache(model, codebooks, 2, recent_tokens=40),
                       **options, **chunks) for chunks in ({}, {"prefill_chunk_size": 3}))
    assert torch.equal(parts.sequences, out.sequences)
    model.set_attn_implementation("sdpa")
    expected = model.generate(**inputs, **options)
    assert torch.equal(out.sequences, expected.sequences)
    for ours, plain in zip(out.logits, expected.logits):
        assert torch.allclose(ours.float(), plain.float(), atol=0.05)


def test_generation_by_sampling_and_a_second_time(model, codebooks):
    cache = new_cache(model, codebooks, 2)
    for seed in (1, 2, 1):
        cache.reset()
        torch.manual_seed(8)
        inputs = prompts([3, 6])
        torch.manual_seed(seed)
        out = model.generate(**inputs, past_key_values=cache, max_new_tokens=5, do_sample=True)
        if seed == 1:
            first = out if "first" not in locals() else first
        assert out.shape == (2, 11)
    assert torch.equal(out, first)
    assert cache.bytes_per_token() == 2 * 2 * 2 * 16


def test_what_cannot_be_done_is_refused_in_words(model, codebooks, tmp_path):
    cache = new_cache(model, codebooks, 1)
    model(**prompts([40]), past_key_values=cache)
    with pytest.raises(vqgen.RangeError, match="room for 48"):
        for _ in range(9):
            model(torch.ones(1, 1, dtype=torch.long, device=DEVICE), past_key_values=cache)
    with pytest.raises(vqgen.BadInput, match="no VQCache"):
        model(torch.ones(1, 2, dtype=torch.long, device=DEVICE), use_cache=False)
    other = transformers.Qwen2Config(num_hidden_layers=3, hidden_size=256, num_attention_heads=4,
                                     num_key_value_heads=2)
    with pytest.raises(vqgen.BadInput, match="2 layers, and the model 3"):
        vqgen.hf.VQCache(other, codebooks, batch=1, tokens=8, device=DEVICE)
    other.num_hidden_layers, other.num_key_value_heads = 2, 4
    with pytest.raises(vqgen.BadInput, match="2 heads of 64"):
        vqgen.hf.VQCache(other, codebooks, batch=1, tokens=8, device=DEVICE)
    (tmp_path / "none").write_text("nothing")
    with pytest.raises(vqgen.BadInput, match="none"):
        vqgen.hf.VQCache(model.config, tmp_path / "none", batch=1, tokens=8, device=DEVICE)
    with pytest.raises(vqgen.Error, match="vector_size"):
        vqgen.hf.calibrate(model, [torch.ones(1, 8, dtype=torch.long)], tmp_path / "b",
                           keys={"index_bits": 8}, values=FORM)


def contents(cache):
    """Return the contents of each layer: codes and raw tokens."""
    cache.settle()
    return [(layer.cache.keys.codes, layer.cache.values.codes, layer.cache.raw_keys,
             layer.cache.raw_values) for layer in cache.layers]


@pytest.mark.parametrize("captured, batch", [(False, 1), (True, 1), (True, 4)])
def test_steps_that_were_taken_back_leave_no_trace(model, codebooks, captured, batch):
    torch.manual_seed(12)
    lengths = [5, 12, 1]
    inputs = prompts(lengths)
    mask = inputs["attention_mask"]
    caches = [new_cache(model, codebooks, 3, recent_tokens=8, flush_block=batch, sinks=2, drafts=3)
              for _ in range(2)]
    for cache in caches:
        with torch.no_grad():
            model(**inputs, position_ids=(mask.cumsum(1) - 1).clamp(min=0), past_key_values=cache)

    def logits_of(cache, tokens):
        positions = cache.lengths[:, None].long() + torch.arange(tokens.shape[1], device=DEVICE)
        with contextlib.ExitStack() as stack:
            if captured:
                stack.enter_context(vqgen.hf.captured(model, cache))
            with torch.no_grad():
                return model(tokens, position_ids=positions, past_key_values=cache).logits.float()

    for count, kept in ((4, 1), (3, 3), (1, 1), (4, 2), (2, 0), (4, 4), (1, 0), (2, 1), (4, 3)):
        tokens = torch.randint(1, 64, (3, count), device=DEVICE)
        drafted = logits_of(caches[0], tokens)
        caches[0].crop(kept - count)
        for now in range(kept):
            alone = logits_of(caches[1], tokens[:, now:now + 1])
            assert torch.allclose(alone[:, 0], drafted[:, now], atol=0.02)
        lengths = [length + kept for length in lengths]
        assert caches[0].lengths.tolist() == caches[1].lengths.tolist() == lengths
        assert caches[0].get_seq_length() == caches[1].get_seq_length()
    drafted, alone = map(contents, caches)
    # Keys and values of the first layer depend only on their own token, and have equal bits.
    assert all(map(torch.equal, drafted[0], alone[0]))
    for ours, theirs in zip(drafted[1][2:], alone[1][2:]):
        assert torch.allclose(ours.float(), theirs.float(), atol=0.02)


def generate(model, cache, inputs, new, drafts):
    """Return tokens and their logits, the number of passes after the prompt, and the number of rejected
    drafts."""
    refused, crop = [], cache.crop
    cache.crop = lambda tokens: (refused.append(-tokens), crop(tokens))
    with vqgen.hf.captured(model, cache):
        out = model.generate(**inputs, past_key_values=cache, max_new_tokens=new, do_sample=False,
                             return_dict_in_generate=True, output_logits=True,
                             **{"prompt_lookup_num_tokens": drafts} if drafts else {})
    return out.sequences[0, -new:], torch.cat(out.logits)[:new], len(refused), sum(refused)


@pytest.mark.parametrize("length", [2, 4, 30])
def test_greedy_tokens_with_drafts_are_those_without(model, codebooks, length):
    torch.manual_seed(13)
    inputs, new = prompts([length]), 88
    first, second = inputs["input_ids"].chunk(2, 1)
    second.copy_(first)  # so that there is a draft in the prompt's pass
    caches = [new_cache(model, codebooks, 1, tokens=length + new, recent_tokens=16, drafts=3,
                        batch_invariant=True) for _ in range(2)]
    expected, expected_logits, _, _ = generate(model, caches[0], inputs, new, 0)
    out, logits, passes, refused = generate(model, caches[1], inputs, new, 3)
    assert torch.equal(out, expected)
    assert torch.equal(logits, expected_logits)
    assert passes < new and refused > 0, (passes, refused)
    assert caches[1].lengths.tolist() == caches[0].lengths.tolist() == [length + new - 1]
    for drafted, alone in zip(*map(contents, caches)):
        assert all(map(torch.equal, drafted, alone))


def test_taking_back_what_no_step_holds_is_refused_in_words(model, codebooks):
    plain, cache = (new_cache(model, codebooks, 1, drafts=drafts) for drafts in (0, 3))
    for each in (plain, cache):
        model(**prompts([6]), past_key_values=each)
        with pytest.raises(vqgen.Infeasible, match="2 tokens.*can take back 0.*captured"):
            each.crop(-2)
        each.crop(0)
    model(prompts([3])["input_ids"], past_key_values=cache)
    with pytest.raises(vqgen.Infeasible, match="4 tokens.*can take back 3"):
        cache.crop(-4)
    cache.crop(7)  # as many stay
    assert cache.lengths.tolist() == [7]
    with pytest.raises(vqgen.Error, match="query_tokens"):
        new_cache(model, codebooks, 1, drafts=16)


@pytest.mark.parametrize("keys, values", [
    ({"vector_size": 4, "index_bits": 6, "scope": "head", "smooth": True, "hadamard": True},
     {"vector_size": 8, "index_bits": 5, "scope": "tensor"}),
    ({"vector_size": 4, "index_bits": 5, "scope": "channel_group", "group_channels": 32,
      "num_codebooks": 2, "stage_scales": True}, FORM)])
@pytest.mark.parametrize("key_gain", [True, False])
def test_a_bundle_trained_where_the_data_is_is_the_tools(tmp_path, keys, values, key_gain):
    import subprocess

    from vqgen import _calibration, _tool
    torch.manual_seed(7)
    layers = [[torch.randn(2, 300, 64).half().to(DEVICE) * scale for scale in (2, 1)]
              for _ in range(2)]
    assert _calibration.can_write(torch.float16, keys, values)
    _calibration.write_bundle(tmp_path / "ours", layers, keys, values, 5, key_gain)
    vqgen.hf._quantize(tmp_path / "tools", [[part.cpu() for part in parts] for parts in layers], keys,
                       values, 5, key_gain)
    items = [vt.read_bundle(tmp_path / name) for name in ("ours", "tools")]
    for ours, tools in zip(*items, strict=True):
        assert {**tools, **ours} == tools
        names = [f"{operand}.{name}" for operand in ("keys", "values")
                 for name in ("codes", "codebooks", "stage_scales", "smooth")]
        ours, tools = (vt.bundle_tensors(tmp_path / name, tools["name"], names)
                       for name in ("ours", "tools"))
        assert ours.keys() == tools.keys()
        for name, tensor in ours.items():
            assert (tensor.shape, tensor.dtype) == (tools[name].shape, tools[name].dtype), name
            if name.endswith("codes"):
                same = tensor.view(torch.uint8) == tools[name].view(torch.uint8)
                assert same.float().mean() > (0.95 if DEVICE == "cpu" else 0.8), name
            else:
                far = (tensor.float() - tools[name].float()).abs() > 5e-3
                assert far.float().mean() < (0.02 if DEVICE == "cpu" else 0.1), name
    done = subprocess.run([_tool.path(), "repack", tmp_path / "ours", "--layout", "2x1", "--out",
                           tmp_path / "repacked"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype, form", [
    (torch.float32, FORM), (torch.float16, "quip-2"), (torch.float16, {**FORM, "vector_size": 32}),
    (torch.float16, {**FORM, "layout": {"rows": 2, "words": 1}})])
def test_what_the_tool_is_left_to_train(dtype, form):
    from vqgen import _calibration
    assert not _calibration.can_write(dtype, FORM, form)
