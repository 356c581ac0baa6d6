"""KLT caches in plain PyTorch: keys and values are centred and rotated into the eigenvectors of their covariance, for
each layer and KV head, and these are distributed to sub-vectors (vqgen._partitions) so that each code has as much to
say. Training and simulation alone; no kernel is asked."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

import vqgen.torch
from vqgen._errors import BadInput
from vqgen._kmeans import generator_of
from vqgen._partitions import BITS
from vqgen._training import SEEDS
from vqgen.simulation import dequantized, rotated as hadamard

__all__ = ["Basis", "Moments", "dealt", "form_of", "gained", "operand_form", "train"]

GAINS = "none", "head", "channel"
SCOPES = "head", "channel_group"
ENTRY_TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}
_ENTRIES = 1 << BITS
_OF_AN_ENTRY = 512  # sub-vectors that train it
_SAMPLE = _OF_AN_ENTRY * _ENTRIES  # that train a codebook
_GAIN_TOKENS = 1 << 13  # of a head, that its gain is measured on
_AT_ONCE = 1 << 14  # tokens in float64


class Basis(NamedTuple):
    """Where rows are quantized: z = (row - mean) @ rotation. float64, in the CPU's memory."""

    mean: torch.Tensor  # [kv_heads, head_dim]
    variances: torch.Tensor  # of z, [kv_heads, head_dim]
    rotation: torch.Tensor  # of columns that are orthonormal, [kv_heads, head_dim, head_dim]


class Moments:
    """Accumulate the covariance of each KV head in one pass over rows.

        moments = Moments()
        for rows in batches:  # [kv_heads, tokens, head_dim]
            moments.add(rows)
        mean, variances, rotation = moments.basis()

    Sums are float64, [kv_heads, head_dim, head_dim], on the device of the rows; rows are converted by blocks.
    """

    def __init__(self):
        self.count, self.shift, self.sums, self.products = 0, None, None, None

    @torch.no_grad()
    def add(self, rows: torch.Tensor) -> None:
        """Add rows [kv_heads, tokens, head_dim] of any float type.

        Raises:
            BadInput: for NaN, infinity, or another shape than that of the rows before; nothing is added then.
        """
        if rows.dim() != 3 or not rows.is_floating_point() or not rows.numel():
            raise BadInput(f"Moments: rows are {rows.dtype} {list(rows.shape)}; give floats [kv_heads, tokens, head_dim]")
        heads, tokens, head_dim = rows.shape
        if self.shift is not None and self.shift.shape != (heads, 1, head_dim):
            raise BadInput(f"Moments: rows have shape {list(rows.shape)}, and those before were of {self.shift.shape[0]} "
                           f"heads of {self.shift.shape[2]}; give rows of one layer's operand")
        # Sums of differences to a mean: a large mean takes no digits of the covariance.
        shift = rows[:, :_AT_ONCE].double().mean(1, keepdim=True) if self.shift is None else self.shift
        sums, products = 0.0, 0.0
        for block in rows.split(_AT_ONCE, 1):
            block = block.double() - shift
            sums, products = sums + block.sum(1), products + block.mT @ block
        if not torch.isfinite(products).all():
            raise BadInput("Moments: rows hold NaN or infinity; give finite keys and values")
        if self.shift is None:
            self.shift, self.sums, self.products = shift, sums, products
        else:
            self.sums, self.products = self.sums + sums, self.products + products
        self.count += tokens

    @torch.no_grad()
    def basis(self, entries: int = _ENTRIES) -> Basis:
        """Return the mean, and the eigenvalues and eigenvectors (as columns) of the covariance.

        Eigenvalues fall and are at least 0; the largest component of each eigenvector is positive, so that the same
        rows give the same basis. Channels that are constant take the last places.

        Args:
            entries: of the largest codebook, which at least so many rows have to train.

        Raises:
            BadInput: if there were fewer rows than `entries`, or than 2 per channel.
        """
        head_dim = 0 if self.shift is None else self.shift.shape[2]
        least = max(2 * head_dim, entries)
        if self.count < least:
            raise BadInput(f"Moments: {self.count} rows are too few for head_dim {head_dim} and {entries} entries; give at "
                           f"least {least} tokens")
        mean = (self.sums / self.count).cpu()
        covariance = self.products.cpu() / self.count - mean[:, :, None] * mean[:, None, :]
        variances, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
        variances, vectors = variances.flip(-1).clamp_min(0), vectors.flip(-1)
        largest = vectors.abs().argmax(1, keepdim=True)
        return Basis(mean + self.shift.cpu()[:, 0], variances, vectors * vectors.gather(1, largest).sign())


def basis_of(rows: torch.Tensor) -> Basis:
    """The basis of rows [kv_heads, tokens, head_dim]."""
    moments = Moments()
    moments.add(rows)
    return moments.basis()


def dealt(basis: Basis, form: dict) -> Basis:
    """The basis in which rows of format `form` are quantized, of the eigenvectors of their covariance.

    An entry of a codebook serves all sub-vectors of its part, so these are made alike: element i of all sub-vectors of
    a part is a stratum of eigenvectors next to each other in falling order of variance, mixed by an orthogonal matrix
    with components of about equal size. Each channel then has the stratum's mean variance, elements of a sub-vector
    differ, and the codebook spends its bits on those of much variance. Strata are dealt to parts in turn: the next to
    the part whose codes have spent the least of their bits by reverse water-filling (a channel of variance v spends
    log2(v / level) / 2, or nothing below the level), the narrower of equal ones.

    If a part has scope "channel_group", the basis stays as it is.
    Source: reverse water-filling, Cover and Thomas, Elements of Information Theory, 10.3.3.
    """
    heads, head_dim = basis.variances.shape
    parts = form.get("parts") or [{**form, "channels": [*range(head_dim)]}]
    if any(part["scope"] == "channel_group" for part in parts):
        return basis
    turns = torch.stack([_turn(spectrum, parts) for spectrum in basis.variances])
    return Basis(basis.mean, (basis.variances[:, None] @ turns.square())[:, 0], basis.rotation @ turns)


def _turn(spectrum: torch.Tensor, parts) -> torch.Tensor:
    """dealt() of one head, from eigenvectors of falling variances [head_dim]: [head_dim, head_dim]."""
    head_dim = len(spectrum)
    sizes = [part["vector_size"] for part in parts]
    bits = [part["index_bits"] * part.get("num_codebooks", 1) for part in parts]
    logs = (spectrum / spectrum.max().clamp_min(1e-300)).clamp_min(1e-12).log2()
    whole = sum(each * (len(part["channels"]) // size) for each, part, size in zip(bits, parts, sizes))
    levels = (logs.cumsum(0) - 2 * whole) / torch.arange(1, head_dim + 1)  # where so many channels spend bits
    level = levels[max(int((logs > levels).sum()), 1) - 1]
    turn = torch.zeros(head_dim, head_dim, dtype=torch.double)
    taken, spent, at = [0] * len(parts), [0.0] * len(parts), 0
    while at < head_dim:
        chosen = min((part for part in range(len(parts)) if taken[part] < sizes[part]),
                     key=lambda part: (spent[part] / bits[part], sizes[part]))
        channels = parts[chosen]["channels"][taken[chosen]::sizes[chosen]]
        stratum = slice(at, at + len(channels))
        turn[stratum, channels] = _mixing(len(channels))
        spent[chosen] += float((logs[stratum].exp2().mean().log2() - level).clamp_min(0) / 2)
        taken[chosen], at = taken[chosen] + 1, stratum.stop
    return turn


def _mixing(size: int) -> torch.Tensor:
    """An orthogonal matrix with components of about equal size: Hadamard's of the power of two in `size`, whose
    components are Hartley's matrix of the odd rest."""
    odd = size // (size & -size)
    angles = 2 * math.pi / odd * torch.outer(*[torch.arange(odd, dtype=torch.double)] * 2)
    hartley = (angles.cos() + angles.sin()) / math.sqrt(odd)
    return torch.kron(hadamard(torch.eye(size // odd, dtype=torch.double)), hartley)


def operand_form(parts, scope: str = "head") -> dict:
    """The format of one operand of runs [(channels, vector_size), ...], by the fields of `parts` in
    docs/reference/config.md. scope: "head", or "channel_group" for a codebook per sub-vector position."""
    if scope not in SCOPES:
        raise BadInput(f"scope is {scope!r}; give one of {', '.join(SCOPES)}")
    form, first = [], 0
    for channels, size in parts:
        if channels < 1 or size < 1 or channels % size:
            raise BadInput(f"parts: a run of {channels} channels has sub-vectors of {size}; give channels that are a "
                           "multiple of the vector size")
        form.append({"channels": [*range(first, first + channels)], "vector_size": size, "index_bits": BITS,
                     "num_codebooks": 1, "scope": scope})
        first += channels
    return {"parts": form}


def form_of(runs) -> dict:
    """The format of one operand of runs [(channels, vector_size), ...] as bundles have it: rows less their mean,
    rotated, and entries that are int8."""
    integers = {"entry_type": "int8", "stage_scales": True}
    form = operand_form(runs)
    if len(runs) == 1:  # a format without parts
        form = {"vector_size": runs[0][1], "index_bits": BITS, "scope": "head", **integers}
    else:
        form["parts"] = [{**part, **integers} for part in form["parts"]]
    return {"center": True, "klt": True, **form}


@torch.no_grad()
def train(rows: torch.Tensor, parts, key_gain: str = "none", seed: int = 1, iterations: int = 50,
          scope: str = "head", *, entry_type: str = "f16", basis: Basis | None = None) -> tuple[dict, dict]:
    """Train one operand of one layer: keys or values.

    Args:
        rows: [kv_heads, tokens, head_dim], floats, on any device.
        parts: runs [(channels, vector_size), ...], whose channels add up to head_dim.
        key_gain: lengthens what codes stand for, as entries are means, so that the scores of quantized tokens compare
            to those of raw ones: by sum z.z / sum z.z' for each "channel" or each "head"; "none" for values. Codes are
            the nearest entries without it: entries times the gain would be chosen so that most of it is lost.
        seed, iterations: of k-means. The same arguments give the same bits on one machine's CPU.
        scope: "head", a codebook per part and KV head; "channel_group", one per sub-vector position too.
        entry_type: "f16" or "bf16", or "int8" with a scale per codebook.
        basis: basis_of() all rows if these are a sample; by default it is that of `rows`.

    Returns:
        The format, operand_form(), and its tensors on the device of `rows`, as simulation.simulated() takes them:
        `mean` [kv_heads, head_dim] and `rotation` [kv_heads, head_dim, head_dim], float32; `codebooks`, flat, part after
        part, each [units, 1, 256, vector_size]; with int8 `stage_scales`, float32, one per unit in the same order; unless key_gain
        is "none" `gain` [kv_heads, head_dim], float32. A row stands for (entries * gain) @ rotation.T + mean, so a
        query is rotated by rotation * gain.

    Raises:
        BadInput: for NaN, too few rows, parts that do not add up, and unknown words.

    Example: form, tensors = train(keys, runs_of(32, 128), key_gain="channel")
    """
    for name, given, known in (("key_gain", key_gain, GAINS), ("entry_type", entry_type, ENTRY_TYPES)):
        if given not in known:
            raise BadInput(f"{name} is {given!r}; give one of {', '.join(known)}")
    form = operand_form(parts, scope)
    basis = basis_of(rows) if basis is None else basis
    heads, _, head_dim = rows.shape
    total = sum(channels for channels, _ in parts)
    if total != head_dim or basis.rotation.shape != (heads, head_dim, head_dim):
        raise BadInput(f"parts: they have {total} channels, the basis is {list(basis.rotation.shape)}, and rows are "
                       f"{list(rows.shape)}; give parts whose channels add up to head_dim, and a basis of these rows")
    basis = dealt(basis, form)
    mean, rotation = (each.float().to(rows.device) for each in (basis.mean, basis.rotation))
    books = [_codebooks(rows, part, mean, rotation, (seed + 1009 * number) % SEEDS, iterations)
             for number, part in enumerate(form["parts"])]
    tensors = {"mean": mean, "rotation": rotation, **_stored(books, entry_type)}
    if key_gain != "none":
        squares, products = gained(rows[:, _sample(rows.shape[1], _GAIN_TOKENS, seed, rows.device)], form, tensors)
        if key_gain == "head":
            squares, products = (each.sum(1, keepdim=True).expand(heads, head_dim) for each in (squares, products))
        ratio = (squares / products).where((products > 0) & (squares > 0), 1.0)  # a channel without variance keeps 1
        tensors["gain"] = ratio.float().contiguous()
    return form, tensors


def based(rows: torch.Tensor, mean, rotation) -> torch.Tensor:
    """Rows [kv_heads, tokens, head_dim] less their mean and rotated, where these are given, in the dtype of rows: by
    blocks, so that one copy is made and no more."""
    out = torch.empty_like(rows)
    for block, into in zip(rows.split(_AT_ONCE, 1), out.split(_AT_ONCE, 1)):
        block = block.float() if mean is None else block.float() - mean[:, None]
        into.copy_(block if rotation is None else block @ rotation)
    return out


def sampled(rows: torch.Tensor, form: dict, seed: int) -> torch.Tensor:
    """The tokens of rows [kv_heads, tokens, channels], a part, that train its codebooks; all where it has `smooth`."""
    if form.get("smooth"):
        return rows
    of_row = 1 if form.get("scope") == "channel_group" else rows.shape[2] // form["vector_size"]
    most = (_OF_AN_ENTRY << form["index_bits"]) // of_row
    chosen = _sample(rows.shape[1], max(most, _GAIN_TOKENS), seed, rows.device)
    return rows if len(chosen) == rows.shape[1] else rows[:, chosen]


def _sample(tokens: int, most: int, seed: int, device) -> torch.Tensor:
    """The numbers of at most `most` of so many tokens, rising."""
    chosen = torch.randperm(tokens, generator=generator_of(seed, 0))[:most]
    return chosen.sort().values.to(device)


def _codebooks(rows, part: dict, mean, rotation, seed: int, iterations: int):
    """The entries of one part, float32 [units, 1, 256, vector_size]."""
    size, channels, heads = part["vector_size"], part["channels"], rows.shape[0]
    groups = len(channels) // size
    of_row = 1 if part["scope"] == "channel_group" else groups
    if rows.shape[1] * of_row < _ENTRIES:
        raise BadInput(f"train: {rows.shape[1]} tokens have {rows.shape[1] * of_row} sub-vectors for the {_ENTRIES} "
                       f"entries of a codebook; give at least {-(-_ENTRIES // of_row)} tokens")
    some = rows[:, _sample(rows.shape[1], -(-_SAMPLE // of_row), seed, rows.device)]
    rotated = (some.float() - mean[:, None]) @ rotation[:, :, channels]
    if part["scope"] == "channel_group":
        rotated = rotated.unflatten(2, (groups, size)).transpose(1, 2)
    vectors = rotated.reshape(heads * (groups // of_row), -1, size).contiguous()
    scale = vectors.square().mean((1, 2), keepdim=True).sqrt()
    scale = scale.where(scale > 0, 1.0)  # entries are trained as float16
    trained = vqgen.torch.train_codebooks(vectors / scale, {"vector_size": size, "index_bits": BITS}, seed=seed,
                                          iterations=iterations)
    return trained.codebooks.float() * scale[:, None]


def _stored(books, entry_type: str) -> dict:
    """The tensors of entries float32, rounded as a cache has them."""
    dtype = ENTRY_TYPES[entry_type]
    if dtype != torch.int8:
        stored = torch.cat([each.flatten() for each in books]).to(dtype)
        if not torch.isfinite(stored).all():
            raise BadInput(f"train: an entry does not fit {entry_type}; give entry_type \"bf16\" or \"int8\"")
        return {"codebooks": stored}
    peaks = [each.abs().amax((1, 2, 3)) for each in books]
    scales = [(each / 127).where(each > 0, 1.0) for each in peaks]
    rounded = [(each / own[:, None, None, None]).round().to(torch.int8).flatten() for each, own in zip(books, scales)]
    return {"codebooks": torch.cat(rounded), "stage_scales": torch.cat(scales)}


def gained(rows: torch.Tensor, form: dict, tensors: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums over tokens of z.z and of z.z' for each rotated channel, float64 [kv_heads, head_dim], where z' is what the
    codes of rows [kv_heads, tokens, head_dim] stand for, with the gain that the tensors have. Their ratio is the
    gain that is left to apply."""
    squares, products = 0.0, 0.0
    for block in rows.split(_GAIN_TOKENS, 1):
        rotated = (block.float() - tensors["mean"][:, None]) @ tensors["rotation"]
        held = dequantized(rotated[None], form, tensors["codebooks"], tensors.get("stage_scales"),
                           gain=tensors.get("gain"))[0]
        squares = squares + rotated.double().square().sum(1)
        products = products + (rotated.double() * held).sum(1)
    return squares, products

