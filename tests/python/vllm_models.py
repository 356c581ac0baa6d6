"""Folders of models, their bundles and configurations as vqgen.vllm reads them, for tests."""

import json
import types

import numpy as np
import pytest
import torch

safetensors_torch = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

from vllm_reference import DEVICE, DIM, FORM, HEADS, KV_HEADS, PAGE, books_of

import vqgen
from vqgen.vllm import bind

LAYERS, TOKENS = 2, 64
Fields = types.SimpleNamespace


def write_model(folder, draw, **config):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": LAYERS, **config}))
    names = [f"model.layers.{layer}.self_attn.{part}_proj.weight" for layer in range(LAYERS) for part in "qkvo"]
    tensors = {name: torch.from_numpy(draw.standard_normal((8, 8)).astype(np.float16)) for name in names}
    tensors["model.embed_tokens.weight"] = torch.zeros(4, 8)
    safetensors_torch.save_file(tensors, folder / "model.safetensors")
    return folder


def write_bundle(path, draw, layers=LAYERS, heads=KV_HEADS, form=FORM, dtype=torch.float16, forms=None):
    items, tensors = [], {}
    for layer in range(layers):
        own = (forms or {}).get(layer, form)
        items.append({"name": f"layer{layer}", "kind": "attention", "dtype": "f16", "keys": own, "values": own,
                      "cache_batch": 1, "kv_heads": heads, "tokens": 0, "head_dim": DIM})
        tensors |= {f"layer{layer}.{name}": each.to(dtype) for name, each in books_of(draw, heads).items()}
    safetensors_torch.save_file(tensors, path, {"vqgen.bundle": json.dumps({"schema": 1, "items": items})})
    return path


def configuration(folder, **more):
    """The fields of vLLM's configuration that are read. Names a.b set a field of a part."""
    config = Fields(
        additional_config={}, speculative_config=None, device_config=Fields(device_type=DEVICE.type),
        compilation_config=Fields(static_forward_context={}),
        parallel_config=Fields(decode_context_parallel_size=1), cache_config=Fields(block_size=PAGE, kv_cache_dtype_skip_layers=[]),
        scheduler_config=Fields(max_num_seqs=2, max_num_batched_tokens=40, disable_hybrid_kv_cache_manager=None),
        model_config=Fields(model=str(folder), dtype=torch.float16, max_model_len=TOKENS - 5, get_head_size=lambda: DIM,
                            attention_chunk_size=None, get_total_num_kv_heads=lambda: KV_HEADS,
                            get_total_num_hidden_layers=lambda: LAYERS, get_num_attention_heads=lambda parallel: HEADS))
    for name, value in more.items():
        owner, _, field = name.rpartition("__")
        setattr(getattr(config, owner) if owner else config, field, value)
    return config


@pytest.fixture
def model(tmp_path, draw):
    folder = write_model(tmp_path / "model", draw)
    bind(write_bundle(tmp_path / "books", draw), folder)
    return folder


def refused(words, call, kind=vqgen.Error):
    with pytest.raises(kind, match=words) as found:
        call()
    assert "\n" not in str(found.value)
