"""A scheduler like vLLM's over layers of vqgen.vllm, judged by plain attention in double precision over what the pages hold,
for tests."""

import collections
import dataclasses

import numpy as np
import torch

import reference
from vqgen._sights import Sight
from vqgen.vllm._batch import Batches, Table
from vqgen.vllm._pages import Kernels, Layer, Raw, Shape, warm
from vllm_reference import (DEVICE, DIM, FORM, HEADS, KV_HEADS, PAGE, SCALE, attend, books_of, dense, expected,
                            require_nearest, tensor)

TOKENS, PAGES, SEQUENCES, ROWS = 96, 21, 4, 80
COLUMNS = TOKENS // PAGE
RAW_PAGE, RAW_PAGES = 8, 44
PREFIX = 2 * PAGE  # tokens of prompts that begin alike
NOBODY = np.iinfo(np.int32).max


@dataclasses.dataclass
class Request:
    number: int
    prefix: int
    prompt: int
    fresh: np.ndarray  # [2, tokens, kv_heads, dim]
    query: np.ndarray  # [tokens, heads, dim]
    done: int = 0
    held: dict = dataclasses.field(default_factory=dict)  # Pool -> pages

    @property
    def tokens(self):
        return self.fresh.shape[1]


class Pool:
    """Pages of `tokens` for a group of layers, `window` newest tokens of which a token sees, or all if it is 0. Pages that
    no later token can see are freed and written by others, and `null` takes their places; a prefix is found where those
    of its window are still there."""

    def __init__(self, pages, tokens, window, null):
        self.tokens, self.window, self.count, self.null = tokens, window, len(pages), null
        self.free, self.users, self.cached = collections.deque(pages), collections.Counter(), {}

    def pages(self, request):
        return request.held.setdefault(self, [])

    def drop(self, pages, before=TOKENS + RAW_PAGE):
        """Let go of pages whose tokens are all before that one."""
        for number, page in enumerate(pages[:max(before, 0) // self.tokens]):
            if page == self.null:
                continue
            pages[number] = self.null
            self.users[page] -= 1
            if self.users[page] == 0:
                self.free.append(page)
                self.cached = {prefix: held for prefix, held in self.cached.items() if page not in held}

    def grow(self, request, tokens):
        """Pages for as many tokens, of which request.done are there; False if there are none."""
        pages = self.pages(request)
        if self.window:
            self.drop(pages, request.done + 1 - self.window)
        while len(pages) * self.tokens < tokens and self.free:
            pages.append(self.free.popleft())
            self.users[pages[-1]] += 1
        return len(pages) * self.tokens >= tokens

    def keep(self, request, prefix):
        """The request's prefix can be found from now on, if its window is there."""
        first = max(PREFIX + 1 - self.window, 0) // self.tokens if self.window else 0
        own = self.pages(request)[first:PREFIX // self.tokens]
        if self.null not in own:
            self.cached.setdefault(prefix, [self.null] * first + own)

    def hit(self, request):
        request.held[self] = list(self.cached[request.prefix])
        self.users.update(page for page in request.held[self] if page != self.null)

    def table(self, planned, columns):
        table = np.full((len(planned), columns), NOBODY, np.int32)
        for row, (request, _) in enumerate(planned):
            table[row, :len(request.held[self])] = request.held[self]
        return tensor(table)


class Group:
    """A layer, which is all of its group of the cache, and how it is judged."""

    def __init__(self, engine, draw, sight):
        sinks = torch.from_numpy(draw.uniform(-1, 4, HEADS)).to(torch.bfloat16) if sight.sink_logits else None
        self.sight, self.sinks = sight, None if sinks is None else sinks.double().numpy()
        self.recent, self.step_tokens, shape = engine.recent, engine.step_tokens, engine.kernels.shape
        self.books = engine.books
        self.layer = Layer(engine.kernels, engine.books, attend, SCALE, sight, sinks)
        warm(engine.kernels, self.layer)
        self.pool = Pool((1 + draw.permutation(PAGES - 1)).tolist(), PAGE, sight.sliding_window, 0)
        # Pages of this layer lie between those of another one.
        noise = draw.integers(-1 << 31, 1 << 31, (PAGES, 2, *engine.kernels.cache_shape(1)[1:])).astype(np.int32)
        noise[0] = -1  # vLLM's null block, which nobody writes
        self.whole = tensor(noise)
        self.pages = self.whole[:, 1]
        self.batches = Batches(sequences=SEQUENCES, columns=COLUMNS, page_tokens=PAGE, query_tokens=shape.query_tokens,
                               piece_tokens=shape.piece_tokens, device=DEVICE, sliding_window=sight.sliding_window)
        if self.recent:
            self.raw_pages = torch.full(engine.kernels.raw_shape(RAW_PAGES), torch.nan, dtype=torch.float16, device=DEVICE)

    def step(self, planned, starts, lengths, bounds, query, key, value, raw_table, events):
        output = torch.full((len(query), HEADS, DIM), torch.nan, dtype=torch.float16, device=DEVICE)
        batch = self.batches.build(starts.tolist(), bounds, tensor(starts), tensor(lengths),
                                   self.pool.table(planned, COLUMNS + 2), int(max(bounds)))  # wider, as vLLM's may be
        before = self.whole.clone()
        raw = None if raw_table is None else Raw(self.raw_pages, raw_table)
        self.layer.forward(batch, query, key, value, self.pages, output, raw)
        self.judge(planned, starts, output.cpu().numpy(), events)
        touched = {page for request, _ in planned for page in request.held[self.pool][request.done // PAGE:]}
        kept = [page for page in range(PAGES) if page not in touched]
        assert torch.equal(self.whole[kept], before[kept]) and torch.equal(self.whole[:, 0], before[:, 0])
        events["mixed"] += 0 < batch.decodes < len(planned)
        events["later piece"] += any(prompt.pieces and prompt.pieces[0].begin for prompt in batch.prompts)

    def judge(self, planned, starts, output, events):
        for (request, count), first in zip(planned, starts):
            end, pages = request.done + count, np.array(request.held[self.pool])
            events["evicted"] += bool((pages == 0).any())
            keys, values = held = dense(self.pages, self.books, pages, end)
            for fresh, own, name in zip(request.fresh, held, ("keys", "values")):
                require_nearest(fresh[request.done:end], own[request.done:], self.books[f"{name}.codebooks"])
            if count > self.step_tokens:  # new tokens see each other as they are
                events["chunk" if request.done else "prompt"] += 1
                raw = max(request.done - max(self.recent - 1, 0), 0)
                keys, values = (np.concatenate([own[:raw], fresh[raw:end]]) for own, fresh in zip(held, request.fresh))
            for row in range(count):
                seen = request.done + row + 1
                if count <= self.step_tokens and self.recent:
                    raw = max(seen - self.recent, 0)
                    keys, values = (np.concatenate([own[:raw], fresh[raw:end]]) for own, fresh in zip(held, request.fresh))
                wanted = expected(request.query[seen - 1], keys[:seen], values[:seen], self.sight, self.sinks)
                assert reference.worst(output[first + row], wanted) < 4e-3, (self.sight, request.done, count, row)


class Engine:
    """Schedules requests as vLLM does: those that decode first, prompts in chunks of what is left of a step's rows,
    prefixes found by whole pages, also pages that another request fills in the same step, and preemption. `recent` tokens
    are in full precision; `sights` are those of its layers."""

    def __init__(self, draw, drafts, recent, sights):
        self.draw, self.step_tokens, self.recent, self.books = draw, drafts + 1, recent, books_of(draw)
        shape = Shape(HEADS, KV_HEADS, DIM, PAGE, TOKENS, SEQUENCES, ROWS, query_tokens=drafts + 1, piece_tokens=2 * PAGE,
                      recent_tokens=recent, raw_page_tokens=RAW_PAGE if recent else 0)
        self.kernels = Kernels(shape, FORM, FORM, torch.float16, DEVICE, tuple(dict.fromkeys(sights)))
        self.groups = [Group(self, draw, sight) for sight in sights]
        self.pools = [group.pool for group in self.groups]
        self.raw = Pool(range(RAW_PAGES), RAW_PAGE, recent, NOBODY) if recent else None
        if recent:
            self.pools.append(self.raw)
            self.raw_table = Table(SEQUENCES, -(-TOKENS // RAW_PAGE), DEVICE)
        self.running, self.waiting, self.planned = [], collections.deque(), []
        self.events = collections.Counter()

    def let_go(self, request):
        for pool in self.pools:
            pool.drop(pool.pages(request))
        request.held = {}
        self.running.remove(request)

    def preempt(self, request):
        self.let_go(request)
        request.done = 0
        self.waiting.appendleft(request)
        self.events["preempted"] += 1

    def grow(self, request, tokens):
        """Pages for as many tokens; False if there are none, even by preemption of the newest request."""
        while not all([pool.grow(request, tokens) for pool in self.pools]):
            last = self.running[-1]
            self.preempt(last)
            self.planned = [each for each in self.planned if each[0] is not last]
            if last is request:
                return False
        return True

    def schedule(self):
        """[(request, new tokens)], those that decode first, otherwise in random order."""
        self.planned, left = [], ROWS
        for request in list(self.running):
            if request not in self.running:
                continue
            if request.done < request.prompt:
                count = min(request.prompt - request.done, left, int(self.draw.integers(5, 40)))
            else:
                count = min(request.tokens - request.done, left, int(self.draw.integers(1, self.step_tokens + 1)))
            if count and self.grow(request, request.done + count):
                self.planned.append((request, count))
                left -= count
        while self.waiting and len(self.running) < SEQUENCES and left > 4 and (
                min(len(group.pool.free) for group in self.groups) > 3):
            request = self.waiting.popleft()
            found = [request.prefix in pool.cached for pool in self.pools]
            self.events["hit without a window"] += any(found) and not all(found)
            if all(found):
                for pool in self.pools:
                    pool.hit(request)
                request.done = PREFIX
                self.events["hit"] += 1
                first = self.pools[0]
                self.events["hit in its step"] += any(
                    {*each.held[first]} & {*request.held[first]} - {first.null} for each, _ in self.planned if each.done == 0)
            self.running.append(request)
            count = min(request.prompt - request.done, left, int(self.draw.integers(PREFIX, 3 * PAGE)))
            if self.grow(request, request.done + count):
                self.planned.append((request, count))
                left -= count
                if request.prefix >= 0 and request.done + count >= PREFIX:  # vLLM: findable once they are scheduled
                    for pool in self.pools:
                        pool.keep(request, request.prefix)
        order = self.draw.permutation(len(self.planned))
        return sorted((self.planned[each] for each in order), key=lambda each: each[1] > self.step_tokens)

    def step(self):
        planned = self.schedule()
        if not planned:
            return
        counts = [count for _, count in planned]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        lengths = np.array([request.done + count for request, count in planned], np.int32)
        # Views of a fused product, with rows of padding behind.
        fused = np.full((starts[-1] + 3, HEADS + 2 * KV_HEADS, DIM), np.nan, np.float16)
        for row, (request, count) in enumerate(planned):
            span, new = slice(starts[row], starts[row + 1]), slice(request.done, request.done + count)
            fused[span, :HEADS], fused[span, HEADS:-KV_HEADS] = request.query[new], request.fresh[0, new]
            fused[span, -KV_HEADS:] = request.fresh[1, new]
        query, key, value = tensor(fused).split([HEADS, KV_HEADS, KV_HEADS], 1)
        bounds = (lengths + self.draw.integers(0, 3) * (np.array(counts) <= self.step_tokens)).tolist()
        raw = self.recent and self.raw_table.take(self.raw.table(planned, self.raw_table.rows.shape[1] + 1), len(planned))
        for group in self.groups:
            group.step(planned, starts, lengths, bounds, query, key, value, raw if self.recent else None, self.events)
        for request, count in planned:
            request.done += count
            if request.done == request.tokens:
                self.let_go(request)
                self.events["done"] += 1


def requests(draw, count):
    halves = lambda *shape: draw.standard_normal(shape).astype(np.float16)
    prefixes = [halves(2, PREFIX, KV_HEADS, DIM) for _ in range(3)]
    for number in range(count):
        prefix = int(draw.integers(-1, len(prefixes))) if number > 1 else 0  # the first two come together
        own = halves(2, int(draw.integers(8, 60)), KV_HEADS, DIM)
        fresh = np.concatenate([prefixes[prefix], own], 1) if prefix >= 0 else own
        prompt = fresh.shape[1] - int(draw.integers(1, 7))
        yield Request(number, prefix, prompt, fresh, halves(fresh.shape[1], HEADS, DIM))


def run(draw, drafts, recent, sights=(Sight(),), count=30):
    """What happened in a trace of as many requests, all of which end."""
    engine = Engine(draw, drafts, recent, sights)
    coming = collections.deque(requests(draw, count))
    engine.waiting.extend(coming.popleft() for _ in range(2))
    for step in range(400):
        for _ in range(min(len(coming), int(draw.integers(0, 3)))):
            engine.waiting.append(coming.popleft())
        if (step == 5 or draw.random() < 0.1) and engine.running:
            engine.preempt(engine.running[draw.integers(len(engine.running))])
        engine.step()
        if not (coming or engine.waiting or engine.running):
            break
    assert engine.events["done"] == count, engine.events
    assert all(len(set(pool.free)) == pool.count for pool in engine.pools)
    return engine.events
