"""vqgen in vLLM 0.26 and 0.33: an attention backend over a cache of codes, and quantized weights of model folders, which
vLLM finds by its entry point (docs/guides/vllm.md).

    vllm serve MODEL --attention-backend CUSTOM     # vLLM 0.26; VQGEN in 0.33

`python3 -m vqgen.vllm MODEL --text FILE` calibrates a model folder for it.
"""

from __future__ import annotations

__all__ = ["bind", "register"]

BACKEND = "vqgen.vllm._backend.Backend"  # imported where a model asks for it


def bind(bundle, folder):
    """Write a bundle into a model folder as `vqgen.bundle`, bound to the folder's config and weights.

    bundle: of vqgen.hf.calibrate(), made from this model's keys and values; a file's path. folder: of the model, with
    config.json and safetensors. Returns the path of what is written. Raises BadInput for what cannot be read.

    Example: vqgen.vllm.bind("codebooks", "models/llama")
    """
    from vqgen.vllm import _identity
    return _identity.bind(bundle, folder)


def register() -> None:
    """Make the backend and the quantization method known to vLLM, which calls this in each of its processes. The backend is
    CUSTOM in vLLM 0.26, VQGEN in 0.33, with the cache dtype `vqgen`. Another version of vLLM is left alone, and refused
    if a model asks for either.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    import vqgen
    from vqgen.vllm import _engine, _quantization  # noqa: F401, which registers itself
    try:
        version = _engine.require_version()
    except vqgen.Infeasible:  # importing the backend says so
        version = _engine.VERSIONS[0]
    if version == _engine.VERSIONS[0]:
        register_backend(AttentionBackendEnum.CUSTOM, BACKEND)
        return
    if "VQGEN" not in AttentionBackendEnum.__members__:
        register_backend("VQGEN", BACKEND)
        from vqgen.vllm import _dtype
        _dtype.register()
