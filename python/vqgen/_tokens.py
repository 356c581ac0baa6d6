"""How many tokens the sequences of a cache have, and what passes do to that."""

from __future__ import annotations

import contextlib

import torch
from transformers.cache_utils import CacheLayerMixin

import vqgen
from vqgen._opaque import Sealed
from vqgen._sights import Sight


class Tokens:
    """How many tokens the sequences have, which all layers share; and what the layers share of the
    prompt that is being read. With `drafts`, a pass over up to drafts + 1 tokens is a step: they are
    held beside the cache until the next pass, which appends those that were not rejected meanwhile.

    A pass calls turn() of each layer, in order. What a pass is refused for before its begin() changed
    anything leaves all as it was."""

    @torch.inference_mode(False)  # as of vqgen.torch.VQCache
    def __init__(self, batch: int, room: int, device, drafts: int = 0, layers: int = 1):
        self.room, self.drafts, self.layers = room, drafts, layers
        self.next_layer = 0  # whose turn it is; None: a pass failed midway
        self.begun = False  # the pass that goes on has changed something
        self.seen = 0  # of the batch so far, with padding
        self.earlier = 0  # what it was before the pass that goes on
        self.padded = False  # some sequence is shorter than `seen`
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=device)  # in the cache
        self.positions = torch.zeros_like(self.lengths)  # of each sequence's first new token
        self.counts = self.order = self.order_back = None
        self.is_step = False  # the pass that goes on
        self.held = torch.zeros_like(self.lengths)  # tokens of the newest step
        self.most_taken_back = 0
        # How many of the step before are appended, and where.
        self.settled, self.settled_at = torch.zeros_like(self.held), torch.zeros_like(self.held)
        self.starts = {tokens: torch.arange(batch + 1, dtype=torch.int32, device=device) * tokens
                       for tokens in range(1, drafts + 2)}  # of each sequence's rows in a step

    @property
    def longest(self) -> int:
        """No sequence is longer."""
        return min(self.seen, self.room)

    def require_room(self, tokens: int, counts=None) -> None:
        """For as many more; counts: int32 [batch], where sequences get fewer."""
        if self.seen + tokens > self.room:
            new = tokens if counts is None else counts
            if (self.lengths + self.held + new > self.room).any():
                raise vqgen.RangeError(f"the cache has room for {self.room} tokens a sequence, and "
                                       "they are more now; make a larger one")

    @contextlib.contextmanager
    def turn(self, number: int):
        """The turn of a layer in the current pass; layer 0 calls begin() inside it."""
        if self.next_layer is None or (number == 0 and self.next_layer > 0):
            raise vqgen.BadInput("past_key_values: an earlier pass failed midway, or layers attend more than once in a "
                                 "pass, which is not served; call reset() on the cache")
        if number != self.next_layer:
            raise vqgen.Infeasible(f"past_key_values: layer {number} attends where layer {self.next_layer} is next; a "
                                   "VQCache serves models whose layers each attend once, in order")
        try:
            yield
        except BaseException:
            if self.begun:
                self.begun, self.next_layer = False, None
                if self.earlier == 0:  # nothing was there before
                    self.reset()
            raise
        self.next_layer = (number + 1) % self.layers
        self.begun = self.next_layer > 0

    def _counts_of(self, tokens: int, padding):
        """How many of `tokens` are real in each sequence, int32 [batch], or None where all are; and refuses
        a mask by which an earlier token is padding now, or was then. It looks at the device once, except for
        the first pass with padding."""
        if padding is None or (not self.padded and padding.all()):
            return None
        new = padding[:, -tokens:]
        as_stored = padding[:, :-tokens].sum(1) == self.lengths + self.held
        as_stored, whole = torch.stack((as_stored.all(), new.all())).tolist()
        if not as_stored:
            raise vqgen.BadInput("attention_mask: it differs from that of earlier passes in their tokens, and a VQCache "
                                 "does not hide a token later; give the mask by which they were read, with the new ones")
        return None if whole else new.sum(1, dtype=torch.int32)

    def begin(self, tokens: int, padding, steps: bool = True) -> None:
        """A forward pass over `tokens` more. padding: bool [batch, tokens so far], true where one is real, or
        None where those of this pass are and earlier ones are as they were. steps: it may be a step."""
        counts = self._counts_of(tokens, padding)
        self.require_room(tokens, counts)
        self.begun = True
        self.counts, self.order, self.order_back = counts, None, None
        if counts is not None:
            self.padded = True
            if tokens > 1:
                self.order = padding[:, -tokens:].long().argsort(dim=1, descending=True, stable=True)
                self.order_back = self.order.argsort(1)
        self.is_step = steps and self.counts is None and tokens <= self.drafts + 1 and self.drafts > 0
        if self.drafts:
            self.settled_at.copy_(self.lengths)
            self.settled.copy_(self.held)
            self.lengths.add_(self.held)
            self.held.fill_(tokens if self.is_step else 0)
        self.positions.copy_(self.lengths)
        if not self.is_step:
            self.lengths.add_(tokens if self.counts is None else self.counts)
        self.earlier = self.seen
        self.seen += tokens
        self.most_taken_back = tokens if self.is_step else 0

    def stepped(self, before: int, tokens: int) -> None:
        """A step was of `tokens`, and `before` of the batch came before it; what its rows have beyond
        is taken back."""
        self.seen = before + tokens
        if self.drafts:
            self.held.fill_(tokens)
            self.most_taken_back = tokens

    def take_back(self, tokens: int) -> None:
        """The newest of each sequence, which a step held."""
        if tokens > self.most_taken_back:
            raise vqgen.Infeasible(
                f"{tokens} tokens are to be taken back, and the cache can take back "
                f"{self.most_taken_back}: make it with drafts of as many tokens, and generate inside "
                "vqgen.hf.captured()")
        self.held.sub_(tokens)
        self.seen -= tokens
        self.most_taken_back -= tokens

    def reset(self) -> None:
        self.seen, self.padded, self.most_taken_back = 0, False, 0
        self.next_layer, self.begun = 0, False
        self.lengths.zero_()
        self.held.zero_()

    def kept(self):
        """What restore() brings back, where no tokens are held."""
        return self.seen, self.lengths.clone()

    def restore(self, kept) -> None:
        self.seen = kept[0]
        self.lengths.copy_(kept[1])
        self.held.zero_()


class TokensLayer(CacheLayerMixin):
    """One layer of a cache whose layers share their Tokens; the first one counts. What update() hands
    on is opened by vqgen's attention alone, which calls attend()."""

    def __init__(self, tokens: Tokens, number: int, sight: Sight = Sight()):
        super().__init__()
        self.tokens, self.number, self.sight = tokens, number, sight

    @property
    def is_initialized(self) -> bool:
        """True once the layer has tokens; a model of images tells the first pass over a prompt by it."""
        return self.tokens.seen > 0

    @is_initialized.setter
    def is_initialized(self, _) -> None:
        pass  # which transformers sets to false

    def attend(self, query, key, value, scaling: float, padding, sinks, sees=None):
        """Out [batch, tokens, query_heads, head_dim] of query [batch, query_heads, tokens, head_dim] over what
        is held and these new keys and values [batch, kv_heads, tokens, head_dim], which it then holds. padding:
        as of Tokens.begin(), which layer 0 calls. sinks: [query_heads] sink logits, or None. sees: as of
        prompt_attention()."""
        raise NotImplementedError

    def lazy_initialization(self, key_states, value_states):
        pass

    def update(self, key_states, value_states, *_, **__):
        return Sealed(self, key_states), Sealed(self, value_states)

    def get_mask_sizes(self, query_length):
        return self.tokens.seen + query_length, 0

    def get_seq_length(self):
        return self.tokens.seen

    def get_max_length(self):
        return self.tokens.room

    def reset(self):
        self.tokens.reset()

    def _refuse(self, *_, **__):
        raise vqgen.Infeasible("past_key_values: a VQCache cannot be reordered, repeated, cut to some sequences or moved "
                               "to another device; generate without beams, over a cache made for the batch")

    reorder_cache = batch_repeat_interleave = batch_select_indices = offload = prefetch = _refuse
