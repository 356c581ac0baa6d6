"""Decoder blocks of a transformers model, run one at a time: what goes into each, and the second moments of what goes
into its linear layers."""

from __future__ import annotations

import copy

import torch

import vqgen
import vqgen.torch
from vqgen import _folders
from vqgen._folders import matches

_ROUTERS = ("gate", "router", "shared_expert_gate")  # by the last part of their names


class _Stop(Exception):
    pass


class Calls:
    """The calls of a decoder block. hidden: tensors [sequences, tokens, hidden_size], one for each batch; others: for each
    batch, the other arguments of each block, (args, kwargs), which batches of one shape share; block: the block's number."""

    def __init__(self, hidden: list, others: list, block: int = 0):
        self.hidden, self.others, self.block = hidden, others, block

    def tokens(self) -> int:
        return sum(each.shape[0] * each.shape[1] for each in self.hidden)

    def output(self, block, batch: int, rows: slice = slice(None)):
        """What the block makes of some sequences of a batch."""
        hidden = self.hidden[batch]
        args, kwargs = _of_rows(self.others[batch][self.block], len(hidden), rows)
        out = block(hidden[rows], *args, **kwargs)
        return out[0] if isinstance(out, tuple) else out

    @torch.no_grad()
    def run(self, block) -> list:
        """What the block makes of each batch."""
        return [self.output(block, batch) for batch in range(len(self.hidden))]

    def behind(self, block) -> Calls:
        """The calls of the next block."""
        return Calls(self.run(block), self.others, self.block + 1)


def _of_rows(value, sequences: int, rows: slice):
    """Arguments for some of a batch's sequences: tensors with a row for each sequence are cut, masks for example."""
    if isinstance(value, torch.Tensor):
        return value[rows] if value.dim() > 1 and len(value) == sequences > 1 else value
    if isinstance(value, (tuple, list)):
        return type(value)(_of_rows(each, sequences, rows) for each in value)
    return {name: _of_rows(each, sequences, rows) for name, each in value.items()} if isinstance(value, dict) else value


def layers_of_model(model):
    """The decoder blocks of a model. Raises Infeasible where there are none by that name."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList) or not len(layers):
        raise vqgen.Infeasible(f"{type(model).__name__} has no list of decoder layers (model.layers), such as Llama's and "
                               "Qwen2's models have; quantize its tensors by vqgen quantize --weights")
    return layers


def linears_of(block) -> dict:
    """The linear layers of a block, by name."""
    return {name: each for name, each in block.named_modules() if isinstance(each, torch.nn.Linear)}


def dense_names(layers, prefixes, exclude) -> list[set[str]]:
    """For each block the names inside it that stay dense: routers of experts, as `vqgen quantize` leaves them, and what a
    pattern of `exclude` matches, by these names or the model's. Refuses a pattern that matches nothing."""
    found, used = [], set()
    for layer, prefix in zip(layers, prefixes):
        names = [*linears_of(layer), *_experts_of(layer)]
        found.append({name for name in names if name.rpartition(".")[2] in _ROUTERS})
        for pattern in exclude:
            chosen = {name for name in names if matches(pattern, name) or matches(pattern, f"{prefix}.{name}")}
            found[-1] |= chosen
            used |= {pattern} if chosen else set()
    if unknown := [pattern for pattern in exclude if pattern not in used]:
        raise vqgen.BadInput(f"exclude names {unknown[0]!r}, which no decoder layer has; its linear layers are "
                             f"{', '.join(list(linears_of(layers[0]))[:8])}")
    return found


def _experts_of(block) -> list[str]:
    """Weights of experts, by name: linear layers under that name, and parameters with a matrix for each expert."""
    return [name for name in linears_of(block) if "experts" in name.split(".")] + [
        name for name, tensor in block.named_parameters() if tensor.dim() == 3]


def require_linears(model, layers, fields: dict, dense) -> None:
    """Refuses, by name, what codes cannot stand for: weights of experts, linear layers that a format does not divide or no
    kernel reads, and those that share their weight with another parameter. dense: of dense_names(), which is not asked."""
    owners, size, found = {}, fields["vector_size"], 0
    for name, tensor in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(tensor), []).append(name)
    for number, (layer, left) in enumerate(zip(layers, dense)):
        if experts := [name for name in _experts_of(layer) if name not in left]:
            raise vqgen.Infeasible(f"layer {number}, {experts[0]}: is of experts, which calibration does not quantize; leave them "
                                   "dense by exclude=['*.experts.*'], or quantize the folder by vqgen quantize MODEL_DIR")
        for name, linear in linears_of(layer).items():
            if name in left:
                continue
            where, weight = f"layer {number}, {name}", linear.weight
            if weight.device.type == "meta":
                raise vqgen.Infeasible(f"{where}: its weight is not in memory (device meta); load the model whole, without "
                                       "offloading")
            if weight.dtype != model.dtype:
                raise vqgen.Infeasible(f"{where}: its weight is {weight.dtype} where the model is {model.dtype}; pass "
                                       f"model.to({model.dtype}), or leave it out by exclude=")
            if len(owners[id(weight)]) > 1:
                raise vqgen.Infeasible(f"{where}: its weight is tied to {', '.join(owners[id(weight)][:2])}, and each "
                                       "quantized layer has codes of its own; untie the weights, or leave it out by exclude=")
            if linear.in_features % size:
                raise vqgen.Infeasible(f"{where}: {linear.in_features} input features are no multiple of {size}, the format's "
                                       "vector_size; take a format whose vector_size divides them, or leave it out by exclude=")
            if fields["decoder"] == "table" and weight.numel() // size < 1 << fields["index_bits"]:
                raise vqgen.Infeasible(f"{where}: {weight.numel() // size} sub-vectors cannot train "
                                       f"{1 << fields['index_bits']} entries; take fewer index_bits, or leave it out by exclude=")
            if refused := _folders.tensors_of(fields, vqgen.torch.DTYPES[model.dtype], *weight.shape)["refused"]:
                raise vqgen.Infeasible(f"{where}: no kernel reads it: {refused}; take another format, or leave it out by exclude=")
            if not torch.isfinite(weight).all():
                raise vqgen.BadInput(f"{where}: its weight holds NaN or infinity; check the model")
            found += 1
    if not found:
        raise vqgen.Infeasible(f"{type(model).__name__} has no linear layer (torch.nn.Linear) left to quantize in its decoder "
                               "layers; check exclude=, and give a model that is not quantized yet")


@torch.no_grad()
def first_calls(model, batches, device, dtype) -> Calls:
    """The calls of the first block, for token numbers [sequences, tokens], on `device`, with the other arguments of all
    blocks. Refuses a model that does more than hand the output of each block to the next."""
    layers, hidden, others, by_shape, moved = layers_of_model(model), [], [], {}, {}
    last = None

    def record(number):
        def hook(_, args, kwargs):
            kwargs = {**kwargs, **_empty_caches(kwargs)}
            states = args[0] if args else kwargs.pop("hidden_states")
            if number == 0:
                hidden.append(states.to(device, dtype))
                known = states.shape[:2] in by_shape
                others.append(by_shape.setdefault(states.shape[:2], []))
                if known:
                    raise _Stop
            elif states is not last:
                raise vqgen.Infeasible(f"{type(model).__name__} changes hidden states between its decoder layers {number - 1} "
                                       f"and {number}, which calibration by blocks does not; quantize it by vqgen quantize")
            others[-1].append(_moved((args[1:], kwargs), device, dtype, moved))
            if number + 1 == len(layers):
                raise _Stop
        return hook

    def keep(_, __, out):
        nonlocal last
        last = out[0] if isinstance(out, tuple) else out

    handles = [layer.register_forward_pre_hook(record(number), with_kwargs=True) for number, layer in enumerate(layers)]
    handles += [layer.register_forward_hook(keep) for layer in layers]
    training = [each for each in model.modules() if each.training]
    try:
        model.eval()
        for tokens in batches:
            try:
                model(tokens.to(model.device), use_cache=False)
            except _Stop:
                continue
            raise vqgen.Infeasible(f"{type(model).__name__} passes no tokens through its decoder layers")
    finally:
        for each in training:
            each.training = True
        for handle in handles:
            handle.remove()
    return Calls(hidden, others)


def _empty_caches(kwargs):
    return {name: None for name in ("past_key_values", "past_key_value") if name in kwargs}


def _moved(value, device, dtype, done):
    """Arguments on the device; a tensor that several blocks take stays one. done: those moved, by the original's id."""
    if isinstance(value, torch.Tensor):
        if id(value) not in done:  # the original is kept, so that no other gets its id
            done[id(value)] = value, value.to(device, dtype) if value.is_floating_point() else value.to(device)
        return done[id(value)][1]
    if isinstance(value, (tuple, list)):
        return type(value)(_moved(each, device, dtype, done) for each in value)
    if isinstance(value, dict):
        return {name: _moved(each, device, dtype, done) for name, each in value.items()}
    return value


def own_copy(block, device, dtype):
    """A copy of a block that may be changed, without gradients and dropout."""
    return copy.deepcopy(block).to(device, dtype).requires_grad_(False).eval()


@torch.no_grad()
def groups_of(block, calls: Calls, where: str) -> list[list[str]]:
    """Names of the block's linear layers in the order of their calls; those of one input together."""
    inputs, seen = [], set()

    def hook(name):
        def record(_, args):
            if name in seen:
                raise vqgen.Infeasible(f"{where}: {name} is called twice in a pass, and one Hessian serves one call; leave it "
                                       "out by exclude=")
            seen.add(name)
            if inputs and inputs[-1][0] is args[0]:
                inputs[-1][1].append(name)
            else:
                inputs.append((args[0], [name]))
        return record

    handles = [each.register_forward_pre_hook(hook(name)) for name, each in linears_of(block).items()]
    try:
        calls.output(block, 0, slice(0, 1))
    finally:
        for handle in handles:
            handle.remove()
    return [names for _, names in inputs]


@torch.no_grad()
def hessian_of(block, name: str, calls: Calls, where: str) -> torch.Tensor:
    """H = X^T X / tokens, float32 [in, in], of the inputs of a linear layer; what follows that layer is not computed."""
    total = None

    def record(_, args):
        nonlocal total
        rows = args[0].flatten(0, -2).float()
        total = rows.T @ rows if total is None else total.addmm_(rows.T, rows)
        raise _Stop

    handle = linears_of(block)[name].register_forward_pre_hook(record)
    try:
        for batch in range(len(calls.hidden)):
            try:
                calls.output(block, batch)
            except _Stop:
                pass
    finally:
        handle.remove()
    total /= calls.tokens()
    diagonal = total.diagonal()
    if not torch.isfinite(total).all():
        raise vqgen.BadInput(f"{where}.{name}: its inputs hold NaN or infinity, or squares beyond float32; check the model and "
                             "the token numbers, and take bfloat16 for a model that float16 does not hold")
    if not (diagonal > 0).any():
        raise vqgen.BadInput(f"{where}.{name}: its inputs are all zero, which says nothing of its weights; calibrate on other "
                             "text, or leave it out by exclude=")
    return total
