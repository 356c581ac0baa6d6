"""Tiny models with random weights, their logits for a prompt and single steps, and bundles and caches for
them.
Needs PyTorch and transformers; runs on the CPU by the host backend."""

import warnings

import torch
import transformers

import vqgen.hf
from kit import end, path  # noqa: F401, which the cases take from here

warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()

IDS = torch.randint(1, 64, (2, 24), generator=torch.Generator().manual_seed(1))
BASE = {"vocab_size": 64, "pad_token_id": 0, "eos_token_id": None, "bos_token_id": 1}
SIZES = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 64,
         "num_attention_heads": 4, "num_key_value_heads": 2}


def filled(model, dtype=torch.float16, seed=0):
    """Return the model in evaluation mode, with random weights; norms do not change."""
    torch.manual_seed(seed)
    model = model.to(dtype).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() < 2 or "norm" in name or "ln" in name:
                continue
            weight.normal_(0, 1.0 if "emb" in name or "wte" in name else 0.08)
    return model


def tiny(config=transformers.Qwen2Config, model=transformers.Qwen2ForCausalLM, **fields):
    """Return a model of two layers with 4 query heads and 2 KV heads of 64."""
    return filled(model(config(**{**BASE, **SIZES, **fields})))


def with_attention(model, implementation):
    model.set_attn_implementation(implementation)
    return model


def bundle(model=None, keys="int8-token", values="int8-token"):
    """Return the path of calibrated codebooks, by default of tiny(); int8 by token trains nothing."""
    vqgen.hf.calibrate(model or tiny(), [torch.randint(1, 64, (2, 64))], path("codebooks"), keys=keys,
                       values=values)
    return path("codebooks")


def cache(model, codebooks=None, batch=2, tokens=64):
    return vqgen.hf.VQCache(model.config, codebooks or bundle(), batch=batch, tokens=tokens)


def steps(model, past=None, prompt=5):
    """Return logits of a prompt's last token and of each later token of IDS, [batch, steps, vocabulary]."""
    logits = []
    with torch.no_grad():
        for begin, end_ in [(0, prompt)] + [(k, k + 1) for k in range(prompt, IDS.shape[1])]:
            output = model(IDS[:, begin:end_], past_key_values=past, use_cache=True)
            past = output.past_key_values
            logits.append(output.logits[:, -1])
    return torch.stack(logits, 1).float()


def relative(got, want):
    return ((got - want).norm() / want.norm()).item()


def refused(call):
    """Return the message of the vqgen.Error that call() raises; None if it raises none or another."""
    try:
        print("no error:", call())
    except vqgen.Error as error:
        print("refused:", error)
        return str(error)
    except Exception as error:  # pylint: disable=broad-except
        print(f"raised {type(error).__name__}: {str(error)[:200]}")
    return None
