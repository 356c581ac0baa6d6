"""Cascade attention over pages: a prefix that sequences share is read once for all of them.

The query tokens of the sequences of a group are those of one sequence, the prefix, all of which they see (shared_prefix).
Each sequence's own tokens have the same pages less those of the prefix. Results are merged by their log-sum-exp.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch

import vqgen
from vqgen import _arrays
from vqgen._appends import power_of_two
from vqgen._config_text import config_text
from vqgen._op_configs import parsed

__all__ = ["Cascade", "Prefixes"]

MOST_ROWS = 64  # query tokens of a prefix, as a config takes them
_REFUSED = {
    "sliding_window": "hides other tokens of a prefix from each sequence; attend without Cascade",
    "attention_chunk": "hides other tokens of a prefix from each sequence; attend without Cascade",
    "sinks": "are full-precision rows of each sequence, and a prefix is read from codes; set 0, or attend without Cascade",
    "batch_invariant": "is for results that do not depend on who shares a prefix; attend without Cascade",
}


@dataclass
class Prefixes:
    """What the sequences of a step share, made by Cascade.prefixes(). groups: (sequences, tokens) of each prefix. The
    rest is what the calls of a step take."""

    groups: list[tuple[list[int], int]]
    lengths: torch.Tensor  # of the sequences' own tokens
    table: torch.Tensor
    raw_table: torch.Tensor | None
    query_start: torch.Tensor | None
    own_tokens: int  # the most of a sequence
    rows: torch.Tensor | None = None  # int64, the query tokens of the groups in their order; None: all in order
    # The prefixes' part: each is there once for as many query tokens as a call takes.
    config: str = ""
    starts: torch.Tensor | None = None
    prefix_lengths: torch.Tensor | None = None
    prefix_table: torch.Tensor | None = None
    prefix_tokens: int = 0


class Cascade:
    """Attention of a config (its JSON) over pages in which a prefix that several sequences share is read once for them.

    Its results differ from those of the config's attention by rounding alone. Raises Infeasible for what a prefix does not
    take: windows that hide tokens, sinks, batch-invariant results, and formats with group_tokens.
    """

    def __init__(self, config: str):
        self.config, self._parsed = config, parsed(config)
        shape = self.shape = self._parsed.get("shape", {})
        if self._parsed["op"] != "attention_decode" or not shape.get("page_tokens"):
            raise vqgen.BadInput("Cascade: the config is of no attention_decode with page_tokens, and pages say what is shared; "
                                 "set shape.page_tokens")
        for name, why in _REFUSED.items():
            if shape.get(name):
                raise vqgen.Infeasible(f"Cascade: {name} of the config {why}")
        for operand in ("keys", "values"):
            if vqgen.format_fields(self._parsed[operand]).get("group_tokens"):
                raise vqgen.Infeasible(f"Cascade: {operand} of the config are encoded group_tokens at a time, which a prefix does not "
                                       "take; attend without Cascade")
        self.page_tokens, self.recent_tokens = shape["page_tokens"], shape.get("recent_tokens", 0)
        self.query_tokens, self.raw_page_tokens = shape.get("query_tokens", 1), shape.get("raw_page_tokens", 0)
        # Behind so many tokens, pages and slots are as if a sequence began there.
        self.unit = math.lcm(self.page_tokens, shape.get("flush_block", 1), self.raw_page_tokens or self.recent_tokens or 1)
        rows = shape["batch"] * self.query_tokens
        self._merge = config_text({"op": "attention_merge", "dtype": self._parsed.get("dtype", "f16"), "shape": {
            "rows": rows, "heads": shape["query_heads"], "parts": 2,
            "head_dim": shape.get("value_head_dim", shape["head_dim"])}})

    def prefixes(self, block_table, lengths, *, query_start=None, raw_block_table=None, groups=None, least_tokens: int = 256,
                 host_table=None, host_lengths=None, host_query_start=None) -> Prefixes:
        """Find what sequences share, or check `groups`, which are (sequences, tokens) each.

        block_table, lengths, query_start, raw_block_table: int32, as of vqgen.Attention. host_*: the same on the host,
            for callers that have them; without, these are copied from the device, which waits for it.
        least_tokens: of a prefix that is found.

        A prefix has whole pages, whole flush blocks and, with recent_tokens, whole rings of slots or whole raw pages
        (`unit` tokens), before every full-precision window; with query_tokens above 1, before all query tokens. Raises
        BadInput for groups that do not, or whose pages differ. The result holds for this table and these lengths, and its
        kernels are compiled: there are some for each power of two of query tokens of a group, and of prefixes.
        """
        batch = self.shape["batch"]
        table = (block_table if host_table is None else host_table).cpu()
        held = (lengths if host_lengths is None else host_lengths).tolist()
        if table.dim() != 2 or len(table) != batch or len(held) != batch:
            raise vqgen.BadInput(f"Cascade: block_table is {list(table.shape)} and lengths [{len(held)}], and the config has batch "
                                 f"{batch}; give a row and a length for each sequence")
        starts = list(range(batch + 1))
        if self.query_tokens > 1:
            if query_start is None:
                raise vqgen.BadInput("Cascade: query_start is missing, and query_tokens of the config is more than 1; give where "
                                     "each sequence's rows begin")
            starts = (query_start if host_query_start is None else host_query_start).tolist()
        counts = [min(end - first, self.query_tokens) for first, end in zip(starts, starts[1:])]
        behind = [self.recent_tokens + (count if self.query_tokens > 1 else 0) for count in counts]
        room = [max(min(length, table.shape[1] * self.page_tokens) - each, 0) // self.unit * self.unit
                for length, each in zip(held, behind)]
        if groups is None:
            groups = list(self._found(table, room, counts, max(least_tokens, self.unit)))
        else:
            groups = self._checked(groups, table, held, room)
        before = torch.zeros(batch, dtype=torch.int32)
        for sequences, tokens in groups:
            before[sequences] = tokens
        most = max((length - int(tokens) + count for length, tokens, count in zip(held, before, counts)), default=1)
        before = before.to(lengths.device)
        shared = Prefixes(groups, lengths - before, self._behind(block_table, before, self.page_tokens), None, query_start,
                          min(max(most, 1), self.shape["tokens"]))
        if raw_block_table is not None:
            shared.raw_table = self._behind(raw_block_table, before, self.raw_page_tokens)
        if groups:
            self._add_products(shared, block_table, starts, counts)
        return shared

    def attention(self, shared: Prefixes, query, *cache, softmax_scale: float = 0.0, **named):
        """(out, lse) of torch.ops.vqgen.attention(config, query, *cache, ...), of the table, the lengths and the query_start
        that `shared` was made of; named: its other tensors by their names."""
        attend = torch.ops.vqgen.attention
        own = attend(self.config, query, *cache, shared.lengths, block_table=shared.table, query_start=shared.query_start,
                     raw_block_table=shared.raw_table, tokens=shared.own_tokens, softmax_scale=softmax_scale, **named)
        if not shared.groups:
            return own
        of_format = {name: named.get(name) for name in ("key_smooth", "key_mean", "key_rotation", "value_mean", "value_rotation")}
        rows = shared.rows
        first = attend(shared.config, query if rows is None else query.index_select(0, rows), *cache, shared.prefix_lengths,
                       block_table=shared.prefix_table, query_start=shared.starts, tokens=shared.prefix_tokens,
                       softmax_scale=softmax_scale, **of_format)
        if rows is None:
            return torch.ops.vqgen.merge(self._merge, [first[0], own[0]], [first[1], own[1]])
        part = [each.index_select(0, rows) for each in own]
        whole = torch.ops.vqgen.merge(self._merge, [first[0], part[0]], [first[1], part[1]])
        return tuple(each.index_copy_(0, rows, of_rows) for each, of_rows in zip(own, whole))

    def _behind(self, table, before, page_tokens):
        """A table from each sequence's token `before` on; what is behind its columns repeats the last."""
        columns = torch.arange(table.shape[1], device=table.device) + (before // page_tokens)[:, None]
        return table.gather(1, columns.clamp_(max=table.shape[1] - 1))

    def _found(self, table, room, counts, least):
        """Groups of sequences whose first pages are equal, each time as many as save most tokens."""
        classes = {}
        for sequence, tokens in enumerate(room):
            if tokens >= least and counts[sequence] > 0:
                classes.setdefault(int(table[sequence, 0]), []).append(sequence)
        for members in classes.values():
            members.sort(key=lambda sequence: -room[sequence])
            while len(members) > 1:
                same = self._same_tokens(table, members, room)
                saved = [tokens * number if tokens >= least else 0 for number, tokens in enumerate(same)]
                best = max(range(len(members)), key=saved.__getitem__)
                if saved[best] == 0:
                    break
                taken = [each for each, tokens in zip(members, same) if tokens >= same[best]]
                yield sorted(taken), same[best]
                members = [each for each in members if each not in taken]

    def _same_tokens(self, table, members, room):
        """For each member: the tokens that it and those before it share with the first."""
        rows = table[members]
        pages = (rows == rows[0]).long().cumprod(1).sum(1).tolist()
        return list(itertools.accumulate((min(room[each], count * self.page_tokens // self.unit * self.unit)
                                          for each, count in zip(members, pages)), min))

    def _checked(self, groups, table, lengths, room):
        seen, checked = {}, []
        for number, (sequences, tokens) in enumerate(groups):
            where = f"Cascade: groups[{number}]"
            sequences = [_arrays.whole(f"a sequence of groups[{number}]", each, 0, len(lengths) - 1) for each in sequences]
            tokens = _arrays.whole(f"tokens of groups[{number}]", tokens, 0)
            if tokens % self.unit:
                raise vqgen.BadInput(f"{where} has a prefix of {tokens} tokens, no multiple of {self.unit}, as pages, flush blocks "
                                     f"and slots of the config take; give {tokens // self.unit * self.unit}")
            for each in sequences:
                if each in seen:
                    raise vqgen.BadInput(f"{where} has sequence {each}, which groups[{seen[each]}] has too; leave it in one")
                seen[each] = number
                if tokens > lengths[each]:
                    raise vqgen.BadInput(f"{where} has a prefix of {tokens} tokens, and sequence {each} has {lengths[each]}; give a "
                                         "prefix that all of its sequences have")
                if tokens > room[each]:
                    raise vqgen.BadInput(f"{where} has a prefix of {tokens} tokens, and sequence {each} can share {room[each]} of its "
                                         f"{lengths[each]}, without its query tokens, those in full precision and those past the "
                                         f"block table; give {room[each]} at most")
            pages = table[sequences, :tokens // self.page_tokens]
            differs = (pages != pages[:1]).nonzero()
            if len(differs):
                other, page = differs[0].tolist()
                raise vqgen.BadInput(f"{where}: sequences {sequences[0]} and {sequences[other]} have pages {int(pages[0, page])} and "
                                     f"{int(pages[other, page])} in column {page} of the block table; group sequences that share pages")
            if tokens and sequences:
                checked.append((sequences, tokens))
        return checked

    def _add_products(self, shared, block_table, starts, counts):
        """Shares out the query tokens of each group evenly among prefixes of at most MOST_ROWS of them."""
        rows, products = [], []
        for sequences, tokens in shared.groups:
            own = [starts[each] + i for each in sequences for i in range(counts[each])]
            if not own:
                continue
            share = -(-len(own) // -(-len(own) // MOST_ROWS))
            for first in range(0, len(own), share):
                products.append((sequences[0], tokens, len(own[first:first + share])))
            rows += own
        if not products:
            shared.groups = []
            return
        device, number = block_table.device, power_of_two(len(products))
        ends = list(itertools.accumulate(count for _, _, count in products))
        tensor = lambda values: torch.tensor(values, dtype=torch.int32, device=device)
        padding = [0] * (number - len(products))
        shared.starts = tensor([0, *ends, *(ends[-1] for _ in padding)])
        shared.prefix_lengths = tensor([tokens for _, tokens, _ in products] + padding)
        shared.prefix_table = block_table[tensor([first for first, _, _ in products] + padding).long()].contiguous()
        shared.prefix_tokens = max(tokens for _, tokens, _ in products)
        shared.config = self._prefix_config(number, max(2, power_of_two(max(count for _, _, count in products))))
        if rows != list(range(starts[-1])) or starts[0]:
            shared.rows = torch.tensor(rows, dtype=torch.int64, device=device)
        for config in (self.config, shared.config, self._merge):
            vqgen.torch.prepare(config, device)

    def _prefix_config(self, batch, query_tokens):
        shape = {name: self.shape[name] for name in ("query_heads", "kv_heads", "head_dim", "value_head_dim", "tokens", "page_tokens",
                                                     "logit_softcap")
                 if self.shape.get(name)}
        kept = {name: value for name, value in self._parsed.items() if name not in ("shape", "plan")}
        return config_text(kept | {"shape": shape | {"batch": batch, "query_tokens": query_tokens, "shared_prefix": True}})
