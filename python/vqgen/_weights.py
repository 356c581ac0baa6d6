"""Calibrated quantization of a model's linear layers, decoder block by decoder block (docs/guides/quantize.md)."""

from __future__ import annotations

import dataclasses
import math
import os

import torch

import vqgen
import vqgen.torch
from vqgen import _arrays
from vqgen._bundles import ROWS, in_rows
from vqgen._models import attending, in_float32
from vqgen._paths import require_new_folder
from vqgen._training import SEEDS
from vqgen._weight_blocks import (Calls, dense_names, first_calls, groups_of, hessian_of, layers_of_model, linears_of,
                                  own_copy, require_linears)
from vqgen._weight_books import Trained, decoded, fitted, row_scales, started
from vqgen._weight_codes import damped, fed_back, improved, loss_of
from vqgen._weight_store import Kept, checksum, drop_finished, quantization_of, require_names, require_space
from vqgen._weight_tuning import tuned


@dataclasses.dataclass
class Effort:
    """How weights are searched. rounds: passes over the codes after the first; beam: of the residual stages; steps: of
    conjugate gradients for the entries, in each round; damping: the share of the mean diagonal that is added to H;
    passes: of fine-tuning over the calibration; rate: of Adam, relative to the size of entries."""

    rounds: int = 2
    beam: int = 8
    steps: int = 10
    damping: float = 0.01
    passes: int = 0
    rate: float = 3e-3


def require_format(format) -> dict:
    """All fields of a format that quantize() makes; Infeasible, by name, for others."""
    fields = vqgen.format_fields(format)
    if "parts" in fields or fields["decoder"] not in ("table", "e8p"):
        raise vqgen.Infeasible("calibrated weights have entries of a table or of the E8P lattice; take a format such as "
                               "aqlm-2x8i8 or quip-2")
    if fields["scope"] != "tensor" or not in_rows(fields):
        raise vqgen.Infeasible(f"calibrated weights have one set of codebooks for a matrix and plain rows of codes; this format "
                               f"has scope {fields['scope']} and layout {fields.get('layout', ROWS)}: take scope tensor, and "
                               "vqgen repack for a layout")
    if fields.get("group_inputs", 0):
        raise vqgen.Infeasible(f"calibrated weights have no scales of groups of inputs (group_inputs {fields['group_inputs']}); "
                               "leave it out, or use vqgen quantize")
    if fields["smooth"] or fields["hadamard"] or fields.get("center") or fields.get("klt"):
        raise vqgen.Infeasible("the format transforms keys, and weights have no such transform; take one for weights "
                               "(vqgen list formats)")
    if fields["decoder"] == "e8p" and not fields["output_scales"]:
        raise vqgen.Infeasible("points of the E8P lattice have one size, and rows of weights have not: the format needs a scale "
                               "for each row; give it as {\"preset\": \"quip-2\", \"output_scales\": True}")
    return fields


def trained(weight, hessian, fields: dict, dtype: torch.dtype, effort: Effort, seed: int = 1) -> Trained:
    """A matrix [out, in] quantized for inputs of `hessian` [in, in]: a start by weighted k-means, GPTQ's pass, then
    rounds of least squares for entries and output scales and of passes over the codes."""
    weight, hessian = weight.float(), damped(hessian, effort.damping)
    scales = torch.ones(len(weight), device=weight.device, dtype=torch.float32)
    if fields["output_scales"]:
        rms = weight.square().mean(1).sqrt()
        scales = rms.where(rms > 0, scales)
    own = weight / scales[:, None]
    importance = scales.square()[:, None] * hessian.diagonal().unflatten(0, (-1, fields["vector_size"])).mean(1)
    books = started(own, importance, fields, dtype, seed)
    codes = fed_back(own, hessian, books.entries(), effort.beam)
    for number in range(effort.rounds + 1):
        fitted(books, own, hessian, scales.square(), codes, effort.steps)
        if fields["output_scales"]:
            scales = row_scales(weight, hessian, decoded(codes, books.entries()), scales)
            own = weight / scales[:, None]
        if number < effort.rounds:
            codes = improved(own, hessian, books.entries(), codes, effort.beam)
    return Trained(books, codes, scales)


def quantized_block(block, calls: Calls, fields: dict, dtype, effort: Effort, *, where: str = "layer", skip=(), seed: int = 1,
                    targets=None) -> tuple[dict, dict]:
    """Quantizes the linear layers of a block, in the order of their calls, each with those before it quantized.

    block: of own_copy(); its weights are replaced. calls: what goes in. targets: what the dense block makes of it, for
    fine-tuning. Returns Trained by name, and figures: the share of the outputs' squares that each layer loses, by name,
    and under "tuned" the block's, after each pass."""
    made, lost = {}, {}
    for names in groups_of(block, calls, where):
        names = [name for name in names if name not in skip]
        if not names:
            continue
        hessian = hessian_of(block, names[0], calls, where)
        for name in names:
            linear = block.get_submodule(name)
            made[name] = trained(linear.weight, hessian, fields, dtype, effort, seed)
            now = made[name].weight()
            error = linear.weight.float() - now
            lost[name] = loss_of(error, hessian) / max(loss_of(linear.weight.float(), hessian), 1e-30)
            if not lost[name] < 1:
                raise vqgen.Error(f"{where}.{name}: its codes lose {lost[name]:.3g} of the outputs' squares; its calibration is "
                                  "too small or too uniform: give more text, or a larger damping")
            linear.weight.data = now.to(linear.weight.dtype)
        del hessian
    missing = [name for name in linears_of(block) if name not in made and name not in skip]
    if missing:
        raise vqgen.Infeasible(f"{where}: no calibration token passes through {missing[0]}; leave it out by exclude=")
    if effort.passes and made:
        lost["tuned"] = tuned(block, made, calls, targets, effort.passes, effort.rate, seed)
    return made, lost


def quantize(model, batches, out: str | os.PathLike, *, format="aqlm-2x8i8", tune: int = 0, exclude=(), device=None,
             seed: int = 1, damping: float = 0.01, beam: int = 8, rounds: int = 2, rate: float = 3e-3, progress=None) -> dict:
    """Quantizes the linear layers of a model's decoder blocks in the metric of their inputs, and writes a model folder as
    `vqgen quantize` does: load() and AutoModelForCausalLM.from_pretrained() read it.

    batches: tensors of token numbers [sequences, tokens], without padding, of text like the text that you will serve.
    model: of transformers, a causal model such as Llama's and Qwen2's, in float16 or bfloat16; its weights stay as they are.
    lm_head, embeddings and routers of experts are not quantized. format: for weights, of scope tensor, with entries of a table
    or, if it has output_scales, of the E8P lattice. out: the folder, which appears when all is done. Save the tokenizer in it
    afterwards.

    tune: passes over `batches` that train entries and output scales of each block against the outputs of the dense block,
    with codes fixed; 0 for none. rate: of that training. exclude: names of linear layers that stay dense, inside a block or
    in the model, in which stars stand for any text: "mlp.down_proj", "*.layers.0.*". device: PyTorch's, to which one block
    at a time goes; by default the model's. damping: the share of the Hessian's mean diagonal that is added to it; more
    protects from too little text. beam: codes that a search over residual stages keeps; rounds: passes over all codes after
    the first. progress: called as progress(layer, layers, line) after each block.

    Method: H = X^T X of the inputs of each linear layer, behind quantized layers; codes by GPTQ's error feedback over
    groups of vector_size columns (Frantar et al., 2022, section 3.3), then alternately entries and scales by least squares,
    and codes by a beam search (AQLM, Egiazarian et al., 2024, sections 3.2 and 3.3); `tune` is AQLM's section 3.4.

    A killed call continues: finished blocks are kept in the folder OUT.partial until all are done. Memory: one block, the
    hidden states of all tokens (with `tune` two more copies), and some five matrices of the largest H, float32
    [in_features, in_features]. On one device the same arguments give the same bytes.

    Returns by module name the share of its outputs' squares that each linear layer loses on `batches`. Raises BadInput and
    Infeasible before anything is trained, for a format, place, model or arguments that do not fit, and BadInput for inputs
    that are not finite or all zero.

    Example: quantize(model, ids.split(4), "my-model-2bit", tune=4); tokenizer.save_pretrained("my-model-2bit")
    """
    fields = require_format(format)
    drop_finished(os.fspath(out))
    out = require_new_folder("quantize(out)", out)
    seed = _arrays.whole("seed", seed, 0, SEEDS)
    effort = Effort(rounds=_arrays.whole("rounds", rounds, 0), beam=_arrays.whole("beam", beam, 1),
                    passes=_arrays.whole("tune", tune, 0), damping=_above("damping", damping), rate=_above("rate", rate))
    layers = _require_model(model)
    batches, device = [_tokens(each) for each in batches], _device(model.device if device is None else device)
    if not batches:
        raise vqgen.BadInput("quantize() got no batches; pass token numbers [sequences, tokens]")
    names = {id(each): name for name, each in model.named_modules()}
    prefixes = [names[id(layer)] for layer in layers]
    dense = dense_names(layers, prefixes, [exclude] if isinstance(exclude, str) else list(exclude))
    require_linears(model, layers, fields, dense)
    quantized = [f"{prefix}.{name}" for prefix, layer, left in zip(prefixes, layers, dense)
                 for name in linears_of(layer) if name not in left]
    require_names(model, quantized)
    quantization = quantization_of(model, fields, quantized)
    require_space(out, model, quantization)
    own_dtype = torch.float32 if device.type == "cpu" else model.dtype  # in which CPUs are faster
    arguments = {"format": fields, "effort": dataclasses.asdict(effort), "exclude": [*map(sorted, dense)], "seed": seed,
                 "tokens": checksum(batches), "embeddings": checksum([model.get_input_embeddings().weight]),
                 "device": device.type, "dtype": str(model.dtype)}
    figures = {}
    attention = "sdpa" if model._supports_sdpa else "eager"  # of models with a soft cap or sink logits
    with attending(model, attention), Kept(out, arguments) as kept:
        with in_float32(model):
            calls = first_calls(model, batches, device, own_dtype)
        for number, layer in enumerate(layers):
            block, prefix = own_copy(layer, device, own_dtype), prefixes[number]
            before = kept.read(number, layer, block, fields)
            if before is not None:
                made, lost = before
            else:
                targets = calls.run(block) if effort.passes else None
                made, lost = quantized_block(block, calls, fields, model.dtype, effort, where=prefix, skip=dense[number], seed=seed,
                                             targets=targets)
                del targets
                kept.write(number, layer, made, lost)
            for name, each in made.items():
                block.get_submodule(name).weight.data = each.weight().to(own_dtype)
            if number + 1 < len(layers):
                calls = calls.behind(block)
            figures |= {f"{prefix}.{name}": share for name, share in lost.items() if name != "tuned"}
            if progress is not None:
                progress(number, len(layers), _line(prefix, lost))
        kept.publish(model, prefixes, quantization)
    return figures


def _require_model(model) -> torch.nn.ModuleList:
    """The decoder blocks of a model. Refuses one that no model folder can hold."""
    if model.dtype not in vqgen.torch.DTYPES:
        raise vqgen.Infeasible(f"codebooks are of float16 or bfloat16, and this model is {model.dtype}; pass model.half()")
    layers = layers_of_model(model)
    if getattr(model.config, "quantization_config", None) is not None:
        raise vqgen.Infeasible(f"{type(model).__name__} is quantized already (its config has a quantization_config); give the "
                               "original")
    if model.get_output_embeddings() is None:
        raise vqgen.Infeasible(f"{type(model).__name__} has no head, and load() makes causal models; load it by "
                               "AutoModelForCausalLM")
    return layers


def _above(name: str, value) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise vqgen.BadInput(f"{name} is {value!r}; it is a number above 0")
    return float(value)


def _device(name) -> torch.device:
    try:
        return torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise vqgen.BadInput(f"device is {name!r}: {str(error).splitlines()[0]}; give one of PyTorch's, such as 'cuda'") from None


def _tokens(each):
    if not isinstance(each, torch.Tensor) or each.dim() != 2 or each.is_floating_point() or not each.numel():
        shape = f"{each.dtype} {list(each.shape)}" if isinstance(each, torch.Tensor) else type(each).__name__
        raise vqgen.BadInput(f"a batch is {shape}; it is a tensor of token numbers [sequences, tokens]")
    return each.cpu()


def _line(prefix: str, figures: dict) -> str:
    """What a block lost, in words."""
    shares = ", ".join(f"{name.rpartition('.')[2]} {share:.4f}" for name, share in figures.items() if name != "tuned")
    tuned = figures.get("tuned")
    return f"{prefix}: lost of the outputs' squares: {shares}" + (
        f"; block's error by tuning {tuned[-1] / tuned[0]:.2f} of before" if tuned else "")
