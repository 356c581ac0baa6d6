"""scikit-build-core, with NVIDIA's headers asked of PyPI where no CUDA toolkit has them: building
needs cuda.h and nvrtc.h, and nothing else of a toolkit."""

import glob
import importlib.util
import os

from scikit_build_core import build as _build
from scikit_build_core.build import *  # noqa: F403

_WHEELS = ["nvidia-cuda-runtime-cu12==12.9.*", "nvidia-cuda-nvrtc-cu12==12.9.*"]
_TOOLKITS = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda",
             *glob.glob("/usr/local/cuda-*"), "/opt/cuda"]


def _has_headers(config_settings):
    return "cmake.define.VQGEN_CUDA_INCLUDE_DIRS" in (config_settings or {}) or any(
        glob.glob(os.path.join(toolkit, below, "nvrtc.h")) for toolkit in _TOOLKITS if toolkit
        for below in ("include", "targets/x86_64-linux/include"))


def get_requires_for_build_wheel(config_settings=None):
    asked = _build.get_requires_for_build_wheel(config_settings)
    return asked if _has_headers(config_settings) else asked + _WHEELS


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    if not _has_headers(config_settings):
        folders = importlib.util.find_spec("nvidia").submodule_search_locations
        includes = [path for folder in folders for path in glob.glob(os.path.join(folder, "*/include"))]
        # No hint to NVRTC in the wheel: this one goes with the build.
        config_settings = {**(config_settings or {}), "cmake.define.VQGEN_NVRTC_HINT": "",
                           "cmake.define.VQGEN_CUDA_INCLUDE_DIRS": ";".join(includes)}
    return _build.build_wheel(wheel_directory, config_settings, metadata_directory)
