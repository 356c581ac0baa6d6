"""Processes that end while a daemon thread is in a call: they end as usual and leave nothing."""

import os
import subprocess
import sys

import pytest

TIMES = 3 if "VQGEN_SWEEP_THIRD" in os.environ else 10  # fewer in the short run
BEGIN = """
import os, sys, threading, time
import numpy as np, vqgen
sys.setswitchinterval(1e-5)
config = {"op": "gemm", "shape": {"m": 2, "out_features": 256, "in_features": 64},
          "weights": {"vector_size": 4, "index_bits": 8}}
def runtime(cache=os.environ["KERNELS"]): return vqgen.Runtime("host", cache_dir=cache)
def compile_anew(out):
    runtime("").linear({**config, "shape": {**config["shape"], "out_features": out}})
numbers = np.random.default_rng(0).standard_normal((1, 4096, 64)).astype(np.float32)
"""
END = """
def endless():
    started.set()
    i = 0
    while True:
        call(i)
        i += 1
started = threading.Event()
for _ in range(3): threading.Thread(target=endless, daemon=True).start()
started.wait()
time.sleep(float(sys.argv[1]))
"""
LINEAR = """
op = runtime().linear(config)
x = np.zeros((2, 64), np.float16)
weights = vqgen.Quantized(np.zeros((256, 4), np.uint32), np.ones((1, 1, 256, 4), np.float16))
"""
CALLS = {
    "launch": LINEAR + "def call(i): op(x, weights)",
    "prepare": "r = runtime()\ndef call(i): r.linear(config)",
    "compile": "def call(i): compile_anew(8 + i)",
    "prefetch": "r = runtime()\ndef call(i): r.prefetch([config])",
    "enumerate": "r = runtime()\ndef call(i): r.enumerate(config, 1, 2)",
    "synchronize": "r = runtime()\ndef call(i): r.synchronize()",
    "runtime": "def call(i): runtime().close()",
    "train": "form = {'vector_size': 4, 'index_bits': 6}\n"
             "def call(i): vqgen.train_codebooks(numbers, form, seed=i, iterations=2)",
    "scalar_errors": "def call(i): vqgen.scalar_errors(numbers[0], numbers[0])",
    "format_fields": "def call(i): vqgen.format_fields('aqlm-2x8')",
    # Python code that the extension calls, which lets other threads run.
    "an array's own __dlpack__": LINEAR + """
class Slow:
    def __init__(self, array): self.array, self.shape = array, array.shape
    def __dlpack_device__(self): return sum(range(2000)) and self.array.__dlpack_device__()
    def __dlpack__(self, **words): return sum(range(2000)) and self.array.__dlpack__(**words)
out = np.zeros((2, 256), np.float16)
def call(i): op(Slow(x), weights, out=np.zeros((2, 256), np.float16))
""",
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    ended(LINEAR, folder, folder, 0)
    return folder


def ended(code, kernels, temporary, seconds, *, checked=True):
    environment = {**os.environ, "KERNELS": str(kernels), "TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, "-c", BEGIN + code, str(seconds)], env=environment, text=True,
                          capture_output=True, timeout=300)
    assert not checked or (done.returncode, done.stderr) == (0, ""), done


@pytest.mark.parametrize("call", CALLS)
def test_a_daemon_thread_in_a_call_does_not_end_the_process(call, kernels, tmp_path):
    for turn in range(TIMES):
        ended(CALLS[call] + END, kernels, tmp_path, 0.02 + 0.005 * turn)
        assert not os.listdir(tmp_path), call
