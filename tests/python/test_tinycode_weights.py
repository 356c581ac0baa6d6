"""A real trained model with calibrated weights: VQGEN_TINYCODE names the folder with its weights and text. For minutes, so that
only `scripts/test.sh --all` runs it."""

import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import vqgen.eval
import vqgen.hf
from vqgen import _losses, _weight_losses
from vqgen._models import in_float32

FOLDER = os.environ.get("VQGEN_TINYCODE")
pytestmark = [
    pytest.mark.skipif(not FOLDER, reason="VQGEN_TINYCODE names no folder with tinycode"),
    pytest.mark.skipif(bool(os.environ.get("VQGEN_SWEEP_THIRD")), reason="the short run leaves it out; scripts/test.sh --all")]


def test_calibrated_weights_lose_at_most_half_of_what_kmeans_does(tmp_path):
    folder, plain, calibrated = (str(tmp_path / name) for name in ("model", "plain", "calibrated"))
    subprocess.run([sys.executable, os.environ["VQGEN_SOURCE_DIR"] + "/scripts/tinycode_model.py", FOLDER, folder], check=True)
    subprocess.run([os.environ["VQGEN_TOOL"], "quantize", folder, "--out", plain, "--format", "aqlm-2x8i8", "--device", "cpu"],
                   check=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).eval()
    if torch.cuda.is_available():
        model.cuda()
    text = vqgen.eval.sequences_of(transformers.AutoTokenizer.from_pretrained(folder),
                                   pathlib.Path(FOLDER) / "tinycode-heldout.txt", 20, 1024)
    vqgen.hf.quantize(model, text[:16].split(4), calibrated, format="aqlm-2x8i8", rounds=1, beam=4)
    with in_float32(model):
        unquantized = _losses.loss(model, text[16:])
    rows = _weight_losses.losses(model, [plain, calibrated], text[16:], unquantized, calibration=None, folder=tmp_path,
                                 kernels=torch.cuda.is_available())
    rises = [row["rise"] for row in rows]
    assert 0 < rises[1] <= rises[0] / 2, rises
