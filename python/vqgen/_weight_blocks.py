"""Decoder blocks of a transformers model, run one at a time: what goes into each, and the second moments of what goes
into its linear layers."""

from __future__ import annotations

import copy

import torch

import vqgen


class _Stop(Exception):
    pass


class Calls:
    """The calls of a decoder block. hidden: tensors [sequences, tokens, hidden_size], one for each batch; named: the
    other arguments of each, which batches of one shape share."""

    def __init__(self, hidden: list, named: list):
        self.hidden, self.named = hidden, named

    def tokens(self) -> int:
        return sum(each.shape[0] * each.shape[1] for each in self.hidden)

    @torch.no_grad()
    def run(self, block) -> list:
        """What the block makes of each."""
        return [outputs_of(block, hidden, named) for hidden, named in zip(self.hidden, self.named)]


def outputs_of(block, hidden, named):
    out = block(hidden, **named)
    return out[0] if isinstance(out, tuple) else out


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


def require_linears(model, layers, fields: dict, skip) -> None:
    """Refuses, by name, linear layers that a format does not divide, and those that share their weight with another
    parameter: codes of one are not those of the other."""
    owners, size = {}, fields["vector_size"]
    for name, tensor in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(tensor), []).append(name)
    found = 0
    for number, layer in enumerate(layers):
        for name, linear in linears_of(layer).items():
            if name in skip:
                continue
            where = f"layer {number}, {name}"
            if len(owners[id(linear.weight)]) > 1:
                raise vqgen.Infeasible(f"{where}: its weight is tied to {', '.join(owners[id(linear.weight)][:2])}, and each "
                                       "quantized layer has codes of its own; untie the weights, or leave it out by exclude=")
            if linear.in_features % size:
                raise vqgen.Infeasible(f"{where}: {linear.in_features} input features are no multiple of {size}, the format's "
                                       "vector_size; take a format whose vector_size divides them, or leave it out by exclude=")
            if fields["decoder"] == "table" and linear.weight.numel() // size < 1 << fields["index_bits"]:
                raise vqgen.Infeasible(f"{where}: {linear.weight.numel() // size} sub-vectors cannot train "
                                       f"{1 << fields['index_bits']} entries; take fewer index_bits, or leave it out by exclude=")
            if not torch.isfinite(linear.weight).all():
                raise vqgen.BadInput(f"{where}: its weight holds NaN or infinity; check the model")
            found += 1
    if not found:
        raise vqgen.Infeasible(f"{type(model).__name__} has no linear layer (torch.nn.Linear) left to quantize in its decoder "
                               "layers; check exclude=, and give a model that is not quantized yet")


@torch.no_grad()
def first_calls(model, batches, device, dtype) -> Calls:
    """The calls of the first block, for token numbers [sequences, tokens], on `device`."""
    hidden, named, shared = [], [], {}

    def record(_, args, kwargs):
        kwargs = dict(kwargs)
        states = args[0] if args else kwargs.pop("hidden_states")
        hidden.append(states.to(device, dtype))
        if states.shape[:2] not in shared:
            shared[states.shape[:2]] = _moved({**kwargs, **_empty_caches(kwargs)}, device, dtype)
        named.append(shared[states.shape[:2]])
        raise _Stop

    handle = layers_of_model(model)[0].register_forward_pre_hook(record, with_kwargs=True)
    try:
        for tokens in batches:
            try:
                model(tokens.to(model.device), use_cache=False)
            except _Stop:
                continue
            raise vqgen.Infeasible(f"{type(model).__name__} passes no tokens through its first decoder layer")
    finally:
        handle.remove()
    if not hidden:
        raise vqgen.BadInput("quantize() got no batches; pass token numbers [sequences, tokens]")
    return Calls(hidden, named)


def _empty_caches(kwargs):
    return {name: None for name in ("past_key_values", "past_key_value") if name in kwargs}


def _moved(value, device, dtype):
    if isinstance(value, torch.Tensor):
        return value.to(device, dtype) if value.is_floating_point() else value.to(device)
    if isinstance(value, (tuple, list)):
        return type(value)(_moved(each, device, dtype) for each in value)
    return {name: _moved(each, device, dtype) for name, each in value.items()} if isinstance(value, dict) else value


def own_copy(block, device, dtype):
    """A copy of a block that may be changed, without gradients."""
    return copy.deepcopy(block).to(device, dtype).requires_grad_(False)


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
        outputs_of(block, calls.hidden[0][:1], calls.named[0])
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
        for hidden, named in zip(calls.hidden, calls.named):
            try:
                outputs_of(block, hidden, named)
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
