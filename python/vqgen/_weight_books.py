"""Codebooks of weights: their start by weighted k-means, their least squares, and the numbers that a format's entries may be.

A matrix W [out, in] is quantized less its output scales, W / s. Its loss is tr((W - Q) H (W - Q)^T), where H = X^T X
of its calibration inputs: the squared error of its outputs on these. Q is linear in the entries, so that for fixed
codes the loss is a quadratic, which conjugate gradients minimize; AQLM (Egiazarian et al., 2024, section 3.3) takes
Adam for it."""

from __future__ import annotations

import dataclasses

import torch

from vqgen import _core, _kmeans
from vqgen._bundles import in_rows, packed, unpacked
from vqgen._nearest import encoded
from vqgen._weight_codes import summed

_SAMPLE = 1024  # sub-vectors by which a lattice gets its scale
_ITERATIONS = 10  # of k-means, which least squares follow,
_OF_AN_ENTRY = 128  # and sub-vectors that it takes


class Books:
    """Codebooks of one matrix. tables: float32 [stages, entries, size], as stored: integers for int8 entries. scales:
    float32 [stages]. fields: of the format; peak: of int8 entries, or None; fixed: the entries are a lattice's."""

    def __init__(self, tables, scales, fields: dict, dtype: torch.dtype):
        self.tables, self.scales, self.fields, self.dtype = tables, scales, fields, dtype
        self.fixed = fields["decoder"] == "e8p"
        self.peak = peak_of(fields)

    def entries(self, scaled=True):
        """What codes of each stage stand for, float32 [stages, codes, size], as kernels read them."""
        tables = self.tables.to(self.dtype).float()
        points = torch.stack([lattice_points(table) for table in tables]) if self.fixed else tables
        return points * self.scales[:, None, None] if scaled else points

    def store(self, entries):
        """Takes scaled entries, as near as the format stores them; a lattice takes none."""
        if self.peak is not None:
            common = self.fields.get("common_scale")
            most = entries.abs().amax() if common else entries.abs().amax((1, 2))
            self.scales = (most / self.peak).clamp_min(1e-12).expand(len(entries)).clone()
        elif self.fields["stage_scales"]:
            self.scales = entries.square().mean((1, 2)).sqrt().clamp_min(1e-12)
        self.tables = self.rounded(entries / self.scales[:, None, None])

    def rounded(self, units):
        """Entries in units of the scales, to the nearest that the format stores."""
        return units.round().clamp(-self.peak, self.peak) if self.peak else units.to(self.dtype).float()


@dataclasses.dataclass
class Trained:
    """A quantized matrix. codes: [out, groups, stages]; row_scales: float32 [out], 1 where the format has none."""

    books: Books
    codes: torch.Tensor
    row_scales: torch.Tensor

    def weight(self):
        """float32 [out, in]."""
        return decoded(self.codes, self.books.entries()) * self.row_scales[:, None]

    def tensors(self) -> dict:
        """The tensors of a model folder, on the CPU, by what follows the layer's name."""
        books, fields = self.books, self.books.fields
        out = {"codes": packed(self.codes.flatten(1), fields["index_bits"]).view(torch.int32),
               "codebooks": books.tables.to(books.dtype)[None]}
        if fields["stage_scales"]:
            out["stage_scales"] = books.scales[None].float()
        if fields["output_scales"]:
            out["output_scales"] = self.row_scales
        return {name: tensor.cpu().contiguous() for name, tensor in out.items()}


def decodes(fields: dict) -> bool:
    """True if PyTorch decodes weights of a format."""
    return (fields["scope"] == "tensor" and fields["decoder"] in ("table", "e8p") and in_rows(fields)
            and not fields.get("group_inputs"))


def trained_of(fields: dict, tensors: dict, columns: int, device) -> Trained:
    """What tensors() stand for, of weights with `columns` input features. fields: of a format that decodes()."""
    codes, books = tensors["codes"], tensors["codebooks"].to(device)
    stages, groups = fields["num_codebooks"], columns // fields["vector_size"]
    codes = unpacked(codes.to(device), fields["index_bits"], groups * stages).unflatten(1, (groups, stages))
    scales = tensors.get("stage_scales", torch.ones(1, stages, dtype=torch.float32))[0].to(device)
    rows = tensors.get("output_scales", torch.ones(len(codes), dtype=torch.float32)).to(device)
    return Trained(Books(books[0].float(), scales, fields, books.dtype), codes, rows)


def peak_of(fields: dict) -> int | None:
    if fields["entry_type"] != "int8":
        return None
    return 127 // fields["num_codebooks"] if fields.get("common_scale") else 127


def lattice_points(table):
    """The 65,536 points that codes of an E8P table [256, 8] stand for (templates/vq/layout/format.h)."""
    code = torch.arange(1 << 16, device=table.device)
    entry = table[code & 255]
    bits = (code[:, None] >> (8 + torch.arange(7, device=table.device))) & 1
    last = (bits.sum(1) + entry.sum(1).round().long()) & 1
    signs = 1 - 2 * torch.cat([bits, last[:, None]], 1).float()
    return entry * signs + torch.where(code < 1 << 15, 0.25, -0.25)[:, None]


def started(weights, importance, fields: dict, dtype, seed: int) -> Books:
    """Books by k-means, stage by stage, with sub-vectors weighted by what an error of them costs.

    weights: float32 [out, in], less output scales; importance: float32 [out, in / size]."""
    size, stages, entries = fields["vector_size"], fields["num_codebooks"], 1 << fields["index_bits"]
    vectors = weights.reshape(-1, size)
    if fields["decoder"] == "e8p":
        return _lattice(vectors, fields, dtype)
    draw = _kmeans.generator_of(seed, 0)
    taken = torch.randperm(len(vectors), generator=draw)[:_OF_AN_ENTRY * entries].sort().values.to(weights.device)
    left, heavy = vectors[taken].clone(), (importance / importance.mean()).reshape(-1)[taken]
    tables = []
    for _ in range(stages):
        tables.append(_kmeans.stage_of(left, entries, draw, _ITERATIONS, heavy))
        left -= encoded(left, tables[-1][None])[1]
    books = Books(None, torch.ones(stages, device=weights.device, dtype=torch.float32), fields, dtype)
    books.store(torch.stack(tables))
    return books


def e8p_table():
    """The table of the E8P lattice, float32 [256, 8]."""
    return torch.frombuffer(bytearray(_core.e8p_table()), dtype=torch.float32).view(256, 8)


def _lattice(vectors, fields, dtype) -> Books:
    """Books of the lattice, each stage with the best of some scales for an even sample of what the stage before left."""
    table = e8p_table().to(vectors.device)
    points, scales = lattice_points(table), []
    left = vectors[torch.linspace(0, len(vectors) - 1, min(len(vectors), _SAMPLE), device=vectors.device, dtype=torch.float32).long()]
    for _ in range(fields["num_codebooks"]):
        rms = left.square().mean().sqrt().clamp_min(1e-12)
        found = []
        for power in range(-2, 5):
            scale = rms * 2 ** (power / 4)
            rest = left - encoded(left, (points * scale)[None])[1]
            found.append((float(rest.square().sum()), power, scale, rest))
        _, _, scale, left = min(found, key=lambda each: each[:2])
        scales.append(scale if fields["stage_scales"] else torch.ones_like(scale))
    return Books(table.repeat(len(scales), 1, 1), torch.stack(scales), fields, dtype)


def decoded(codes, entries):
    """Weights float32 [out, in] of codes [out, groups, stages] and scaled entries [stages, codes, size]."""
    return summed(codes.flatten(0, 1), entries).view(len(codes), -1)


def _sums(values, codes, entries: int):
    """Sums of values [out, in] by entry, float32 [stages, entries, size]; PyTorch adds them in one order."""
    vectors = values.reshape(codes.shape[0] * codes.shape[1], -1)
    return torch.stack([torch.ops.aten.embedding_dense_backward(vectors, numbers.reshape(-1), entries, -1, False)
                        for numbers in codes.unbind(2)])


def fitted(books: Books, weights, hessian, row_weights, codes, steps: int) -> None:
    """Moves entries to the least squares of the loss, with codes fixed.

    weights: float32 [out, in]; hessian: [in, in]; row_weights: [out], squares of the output scales; codes: [out,
    groups, stages]. Takes `steps` steps of conjugate gradients, preconditioned by the diagonal, each of which
    multiplies by the Hessian once. Memory: two more matrices of the weights' size."""
    if books.fixed:
        _fit_scales(books, weights, hessian, row_weights, codes)
        return
    entries = books.entries()
    count = entries.shape[1]

    def gradient(matrix):
        return _sums((matrix @ hessian) * row_weights[:, None], codes, count)

    diagonal = _sums(row_weights[:, None] * hessian.diagonal()[None], codes, count)
    used = diagonal > 0
    inverse = torch.where(used, 1 / diagonal.clamp_min(1e-30), 0.0)
    left = gradient(weights - decoded(codes, entries))
    step = scaled = inverse * left
    product = (left * scaled).sum(dtype=torch.double)
    first = product.clone()
    for _ in range(steps):
        if product <= first * 1e-8:
            break
        turned = gradient(decoded(codes, step))
        length = (product / (step * turned).sum(dtype=torch.double).clamp_min(1e-30)).float()
        entries = entries + length * step
        left = left - length * turned
        scaled = inverse * left
        before, product = product, (left * scaled).sum(dtype=torch.double)
        step = scaled + (product / before).float() * step
    books.store(entries)


def _fit_scales(books, weights, hessian, row_weights, codes):
    """The scale that minimizes the loss, of all stages together."""
    own = decoded(codes, books.entries())
    turned = (own @ hessian) * row_weights[:, None]
    factor = (turned * weights).sum(dtype=torch.double) / (turned * own).sum(dtype=torch.double)
    if factor > 0:
        books.scales = books.scales * factor.float()


def row_scales(weights, hessian, quantized, scales):
    """Output scales [out] that minimize the loss of each row of unscaled weights; those given where they would not be
    above 0. quantized: float32 [out, in], without scales."""
    turned = quantized @ hessian
    own = (turned * quantized).sum(1)
    best = (turned * weights).sum(1) / own.clamp_min(1e-30)
    return torch.where((best > 0) & (own > 0), best, scales)
