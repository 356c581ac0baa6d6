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
