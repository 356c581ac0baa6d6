"""A real trained model on a GPU: VQGEN_TINYCODE names the folder with its weights and text."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import reference
import vqgen
import vqgen.eval
import vqgen.hf
from vqgen import simulation

FOLDER = os.environ.get("VQGEN_TINYCODE")
pytestmark = [
    pytest.mark.skipif(not FOLDER, reason="VQGEN_TINYCODE names no folder with tinycode"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("model")
    subprocess.run([sys.executable, os.environ["VQGEN_SOURCE_DIR"] + "/scripts/tinycode_model.py",
                    FOLDER, out], check=True)
    return out


@pytest.fixture(scope="module")
def model(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float16).cuda().eval()


@pytest.fixture(scope="module")
def text(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return vqgen.eval.sequences_of(
        tokenizer, pathlib.Path(FOLDER) / "tinycode-heldout.txt", 48, 2048)


@pytest.fixture(scope="module")
def codebooks(model, text, tmp_path_factory):
    out = tmp_path_factory.mktemp("bundle") / "codebooks"
    vqgen.hf.calibrate(model, text[:24].split(4), out, keys="vecinfer-d4b8", values="vecinfer-d4b8")
    return out


def test_its_tokens_are_bytes(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    words = "tab\there, \u00fcber 20 \u20ac\n"
    assert tokenizer(words).input_ids == list(words.encode())
    assert tokenizer.decode(list(words.encode())) == words


def test_loss_through_kernels_is_that_of_the_simulation(model, text, codebooks):
    assert abs(vqgen.eval.loss(model, text[24:]) - 0.631) < 0.002
    for recent_tokens, most in ((0, 0.760), (128, 0.66)):
        row = vqgen.eval.accuracy(model, text[24:], codebooks, recent_tokens=recent_tokens)
        assert abs(row["loss"] - row["simulated"]) < 0.002, row
        assert row["loss"] < most, row


@pytest.mark.parametrize("keys, values", [
    ("vecinfer-d2b8", "vecinfer-d2b8"), ("vecinfer-d4b8i8", "vecinfer-d4b8i8"),
    ("vecinfer-d4b10", "vecinfer-d8b12")])
def test_loss_of_other_formats_is_that_of_the_simulation(model, text, tmp_path, keys, values):
    bundle = tmp_path / "codebooks"
    vqgen.hf.calibrate(model, text[:24].split(4), bundle, keys=keys, values=values)
    short = text[24:].view(-1, 512)  # as many tokens in a quarter of the steps
    for recent_tokens in (0, 128):
        row = vqgen.eval.accuracy(model, short, bundle, recent_tokens=recent_tokens)
        assert abs(row["loss"] - row["simulated"]) < 0.002, row


def test_greedy_tokens_are_those_of_eager_attention_over_the_decoded_cache(model, text, codebooks):
    lengths, new = [640, 23, 512, 301, 77, 404, 150, 9], 512
    longest = max(lengths)
    prompts = torch.zeros(8, longest, dtype=torch.long)
    for row, source, length in zip(prompts, text[30:], lengths):
        row[longest - length:] = source[:length]
    inputs = {"input_ids": prompts.cuda(), "attention_mask": (prompts != 0).long().cuda()}
    model.set_attn_implementation("vqgen")
    cache = vqgen.hf.VQCache(model.config, codebooks, batch=8, tokens=longest + new, device="cuda")
    with vqgen.hf.captured(model, cache):
        out = model.generate(**inputs, past_key_values=cache, max_new_tokens=new, do_sample=False)
    plain = vqgen.hf.VQCache(model.config, codebooks, batch=8, tokens=longest + new, device="cuda")
    again = model.generate(**inputs, past_key_values=plain, max_new_tokens=new, do_sample=False)
    assert torch.equal(out, again), "captured steps choose other tokens"
    made = out[:, longest:]

    # Teacher-forced: the prompt attends to its raw tokens, and each later token to dequantized ones.
    items = vqgen.hf.layers_of(codebooks)
    decoded = [decode(layer.cache, item, tensors)
               for layer, (item, tensors) in zip(cache.layers, items)]
    close = 0
    for row, length in enumerate(lengths):
        tokens = torch.cat([prompts[row, longest - length:].cuda(), made[row, :-1]])[None]
        held = [[each[row:row + 1, :, :tokens.shape[1]] for each in layer] for layer in decoded]
        logits = forced(model, held, tokens, length)[0, length - 1:]
        best = logits.float().topk(2).values
        clear = best[:, 0] - best[:, 1] > 0.02
        assert torch.equal(logits.argmax(1)[clear], made[row][clear]), f"sequence {row}"
        close += int((~clear).sum())
    assert close <= 0.01 * made.numel(), close


def test_greedy_tokens_with_drafts_are_those_without(model, text, codebooks):
    model.set_attn_implementation("vqgen")
    accepted = refused = 0
    for source, length in zip(text[30:], (640, 23, 512, 301)):
        prompt, made = source[None, :length].cuda(), []
        for drafts in (0, 3):
            cache = vqgen.hf.VQCache(model.config, codebooks, batch=1, tokens=length + 256,
                                     recent_tokens=128, drafts=3, batch_invariant=True, device="cuda")
            taken_back, crop = [], cache.crop
            cache.crop = lambda tokens: (taken_back.append(-tokens), crop(tokens))
            with vqgen.hf.captured(model, cache):
                made.append(model.generate(
                    prompt, past_key_values=cache, max_new_tokens=256, do_sample=False,
                    **{"prompt_lookup_num_tokens": drafts} if drafts else {}))
        assert torch.equal(*made), f"of {length}"
        accepted += 256 - len(taken_back)
        refused += sum(taken_back)
    assert accepted > 100 and refused > 100, (accepted, refused)


def decode(cache, item, tensors):
    """Return keys and values of a layer, [batch, kv_heads, tokens, head_dim], decoded from its codes by
    NumPy."""
    out = []
    for held, form in ((cache.keys, item["keys"]), (cache.values, item["values"])):
        codes, books = held.codes.cpu().numpy().view(np.uint32), held.codebooks.cpu().numpy()
        rows = np.stack([reference.decoded(codes[:, head], books[head:head + 1], item["head_dim"],
                                           form["index_bits"]) for head in range(len(books))], 1)
        out.append(torch.from_numpy(rows).float().cuda())
    keys = simulation.rotated(out[0]) if item["keys"]["hadamard"] else out[0]
    return keys * tensors["keys.smooth"].cuda()[:, None], out[1]


def forced(model, held, tokens, prompt):
    """Return logits for which the first `prompt` tokens see raw keys and values, and the others those of
    `held`,
    by layer."""
    def attention(module, query, key, value, _, scaling=None, **__):
        keys, values = held[module.layer_idx]
        raw = simulation.attention(query[:, :, :prompt], *(
            each[:, :, :prompt] for each in (key, value, key, value)), 1 << 30, 0, scaling)
        whole = simulation.attention(query, keys, values, keys, values, 0, 0, scaling)
        out = torch.cat([raw, whole[:, :, prompt:]], 2)
        return out.to(query.dtype).transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("vqgen_forced", attention)
    before = model.config._attn_implementation
    model.set_attn_implementation("vqgen_forced")
    try:
        with torch.no_grad():
            return model(tokens, use_cache=False).logits
    finally:
        model.set_attn_implementation(before)
