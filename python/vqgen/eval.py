"""What a quantized cache costs a model in accuracy, and what it gains in memory and speed:

    python -m vqgen.eval MODEL --text FILE --format vecinfer-d4b8 --window 0 128
    python -m vqgen.eval MODEL --random-weights --contexts 32768 --batches 1 8 --format vecinfer-d4b8i8

MODEL is a folder that transformers loads, or a config.json for --random-weights. With --text, loss
per token of sequences of the text: of the model as it is, through the kernels token by token, and by
simulated quantization with the same codebooks (vqgen.simulation). With --contexts, tokens per second
and memory of captured steps against the model over a 16-bit cache with the fastest SDPA. --json has
everything. Needs PyTorch, transformers and, for speed, a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import pathlib
import sys
import tempfile
import typing
import zlib

import torch
import transformers

import vqgen
import vqgen.hf
import vqgen.torch
from vqgen import _calibration, _speed, simulation
from vqgen._models import attending


def _named(size, bits, name=None, **transforms):
    """A format with a name."""
    return name or f"d{size}b{bits}", {"vector_size": size, "index_bits": bits, "scope": "head",
                                       **transforms}


class Run(typing.NamedTuple):
    """What is evaluated: formats of keys and of values, each with its name. calibration: a text and
    how many of its sequences; None for the command's. rotated_first: of the keys, as
    simulation.dequantized() does it, so that there are no kernels."""

    keys: tuple
    values: tuple
    window: int = 0
    sinks: int = 0
    calibration: tuple | None = None
    rotated_first: bool = False


_D4B8 = ("vecinfer-d4b8",) * 2
_INT4 = ("int4-channel", {"preset": "int8-channel", "vector_size": 4})
_D2B8X2 = ("d2b8, 2 stages", {"preset": "vecinfer-d2b8", "residuals": 2})
# What the papers' tables compare.
RECIPES = {
    "transforms": [  # of the keys, VecInfer's table 4
        *(Run(_named(4, 8, name, **transforms), _named(4, 8))
          for name, transforms in (("none", {}), ("smooth", {"smooth": True}),
                                   ("hadamard", {"hadamard": True}),
                                   ("smooth + hadamard", {"smooth": True, "hadamard": True}))),
        Run(_named(4, 8, "hadamard + smooth", smooth=True), _named(4, 8), rotated_first=True)],
    "codebooks": [  # their size at equal bits, VecInfer's table 5
        Run(_named(*form), _named(*form))
        for form in ((2, 4), (4, 8), (2, 3), (4, 6), (8, 12))],
    "operands": [  # bits for keys against bits for values, VecInfer's table 6
        Run(("vecinfer-" + keys,) * 2, ("vecinfer-" + values,) * 2)
        for keys, values in (("d2b8", "d4b8"), ("d4b8", "d2b8"), ("d4b8", "d8b8"), ("d8b8", "d4b8"))],
    "scalars": [  # plain numbers, and vectors at 8 to 1 bits
        *(Run((keys, keys), (values, values))
          for keys, values in (("int8-channel",) * 2, ("int8-token",) * 2, ("fp8-e4m3",) * 2,
                               ("int8-channel", "int8-token"), ("vecinfer-d4b8", "int8-token"))),
        Run(("int4-kivi-keys",) * 2, ("int4-kivi-values",) * 2, 32),
        Run(("int4-kivi-keys",) * 2, ("int4-kivi-values",) * 2, 128),
        Run(_INT4, _INT4, 128), Run(("vecinfer-d2b8",) * 2, ("vecinfer-d2b8",) * 2, 128),
        Run(_INT4, _INT4), Run(_D2B8X2, _D2B8X2),
        *(Run((name,) * 2, (name,) * 2)
          for name in ("vecinfer-d2b8", "vecinfer-d4b8", "vecinfer-d8b8"))],
    "raw": [  # tokens that stay raw
        Run(_D4B8, _D4B8, window, sinks)
        for window in (0, 32, 128, 512) for sinks in (0, 4)],
}
_AT_ONCE = 4  # sequences of a forward pass over all tokens


def sequences_of(tokenizer, path, count: int, length: int, skip: int = 0) -> torch.Tensor:
    """`count` sequences [count, length] of the text, behind the first `skip` ones."""
    text = pathlib.Path(path).read_text(encoding="utf-8")
    numbers = tokenizer(text, add_special_tokens=False).input_ids
    wanted = numbers[skip * length:(skip + count) * length]
    if len(wanted) < count * length:
        raise vqgen.BadInput(f"{path} has {len(numbers)} tokens, and {(skip + count) * length} are "
                             "wanted; take fewer or shorter sequences")
    return torch.tensor(wanted).view(count, length)


def _summed_loss(logits, targets):
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten(),
                                             reduction="sum").double()


@torch.no_grad()
def loss(model, tokens) -> float:
    """Mean negative log-likelihood per token, in nats, of sequences [n, length] read whole."""
    total = 0.0
    for part in tokens.to(model.device).split(_AT_ONCE):
        total += _summed_loss(model(part[:, :-1], use_cache=False).logits, part[:, 1:])
    return float(total) / (tokens.shape[0] * (tokens.shape[1] - 1))


@torch.no_grad()
def loss_through_kernels(model, tokens, cache) -> float:
    """The same, one token of every sequence at a time over a VQCache; captured where it can be."""
    tokens = tokens.to(model.device)
    cache.reset()
    total = torch.zeros((), dtype=torch.float64, device=model.device)
    with vqgen.hf.captured(model, cache):
        for now in range(tokens.shape[1] - 1):
            logits = model(tokens[:, now:now + 1], past_key_values=cache).logits[:, -1]
            total += _summed_loss(logits, tokens[:, now + 1])
    return float(total) / (tokens.shape[0] * (tokens.shape[1] - 1))


def accuracy(model, tokens, codebooks, *, window: int = 0, sinks: int = 0,
             rotated_first: bool = False) -> dict:
    """Losses of sequences [n, length], in nats per token, with the codebooks of a bundle or what
    layers_of() reads of it. With `rotated_first` these are as of simulation.simulated(), and the
    loss through kernels is None."""
    layers = codebooks if isinstance(codebooks, list) else vqgen.hf.layers_of(codebooks)
    with simulation.simulated(model, layers, window=window, sinks=sinks,
                              rotated_first=rotated_first):
        simulated = loss(model, tokens)
    cache = vqgen.hf.VQCache(model.config, layers, batch=len(tokens), device=model.device,
                             tokens=tokens.shape[1], window=window, sinks=sinks)
    through_kernels = None
    if not rotated_first:
        with attending(model, "vqgen"):
            through_kernels = loss_through_kernels(model, tokens, cache)
    return {"window": window, "sinks": sinks, "loss": through_kernels, "simulated": simulated,
            "bits": cache.bits_per_element(), "bytes_per_token": cache.bytes_per_token()}


def _codebooks(model, run, tokens, folder):
    """A run's bundle of codebooks in `folder`, trained on sequences unless it is there. What no
    kernel reads is no bundle, and is trained anew."""
    keys, values = run.keys[1], run.values[1]
    name = f"{_file_name(*run.keys)}-{_file_name(*run.values)}-{len(tokens)}-"
    name += f"{zlib.crc32(tokens.numpy()):08x}"
    path = os.path.join(folder, f"{name}.safetensors")
    if run.rotated_first or not os.path.exists(path):
        print(f"training {name}", file=sys.stderr, flush=True)
        batches = tokens.split(_AT_ONCE)
        if run.rotated_first:
            states = _calibration.states_of(model, batches, model.device)
            return _calibration.layers_rotated_first(states, keys, values)
        vqgen.hf.calibrate(model, batches, path, keys=keys, values=values)
    return path


def _file_name(name, form):
    """Of a format in the name of a bundle: a format file's stem, with a checksum of its fields."""
    if form != name or not ("/" in name or name.endswith(".json")):
        return name
    fields = json.dumps(vqgen.format_fields(form), sort_keys=True)
    return f"{pathlib.Path(name).stem}-{zlib.crc32(fields.encode()):08x}"


def _load(arguments):
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[arguments.dtype]
    if not arguments.random_weights:
        return transformers.AutoModelForCausalLM.from_pretrained(
            arguments.model, dtype=dtype).to(arguments.device).eval()
    path = pathlib.Path(arguments.model)
    config = json.loads((path / "config.json" if path.is_dir() else path).read_text())
    config = transformers.AutoConfig.for_model(**config)
    config.dtype = dtype
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    model = model.to_empty(device=arguments.device).eval()
    for tensor in model.parameters():
        tensor.data.normal_(0, 0.02) if tensor.dim() > 1 else tensor.data.fill_(1)
    rotary = model.model.rotary_emb  # whose frequencies are no parameters
    model.model.rotary_emb = type(rotary)(config=config).to(arguments.device)
    return model


def _arguments(arguments):
    parser = argparse.ArgumentParser(prog="python -m vqgen.eval",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--random-weights", action="store_true", help="MODEL's sizes alone")
    parser.add_argument("--format", nargs="+", type=_form, default=[], dest="forms",
                        metavar="KEYS[:VALUES]", help="presets or files; the first is timed")
    parser.add_argument("--recipe", nargs="+", choices=[*RECIPES, "calibration"], default=[],
                        help="a table of the papers, evaluated on the text")
    parser.add_argument("--window", nargs="+", type=int, default=[0])
    parser.add_argument("--sinks", nargs="+", type=int, default=[0])
    parser.add_argument("--text", type=pathlib.Path, help="to evaluate on")
    parser.add_argument("--calibration-text", type=pathlib.Path,
                        help="to train codebooks on; else the beginning of the text, which is then "
                        "not evaluated on")
    parser.add_argument("--calibration", type=int, default=24, metavar="SEQUENCES")
    parser.add_argument("--sequences", type=int, default=24, help="evaluated")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a sequence")
    parser.add_argument("--codebooks", metavar="FOLDER", help="keeps bundles, and takes those there")
    parser.add_argument("--contexts", nargs="+", type=int, default=[], help="times steps at these")
    parser.add_argument("--batches", nargs="+", type=_batch, default=[1], metavar="N|most")
    parser.add_argument("--first-token", action="store_true",
                        help="times prompts as long as the contexts too")
    parser.add_argument("--weights", metavar="FORMAT", help="times weights of it too, random codes")
    parser.add_argument("--compile", action="store_true",
                        help="norms, rotations and MLPs by torch.compile, over both caches")
    parser.add_argument("--dtype", choices=("f16", "bf16"), default="f16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--plot", metavar="PICTURE", help="of the losses; see vqgen.plots")
    parsed = parser.parse_args(arguments)
    if not parsed.text and not parsed.contexts:
        parser.error("there is nothing to do; give --text, --contexts or both")
    if not parsed.forms and (parsed.contexts or not parsed.recipe):
        parser.error("--format is missing")
    if (parsed.plot or parsed.recipe) and not parsed.text:
        parser.error("--plot and --recipe show losses; give --text")
    if parsed.text and parsed.random_weights:
        parser.error("--text needs the model's own weights; leave --random-weights out")
    if parsed.contexts and not str(parsed.device).startswith("cuda"):
        parser.error("--contexts times steps on a GPU, and there is none")
    return parsed


def _form(text):
    keys, _, values = text.partition(":")
    return keys, values or keys


def _batch(text):
    return text if text == "most" else int(text)


def _accuracies(model, arguments, folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    trained_on = arguments.calibration_text or arguments.text, arguments.calibration
    own = arguments.calibration_text is None or "calibration" in arguments.recipe

    @functools.cache
    def calibration(text, count):
        return sequences_of(tokenizer, text, count, arguments.length)

    tokens = sequences_of(tokenizer, arguments.text, arguments.sequences, arguments.length,
                          skip=arguments.calibration if own else 0)
    unquantized = loss(model, tokens)
    print(f"unquantized: {unquantized:.4f} nats per token, perplexity {_perplexity(unquantized)}")
    print(f"{'keys':30}{'values':18}{'window':>7}{'sinks':>6}{'bits':>7}{'loss':>9}{'simulated':>11}"
          f"{'perplexity':>12}{'bytes/token':>12}  calibration")
    rows = []
    for run in _runs(arguments):
        text, count = run.calibration or trained_on
        codebooks = _codebooks(model, run, calibration(text, count), folder)
        row = {"keys": run.keys[0], "values": run.values[0],
               "calibration": {"text": text.name, "sequences": count},
               **accuracy(model, tokens, codebooks, window=run.window, sinks=run.sinks,
                          rotated_first=run.rotated_first)}
        rows.append(row)
        keys, through_kernels, perplexity = f"{row['keys']} (simulated)", "-", "-"
        if row["loss"] is not None:
            keys, perplexity = row["keys"], _perplexity(row["loss"])
            through_kernels = f"{row['loss']:.4f}"
        print(f"{keys:30}{row['values']:18}{run.window:7}{run.sinks:6}{row['bits']:7.2f}"
              f"{through_kernels:>9}{row['simulated']:11.4f}{perplexity:>12}"
              f"{row['bytes_per_token']:12.0f}  {count} of {text.name}", flush=True)
    return {"unquantized": unquantized, "rows": rows}


def _runs(arguments):
    for keys, values in arguments.forms:
        for window, sinks in itertools.product(arguments.window, arguments.sinks):
            yield Run((keys, keys), (values, values), window, sinks)
    for recipe in arguments.recipe:
        yield from RECIPES[recipe] if recipe in RECIPES else _by_calibration(arguments)


def _by_calibration(arguments):
    """What the calibration text is worth: some of its sequences, all, and as many of another text."""
    most = arguments.calibration
    for count in sorted({min(count, most) for count in (1, 6, most)}):
        yield Run(_D4B8, _D4B8, calibration=(arguments.text, count))
    if arguments.calibration_text:
        yield Run(_D4B8, _D4B8, calibration=(arguments.calibration_text, most))


def _perplexity(nats):
    return f"{torch.tensor(nats).exp().item():.4f}"


def main(arguments=None) -> int:
    arguments = _arguments(arguments)
    result = {}
    try:
        model = _load(arguments)
        if arguments.text:
            with contextlib.ExitStack() as stack:
                folder = arguments.codebooks or stack.enter_context(tempfile.TemporaryDirectory())
                os.makedirs(folder, exist_ok=True)
                result["accuracy"] = _accuracies(model, arguments, folder)
        if arguments.contexts:
            if arguments.compile:
                _speed.compile_pointwise(model)
            result["speed"] = _speed.speeds(model, arguments)
        if arguments.json:
            arguments.json.write_text(json.dumps(result, indent=1) + "\n")
        if arguments.plot:
            from vqgen import plots
            plots.save(plots.accuracy(result), arguments.plot)
    except (vqgen.Error, ImportError, OSError, ValueError) as error:
        print(f"vqgen.eval: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
