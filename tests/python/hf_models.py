"""Tiny models with random weights, and caches for them whose formats need no training."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import vqgen
import vqgen.hf
import vqgen.torch as vt

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BASE = {"vocab_size": 64, "pad_token_id": 0, "eos_token_id": None, "bos_token_id": 1}
SIZES = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 64, "num_attention_heads": 4,
         "num_key_value_heads": 2}
IDS = torch.randint(1, 64, (2, 16), generator=torch.Generator().manual_seed(1)).to(DEVICE)


def tiny(kind="Qwen2", config_kind=None, **fields):
    torch.manual_seed(0)
    config = getattr(transformers, f"{config_kind or kind}Config")(**{**BASE, **SIZES, **fields})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(DEVICE, torch.float16).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.dim() >= 2:
                tensor.normal_(0, 1.0 if "emb" in name else 0.08)
    model.set_attn_implementation("vqgen")
    return model


@pytest.fixture(scope="module")
def layers():
    """Return what layers_of() reads of a bundle with int8 keys and values by token, which need no
    training."""
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
    """Return logits of a prompt's last token and of the single ones after it."""
    with torch.no_grad():
        parts = [ids[:, :prompt], *ids[:, prompt:].split(1, 1)]
        return torch.stack([model(part, past_key_values=cache).logits[:, -1].float() for part in parts], 1)


def near(ours, theirs):
    return (ours - theirs).norm() / theirs.norm() < 0.05


def untouched(cache):
    return cache.get_seq_length() == 0 and not cache.lengths.any()
