"""Steps of a model over a cache, all of one shape, as CUDA graphs on a GPU."""

from __future__ import annotations

import contextlib
import inspect

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

# What transformers calls the cache: models take it and return it by this name.
_CACHE = "cache" if "cache" in inspect.signature(CausalLMOutputWithPast).parameters else "past_key_values"


@contextlib.contextmanager
def captured(model, cache):
    """Inside it, steps that the model takes with `cache` are replays of CUDA graphs, one for each
    kernel of the attention; generate() takes them too. A step is a pass over one token, or over up to
    drafts + 1 of a cache with drafts: all of them have as many rows, so that a token's logits do not
    depend on how many came with it. On the CPU steps are computed so without graphs. All else is as
    without. Shape and type of the tokens stay those of the first step. Positions are those that
    follow each sequence, and the mask of a step of one token is not read: that token is real.
    """
    steps = _Steps(model, cache)
    model.forward = steps  # of this object alone, over its class's
    try:
        yield
    finally:
        del model.forward


class _Steps:
    """What stands for a model's forward() while its steps are captured."""

    def __init__(self, model, cache):
        self.cache, self.forward = cache, model.forward
        self.rows = cache.tokens.drafts + 1
        self.graphs = {}  # by bucket: graph and logits
        self.tokens = self.pool = None
        self.__signature__ = inspect.signature(self.forward)  # which generate() reads

    def __call__(self, *positional, **named):
        tokens = named.get("input_ids", positional[0] if positional else None)
        if tokens is None or named.get("past_key_values", named.get(_CACHE)) is not self.cache:
            return self.forward(*positional, **named)
        count, kept = tokens.shape[1], named.get("logits_to_keep")
        drafts = kept - 1 if isinstance(kept, int) else 0
        if count > self.rows and 0 < drafts < self.rows and not positional:
            return self.prompt_and_drafts(named, drafts)
        mask = named.get("attention_mask")
        if count > self.rows or (count > 1 and mask is not None and not mask[:, -count:].all()):
            return self.forward(*positional, **named)
        return CausalLMOutputWithPast(logits=self.step(tokens), **{_CACHE: self.cache})

    def prompt_and_drafts(self, named, drafts):
        """The prompt by itself, as it is read where no draft comes with it, and its drafts as a step
        behind it."""
        parts = [{**named, "input_ids": part, "logits_to_keep": keep} for part, keep in zip(
            named["input_ids"].tensor_split([-drafts], 1), (1, drafts))]
        for name in ("attention_mask", "position_ids"):
            if named.get(name) is not None:
                parts[0][name] = named[name][..., :-drafts]
        logits = [self(**part).logits for part in parts]
        return CausalLMOutputWithPast(logits=torch.cat(logits, 1), **{_CACHE: self.cache})

    @torch.no_grad()
    def step(self, tokens):
        state, count = self.cache.tokens, tokens.shape[1]
        state.require_room(self.rows)
        before = state.seen
        rows = torch.nn.functional.pad(tokens, (0, self.rows - count))
        if rows.is_cuda:
            bucket = self.cache.bucket(min(before + self.rows, state.room))
            if bucket not in self.graphs:
                self.graphs[bucket] = self.capture(rows)
            graph, logits = self.graphs[bucket]
            self.tokens.copy_(rows)
            graph.replay()
            logits = logits[:, :count].clone()
        else:
            logits = self.all_rows(rows)[:, :count]
        state.stepped(before, count)
        return logits

    def all_rows(self, tokens):
        """Logits of tokens [batch, rows]."""
        state = self.cache.tokens
        positions = (state.lengths + state.held)[:, None].long() + torch.arange(
            self.rows, device=tokens.device)
        return self.forward(input_ids=tokens, position_ids=positions, use_cache=True,
                            **{_CACHE: self.cache}).logits

    def capture(self, tokens):
        state = self.cache.tokens
        if self.tokens is None:
            self.tokens, self.pool = tokens.clone(), torch.cuda.graph_pool_handle()
        if state.drafts:
            self.cache.settle()  # which the step that warms up would have written over
        kept = state.kept()
        try:
            return self.captured(tokens, kept)
        except BaseException:
            state.restore(kept)  # what a step is refused for leaves the lengths as they were
            raise

    def captured(self, tokens, kept):
        state = self.cache.tokens
        state.seen = min(state.seen, state.room - self.rows)  # begin() needs no look at the device
        stream = torch.cuda.Stream(tokens.device)
        stream.wait_stream(torch.cuda.current_stream(tokens.device))
        with torch.cuda.stream(stream):  # kernels are compiled here; the real step writes over it
            self.all_rows(self.tokens)
        torch.cuda.current_stream(tokens.device).wait_stream(stream)
        state.restore(kept)
        state.seen = min(state.seen, state.room - self.rows)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            logits = self.all_rows(self.tokens)
        state.seen = kept[0]  # nothing ran
        return graph, logits
