"""Programs of the package without the modules that they need."""

import os
import pathlib
import subprocess
import sys

import pytest

FLAGSHIP = pathlib.Path(os.environ["VQGEN_SOURCE_DIR"]) / "docs" / "charts" / "flagship.json"


# Each program of the package, without the module that it needs.
@pytest.mark.parametrize("missing, program, said", [
    ("matplotlib", ["vqgen.plots", "rows", FLAGSHIP, "--out", "p.svg"],
     "vqgen.plots: needs matplotlib; pip install matplotlib\n"),
    ("torch", ["vqgen.eval", "--help"], "vqgen.eval: none here; pip install torch transformers\n"),
    ("torch", ["vqgen.vllm", ".", "--text", "t"], "vqgen.vllm: none here; pip install torch transformers\n"),
    ("transformers", ["vqgen.vllm", ".", "--text", "t"], "vqgen.vllm: none here; pip install torch transformers\n")])
def test_what_is_missing_is_one_line_that_says_what_to_install(tmp_path, missing, program, said):
    if missing == "transformers":
        pytest.importorskip("torch")  # which would be missing first
    (tmp_path / f"{missing}.py").write_text("raise ImportError('none here')\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, "-m", *program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths},
                          capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, said)


def test_an_empty_variable_names_no_nvrtc(tmp_path, monkeypatch):
    from vqgen._paths import nvrtc_folder
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("VQGEN_NVRTC", "")
    assert nvrtc_folder() == str(folder)
    monkeypatch.setenv("VQGEN_NVRTC", "/elsewhere")
    assert nvrtc_folder() is None
