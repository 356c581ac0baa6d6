"""What the attention of a step does with each sequence: which decode, and which read a prompt or a part of it.

An engine renumbers rows, shares pages and preempts as it likes: a batch is described by lengths, query starts and a
block table alone, and nothing is kept from step to step but memory, which captured graphs read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from vqgen._appends import power_of_two
from vqgen._sights import Sight


@dataclass
class Piece:
    """Tokens of a sequence's context that are dense at once."""

    begin: int             # its first token
    tokens: int
    table: torch.Tensor    # int32 [1, columns], of the pages from the piece's first token on
    lengths: torch.Tensor  # int32 [1], at least `tokens`
    starts: torch.Tensor   # int32 [2], 0 and `tokens`


@dataclass
class Prompt:
    """A sequence with more new tokens than a decode has; `before` tokens of it are in the cache already."""

    sequence: int
    first: int  # row
    rows: int
    before: int
    starts: torch.Tensor | None = None  # int32 [2], 0 and `rows`, if the sequence has a context
    pieces: list[Piece] = field(default_factory=list)


@dataclass
class Batch:
    """A step. Sequences [0, decodes) decode, in rows [0, decode_rows); prompts are behind them."""

    decodes: int
    decode_rows: int
    tokens: int  # at least the longest decoding sequence's: it selects the attention kernel
    prompts: list[Prompt]
    # int32, one for each sequence that decodes; 0 for the others that a kernel's batch has room for.
    lengths: torch.Tensor
    counts: torch.Tensor
    starts: torch.Tensor        # of query rows; one more
    gather: torch.Tensor        # int32 [sequences, query_tokens], the row of each new token
    # int32, of all sequences.
    positions: torch.Tensor     # of the first new token
    new_tokens: torch.Tensor
    table: torch.Tensor         # [sequences, columns]
    prompt_starts: torch.Tensor | None = None  # of the prompts' rows, from their first row on

    _decoding: dict | None = None

    def decoding(self, size: int) -> dict[str, torch.Tensor]:
        """The arrays of a kernel's batch of `size` sequences, of which the first ones decode; the same for all layers."""
        if self._decoding is None:
            self._decoding = {"positions": self.positions[:size], "counts": self.counts[:size], "lengths": self.lengths[:size],
                              "table": self.table[:size], "starts": self.starts[:size + 1], "gather": self.gather[:size].flatten()}
        return self._decoding

    @property
    def rows(self) -> int:
        """Rows of all sequences."""
        return self.prompts[-1].first + self.prompts[-1].rows if self.prompts else self.decode_rows

    @property
    def longest_prompt(self) -> int:
        return max(prompt.rows for prompt in self.prompts)


def split(starts: list[int], query_tokens: int) -> int:
    """How many sequences decode: the first ones, up to the first with more than `query_tokens` rows. Engines sort
    batches so."""
    for sequence, (first, end) in enumerate(zip(starts, starts[1:])):
        if end - first > query_tokens:
            return sequence
    return len(starts) - 1


class Table:
    """A block table in memory that stays in place, which captured graphs read."""

    def __init__(self, sequences: int, columns: int, device: torch.device):
        self.rows = torch.zeros(power_of_two(sequences), columns, dtype=torch.int32, device=device)

    def take(self, table: torch.Tensor, count: int) -> torch.Tensor:
        """Copy the rows of a step's first `count` sequences. table: int32, of any width."""
        columns = min(table.shape[1], self.rows.shape[1])
        self.rows[:count, :columns].copy_(table[:count, :columns])
        return self.rows


class Batches:
    """Makes a Batch of each step, in memory of its own that stays in place.

    sequences: of a step, at most. columns: of the block table. query_tokens: rows of a sequence that decodes, at
    most. piece_tokens: of a Piece, at most; whole pages. begin_tokens: whole pages, of which what is before the first
    Piece is a multiple. sliding_window: the newest tokens that a token sees, its own among them; 0: all.
    """

    def __init__(self, *, sequences: int, columns: int, page_tokens: int, query_tokens: int, piece_tokens: int,
                 device: torch.device, begin_tokens: int = 0, sliding_window: int = 0):
        self.room, self.page_tokens = columns * page_tokens, page_tokens
        self.begin_tokens, self.sight = begin_tokens or page_tokens, Sight(sliding_window)
        self.query_tokens, self.piece_tokens = query_tokens, piece_tokens
        held = power_of_two(sequences)
        zeros = lambda *shape: torch.zeros(shape, dtype=torch.int32, device=device)
        self.lengths, self.counts, self.positions, self.new_tokens = (zeros(held) for _ in range(4))
        self.starts, self.gather = zeros(held + 1), zeros(held, query_tokens)
        self._table = Table(sequences, columns, device)
        self.table = self._table.rows
        self._places = torch.arange(query_tokens, dtype=torch.int32, device=device)

    def build(self, starts: list[int], lengths_bound: list[int] | None, starts_on_device: torch.Tensor,
              lengths: torch.Tensor, table: torch.Tensor, most_tokens: int, *, capture: bool = False) -> Batch:
        """Describe a step.

        starts: where each sequence's query rows begin, and their end, on the host. lengths_bound: tokens of each
        sequence with its new ones, on the host: exact for prompts; None copies them from the device if there are any.
        starts_on_device, lengths, table: as they are in device memory, int32, of as many sequences. most_tokens: at
        least the longest sequence's. capture: the batch is of a graph, which has to serve sequences of any length.
        """
        count, decodes = len(starts) - 1, split(starts, self.query_tokens)
        begin, end = starts_on_device[:count], starts_on_device[1:count + 1]
        torch.sub(end, begin, out=self.new_tokens[:count])
        torch.sub(lengths[:count], self.new_tokens[:count], out=self.positions[:count])
        self._table.take(table, count)
        for own, given in ((self.lengths, lengths), (self.counts, self.new_tokens)):
            own[:decodes].copy_(given[:decodes])
            own[decodes:].zero_()
        if self.query_tokens > 1:
            self.starts[:decodes + 1].copy_(starts_on_device[:decodes + 1])
            self.starts[decodes + 1:] = self.starts[decodes]
            torch.add(self.starts[:-1, None], self._places, out=self.gather)
            self.gather.clamp_(max=max(starts[decodes] - 1, 0))
        batch = Batch(decodes, starts[decodes], self.room if capture else min(most_tokens, self.room), [], self.lengths,
                      self.counts, self.starts, self.gather, self.positions, self.new_tokens, self.table)
        if decodes < count:
            bounds = lengths.tolist() if lengths_bound is None else lengths_bound
            batch.prompts = [self._prompt(each, starts, bounds) for each in range(decodes, count)
                             if starts[each + 1] > starts[each]]
            batch.prompt_starts = starts_on_device[decodes:count + 1] - starts_on_device[decodes]
        return batch

    def _prompt(self, sequence, starts, lengths):
        first, rows = starts[sequence], starts[sequence + 1] - starts[sequence]
        prompt = Prompt(sequence, first, rows, lengths[sequence] - rows)
        if prompt.before:
            prompt.starts = self._ends(rows)
        seen = self.sight.first_seen(prompt.before + 1) // self.begin_tokens * self.begin_tokens
        for begin in range(seen, prompt.before, self.piece_tokens):
            tokens = min(self.piece_tokens, prompt.before - begin)
            table = self.table[sequence:sequence + 1, begin // self.page_tokens:]
            held = self.positions[sequence:sequence + 1]
            prompt.pieces.append(Piece(begin, tokens, table, held - begin if begin else held, self._ends(tokens)))
        return prompt

    def _ends(self, count):
        return torch.tensor([0, count], dtype=torch.int32, device=self.table.device)
