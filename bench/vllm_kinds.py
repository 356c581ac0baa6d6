"""Small models with random weights of kinds that vLLM serves over vqgen's cache, for bench/vllm_compare.py."""
import pathlib

SIZES = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
         "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 4096, "bos_token_id": None, "eos_token_id": None,
         "pad_token_id": None, "tie_word_embeddings": False}
WINDOW = 96
EVERY_OTHER = ["sliding_attention", "full_attention"] * 2
# The class of transformers, and the fields that are its own. All experts of a token are chosen, since a rounding would
# choose others.
KINDS = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": WINDOW}),
    "gemma2": ("Gemma2", {"sliding_window": WINDOW, "layer_types": EVERY_OTHER, "attn_logit_softcapping": 5.0,
                          "query_pre_attn_scalar": 64, "tie_word_embeddings": True}),
    "gemma3": ("Gemma3", {"sliding_window": WINDOW, "layer_types": EVERY_OTHER, "query_pre_attn_scalar": 64,
                          "tie_word_embeddings": True}),
    "gpt-oss": ("GptOss", {"sliding_window": WINDOW, "layer_types": EVERY_OTHER, "num_local_experts": 2,
                           "num_experts_per_tok": 2}),
}


def random_ids(count, tokens, vocabulary, seed):
    """int64 [count, tokens] of a vocabulary, without its first two."""
    import torch
    return torch.randint(2, vocabulary, (count, tokens), generator=torch.Generator().manual_seed(seed))


def made(kind, dtype, **more):
    """A model of that kind; more: fields of its config."""
    import torch
    import transformers
    name, own = KINDS[kind]
    torch.manual_seed(1)
    config = getattr(transformers, f"{'Gemma3Text' if kind == 'gemma3' else name}Config")(**{**SIZES, **own, **more})
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(dtype).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("sinks"):
                tensor.copy_(torch.linspace(-1, 4, len(tensor)))
            elif tensor.dim() >= 2:
                tensor.normal_(0, 0.5 if "embed" in name else 0.06)
    return model


def run_model(options):
    """Writes a folder with a model and its bundle, calibrated by random tokens."""
    import torch

    import vqgen.hf
    import vqgen.vllm
    folder = pathlib.Path(options.model)
    model = made(options.kind, getattr(torch, options.dtype))
    model.save_pretrained(folder)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    ids = random_ids(options.sequences, 512, model.config.vocab_size, 2).to(model.device)
    vqgen.hf.calibrate(model, ids.split(4), folder / "books", keys=options.keys, values=options.values)
    print(vqgen.vllm.bind(folder / "books", folder))
    (folder / "books").unlink()
