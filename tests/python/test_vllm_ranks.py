"""Tensor parallelism of vqgen.vllm: processes that share a decoder layer or its experts, beside one that has all of them."""

import json
import os
import pathlib
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import reference
import vllm_expert_ranks
import vllm_ranks
import vqgen
from test_vllm_weights import write
from vllm_models import refused
from vllm_reference import DEVICE, HEADS, KV_HEADS

sys.path.insert(0, str(pathlib.Path(os.environ.get("VQGEN_SOURCE_DIR", pathlib.Path(__file__).parents[2])) / "bench"))
import vllm_random  # noqa: E402


@pytest.fixture(scope="module", params=["vecinfer-d4b8i8", "klt-2bit-keys,klt-2bit-values"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(vllm_ranks.CONFIG))
    assert vllm_random.run_folder(types.SimpleNamespace(config=folder / "config.json", cache=request.param, weights="aqlm-2x8i8",
                                                       layers=1, out=folder / "model")) == 0
    return folder


def traces(model, ranks, recent):
    """What each of `ranks` processes saved."""
    draw = torch.Generator().manual_seed(3)
    given = [torch.randn(sum(counts), vllm_ranks.CONFIG["hidden_size"], generator=draw).half() for counts in vllm_ranks.COUNTS]
    out = model / f"{ranks}-{recent}"
    if not out.exists():
        out.mkdir()
        torch.multiprocessing.spawn(vllm_ranks.run, (ranks, model / "model", recent, given, model / "kernels", out), ranks)
    return [torch.load(out / f"rank{rank}", weights_only=True) for rank in range(ranks)]


@pytest.mark.parametrize("ranks, recent", [(2, 0), (2, 16), (4, 0)])
def test_ranks_are_one_model(model, ranks, recent):
    whole, = traces(model, 1, recent)
    shared = traces(model, ranks, recent)
    assert [each["heads"] for each in shared] == [(rank * KV_HEADS // ranks, max(1, KV_HEADS // ranks)) for rank in range(ranks)]
    for each in shared:
        first, count = each["heads"]
        assert all(torch.equal(*pair) for pair in zip(each["outs"], shared[0]["outs"]))
        differ = each["codes"].view(torch.uint8) != whole["codes"][:, first:first + count].contiguous().view(torch.uint8)
        assert each["codes"].any() and differ.float().mean() < 0.005  # of near ties
    for out, want in zip(shared[0]["outs"], whole["outs"]):
        assert want.isfinite().all() and reference.worst(out.numpy(), want.double().numpy()) < 0.02
    assert HEADS % ranks == 0


MIXTRAL = "model.layers.0.block_sparse_moe.experts", ("w1", "w3", "w2"), 8, 2
QWEN = "model.layers.0.mlp.experts", ("gate_proj", "up_proj", "down_proj"), 8, 4
EXPERTS = {"mixtral, aqlm-2x8i8": ("aqlm-2x8i8", (*MIXTRAL, 128, 64)), "mixtral, iq2-xxs": ("iq2-xxs", (*MIXTRAL, 256, 512)),
           "qwen3-moe, aqlm-2x8i8": ("aqlm-2x8i8", (*QWEN, 128, 96)), "qwen3-moe, q2-k": ("q2-k", (*QWEN, 256, 512))}


def folder_of(path, draw, form, kind):
    """A folder with one layer of experts."""
    prefix, (gate, up, down), experts, _, hidden, inner = kind
    module = prefix.removeprefix("model.layers.0.")
    sizes = {f"{module}.{expert}.{name}": (hidden, inner) if name == down else (inner, hidden)
             for expert in range(experts) for name in (gate, up, down)}
    write(path, draw, form, sizes=sizes)
    return path


@pytest.mark.parametrize("name", EXPERTS)
def test_ranks_are_one_layer_of_experts(name, draw, tmp_path, tmp_path_factory):
    form, kind = EXPERTS[name]
    folder, outs = folder_of(tmp_path / "model", draw, form, kind), {}
    for ranks in (1, 2):
        out = tmp_path / f"{ranks}"
        out.mkdir()
        torch.multiprocessing.spawn(vllm_expert_ranks.run, (ranks, folder, kind, tmp_path / "kernels", out), ranks)
        outs[ranks] = [torch.load(out / f"rank{rank}", weights_only=True) for rank in range(ranks)]
    for shared, other, want in zip(*outs[2], outs[1][0]):
        assert torch.equal(shared, other) and want.isfinite().all() and want.any()
        assert reference.worst(shared.numpy(), want.double().numpy()) < 0.01


@pytest.mark.parametrize("form, inner, words", [
    ("iq2-xxs", 768, "a rank has 384 input features of .*experts.0.w2', and the format keeps 256 together"),
    ({"vector_size": 8, "index_bits": 8, "scope": "tensor", "group_inputs": 32, "layout": {"rows": 2, "words": 2}}, 512,
     "experts.0.w2' has scales of groups of inputs in a layout of several rows or words, which ranks do not share")])
def test_groups_that_ranks_cut_are_refused(draw, tmp_path, form, inner, words):
    kind = (*MIXTRAL, 256, inner)
    folder = folder_of(tmp_path / "model", draw, form, kind)
    refused(words, lambda: vllm_expert_ranks.experts_of(folder, kind, 0, 2, DEVICE), vqgen.Infeasible)
