"""How the codes of a KLT cache are shared out among a model's layers, keys and values (vqgen._partitions): by what it
costs the model to quantize one operand of one layer alone."""

from __future__ import annotations

import torch

import vqgen
from vqgen._calibration import _in_basis
from vqgen._klt import basis_of, form_of
from vqgen._losses import loss
from vqgen._models import in_float32, sizes_text
from vqgen._partitions import BITS, LEVELS, runs_of, share_out, stored_codes
from vqgen.simulation import held_of, replaced

MEASURES = "loss", "attention"
OPERANDS = "keys", "values"
_TRAIN = 4096  # tokens that train the codebooks by which rises are measured
_FITTED = 4  # choices of fewest codes, whose rises of the loss are measured
_JUDGE = 16384  # tokens that they are measured on, unless the caller gives others


class Shares(dict):
    """How many codes each operand of each layer got, and what that is expected to cost. A dict that json.dumps() takes;
    str() is a table.

    bits: stored per element, the mean of all rows. by: "loss" or "attention". rise: the sum of the rows'. rows: of each layer
    and operand `layer`, `operand`, `bits`, `parts` [[channels, vector_size], ...], `rise`, and `rises` of all
    choices, by bits. A rise is nats per token of the loss, or the share of the attention output's squares that is lost.
    """

    def __str__(self):
        lines = [f"{'layer':>5}  {'operand':8}{'bits':>6}{'rise':>10}  channels x vector size"]
        for row in self["rows"]:
            runs = " ".join(f"{channels}x{size}" for channels, size in row["parts"])
            lines.append(f"{row['layer']:5}  {row['operand']:8}{row['bits']:6.2f}{row['rise']:10.5f}  {runs}")
        lines.append(f"{'all':>5}  {'':8}{self['bits']:6.2f}{self['rise']:10.5f}  rise of {self['by']}")
        return "\n".join(lines)

    def formats(self) -> list[dict]:
        """The formats of each layer's keys and values."""
        rows = {(row["layer"], row["operand"]): form_of(row["parts"]) for row in self["rows"]}
        return [{operand: rows[number, operand] for operand in OPERANDS} for number in range(len(rows) // 2)]


def choices(head_dim: int) -> dict[int, list]:
    """The runs that an operand may get, by the codes that a row of them takes the room of."""
    runs = [runs_of(level, head_dim) for level in LEVELS]
    return {stored_codes(each): each for each in reversed(runs)}


def require(head_dim: int, bits, by) -> None:
    """Refuses what cannot be shared out in a cache of head_dim channels."""
    if by not in MEASURES:
        raise vqgen.BadInput(f"by is {by!r}; give one of {', '.join(MEASURES)}")
    least, most = (BITS * end(choices(head_dim)) / head_dim for end in (min, max))
    if isinstance(bits, bool) or not isinstance(bits, (int, float)) or not least <= bits <= most:
        raise vqgen.BadInput(f"bits is {bits!r}, which no formats of head_dim {head_dim} meet; give a number from "
                             f"{least:g} to {most:g}")


def require_one_size(head_dim: int, value_dim: int) -> None:
    """Refuses keys and values of different sizes."""
    if value_dim != head_dim:
        raise vqgen.Infeasible(f"bits are shared out among keys and values of one size, and the model has heads of "
                               f"{sizes_text(head_dim, value_dim)}; give formats of keys and values")


@torch.no_grad()
def measured(model, layers, judges, by: str, seed: int, key_gain: bool) -> dict:
    """What it costs to quantize one operand of one layer alone: {(layer, operand): {codes: rise}}.

    layers: of each the keys and values [kv_heads, tokens, head_dim]; judges: batches of token numbers, by which rises
    are measured; the rest as of vqgen.hf.calibrate()."""
    trained = {}  # by layer, operand and codes
    for number, states in enumerate(layers):
        for operand, rows in zip(OPERANDS, states):
            last = rows.shape[1] - 1
            some = rows[:, torch.linspace(0, last, min(_TRAIN, last + 1), dtype=torch.float32).long().to(rows.device)]
            basis = basis_of(some)
            for codes, cut in choices(rows.shape[2]).items():
                trained[number, operand, codes] = _trained(some, basis, operand, cut, seed, key_gain, model.device)
    with in_float32(model):
        errors = _by_operand(_by_attention(model, judges, trained))
        if by == "attention":
            return errors
        fitted = {(*key, codes): trained[*key, codes] for key, own in errors.items() for codes in sorted(own)[:_FITTED]}
        return _scaled(errors, _by_operand(_by_loss(model, judges, fitted)))


def _by_operand(rises: dict) -> dict:
    out = {}
    for (number, operand, codes), rise in rises.items():
        out.setdefault((number, operand), {})[codes] = rise
    return out


def _scaled(errors: dict, rises: dict) -> dict:
    """Rises of the loss that are proportional to the errors of an operand's attention output, as those of small errors
    are, by the least squares over what was measured: noise of the loss decides nothing."""
    out = {}
    for key, own in errors.items():
        squares = sum(own[codes]**2 for codes in rises[key])
        scale = sum(rise * own[codes] for codes, rise in rises[key].items()) / squares if squares else 0.0
        out[key] = {codes: max(scale, 0.0) * error for codes, error in own.items()}
    return out


def shared(rises: dict, bits: float, by: str, head_dim: int) -> Shares:
    """Share codes out by measured() rises, at `bits` stored for an element in the mean."""
    rows = []
    for (number, operand), codes in share_out(rises, bits * head_dim / BITS).items():
        own, parts = rises[number, operand], choices(head_dim)[codes]
        rows.append({"layer": number, "operand": operand, "bits": BITS * codes / head_dim,
                     "parts": [list(run) for run in parts], "rise": own[codes],
                     "rises": {f"{BITS * each / head_dim:g}": own[each] for each in sorted(own)}})
    return Shares(bits=sum(row["bits"] for row in rows) / len(rows), by=by, rise=sum(row["rise"] for row in rows), rows=rows)


def judging(batches, judged_by) -> list:
    """The batches that rises are measured on: the first of the calibration's unless the caller gave some."""
    if judged_by is not None:
        out = list(judged_by)
        if not out:
            raise vqgen.BadInput("judged_by has no batches; pass token numbers [sequences, tokens]")
        return out
    out, tokens = [], 0
    for batch in batches:
        if tokens < _JUDGE:
            out.append(batch)
            tokens += batch.numel()
    return out


def _trained(rows, basis, operand: str, cut, seed: int, key_gain: bool, device):
    """(item, tensors) of one operand, as simulation.held_of() takes them."""
    form = vqgen.format_fields(form_of(cut))
    tensors = _in_basis(rows, form, seed, operand == "keys" and key_gain, basis, with_codes=False)
    return {operand: form}, {f"{operand}.{name}": tensor.to(device) for name, tensor in tensors.items()}


def _loss(model, judges) -> float:
    tokens = [batch[:, 1:].numel() for batch in judges]
    return sum(count * loss(model, batch) for count, batch in zip(tokens, judges)) / sum(tokens)


def _by_loss(model, judges, trained) -> dict:
    """What each rises the loss by, alone."""
    changed = {}  # the one that is quantized, by its layer and operand

    def change(number, _, *states):
        return [held_of(rows, *changed[number, operand], operand).to(rows.dtype) if (number, operand) in changed else rows
                for operand, rows in zip(OPERANDS, states)]

    out = {}
    with _exact(model, change):
        before = _loss(model, judges)
        for (number, operand, codes), each in trained.items():
            changed = {(number, operand): each}
            out[number, operand, codes] = _loss(model, judges) - before
    return out


def _by_attention(model, judges, trained) -> dict:
    """The share of its layer's attention output that each loses: the squared error over the squares."""
    wholes, lost = {}, dict.fromkeys(trained, 0.0)

    def change(number, attend, *states):
        exact = attend(*states).float()
        wholes[number] = wholes.get(number, 0.0) + exact.square().sum(dtype=torch.double)
        for place, operand in enumerate(OPERANDS):
            for key in (key for key in trained if key[:2] == (number, operand)):
                given = list(states)
                given[place] = held_of(states[place], *trained[key], operand).to(states[place].dtype)
                lost[key] = lost[key] + (attend(*given).float() - exact).square().sum(dtype=torch.double)
        return states

    with _exact(model, change):
        _loss(model, judges)
    return {key: float(each / wholes[key[0]].clamp_min(1e-300)) for key, each in lost.items()}


def _exact(model, change):
    """A context in which the model's attention is exact, over change(layer, attend, keys, values) instead of its keys
    and values; attend(keys, values) is that layer's."""
    def over_changed(number, query, key, value, scaling):
        def attend(keys, values):
            return torch.nn.functional.scaled_dot_product_attention(
                query, keys, values, is_causal=True, scale=scaling, enable_gqa=query.shape[1] != key.shape[1])

        return attend(*change(number, attend, key, value))

    return replaced(model, "vqgen_exact", over_changed)
