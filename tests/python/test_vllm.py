"""The cache of vqgen.vllm without vLLM: batches as vLLM describes them, on the host backend or a GPU, against plain
attention in double precision over what the pages hold."""

import collections
import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import reference
import vqgen
import vqgen.torch as vt
from vqgen.vllm._batch import Batches, split
from vqgen.vllm._pages import Kernels, Layer, Shape, of_heads, warm

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HEADS, KV_HEADS, DIM, PAGE, TOKENS, PAGES, SEQUENCES, ROWS = 4, 2, 64, 16, 96, 20, 4, 80
COLUMNS, SCALE = TOKENS // PAGE, 0.17
FORM = vqgen.format_fields({"vector_size": 4, "index_bits": 6, "scope": "head"})
NOBODY = np.iinfo(np.int32).max


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    device = "host" if DEVICE.type == "cpu" else torch.cuda.current_device()
    vt.use_runtime(vqgen.Runtime(device, cache_dir=tmp_path_factory.mktemp("kernels"), max_buckets=1))


def tensor(array, kind=None):
    return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE, kind)


def attend(query, key, value, query_starts, key_starts, most_query, most_key, causal, scale):
    """Attention of sequences' rows in double precision, with the arguments of Layer's `attend`."""
    assert most_query == max(np.diff(query_starts.tolist())) and most_key == max(np.diff(key_starts.tolist()))
    out, lse = torch.empty_like(query), torch.empty(query.shape[1], len(query), device=query.device)
    for (q0, q1), (k0, k1) in zip(*(zip(each.tolist(), each.tolist()[1:]) for each in (query_starts, key_starts))):
        keys, values = (each[k0:k1].double().repeat_interleave(HEADS // each.shape[1], 1) for each in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[q0:q1].double(), keys) * scale
        if causal:
            scores += torch.full_like(scores[0], -torch.inf).triu(1)
        out[q0:q1] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(out.dtype)
        lse[:, q0:q1] = scores.logsumexp(-1)
    return out, lse


def books_of(draw, heads=KV_HEADS):
    return {f"{name}.codebooks": torch.from_numpy(draw.standard_normal((heads, 1, 64, 4)).astype(np.float16))
            for name in ("keys", "values")}


def dense(pages, books, table, tokens):
    """Keys and values of the first tokens of a sequence, [tokens, kv_heads, dim] each, float64."""
    held = pages.cpu().numpy().view(np.uint32)[table[:-(-tokens // PAGE)]]
    held = held.swapaxes(1, 2).reshape(-1, KV_HEADS, held.shape[-1])[:tokens]
    return [np.stack([reference.decoded(held[:, head, words], books[f"{name}.codebooks"][head:head + 1].numpy(), DIM, 6)
                      for head in range(KV_HEADS)], 1)
            for name, words in (("keys", slice(0, 3)), ("values", slice(3, 6)))]


def require_nearest(fresh, held, codebooks):
    """Asserts that rows [n, kv_heads, dim] are held as entries that are nearest, but for rounding."""
    for head in range(KV_HEADS):
        vectors, given = (each[:, head].reshape(-1, 1, 4) for each in (fresh.astype(np.float64), held))
        least = ((vectors - codebooks[head, 0].numpy()) ** 2).sum(-1).min(1)
        assert (((vectors - given) ** 2).sum(-1)[:, 0] <= least * (1 + 1e-3) + 1e-4).all()


def expected(query, keys, values):
    """query [heads, dim] over keys and values [tokens, kv_heads, dim]; [heads, dim]."""
    out, _ = reference.attention(query[None] * (SCALE * DIM**0.5), keys[None].swapaxes(1, 2), values[None].swapaxes(1, 2),
                                 [len(keys)])
    return out[0]


@dataclasses.dataclass
class Request:
    number: int
    prefix: int
    prompt: int
    fresh: np.ndarray  # [2, tokens, kv_heads, dim]
    query: np.ndarray  # [tokens, heads, dim]
    done: int = 0
    pages: list = dataclasses.field(default_factory=list)

    @property
    def tokens(self):
        return self.fresh.shape[1]


class Engine:
    """Schedules requests as vLLM does: those that decode first, prompts in chunks of what is left of a step's rows,
    prefixes found by whole pages, also pages that another request fills in the same step, and preemption."""

    def __init__(self, draw, drafts):
        self.draw, self.step_tokens = draw, drafts + 1
        self.shape = Shape(HEADS, KV_HEADS, DIM, PAGE, TOKENS, SEQUENCES, ROWS, query_tokens=drafts + 1, piece_tokens=2 * PAGE)
        self.kernels = Kernels(self.shape, FORM, FORM, torch.float16, DEVICE)
        self.books = books_of(draw)
        self.layer = Layer(self.kernels, self.books, attend, SCALE)
        warm(self.kernels, self.layer)
        # Pages of this layer lie between those of another one.
        self.whole = tensor(self.noise((PAGES, 2, *self.kernels.cache_shape(1)[1:])))
        self.pages = self.whole[:, 1]
        self.batches = Batches(sequences=SEQUENCES, columns=COLUMNS, page_tokens=PAGE, query_tokens=drafts + 1,
                               piece_tokens=2 * PAGE, device=DEVICE)
        self.free, self.users = collections.deque(draw.permutation(PAGES).tolist()), collections.Counter()
        self.cached, self.running, self.waiting = {}, [], collections.deque()
        self.events = collections.Counter()

    def noise(self, shape):
        return self.draw.integers(-1 << 31, 1 << 31, shape).astype(np.int32)

    def let_go(self, request):
        for page in request.pages:
            self.users[page] -= 1
            if self.users[page] == 0:
                self.free.append(page)
                self.cached = {prefix: pages for prefix, pages in self.cached.items() if page not in pages}
        request.pages = []
        self.running.remove(request)

    def preempt(self, request):
        self.let_go(request)
        request.done = 0
        self.waiting.appendleft(request)
        self.events["preempted"] += 1

    def grow(self, request, tokens):
        """Pages for as many tokens; False if there are none, even by preemption of the newest request."""
        while len(request.pages) * PAGE < tokens:
            while not self.free:
                last = self.running[-1]
                self.preempt(last)
                self.planned = [each for each in self.planned if each[0] is not last]
                if last is request:
                    return False
            request.pages.append(self.free.popleft())
            self.users[request.pages[-1]] += 1
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
        while self.waiting and len(self.running) < SEQUENCES and left > 4 and len(self.free) > 3:
            request = self.waiting.popleft()
            if request.prefix in self.cached:
                request.pages = list(self.cached[request.prefix])
                request.done = len(request.pages) * PAGE
                self.users.update(request.pages)
                self.events["hit"] += 1
                self.events["hit in its step"] += any(
                    each.pages[:1] == request.pages[:1] and each.done == 0 for each, _ in self.planned)
            self.running.append(request)
            count = min(request.prompt - request.done, left, int(self.draw.integers(5, 40)))
            if self.grow(request, request.done + count):
                self.planned.append((request, count))
                left -= count
                whole = (request.done + count) // PAGE  # vLLM: findable from when they are scheduled
                if request.prefix >= 0 and whole >= 1:
                    self.cached.setdefault(request.prefix, request.pages[:1])
        order = self.draw.permutation(len(self.planned))
        return sorted((self.planned[each] for each in order), key=lambda each: each[1] > self.step_tokens)

    def step(self):
        planned = self.schedule()
        if not planned:
            return
        counts = [count for _, count in planned]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        lengths = np.array([request.done + count for request, count in planned], np.int32)
        table = np.full((len(planned), COLUMNS + 2), NOBODY, np.int32)  # wider, as vLLM's may be
        # Views of a fused product, with rows of padding behind.
        fused = np.full((starts[-1] + 3, HEADS + 2 * KV_HEADS, DIM), np.nan, np.float16)
        for row, (request, count) in enumerate(planned):
            span, new = slice(starts[row], starts[row + 1]), slice(request.done, request.done + count)
            table[row, :len(request.pages)] = request.pages
            fused[span, :HEADS], fused[span, HEADS:-KV_HEADS] = request.query[new], request.fresh[0, new]
            fused[span, -KV_HEADS:] = request.fresh[1, new]
        query, key, value = tensor(fused).split([HEADS, KV_HEADS, KV_HEADS], 1)
        output = torch.full((len(fused), HEADS, DIM), torch.nan, dtype=torch.float16, device=DEVICE)
        bounds = (lengths + self.draw.integers(0, 3) * (np.array(counts) <= self.step_tokens)).tolist()
        batch = self.batches.build(starts.tolist(), bounds, tensor(starts), tensor(lengths), tensor(table), int(max(bounds)))
        before = self.whole.clone()
        self.layer.forward(batch, query, key, value, self.pages, output)
        self.judge(planned, starts, output.cpu().numpy())
        touched = {page for request, count in planned for page in request.pages[request.done // PAGE:]}
        kept = [page for page in range(PAGES) if page not in touched]
        assert torch.equal(self.whole[kept], before[kept]) and torch.equal(self.whole[:, 0], before[:, 0])
        self.events["mixed"] += 0 < batch.decodes < len(planned)
        for request, count in planned:
            request.done += count
            if request.done == request.tokens:
                self.let_go(request)
                self.events["done"] += 1

    def judge(self, planned, starts, output):
        for (request, count), first in zip(planned, starts):
            end = request.done + count
            keys, values = held = dense(self.pages, self.books, np.array(request.pages), end)
            for fresh, own, name in zip(request.fresh, held, ("keys", "values")):
                require_nearest(fresh[request.done:end], own[request.done:], self.books[f"{name}.codebooks"])
            if count > self.step_tokens:  # new tokens see each other as they are
                self.events["chunk" if request.done else "prompt"] += 1
                keys, values = (np.concatenate([own[:request.done], fresh[request.done:end]])
                                for own, fresh in zip(held, request.fresh))
            for row in range(count):
                seen = request.done + row + 1
                wanted = expected(request.query[seen - 1], keys[:seen], values[:seen])
                assert reference.worst(output[first + row], wanted) < 4e-3


def requests(draw, count):
    halves = lambda *shape: draw.standard_normal(shape).astype(np.float16)
    prefixes = [halves(2, PAGE, KV_HEADS, DIM) for _ in range(3)]
    for number in range(count):
        prefix = int(draw.integers(-1, len(prefixes)))
        own = halves(2, int(draw.integers(8, 60)), KV_HEADS, DIM)
        fresh = np.concatenate([prefixes[prefix], own], 1) if prefix >= 0 else own
        prompt = fresh.shape[1] - int(draw.integers(1, 7))
        yield Request(number, prefix, prompt, fresh, halves(fresh.shape[1], HEADS, DIM))


@pytest.mark.parametrize("drafts", [0, 2])
def test_a_trace_is_attention_over_what_the_pages_hold(draw, drafts):
    engine = Engine(draw, drafts)
    coming = collections.deque(requests(draw, 40))
    for _ in range(400):
        for _ in range(min(len(coming), int(draw.integers(0, 3)))):
            engine.waiting.append(coming.popleft())
        if draw.random() < 0.1 and engine.running:
            engine.preempt(engine.running[draw.integers(len(engine.running))])
        engine.step()
        if not (coming or engine.waiting or engine.running):
            break
    events = engine.events
    assert events["done"] == 40 and sorted(engine.free) == list(range(PAGES)), events
    assert min(events[each] for each in ("prompt", "chunk", "mixed", "preempted", "hit", "hit in its step")) >= 1, events
