"""Tensor parallelism of vqgen.vllm: processes that share a decoder layer, beside one that has all of it."""

import json
import os
import pathlib
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import reference
import vllm_ranks
from vllm_reference import HEADS, KV_HEADS

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
