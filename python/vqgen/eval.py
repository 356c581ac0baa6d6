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
import gc
import itertools
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

import torch
import transformers

import vqgen
import vqgen.hf
import vqgen.torch
from vqgen import simulation
from vqgen._plain_cache import PlainCache

# What the papers' tables compare: formats of keys and values, window and sinks.
def _d4b8(**transforms):
    return {"vector_size": 4, "index_bits": 8, "scope": "head", **transforms}


def _plain(size, bits):
    return f"d{size}b{bits}", {"vector_size": size, "index_bits": bits, "scope": "head"}


RECIPES = {
    "transforms": [  # of the keys, VecInfer's table 5
        ((name, _d4b8(**transforms)), ("d4b8", _d4b8()), 0, 0)
        for name, transforms in (("none", {}), ("smooth", {"smooth": True}),
                                 ("hadamard", {"hadamard": True}),
                                 ("smooth + hadamard", {"smooth": True, "hadamard": True}))],
    "codebooks": [  # their size at equal bits
        (form, form, 0, 0) for form in (_plain(2, 4), _plain(4, 8), _plain(2, 3), _plain(4, 6),
                                        _plain(8, 12))],
    "operands": [  # bits for keys against bits for values
        (("vecinfer-" + keys,) * 2, ("vecinfer-" + values,) * 2, 0, 0)
        for keys, values in (("d2b8", "d4b8"), ("d4b8", "d2b8"), ("d4b8", "d8b8"), ("d8b8", "d4b8"))],
    "raw": [  # tokens that stay raw
        (("vecinfer-d4b8",) * 2, ("vecinfer-d4b8",) * 2, window, sinks)
        for window in (0, 32, 128, 512) for sinks in (0, 4)],
}
_STEPS = 64  # of one token, timed
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
    with _steps(model, cache):
        for now in range(tokens.shape[1] - 1):
            logits = model(tokens[:, now:now + 1], past_key_values=cache).logits[:, -1]
            total += _summed_loss(logits, tokens[:, now + 1])
    return float(total) / (tokens.shape[0] * (tokens.shape[1] - 1))


def _steps(model, cache):
    cuda = model.device.type == "cuda"
    return vqgen.hf.captured(model, cache) if cuda else contextlib.nullcontext()


def accuracy(model, tokens, codebooks, *, window: int = 0, sinks: int = 0) -> dict:
    """Losses of sequences [n, length], in nats per token, with the codebooks of a bundle."""
    with simulation.simulated(model, vqgen.hf.layers_of(codebooks), window=window, sinks=sinks):
        simulated = loss(model, tokens)
    before = model.config._attn_implementation
    model.set_attn_implementation("vqgen")
    try:
        cache = vqgen.hf.VQCache(model.config, codebooks, batch=len(tokens), device=model.device,
                                 tokens=tokens.shape[1], window=window, sinks=sinks)
        through_kernels = loss_through_kernels(model, tokens, cache)
    finally:
        model.set_attn_implementation(before)
    return {"window": window, "sinks": sinks, "loss": through_kernels, "simulated": simulated,
            "bits": cache.bits_per_element(), "bytes_per_token": cache.bytes_per_token()}


def _bundle(model, keys, values, folder, calibration):
    """The codebooks of two formats, each with its name, in `folder`; trained unless they are there."""
    name = f"{keys[0]}-{values[0]}"
    path = os.path.join(folder, f"{name}.safetensors")
    if not os.path.exists(path):
        print(f"training {name}", file=sys.stderr, flush=True)
        vqgen.hf.calibrate(model, calibration().split(_AT_ONCE), path, keys=keys[1],
                           values=values[1])
    return path


@torch.no_grad()
def speed(model, cache, context: int) -> dict:
    """Tokens per second of captured steps that begin with `context` tokens in each sequence."""
    batch = cache.lengths.numel()
    tokens = torch.ones(batch, 1, dtype=torch.long, device=model.device)
    host = []

    def step():
        cache.tokens.seen = context
        cache.lengths.fill_(context)
        begin = time.perf_counter()
        model(tokens, past_key_values=cache)
        host.append(time.perf_counter() - begin)

    with vqgen.hf.captured(model, cache):
        for _ in range(8):
            step()
        host.clear()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(_STEPS):
            step()
        torch.cuda.synchronize()
        spent = (time.perf_counter() - begin) / _STEPS
    free, total = torch.cuda.mem_get_info(model.device)
    return {"batch": batch, "context": context, "step_ms": spent * 1e3,
            "tokens_per_second": batch / spent, "used_gb": (total - free) / 1e9,
            "host_us": statistics.median(host) * 1e6}


@torch.no_grad()
def first_token(model, cache, context: int) -> float:
    """Milliseconds from prompts of `context` tokens to their next token's logits."""
    tokens = torch.ones(cache.lengths.numel(), context, dtype=torch.long, device=model.device)
    times = []
    for _ in range(3):
        cache.reset()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        model(tokens, past_key_values=cache, logits_to_keep=1)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    return min(times)


def _speeds(model, arguments):
    """Rows of the model over a 16-bit cache and over ours, with 16-bit weights and quantized ones."""
    rows = []

    def make_plain(**sizes):
        return PlainCache(model.config, dtype=model.dtype, **sizes)

    def make_ours(**sizes):
        return _random_cache(model, arguments.forms[0], window=arguments.window[0],
                             sinks=arguments.sinks[0], **sizes)

    def measure(kind, weights):
        make, attention = {"16 bit": (make_plain, "vqgen_plain"), "ours": (make_ours, "vqgen")}[kind]
        model.set_attn_implementation(attention)
        for context in arguments.contexts:
            for batch in arguments.batches:
                row = {"cache": kind, "weights": weights, "context": context, "batch": batch}
                try:
                    if batch == "most":
                        batch = _most(make, model, context)
                    cache = make(batch=batch, tokens=context + 1, device=model.device)
                    row |= speed(model, cache, context)
                    if arguments.first_token:
                        row["first_token_ms"] = first_token(model, cache, context)
                except torch.cuda.OutOfMemoryError:
                    row["failed"] = "does not fit"
                cache = None
                gc.collect()
                torch.cuda.empty_cache()
                rows.append(row)
                print(_speed_line(row), flush=True)

    print(f"{'cache':8}{'weights':14}{'context':>9}{'batch':>7}{'ms':>9}{'tokens/s':>11}{'GB':>8}"
          f"{'host us':>9}{'first ms':>10}")
    measure("16 bit", "16 bit")
    measure("ours", "16 bit")
    if arguments.weights:
        _quantize_randomly(model, arguments.weights)
        measure("ours", arguments.weights)
    return rows


def _speed_line(row):
    head = f"{row['cache']:8}{row['weights']:14}{row['context']:9}{row['batch']:>7}"
    if "failed" in row:
        return f"{head}  {row['failed']}"
    return (f"{head}{row['step_ms']:9.3f}{row['tokens_per_second']:11.1f}{row['used_gb']:8.1f}"
            f"{row['host_us']:9.1f}"
            + (f"{row['first_token_ms']:10.1f}" if "first_token_ms" in row else ""))


def _most(make, model, context):
    """The sequences that fit into the memory that is free, less what the steps themselves take."""
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info(model.device)[0]
    cache = make(batch=4, tokens=context + 1, device=model.device)
    each = (before - torch.cuda.mem_get_info(model.device)[0]) / 4
    del cache
    gc.collect()
    torch.cuda.empty_cache()
    return int((before - 2e9) // each)


def _random_cache(model, form, *, window, sinks, batch, tokens, device):
    """A cache whose codes and codebooks are drawn at random, and which has room for `tokens`."""
    config = model.config.get_text_config(decoder=True)
    _, kv_heads, head_dim = vqgen.hf.heads_of(config)
    op = vqgen.torch.prepare(vqgen.torch.config_text(
        {"op": "kv_append", "dtype": vqgen.torch.DTYPES[model.dtype], "keys": form[0],
         "values": form[1], "shape": {"batch": 1, "kv_heads": kv_heads, "head_dim": head_dim,
                                      "tokens": 1}}), device)
    item = {"kv_heads": kv_heads, "head_dim": head_dim,
            **{name: op.description["problem"][name] for name in ("keys", "values")}}
    names = {"key_smooth": "keys.smooth", "keys.scales": "keys.stage_scales",
             "values.scales": "values.stage_scales"}  # of a bundle
    layers = []
    for _ in range(config.num_hidden_layers):
        tensors = _random_tensors(op, item, model.dtype, device)
        layers.append((item, {names.get(name, name): tensors[name] for name in tensors}))
    cache = vqgen.hf.VQCache(model.config, layers, batch=batch, tokens=tokens, window=window,
                             sinks=sinks, device=device)
    for layer in cache.layers:
        for held in (layer.cache.keys, layer.cache.values):
            held.codes.view(torch.uint8).random_(0, 256)
    return cache


def _random_tensors(op, formats, dtype, device):
    """Codebooks, scales and smoothing of an op's operands, by the names of its arguments."""
    tensors = {}
    for argument in op.arguments:
        operand, _, name = argument.name.partition(".")
        drawn = torch.randn(argument.shape, device=device)
        if name == "codebooks":
            if formats[operand].get("entry_type") == "int8":
                drawn = (drawn * 40).round().clamp(-127, 127)
            tensors[argument.name] = drawn.to(dtype)
        elif name == "scales" or argument.name == "output_scales":
            tensors[argument.name] = torch.full_like(drawn, 0.02)
        elif argument.name == "key_smooth":
            tensors[argument.name] = torch.ones_like(drawn)
    return tensors


def _quantize_randomly(model, form):
    """Every product of the model's layers by weights whose codes are drawn at random."""
    for layer in model.model.layers:
        for parent in list(layer.modules()):
            for name, linear in list(parent.named_children()):
                if not isinstance(linear, torch.nn.Linear):
                    continue
                shape = {"rows": 256, "out_features": linear.out_features,
                         "in_features": linear.in_features}
                op = vqgen.torch.prepare(vqgen.torch.config_text(
                    {"op": "gemm", "dtype": vqgen.torch.DTYPES[model.dtype], "shape": shape,
                     "weights": form}), model.device)
                item = op.description["problem"]
                tensors = _random_tensors(op, item, model.dtype, model.device)
                shapes = {argument.name: argument.shape for argument in op.arguments}
                codes = torch.empty(shapes["weights.codes"], dtype=torch.int32, device=model.device)
                codes.view(torch.uint8).random_(0, 256)
                held = vqgen.Quantized(codes, tensors["weights.codebooks"] * 0.02,
                                       tensors.get("weights.scales"))
                setattr(parent, name, vqgen.torch.VQLinear(
                    held, item["weights"], linear.out_features, linear.in_features,
                    output_scales=tensors.get("output_scales"), bias=linear.bias,
                    dtype=model.dtype))


def _compile(model):
    """The model's norms, rotations and MLPs by torch.compile, whatever cache it runs over."""
    layers = model.model.layers
    code = sys.modules[type(layers[0]).__module__]
    code.apply_rotary_pos_emb = torch.compile(code.apply_rotary_pos_emb)
    norm, mlp = type(layers[0].input_layernorm), type(layers[0].mlp)
    for module in model.modules():
        if type(module) in (norm, mlp):
            module.compile()


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
    parser.add_argument("--recipe", nargs="+", choices=RECIPES, default=[],
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
    own = arguments.calibration_text is not None

    def calibration():
        return sequences_of(tokenizer, arguments.calibration_text or arguments.text,
                            arguments.calibration, arguments.length)

    tokens = sequences_of(tokenizer, arguments.text, arguments.sequences, arguments.length,
                          skip=0 if own else arguments.calibration)
    unquantized = loss(model, tokens)
    print(f"unquantized: {unquantized:.4f} nats per token, perplexity {_perplexity(unquantized)}")
    print(f"{'keys':18}{'values':18}{'window':>7}{'sinks':>6}{'bits':>7}{'loss':>9}{'simulated':>11}"
          f"{'perplexity':>12}{'bytes/token':>12}")
    rows = []
    for keys, values, window, sinks in _runs(arguments):
        bundle = _bundle(model, keys, values, folder, calibration)
        row = {"keys": keys[0], "values": values[0],
               **accuracy(model, tokens, bundle, window=window, sinks=sinks)}
        rows.append(row)
        print(f"{row['keys']:18}{row['values']:18}{window:7}{sinks:6}{row['bits']:7.2f}"
              f"{row['loss']:9.4f}{row['simulated']:11.4f}"
              f"{_perplexity(row['loss']):>12}{row['bytes_per_token']:12.0f}", flush=True)
    return {"unquantized": unquantized, "rows": rows}


def _runs(arguments):
    """What is evaluated: formats of keys and of values, each with its name, window and sinks."""
    for keys, values in arguments.forms:
        for window, sinks in itertools.product(arguments.window, arguments.sinks):
            yield (keys, keys), (values, values), window, sinks
    for recipe in arguments.recipe:
        yield from RECIPES[recipe]


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
                _compile(model)
            result["speed"] = _speeds(model, arguments)
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
