"""What is asked of models of transformers in several places."""

import contextlib


@contextlib.contextmanager
def attending(model, name: str):
    """Inside it, the model's attention is the function that transformers knows by `name`."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def heads_of(config) -> tuple[int, int, int]:
    """Query heads, KV heads and head_dim of a decoder's config."""
    heads = config.num_attention_heads
    return (heads, config.num_key_value_heads,
            getattr(config, "head_dim", None) or config.hidden_size // heads)
