"""A serving trace through pages: requests arrive, grow by chunks of their prompt and by drafts, share
prefixes, are
evicted and readmitted, in a batch of fixed size whose other sequences are inactive. On a GPU every step
replays
one captured CUDA graph."""

import collections
import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import reference
import vqgen
import vqgen.torch as vt

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MAX_BUCKETS = 1  # of the fixture own_cache
REQUESTS, BATCH, KV_HEADS, QUERY_HEADS, DIM = 200, 6, 1, 2, 64
QUERIES = 4  # tokens of a sequence in a step, at most
PAGE, TOKENS, PAGES = 16, 64, 15
COLUMNS = TOKENS // PAGE
NOBODY = np.iinfo(np.int32).max
FORM = {"vector_size": 4, "index_bits": 6}
WORDS = 3  # of a row


def tensor(array, kind=None):
    return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE, kind)


class Step:
    """Append and attend to new tokens, in a batch of fixed size: inputs and outputs stay in place, so that
    one
    captured graph serves all steps."""

    def __init__(self, batch, codes, **page_tokens):
        shape = {"batch": batch, "kv_heads": KV_HEADS, "head_dim": DIM, "tokens": TOKENS,
                 **page_tokens}
        both = {"keys": FORM, "values": FORM}
        self._append = vt.config_text({"op": "kv_append", "shape": {**shape, "new_tokens": QUERIES},
                                       **both})
        self._attention = vt.config_text({"op": "attention_decode", **both, "shape": {
            **shape, "query_heads": QUERY_HEADS, "query_tokens": QUERIES}})
        self._codes = codes
        whole = lambda *shape: torch.zeros(shape, dtype=torch.int32, device=DEVICE)
        halves = lambda *shape: torch.zeros(shape, dtype=torch.float16, device=DEVICE)
        self.keys, self.values = (halves(batch, QUERIES, KV_HEADS, DIM) for _ in "kv")
        self.query = halves(batch * QUERIES, QUERY_HEADS, DIM)
        self.positions, self.counts, self.lengths = (whole(batch) for _ in range(3))
        self.starts = whole(batch + 1)
        self.table = whole(batch, COLUMNS) if page_tokens else None
        self._graph = None

    def _queue(self):
        torch.ops.vqgen.append(self._append, self.keys, self.values, self.positions, *self._codes,
                               counts=self.counts, block_table=self.table, tokens=TOKENS)
        self.out, self.lse = torch.ops.vqgen.attention(
            self._attention, self.query, *self._codes, self.lengths, query_start=self.starts,
            block_table=self.table, tokens=TOKENS)

    def run(self):
        if DEVICE == "cpu":
            self._queue()
        elif self._graph is None:
            self._queue()  # prepares, and is this step
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._queue()
            self._graph.replay()  # the same tokens once more: the same codes
        else:
            self._graph.replay()
        return self.out.cpu().numpy(), self.lse.cpu().numpy()


@dataclasses.dataclass
class Request:
    number: int
    prefix: int  # of those that are shared; -1 without
    prefix_tokens: int
    prompt: int
    fresh: np.ndarray  # [2, tokens, kv_heads, head_dim]
    query: np.ndarray  # [tokens, query_heads, head_dim]
    done: int = 0
    pages: list = dataclasses.field(default_factory=list)
    results: list = dataclasses.field(default_factory=list)  # (token, out, lse)
    codes: list = dataclasses.field(default_factory=list)  # of keys and values, when it is done

    @property
    def tokens(self):
        return self.fresh.shape[1]


def requests(draw):
    halves = lambda *shape: draw.standard_normal(shape).astype(np.float16)
    prefixes = [halves(2, tokens, KV_HEADS, DIM) for tokens in (PAGE, PAGE, 2 * PAGE)]
    for number in range(REQUESTS):
        prefix = int(draw.integers(-1, len(prefixes)))
        first = prefixes[prefix] if prefix >= 0 else halves(2, 0, KV_HEADS, DIM)
        own = halves(2, int(draw.integers(1, 25)), KV_HEADS, DIM)
        fresh = np.concatenate([first, own], 1)
        tokens, prefix_tokens = fresh.shape[1], first.shape[1]
        yield Request(number, prefix, prefix_tokens,
                      prefix_tokens + int(draw.integers(1, own.shape[1] + 1)), fresh,
                      halves(tokens, QUERY_HEADS, DIM))


class Server:
    """Allocates pages, and steps through the requests that fit."""

    def __init__(self, draw):
        self.draw = draw
        order = reference.ORDERS[draw.integers(len(reference.ORDERS))]
        self.books = [tensor(draw.standard_normal((1, 1, 64, 4)).astype(np.float16)) for _ in "kv"]
        self.keys, self.values, self.whole = reference.pool(
            order, PAGES, KV_HEADS, PAGE, WORDS, WORDS, lambda shape: tensor(self.noise(shape)))
        self.step = Step(BATCH, (self.keys, self.books[0], None, self.values, self.books[1], None),
                         page_tokens=PAGE)
        self.free = collections.deque(draw.permutation(PAGES).tolist())
        self.users = collections.Counter()
        self.cached = {}  # the pages of a prefix that stands in the pool
        self.running = [None] * BATCH
        self.waiting = collections.deque()
        self.events = collections.Counter()

    def noise(self, shape):
        return self.draw.integers(-1 << 31, 1 << 31, shape).astype(np.int32)

    def let_go(self, request):
        """Free the pages that nobody else has, whose codes then belong to no request."""
        for page in request.pages:
            self.users[page] -= 1
            if self.users[page] > 0:
                continue
            self.free.append(page)
            self.cached = {prefix: pages for prefix, pages in self.cached.items()
                           if page not in pages}
            for pool in (self.keys, self.values):
                pool[page] = tensor(self.noise(tuple(pool[page].shape)))
        request.pages = []
        self.running[self.running.index(request)] = None

    def evict(self, request):
        self.let_go(request)
        request.done = 0
        self.waiting.appendleft(request)
        self.events["evicted"] += 1

    def admit(self):
        for slot in self.draw.permutation(BATCH):
            if self.running[slot] or not self.waiting or len(self.free) < 2:
                continue
            request = self.running[slot] = self.waiting.popleft()
            self.events["admitted"] += 1
            if request.prefix in self.cached:
                request.pages = list(self.cached[request.prefix])
                request.done = request.prefix_tokens
                self.events["shared"] += 1
            self.users.update(request.pages)

    def grow(self, request):
        """Return how many tokens come next, with pages for them; 0 if the request was evicted."""
        left = request.prompt - request.done
        count = min(left, QUERIES) if left > 0 else int(self.draw.integers(1, QUERIES + 1))
        count = min(count, request.tokens - request.done)
        while len(request.pages) * PAGE < request.done + count:
            if not self.free:
                last = max((each for each in self.running if each), key=lambda each: each.number)
                self.evict(last)
                if last is request:
                    return 0
                continue
            request.pages.append(self.free.popleft())
            self.users[request.pages[-1]] += 1
        return count

    def turn(self):
        self.admit()
        if self.draw.random() < 0.15 and any(self.running):
            self.evict(self.draw.choice([each for each in self.running if each]))
        counts = {}
        for request in [each for each in self.running if each]:
            if request in self.running:
                counts[request.number] = self.grow(request)
        step, starts = self.step, [0]
        table = np.full((BATCH, COLUMNS), NOBODY, np.int32)
        positions, lengths = np.full(BATCH, -1, np.int32), np.zeros(BATCH, np.int32)
        given = self.draw.integers(0, QUERIES + 1, BATCH).astype(np.int32)
        fresh = self.draw.standard_normal((2, BATCH, QUERIES, KV_HEADS, DIM)).astype(np.float16)
        query = np.full((BATCH * QUERIES, QUERY_HEADS, DIM), np.nan, np.float16)
        written = set()
        for slot, request in enumerate(self.running):
            count = counts.get(request.number, 0) if request else 0
            if count == 0:
                self.events["rested"] += 1
                if slot % 2:  # by its position, or by its count
                    positions[slot], given[slot] = 5, 0
            else:
                first, end = request.done, request.done + count
                table[slot, :len(request.pages)] = request.pages
                positions[slot], given[slot], lengths[slot] = first, count, end
                fresh[:, slot, :count] = request.fresh[:, first:end]
                query[starts[-1]:starts[-1] + count] = request.query[first:end]
                written.update(request.pages[first // PAGE:])
            starts.append(starts[-1] + count)
        for place, array in zip(
                (step.keys, step.values, step.query, step.positions, step.counts, step.lengths,
                 step.starts, step.table),
                (*fresh, query, positions, given, lengths, np.array(starts, np.int32), table)):
            place.copy_(tensor(array))
        before = [each.clone() for each in (self.keys, self.values)]
        out, lse = step.run()
        kept = tensor(np.array(sorted(set(range(PAGES)) - written), np.int64))
        for pool, was in zip((self.keys, self.values), before):
            assert torch.equal(pool[kept], was[kept])
        for slot, request in enumerate(self.running):
            for row in range(starts[slot], starts[slot + 1]):
                request.results.append((request.done, out[row], lse[row]))
                request.done += 1
            if request:
                self.settle(request)

    def settle(self, request):
        if request.prefix >= 0 and request.done >= request.prefix_tokens:
            self.cached.setdefault(request.prefix, request.pages[:request.prefix_tokens // PAGE])
        if request.done == request.tokens:
            pages = tensor(np.array(request.pages, np.int64))
            request.codes = [
                pool[pages].transpose(0, 1).reshape(KV_HEADS, -1, WORDS)[:, :request.tokens].clone()
                for pool in (self.keys, self.values)]
            self.let_go(request)
            self.events["done"] += 1


def alone(request, step, codes):
    """Return a request's results in contiguous rows of its own batch, token by token."""
    outs, lses = [], []
    for first in range(0, request.tokens, QUERIES):
        count = min(QUERIES, request.tokens - first)
        for place, array in zip((step.keys, step.values), request.fresh):
            place[0, :count] = tensor(array[first:first + count])
        step.query[:count] = tensor(request.query[first:first + count])
        for place, value in ((step.positions, first), (step.counts, count),
                             (step.lengths, first + count), (step.starts[1:], count)):
            place.fill_(value)
        out, lse = step.run()
        outs.append(out[:count].copy())
        lses.append(lse[:count].copy())
    return np.concatenate(outs), np.concatenate(lses), [
        each[0, :, :request.tokens] for each in codes]


def test_a_trace_through_pages_is_each_request_alone(draw):
    server = Server(draw)
    coming = collections.deque(requests(draw))
    every = list(coming)
    for turn in range(20 * REQUESTS):
        for _ in range(min(len(coming), int(draw.integers(0, 3)))):
            server.waiting.append(coming.popleft())
        if not (coming or server.waiting or any(server.running)):
            break
        server.turn()
    events = server.events
    assert events["done"] == REQUESTS and sorted(server.free) == list(range(PAGES))
    assert min(events["evicted"], events["shared"], events["rested"]) >= REQUESTS // 20, events

    rows = [torch.zeros(1, KV_HEADS, TOKENS, WORDS, dtype=torch.int32, device=DEVICE) for _ in "kv"]
    step = Step(1, (rows[0], server.books[0], None, rows[1], server.books[1], None))
    for request in every:
        outs, lses, codes = alone(request, step, rows)
        for own, expected in zip(request.codes, codes):
            assert torch.equal(own, expected)
        assert {token for token, *_ in request.results} >= set(
            range(request.prefix_tokens, request.tokens))
        for token, out, lse in request.results:
            assert reference.worst(out, outs[token].astype(np.float64)) < 4e-3
            assert np.abs(lse - lses[token]).max() < 2e-3
