"""Draws new problems in each run; VQGEN_PYTHON_SEED repeats one."""

import os
import random

import numpy as np
import pytest

import vqgen


def pytest_report_header():
    return f"VQGEN_PYTHON_SEED={SEED}"


SEED = int(os.environ.get("VQGEN_PYTHON_SEED", random.SystemRandom().randrange(1 << 31)))


@pytest.fixture
def draw(request):
    return np.random.default_rng([SEED, *request.node.nodeid.encode()])


@pytest.fixture(scope="session")
def host(tmp_path_factory):
    with vqgen.Runtime("host", cache_dir=tmp_path_factory.mktemp("kernels")) as runtime:
        yield runtime


@pytest.fixture(scope="module", autouse=True)
def own_cache(request, tmp_path_factory):
    """Give vqgen.torch a runtime with an empty kernel cache, or that of VQGEN_TEST_CACHE, for a module that imports
    torch. The module's MAX_BUCKETS, if there is one, bounds the kernels of a call."""
    torch = getattr(request.module, "torch", None)
    if torch is None:
        return
    import vqgen.torch
    device = torch.cuda.current_device() if torch.cuda.is_available() else "host"
    kept = os.environ.get("VQGEN_TEST_CACHE") or tmp_path_factory.mktemp("kernels")
    bound = {"max_buckets": request.module.MAX_BUCKETS} if hasattr(request.module, "MAX_BUCKETS") else {}
    vqgen.torch.use_runtime(vqgen.Runtime(device, cache_dir=kept, **bound))
