"""How well a model predicts sequences of tokens, and how far its predictions are from those of another pass."""

from __future__ import annotations

import torch

AT_ONCE = 4  # sequences of a pass over all tokens
_AT_ONCE = 512  # tokens whose logits are in float32
BINS = 4  # of positions


def whole_logits(model, tokens):
    """Yields (number of the first sequence, position of the first token, logits [n, t, vocabulary]) of sequences [n,
    length], some at once, each read whole."""
    for first in range(0, len(tokens), AT_ONCE):
        part = tokens[first:first + AT_ONCE, :-1]
        yield first, 0, model(part.to(model.device), use_cache=False).logits


def step_logits(model, tokens, cache):
    """As whole_logits(), of sequences [n, length] read token by token over a VQCache; captured where it can be."""
    from vqgen._steps import captured
    tokens = tokens.to(model.device)
    cache.reset()
    with captured(model, cache):
        for now in range(tokens.shape[1] - 1):
            yield 0, now, model(tokens[:, now:now + 1], past_key_values=cache).logits[:, -1:]


def _blocks(passes):
    """(sequences, positions, logits) of passes, in float32."""
    for first, at, logits in passes:
        most = max(1, _AT_ONCE // len(logits))
        for begin in range(0, logits.shape[1], most):
            part = logits[:, begin:begin + most].float()
            yield slice(first, first + len(part)), slice(at + begin, at + begin + part.shape[1]), part


def _summed(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.to(logits.device).flatten(), reduction="sum").double()


@torch.no_grad()
def loss(model, tokens) -> float:
    """Mean negative log-likelihood per token, in nats, of sequences [n, length] read whole."""
    return mean_loss(whole_logits(model, tokens), tokens)


@torch.no_grad()
def mean_loss(passes, tokens) -> float:
    """The mean negative log-likelihood of sequences [n, length], by passes as whole_logits() yields them."""
    total = sum(_summed(part, tokens[rows, 1:][:, place]) for rows, place, part in _blocks(passes))
    return float(total) / tokens[:, 1:].numel()


class Reference:
    """The logits of a model as it is, kept in the CPU's memory in the model's dtype, which others are compared to.

    tokens: sequences [n, length]. loss: the mean negative log-likelihood per token."""

    @torch.no_grad()
    def __init__(self, model, tokens):
        self.tokens = tokens
        self.logits = torch.cat([logits.to("cpu", model.dtype) for _, _, logits in whole_logits(model, tokens)])
        self.loss = mean_loss([(0, 0, self.logits)], tokens)

    @torch.no_grad()
    def compared(self, passes) -> dict:
        """What passes over the same sequences, as whole_logits() yields them, lose: `loss`; `kl`, the KL divergence of
        the next token from that of the model as it is, in nats; `other`, the share of positions whose most likely token
        is another one; `by_position`, the last two in each quarter of the positions, from the first of `tokens` to
        before the second."""
        total, (kl, other) = 0.0, torch.zeros(2, self.tokens.shape[1] - 1, dtype=torch.double)
        for rows, place, part in _blocks(passes):
            known = self.logits[rows, place].to(part.device).float()
            total += _summed(part, self.tokens[rows, 1:][:, place])
            own, wanted = part.log_softmax(-1), known.log_softmax(-1)
            kl[place] += (wanted.exp() * (wanted - own)).sum((0, 2)).double().cpu()
            other[place] += (part.argmax(-1) != known.argmax(-1)).sum(0).double().cpu()
        edges = [len(kl) * each // BINS for each in range(BINS + 1)]
        means = [{"tokens": [begin, end], "kl": float(kl[begin:end].mean()) / len(self.tokens),
                  "other": float(other[begin:end].mean()) / len(self.tokens)}
                 for begin, end in zip(edges, edges[1:]) if end > begin]
        return {"loss": float(total) / self.tokens[:, 1:].numel(), "kl": float(kl.mean()) / len(self.tokens),
                "other": float(other.mean()) / len(self.tokens), "by_position": means}
