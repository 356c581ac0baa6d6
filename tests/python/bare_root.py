"""What an installed wheel does on a machine with Python and NumPy alone: scripts/wheel.sh runs it in a bare root.

No compiler, NVRTC or GPU is there. The tool plans, writes CUDA and quantizes; the package trains codebooks; what
needs a compiler says so.
"""

import importlib.metadata
import os
import platform
import shutil
import subprocess

import numpy as np

import vqgen

assert not any(map(shutil.which, ["cc", "c++", "g++", "gcc", "clang", "nvcc"])), "a compiler is here"


def tool(*arguments, status=0):
    done = subprocess.run(["vqgen", *arguments], capture_output=True, text=True)
    assert done.returncode == status, f"vqgen {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


libc = os.confstr("CS_GNU_LIBC_VERSION")
print(f"Python {platform.python_version()}, NumPy {np.__version__}, {libc}: vqgen {vqgen.__version__}")
files = importlib.metadata.files("vqgen")
assert vqgen.__version__ == importlib.metadata.version("vqgen")
assert vqgen.__version__ in tool("version")
assert any(each.name == "THIRD_PARTY_NOTICES.txt" for each in files)
assert all(each.locate().exists() for each in files), "a file of the wheel is missing"

for gpu in ("h200", "t4"):
    assert "plan" in tool("explain", "tinycode-layer.json", "--gpu", gpu)
    tool("export", "tinycode-layer.json", "--gpu", gpu, "--out", f"{gpu}.cu")
    with open(f"{gpu}.cu") as file:
        text = file.read()
    assert "__global__" in text, f"{gpu}.cu has no kernel"
    print(f"plan and CUDA text for {gpu}: {len(text)} characters")

tool("quantize", "--input", "tinycode-weight.safetensors", "--weights", "*.weight", "--format", "aqlm-2x8",
     "--out", "weights")
print(f"bundle of weights: {os.path.getsize('weights')} bytes")

vectors = np.random.default_rng(1).standard_normal((1, 4096, 64), np.float32)
trained = vqgen.train_codebooks(vectors, {"vector_size": 4, "index_bits": 8})
entries = trained.codebooks[0, 0].astype(np.float32)
parts = vectors.reshape(-1, 4)[:4096]
nearest = entries[((parts[:, None] - entries) ** 2).sum(-1).argmin(1)]
error = ((parts - nearest) ** 2).mean() / (parts**2).mean()
print(f"trained codebooks {entries.shape}: relative squared error {error:.3f}")
assert error < 0.15

report = tool("doctor", status=5)
print(report.strip())
config = {"shape": {"batch": 1, "kv_heads": 2, "query_heads": 4, "head_dim": 64, "tokens": 64},
          "keys": {"vector_size": 4, "index_bits": 8}, "values": {"vector_size": 4, "index_bits": 8}}
try:
    vqgen.Runtime("host").attention(config)
except vqgen.DeviceError as error:
    print(f"without a compiler: {error}")
else:
    raise AssertionError("a kernel was compiled without a compiler")
