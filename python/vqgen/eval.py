"""What a quantized cache, or quantized weights, cost a model in accuracy, and what a cache gains in memory and speed:

    python -m vqgen.eval MODEL --text FILE --format vecinfer-d4b8i8 --recent-tokens 0 128
    python -m vqgen.eval MODEL --text FILE --weights DIR aqlm-2x8i8 --tune 4
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

try:
    import torch
    import transformers
except ImportError as error:
    if __name__ != "__main__":
        raise
    print(f"vqgen.eval: {error}; pip install torch transformers", file=sys.stderr)
    sys.exit(2)

import vqgen
import vqgen.hf
import vqgen.torch
from vqgen import _losses, _passkey, _speed, simulation
from vqgen._codebooks import Codebooks, size_of
from vqgen._errors import exit_code
from vqgen._losses import loss
from vqgen._models import attending, in_float32
from vqgen._recipes import D4B8, RECIPES, Run, runs_of
from vqgen._weight_losses import losses as weight_losses


def sequences_of(tokenizer, path, count: int, length: int, skip: int = 0) -> torch.Tensor:
    """`count` sequences [count, length] of the text, behind the first `skip` ones."""
    text = pathlib.Path(path).read_text(encoding="utf-8")
    numbers = tokenizer(text, add_special_tokens=False).input_ids
    wanted = numbers[skip * length:(skip + count) * length]
    if len(wanted) < count * length:
        raise vqgen.BadInput(f"{path} has {len(numbers)} tokens, and {(skip + count) * length} are "
                             "wanted; take fewer or shorter sequences")
    return torch.tensor(wanted).view(count, length)


@torch.no_grad()
def accuracy(model, tokens, codebooks, *, recent_tokens: int = 0, sinks: int = 0, flush_block: int = 1,
             rotated_first: bool = False, kernels: bool = True, reference=None, passkeys=None) -> dict:
    """Losses of sequences [n, length], in nats per token, with the codebooks of a bundle or what
    layers_of() reads of it. recent_tokens, sinks, flush_block: as of vqgen.hf.VQCache. With `rotated_first`
    these are as of simulation.simulated(), and the loss through kernels is None, as it is without
    `kernels`. reference: _losses.Reference of the sequences, to which `divergence` compares both; passkeys: what
    _passkey.prompts() returns, of which `passkey` is the share that is answered."""
    layers = codebooks if isinstance(codebooks, list) else vqgen.hf.layers_of(codebooks)
    raw = {"recent_tokens": recent_tokens, "sinks": sinks, "flush_block": flush_block}
    row = {**raw, "loss": None}
    divergence, passkey = {}, {}

    def judge(name, of, passes):
        if reference is None:
            row[of] = _losses.mean_loss(passes(tokens), tokens)
        else:
            divergence[name] = reference.compared(passes(tokens))
            row[of] = divergence[name].pop("loss")
        if passkeys is not None:
            passkey[name] = _passkey.found(passes(passkeys[0]), *passkeys)

    with simulation.simulated(model, layers, **raw, rotated_first=rotated_first), in_float32(model):
        judge("simulated", "simulated", functools.partial(_losses.whole_logits, model))
    through_kernels = kernels and not rotated_first
    size = None if through_kernels else size_of(layers)
    if size is None:
        cache = vqgen.hf.VQCache(model.config, layers, batch=len(tokens), device=model.device,
                                 tokens=tokens.shape[1], **raw)
        size = {"bits": cache.bits_per_element(), "bytes_per_token": cache.bytes_per_token()}
    if through_kernels:
        with attending(model, "vqgen"):
            judge("kernels", "loss", lambda each: _losses.step_logits(model, each, cache))
    for name, found in (("divergence", divergence), ("passkey", passkey)):
        row |= {name: found} if found else {}
    return {**row, **size}


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


class _Added(argparse.Action):
    """Values of an option that may be given several times: all of them, not the last ones alone."""

    def __call__(self, parser, namespace, values, option_string=None):
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, values if before is self.default else [*before, *values])


def _arguments(arguments):
    parser = argparse.ArgumentParser(prog="python -m vqgen.eval",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("model", metavar="MODEL", help="a folder that transformers loads, or a config.json")
    parser.add_argument("--random-weights", action="store_true", help="random weights of MODEL's sizes, to time alone")
    parser.add_argument("--format", nargs="+", action=_Added, type=_form, default=[], dest="forms",
                        metavar="KEYS[:VALUES]", help="presets or files to evaluate; the first is timed")
    parser.add_argument("--recipe", nargs="+", action=_Added, choices=[*RECIPES, "calibration"], default=[],
                        help="a table of the papers, evaluated on the text")
    parser.add_argument("--recent-tokens", nargs="+", action=_Added, type=_window, default=[(0, 1)], metavar="TOKENS[:BATCH]",
                        help="newest tokens in full precision; BATCH tokens leave them together (flush_block)")
    parser.add_argument("--sinks", nargs="+", action=_Added, type=int, default=[0], help="first tokens in full precision")
    parser.add_argument("--local", type=int, metavar="TOKENS",
                        help="of the rows of recipe vqkv with a window, which this many leave together: by "
                        "default 1024, or an eighth of --length if that is less")
    parser.add_argument("--text", type=pathlib.Path, help="a text to evaluate on")
    parser.add_argument("--calibration-text", type=pathlib.Path,
                        help="a text to train on; without it, the beginning of --text, which is then not evaluated")
    parser.add_argument("--calibration", type=int, default=24, metavar="SEQUENCES", help="sequences that train")
    parser.add_argument("--sequences", type=int, default=24, help="sequences that are evaluated")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a sequence")
    parser.add_argument("--codebooks", metavar="FOLDER", help="keep the bundles in FOLDER, and reuse those there")
    parser.add_argument("--rsimvq", nargs="+", action=_Added, type=_setting, default=[], metavar="NAME=VALUE",
                        help="arguments of vqgen.train_rsimvq(), as steps=400, of runs that train by it")
    parser.add_argument("--judges", type=int, default=0, metavar="SEQUENCES",
                        help="sequences after those that train, which judge the steps of RSimVQ")
    parser.add_argument("--errors", action="store_true",
                        help="also print what codes lose of keys and values, in JSON by channel")
    parser.add_argument("--divergence", action="store_true",
                        help="also the KL divergence of the next token, and how often the most likely one is another")
    parser.add_argument("--passkeys", type=int, default=0, metavar="PROMPTS",
                        help="also the share of prompts whose pass key, five digits in the text, is found again")
    parser.add_argument("--no-kernels", action="store_true", help="losses by simulation alone, which is much faster on a CPU")
    parser.add_argument("--contexts", nargs="+", action=_Added, type=int, default=[], help="time captured steps at these contexts")
    parser.add_argument("--batches", nargs="+", action=_Added, type=_batch, default=[1], metavar="N|most",
                        help="with --contexts: sequences; most: as many as fit")
    parser.add_argument("--first-token", action="store_true",
                        help="with --contexts: time prompts too")
    parser.add_argument("--weights", nargs="+", action=_Added, default=[], metavar="DIR|FORMAT",
                        help="with --text: model folders to evaluate, or formats; --contexts times random codes of the first FORMAT")
    parser.add_argument("--tune", type=int, default=0, metavar="PASSES",
                        help="fine-tuning of --weights FORMAT over the calibration (vqgen.hf.quantize)")
    parser.add_argument("--compile", action="store_true",
                        help="compile norms, rotations and MLPs by torch.compile, over both caches")
    parser.add_argument("--dtype", choices=("f16", "bf16"), default="f16", help="element type of the model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="PyTorch's device")
    parser.add_argument("--json", type=pathlib.Path, help="write the results to this file")
    parser.add_argument("--plot", metavar="PICTURE", help="draw the losses (vqgen.plots)")
    parsed = parser.parse_args(arguments)
    if not parsed.text and not parsed.contexts:
        parser.error("there is nothing to do; give --text, --contexts or both")
    if not parsed.forms and (parsed.contexts or not (parsed.recipe or parsed.weights)):
        parser.error("--format is missing")
    if parsed.contexts and any(os.path.isdir(each) for each in parsed.weights[:1]):
        parser.error("--contexts times random codes of a format; give --weights FORMAT, or leave --contexts out")
    if (parsed.plot or parsed.recipe) and not parsed.text:
        parser.error("--plot and --recipe show losses; give --text")
    if parsed.text and parsed.random_weights:
        parser.error("--text needs the model's own weights; leave --random-weights out")
    parsed.divergence |= "klt" in parsed.recipe
    if parsed.contexts and not str(parsed.device).startswith("cuda"):
        parser.error("--contexts times steps on a GPU; leave it out, or give --device cuda")
    return parsed


def _form(text):
    keys, _, values = text.partition(":")
    return keys, values or keys


def _window(text):
    tokens, _, batch = text.partition(":")
    return int(tokens), int(batch or 1)


def _setting(text):
    name, _, value = text.partition("=")
    if name not in ("seed", "start", "steps", "batch", "learning_rate", "beta", "gamma", "train_entries"):
        raise argparse.ArgumentTypeError(f"'{name}' is no setting of vqgen.train_rsimvq()")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _batch(text):
    return text if text == "most" else int(text)


def _accuracies(model, arguments, folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    trained_on = arguments.calibration_text or arguments.text, arguments.calibration
    own = arguments.calibration_text is None or "calibration" in arguments.recipe

    @functools.cache
    def calibration(text, count):
        return sequences_of(tokenizer, text, count, arguments.length)

    judges = None
    if arguments.judges:
        judges = sequences_of(tokenizer, trained_on[0], arguments.judges, arguments.length, skip=trained_on[1])
    tokens = sequences_of(tokenizer, arguments.text, arguments.sequences, arguments.length,
                          skip=arguments.calibration + arguments.judges if own else 0)
    codebooks = Codebooks(model, folder, dict(arguments.rsimvq), judges)
    reference = passkeys = None
    result = {}
    with in_float32(model):
        if arguments.divergence:
            reference = _losses.Reference(model, tokens)
        unquantized = loss(model, tokens) if reference is None else reference.loss
        if arguments.passkeys:
            passkeys = _passkey.prompts(tokenizer, tokens.repeat(-(-arguments.passkeys // len(tokens)), 1)[:arguments.passkeys])
            result["passkey"] = _passkey.found(_losses.whole_logits(model, passkeys[0]), *passkeys)
    print(f"unquantized: {unquantized:.4f} nats per token, perplexity {_perplexity(unquantized)}"
          + (f", {result['passkey']:.0%} of the pass keys" if passkeys else ""))
    if arguments.weights:
        result["weights"] = weight_losses(
            model, arguments.weights, tokens, unquantized, calibration=functools.partial(calibration, *trained_on), folder=folder,
            tune=arguments.tune, kernels=not arguments.no_kernels, say=functools.partial(print, flush=True))
    rows = []
    if arguments.forms or arguments.recipe:
        rows = _cache_rows(model, arguments, tokens, codebooks, calibration, trained_on, reference, passkeys)
    return {"unquantized": unquantized, **result, "rows": rows}


def _cache_rows(model, arguments, tokens, codebooks, calibration, trained_on, reference, passkeys):
    print(f"{'keys':30}{'values':25}{'recent_tokens':>10}{'sinks':>6}{'bits':>7}{'loss':>9}{'simulated':>11}"
          f"{'perplexity':>12}{'bytes/token':>12}  calibration")
    rows = []
    for run in _runs(arguments):
        text, count = run.calibration or trained_on
        layers = codebooks.of(run, calibration(text, count))
        row = {"keys": run.keys[0], "values": run.values[0],
               "calibration": {"text": text.name, "sequences": count}}
        if run.parts is not None:
            row["keys"] = "+".join(f"d{part['vector_size']}b{part['index_bits']}x{part['num_codebooks']}"
                                   for part in layers[0][0]["keys"]["parts"])
        row["keys"] += " rsimvq" * run.rsimvq + " without gain" * (not run.key_gain)
        if arguments.errors:
            row["errors"] = {name: codebooks.errors(run, calibration(text, count), each)
                             for name, each in (("calibration", calibration(text, count)), ("evaluated", tokens))}
        row |= accuracy(model, tokens, layers, recent_tokens=run.recent_tokens, sinks=run.sinks, flush_block=run.flush_block,
                        rotated_first=run.rotated_first, kernels=not arguments.no_kernels, reference=reference,
                        passkeys=passkeys)
        if run.bits is not None and (shares := codebooks.shares.get(codebooks.name(run, calibration(text, count)))):
            row["shares"] = shares
        rows.append(row)
        keys, through_kernels, perplexity = row["keys"], "-", "-"
        if run.rotated_first:
            keys += " (simulated)"
        if row["loss"] is not None:
            perplexity, through_kernels = _perplexity(row["loss"]), f"{row['loss']:.4f}"
        recent_tokens = f"{run.recent_tokens}:{run.flush_block}" if run.flush_block > 1 else run.recent_tokens
        print(f"{keys:30}{row['values']:25}{recent_tokens:>10}{run.sinks:6}{row['bits']:7.2f}"
              f"{through_kernels:>9}{row['simulated']:11.4f}{perplexity:>12}"
              f"{row['bytes_per_token']:12.0f}  {count} of {text.name}", flush=True)
        _print_more(row)
        for name, errors in row.get("errors", {}).items():
            print(f"  relative error, {name + ' text:':18} keys {errors['keys']['relative']:.4f} "
                  f"(centered {errors['keys']['centered']:.4f}), values "
                  f"{errors['values']['relative']:.4f}", flush=True)
    return rows


def _print_more(row):
    """What a row has beside losses."""
    for name, found in row.get("divergence", {}).items():
        for what, word in (("kl", "KL divergence"), ("other", "another token")):
            parts = ", ".join(f"{part[what]:.4f} from {part['tokens'][0]}" for part in found["by_position"])
            print(f"  {word}, {name + ':':11} {found[what]:.4f} ({parts})")
    for name, share in row.get("passkey", {}).items():
        print(f"  pass keys, {name + ':':11} {share:.0%}")
    if "shares" in row:
        print(row["shares"], flush=True)


def _runs(arguments):
    for keys, values in arguments.forms:
        for (recent_tokens, batch), sinks in itertools.product(arguments.recent_tokens, arguments.sinks):
            yield Run((keys, keys), (values, values), recent_tokens, sinks, batch)
    for recipe in arguments.recipe:
        yield from (runs_of(recipe, arguments.length, arguments.local) if recipe in RECIPES
                    else _by_calibration(arguments))


def _by_calibration(arguments):
    """What the calibration text is worth: some of its sequences, all, and as many of another text."""
    most = arguments.calibration
    for count in sorted({min(count, most) for count in (1, 6, most)}):
        yield Run(D4B8, D4B8, calibration=(arguments.text, count))
    if arguments.calibration_text:
        yield Run(D4B8, D4B8, calibration=(arguments.calibration_text, most))


def _perplexity(nats):
    return f"{torch.tensor(nats).exp().item():.4f}"


def _run(arguments):
    result = {}
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


def main(arguments=None) -> int:
    arguments = _arguments(arguments)
    return exit_code("vqgen.eval", lambda: _run(arguments))


if __name__ == "__main__":
    sys.exit(main())
