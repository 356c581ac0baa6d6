"""Calibrates a model folder for vLLM: trains codebooks of its keys and values, and writes MODEL/vqgen.bundle.

    python3 -m vqgen.vllm MODEL --text FILE
    python3 -m vqgen.vllm MODEL --bundle FILE     # binds what vqgen.hf.calibrate() wrote
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

from vqgen._errors import exit_code
from vqgen._paths import require_place
from vqgen.vllm import bind
from vqgen.vllm._identity import BUNDLE, identity


def _arguments(arguments):
    parser = argparse.ArgumentParser(prog="vqgen.vllm", description="Calibrate a model folder for vLLM.")
    parser.add_argument("model", help="folder of a Hugging Face model; MODEL/vqgen.bundle is written")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", help="text like the text that you will serve")
    source.add_argument("--bundle", help="a bundle of this model, which is bound to it")
    parser.add_argument("--keys", default="klt-2bit-keys", help="format of the keys [klt-2bit-keys]")
    parser.add_argument("--values", default="klt-2bit-values", help="format of the values [klt-2bit-values]")
    parser.add_argument("--sequences", type=int, default=32, help="sequences that train [32]")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a sequence [2048]")
    parser.add_argument("--dtype", default="auto", help="float16 or bfloat16, in which vLLM will run [the model's]")
    return parser.parse_args(arguments)


def _require_modules():
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{error}; pip install torch transformers") from error


def _require_served(arguments):
    """Refuse a model that vLLM would not serve over these formats."""
    import transformers

    import vqgen
    from vqgen._models import require_served, sizes_text, value_dim_of
    from vqgen._sights import require_bounds
    from vqgen.vllm._engine import OTHER
    config = transformers.AutoConfig.from_pretrained(arguments.model)
    *_, head_dim, sights = require_served(config)
    value_dim = value_dim_of(config.get_text_config(decoder=True), head_dim)
    if value_dim != head_dim:
        raise vqgen.Infeasible(f"{arguments.model}: its heads are of {sizes_text(head_dim, value_dim)}, and vqgen.vllm serves "
                               f"heads of one size; {OTHER}")
    for sight in dict.fromkeys(sights):
        if sight.attention_chunk:
            raise vqgen.Infeasible(f"{arguments.model}: its layers see chunks of {sight.attention_chunk} tokens, which "
                                   f"vqgen.vllm does not serve; {OTHER}")
        require_bounds(sight, vqgen.format_fields(arguments.keys), f"--keys {arguments.keys}")


def _calibrate(arguments, out):
    import torch
    import transformers

    import vqgen.hf
    from vqgen.eval import sequences_of
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    ids = sequences_of(tokenizer, arguments.text, arguments.sequences, arguments.length)
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=arguments.dtype).eval()
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    vqgen.hf.calibrate(model, ids.to(model.device).split(4), out, keys=arguments.keys, values=arguments.values)


def _run(arguments):
    # What would refuse to bind does so before training.
    if arguments.bundle is None:
        _require_modules()
    identity(arguments.model)
    require_place("MODEL", os.path.join(arguments.model, BUNDLE))
    if arguments.bundle is None:
        _require_served(arguments)
    with tempfile.TemporaryDirectory() as folder:
        bundle = arguments.bundle
        if bundle is None:
            bundle = os.path.join(folder, "codebooks")
            _calibrate(arguments, bundle)
        print(bind(bundle, arguments.model))


def main(arguments=None) -> int:
    arguments = _arguments(arguments)
    return exit_code("vqgen.vllm", lambda: _run(arguments))


if __name__ == "__main__":
    sys.exit(main())
