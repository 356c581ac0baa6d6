"""Models of images, whose prompts have blocks of tokens that see later ones of their own: a VQCache gives what the
model's own attention gives. Token types say what an image is; no pixels are needed."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import vqgen
import vqgen.hf
from hf_models import BASE, DEVICE, IDS, SIZES, layers, near, new_cache  # noqa: F401
from vqgen._models import attending
from vqgen._sights import Sight, attended

VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
          "patch_size": 14, "vision_use_head": False}
TEXTS = {"PaliGemma": {"model_type": "gemma"}, "PaliGemma 2": {"model_type": "gemma2", "sliding_window": 6},
         "Gemma3": {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}}
PROMPT = 11


def made(kind):
    torch.manual_seed(0)
    name = kind.split()[0]
    text = {**BASE, **SIZES, **TEXTS[kind], "query_pre_attn_scalar": 64}
    more = {"projection_dim": SIZES["hidden_size"]} if name == "PaliGemma" else {"mm_tokens_per_image": 4}
    config = getattr(transformers, f"{name}Config")(text_config=text, vision_config=VISION, image_token_index=63, **more)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).to(DEVICE, torch.float16).eval()
    with torch.no_grad():
        for each, tensor in model.named_parameters():
            if tensor.dim() >= 2:
                tensor.normal_(0, 1.0 if "emb" in each else 0.08)
    model.set_attn_implementation({"text_config": "vqgen"})
    return model


def types_of(kind):
    """Of PaliGemma a prefix of 8 tokens, which see each other; of Gemma 3 two images, in the first sequence alone."""
    types = torch.zeros(2, PROMPT, dtype=torch.long, device=DEVICE)
    if kind == "Gemma3":
        types[0, 1:5] = types[0, 7:10] = 1
    else:
        types[:, 8:] = 1
    return types


def logits(model, kind, cache):
    """Of all tokens, the prompt's and single ones behind it. Without a cache, in one pass."""
    types = types_of(kind)
    with torch.no_grad():
        if cache is None:
            later = IDS.shape[1] - PROMPT
            whole = torch.nn.functional.pad(types, (0, later), value=0 if kind == "Gemma3" else 1)
            with attending(model, "eager"):
                return model(IDS, token_type_ids=whole, use_cache=False).logits.float()
        out = [model(IDS[:, :PROMPT], token_type_ids=types, past_key_values=cache).logits.float()]
        after = torch.zeros(2, 1, dtype=torch.long, device=DEVICE) if kind == "Gemma3" else None
        for token in range(PROMPT, IDS.shape[1]):
            out.append(model(IDS[:, token:token + 1], token_type_ids=after, past_key_values=cache).logits.float())
        return torch.cat(out, 1)


@pytest.mark.parametrize("kind", TEXTS)
def test_logits_are_those_of_the_models_own_attention(kind, layers):
    model = made(kind)
    whole = logits(model, kind, None)
    for options in ({}, {"recent_tokens": 4, "sinks": 2}, {"drafts": 15}):
        ours = logits(model, kind, new_cache(model, layers, **options))
        assert near(ours[:, PROMPT - 1:], whole[:, PROMPT - 1:]) and near(ours, whole), (kind, options)
    with torch.no_grad():
        causal = model(IDS[:, :PROMPT], past_key_values=new_cache(model, layers)).logits.float()
    first = slice(1, 4)  # tokens of a block, which see later ones of it
    assert (causal - whole[:, :PROMPT])[0, first].norm() > 5 * (ours - whole)[0, first].norm(), kind


@pytest.mark.parametrize("kind", TEXTS)
def test_padding_to_the_left_moves_no_block(kind, layers):
    model, types = made(kind), types_of(kind)
    mask = torch.ones(2, PROMPT, dtype=torch.long, device=DEVICE)
    mask[1, :3] = 0
    given = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0) + (kind != "Gemma3"),
             "token_type_ids": types}
    with torch.no_grad():
        ours = model(IDS[:, :PROMPT], past_key_values=new_cache(model, layers), **given).logits[:, -1].float()
        with attending(model, "eager"):
            theirs = model(IDS[:, :PROMPT], use_cache=False, **given).logits[:, -1].float()
    assert near(ours, theirs)


def test_a_later_part_of_a_prompt_with_blocks_is_refused(layers):
    model = made("Gemma3")
    cache = new_cache(model, layers)
    types = types_of("Gemma3")
    with torch.no_grad():
        model(IDS[:, :5], token_type_ids=types[:, :5], past_key_values=cache)
        with pytest.raises(vqgen.Infeasible, match="blocks that see later tokens of their own, behind the first pass"):
            model(IDS[:, 5:11], token_type_ids=types, past_key_values=cache)


def test_a_mask_stands_for_what_a_token_sees():
    generator = torch.Generator().manual_seed(5)
    query, keys, values = (torch.randn(2, heads, 9, 16, dtype=torch.float64, generator=generator) for heads in (4, 2, 2))
    sees = torch.rand(2, 1, 9, 9, generator=generator) < 0.5
    sees |= torch.eye(9, dtype=torch.bool)
    scores = (query @ keys.repeat_interleave(2, 1).mT * 0.3).masked_fill(~sees, -torch.inf)
    wanted = scores.softmax(-1) @ values.repeat_interleave(2, 1)
    torch.testing.assert_close(attended(query, keys, values, 0.3, Sight(sliding_window=2), None, sees), wanted, rtol=1e-5,
                               atol=1e-6)
