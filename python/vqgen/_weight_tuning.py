"""Fine-tuning of a block's codebooks and scales against the outputs of the dense block, with codes fixed (AQLM,
Egiazarian et al., 2024, section 3.4)."""

from __future__ import annotations

import math

import torch

_TOKENS = 4096  # of a step, at most


class TunedLinear(torch.nn.Module):
    """A linear layer whose entries and output scales are trained; int8 entries are rounded in each pass, and their
    gradients pass through (straight-through estimator)."""

    def __init__(self, linear, trained):
        super().__init__()
        self.linear, self.trained = linear, trained
        books = trained.books
        self.unit = books.entries().square().mean().sqrt().item() or 1.0
        self.entries = None if books.fixed else torch.nn.Parameter(books.tables * books.scales[:, None, None] / self.unit)
        start = trained.row_scales.clone()
        self.size = start.abs().mean().item() or 1.0
        self.scales = torch.nn.Parameter(start / self.size)

    def stored_entries(self):
        books = self.trained.books
        if self.entries is None:
            return books.entries()
        units = self.entries * self.unit / books.scales[:, None, None]
        return (units + (books.rounded(units.detach()) - units).detach()) * books.scales[:, None, None]

    def weight(self):
        entries = self.stored_entries()
        codes = self.trained.codes
        total = sum(torch.nn.functional.embedding(codes[:, :, stage], entries[stage]) for stage in range(len(entries)))
        return total.flatten(1) * (self.scales * self.size)[:, None]

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight().to(x.dtype), self.linear.bias)

    @torch.no_grad()
    def finish(self):
        books = self.trained.books
        if self.entries is not None:
            books.tables = books.rounded(self.entries * self.unit / books.scales[:, None, None])
        scales = self.scales * self.size
        if books.fields["output_scales"]:
            self.trained.row_scales = scales.detach().clone()
        else:
            books.scales = books.scales * scales.mean()


def tuned(block, trained: dict, calls, targets: list, passes: int, rate: float, seed: int = 1) -> list[float]:
    """Trains the entries and output scales of all `trained` layers of a block at once, by Adam, whose rate falls from `rate`
    along a cosine. calls: what goes into the block; targets: what the dense block makes of it. Returns the mean squared
    error over the first step's, of each pass; the last value is that after training."""
    with torch.enable_grad():
        return _tuned(block, trained, calls, targets, passes, rate, seed)


def _tuned(block, trained, calls, targets, passes, rate, seed):
    for name, each in trained.items():
        block.set_submodule(name, TunedLinear(block.get_submodule(name), each))
    modules = {name: block.get_submodule(name) for name in trained}
    parameters = [each for module in modules.values() for each in module.parameters() if each.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=rate, betas=(0.9, 0.95))
    draw = torch.Generator().manual_seed(seed)
    steps = []
    for number, hidden in enumerate(calls.hidden):
        many = max(1, _TOKENS // hidden.shape[1])
        steps += [(number, slice(first, first + many)) for first in range(0, len(hidden), many)]
    size, history, done = None, [], 0
    for _ in range(passes):
        spent = 0.0
        for place in torch.randperm(len(steps), generator=draw).tolist():
            number, rows = steps[place]
            for group in optimizer.param_groups:
                group["lr"] = rate / 2 * (1 + math.cos(math.pi * done / (passes * len(steps))))
            out = calls.output(block, number, rows)
            error = out.float() - targets[number][rows].float()
            if size is None:
                size = error.detach().square().mean().sqrt().clamp_min(1e-12)
            # In units in which gradients of float16 neither vanish nor overflow; Adam does not see the factor.
            squares = (error / size).square()
            optimizer.zero_grad(set_to_none=True)
            (squares.sum() / 128).backward()
            if all(torch.isfinite(each.grad).all() for each in parameters):
                optimizer.step()
            spent += float(squares.detach().mean())
            done += 1
        history.append(spent / len(steps))
    for name, module in modules.items():
        module.finish()
        block.set_submodule(name, module.linear)
    return history
