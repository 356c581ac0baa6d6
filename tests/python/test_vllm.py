"""The cache of vqgen.vllm without vLLM: batches as vLLM describes them, on the host backend or a GPU, against plain
attention in double precision over what the pages hold."""

import collections
import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")  # of the simulation

import reference
import vqgen
from vqgen.simulation import held_of
from vqgen.vllm._batch import Batches, Table, split
from vqgen.vllm._pages import Kernels, Layer, Raw, Shape, of_heads, warm
from vllm_reference import (DEVICE, DIM, FORM, HEADS, KV_HEADS, PAGE, SCALE, attend, books_of, dense, expected,
                            require_nearest, tensor)

MAX_BUCKETS = 1  # of the fixture own_cache
TOKENS, PAGES, SEQUENCES, ROWS = 96, 20, 4, 80
COLUMNS = TOKENS // PAGE
RAW_PAGE, RAW_PAGES = 8, 44
NOBODY = np.iinfo(np.int32).max


@pytest.fixture(scope="module", autouse=True)
def half_by_default():
    """vLLM loads models, and so makes layers and launches their kernels, with the model's dtype as PyTorch's default."""
    torch.set_default_dtype(torch.float16)
    yield
    torch.set_default_dtype(torch.float32)


@dataclasses.dataclass
class Request:
    number: int
    prefix: int
    prompt: int
    fresh: np.ndarray  # [2, tokens, kv_heads, dim]
    query: np.ndarray  # [tokens, heads, dim]
    done: int = 0
    pages: list = dataclasses.field(default_factory=list)
    raw: list = dataclasses.field(default_factory=list)  # raw pages, NOBODY from where they left the window

    @property
    def tokens(self):
        return self.fresh.shape[1]


class Engine:
    """Schedules requests as vLLM does: those that decode first, prompts in chunks of what is left of a step's rows,
    prefixes found by whole pages, also pages that another request fills in the same step, and preemption. With `recent`
    tokens in full precision, pages of them that no later token can read are freed and written by others; a prefix is found
    where those of its window are still there."""

    def __init__(self, draw, drafts, recent=0):
        self.draw, self.step_tokens, self.recent = draw, drafts + 1, recent
        self.shape = Shape(HEADS, KV_HEADS, DIM, PAGE, TOKENS, SEQUENCES, ROWS, query_tokens=drafts + 1, piece_tokens=2 * PAGE,
                           recent_tokens=recent, raw_page_tokens=RAW_PAGE if recent else 0)
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
        if recent:
            self.raw_pages = torch.full(self.kernels.raw_shape(RAW_PAGES), torch.nan, dtype=torch.float16, device=DEVICE)
            self.raw_table = Table(SEQUENCES, -(-TOKENS // RAW_PAGE), DEVICE)
        self.raw_cached = {}  # pages of a prefix, NOBODY before its window
        self.raw_free, self.raw_users = collections.deque(range(RAW_PAGES)), collections.Counter()
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
        self.free_raw(request, len(request.raw) * RAW_PAGE)
        request.raw = []
        self.running.remove(request)

    def free_raw(self, request, before):
        """Lets go of pages whose tokens are all before that one."""
        for number, page in enumerate(request.raw[:max(before, 0) // RAW_PAGE]):
            if page == NOBODY:
                continue
            request.raw[number] = NOBODY
            self.raw_users[page] -= 1
            if self.raw_users[page] == 0:
                self.raw_free.append(page)
                self.raw_cached = {prefix: raw for prefix, raw in self.raw_cached.items() if page not in raw}

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
        self.free_raw(request, request.done - self.recent + 1)
        while self.recent and len(request.raw) * RAW_PAGE < tokens:
            request.raw.append(self.raw_free.popleft())
            self.raw_users[request.raw[-1]] += 1
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
            hit = request.prefix in self.cached and (not self.recent or request.prefix in self.raw_cached)
            self.events["hit without a window"] += request.prefix in self.cached and not hit
            if hit:
                request.raw = list(self.raw_cached.get(request.prefix, []))
                self.raw_users.update(page for page in request.raw if page != NOBODY)
                request.pages = list(self.cached[request.prefix])
                request.done = len(request.pages) * PAGE
                self.users.update(request.pages)
                self.events["hit"] += 1
                self.events["hit in its step"] += any(
                    each.pages[:1] == request.pages[:1] and each.done == 0 for each, _ in self.planned)
            self.running.append(request)
            count = min(request.prompt - request.done, left, int(self.draw.integers(PAGE, 40)))
            if self.grow(request, request.done + count):
                self.planned.append((request, count))
                left -= count
                whole = (request.done + count) // PAGE  # vLLM: findable from when they are scheduled
                if request.prefix >= 0 and whole >= 1:
                    self.cached.setdefault(request.prefix, request.pages[:1])
                    window = max(PAGE - self.recent + 1, 0) // RAW_PAGE
                    if self.recent and NOBODY not in request.raw[window:PAGE // RAW_PAGE]:
                        self.raw_cached[request.prefix] = [NOBODY] * window + request.raw[window:PAGE // RAW_PAGE]
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
        before, raw = self.whole.clone(), None
        if self.recent:
            raw_table = np.full((len(planned), self.raw_table.rows.shape[1] + 1), NOBODY, np.int32)
            for row, (request, _) in enumerate(planned):
                raw_table[row, :len(request.raw)] = request.raw
            raw = Raw(self.raw_pages, self.raw_table.take(tensor(raw_table), len(planned)))
        self.layer.forward(batch, query, key, value, self.pages, output, raw)
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
                raw = max(request.done - max(self.recent - 1, 0), 0)
                keys, values = (np.concatenate([own[:raw], fresh[raw:end]]) for own, fresh in zip(held, request.fresh))
            for row in range(count):
                seen = request.done + row + 1
                if count <= self.step_tokens and self.recent:
                    raw = max(seen - self.recent, 0)
                    keys, values = (np.concatenate([own[:raw], fresh[raw:end]]) for own, fresh in zip(held, request.fresh))
                wanted = expected(request.query[seen - 1], keys[:seen], values[:seen])
                assert reference.worst(output[first + row], wanted) < 4e-3


def requests(draw, count):
    halves = lambda *shape: draw.standard_normal(shape).astype(np.float16)
    prefixes = [halves(2, PAGE, KV_HEADS, DIM) for _ in range(3)]
    for number in range(count):
        prefix = int(draw.integers(-1, len(prefixes))) if number > 1 else 0  # the first two come together
        own = halves(2, int(draw.integers(8, 60)), KV_HEADS, DIM)
        fresh = np.concatenate([prefixes[prefix], own], 1) if prefix >= 0 else own
        prompt = fresh.shape[1] - int(draw.integers(1, 7))
        yield Request(number, prefix, prompt, fresh, halves(fresh.shape[1], HEADS, DIM))


@pytest.mark.parametrize("drafts, recent", [(0, 0), (2, 0), (0, 20), (2, 13), (0, 1)])
def test_a_trace_is_attention_over_what_the_pages_hold(draw, drafts, recent):
    engine = Engine(draw, drafts, recent)
    coming = collections.deque(requests(draw, 30))
    engine.waiting.extend(coming.popleft() for _ in range(2))
    for _ in range(400):
        for _ in range(min(len(coming), int(draw.integers(0, 3)))):
            engine.waiting.append(coming.popleft())
        if draw.random() < 0.1 and engine.running:
            engine.preempt(engine.running[draw.integers(len(engine.running))])
        engine.step()
        if not (coming or engine.waiting or engine.running):
            break
    events = engine.events
    assert events["done"] == 30 and sorted(engine.free) == list(range(PAGES)), events
    assert sorted(engine.raw_free) == list(range(RAW_PAGES))
    assert recent < 2 or events["hit without a window"] >= 1, events
    assert min(events[each] for each in ("prompt", "chunk", "mixed", "preempted", "hit", "hit in its step")) >= 1, events


def random_batch(draw, batches, decodes, most_tokens=TOKENS, capture=False):
    """A batch of as many decoding sequences of random lengths, on pages of their own."""
    starts, lengths = np.arange(decodes + 1, dtype=np.int32), draw.integers(1, TOKENS, decodes).astype(np.int32)
    table = draw.permutation(PAGES)[:decodes * COLUMNS].reshape(decodes, -1)[:, :COLUMNS].astype(np.int32)
    return batches.build(starts.tolist(), None, tensor(starts), tensor(lengths), tensor(table), most_tokens, capture=capture)


def test_a_graphs_batch_stays_in_place_and_serves_any_length(draw):
    batches = Batches(sequences=3, columns=COLUMNS, page_tokens=PAGE, query_tokens=1, piece_tokens=PAGE, device=DEVICE)
    captured = random_batch(draw, batches, 3, most_tokens=20, capture=True)
    assert captured.tokens == TOKENS and len(captured.lengths) == 4
    places = [each.data_ptr() for each in (captured.lengths, captured.counts, captured.positions, captured.table)]
    fewer = random_batch(draw, batches, 1, most_tokens=20)
    assert fewer.tokens == 20
    assert places == [each.data_ptr() for each in (fewer.lengths, fewer.counts, fewer.positions, fewer.table)]
    assert fewer.lengths[0] > 0 and not fewer.lengths[1:].any() and not fewer.counts[1:].any()


def test_sequences_without_rows_are_padding(draw):
    batches = Batches(sequences=4, columns=COLUMNS, page_tokens=PAGE, query_tokens=1, piece_tokens=PAGE, device=DEVICE)
    table = torch.zeros(4, COLUMNS, dtype=torch.int32, device=DEVICE)
    starts, lengths = np.array([0, 1, 2, 2, 2], np.int32), np.array([5, 7, 0, 0], np.int32)
    batch = batches.build(starts.tolist(), lengths.tolist(), tensor(starts), tensor(lengths), table, 7)
    assert (batch.decodes, batch.decode_rows, batch.prompts) == (4, 2, [])
    assert batch.counts.tolist() == [1, 1, 0, 0] and batch.lengths.tolist() == [5, 7, 0, 0]
    starts[:], lengths[:] = [0, 1, 6, 6, 6], [5, 9, 0, 0]
    batch = batches.build(starts.tolist(), lengths.tolist(), tensor(starts), tensor(lengths), table, 9)
    assert batch.decodes == 1 and [(each.sequence, each.rows, each.before) for each in batch.prompts] == [(1, 5, 4)]


def test_decodes_are_those_in_front():
    for starts, query_tokens, decodes in (([0, 1, 2, 7], 1, 2), ([0, 5], 1, 0), ([0, 1, 2], 1, 2), ([0, 3, 4, 9, 10], 3, 2),
                                          ([0, 1, 1], 1, 2), ([0], 1, 0)):
        assert split(starts, query_tokens) == decodes


FORMS = {"tensor": {"vector_size": 4, "index_bits": 6}, "head": {"vector_size": 4, "index_bits": 6, "scope": "head"},
         "groups": {"vector_size": 4, "index_bits": 4, "scope": "channel_group", "group_channels": 8},
         "parts": {"parts": [{"vector_size": 8, "index_bits": 6, "scope": "head", "channels": list(range(0, 32))},
                             {"vector_size": 4, "index_bits": 6, "channels": list(range(32, 64))}]}}


@pytest.mark.parametrize("name", FORMS)
def test_a_rank_has_the_codebooks_of_its_heads(draw, name):
    form, heads = FORMS[name], 4
    parts = form.get("parts") or [{**form, "channels": list(range(DIM))}]
    sizes = [({"head": heads, "channel_group": heads * 8}.get(part.get("scope"), 1), 1, 1 << part["index_bits"],
              part["vector_size"]) for part in parts]
    books = [torch.from_numpy(draw.standard_normal(size).astype(np.float16)) for size in sizes]
    tensors = {"keys.codebooks": torch.cat([each.flatten() for each in books]) if len(parts) > 1 else books[0],
               "keys.gain": torch.arange(sum(size[0] for size in sizes)), "keys.smooth": torch.arange(heads * DIM).view(heads, DIM),
               "values.codebooks": torch.zeros(1)}
    ranks = [of_heads(form, tensors, "keys", heads, DIM, first, 2) for first in (0, 2)]
    assert all(set(each) == {"keys.codebooks", "keys.gain", "keys.smooth"} for each in ranks)
    assert torch.equal(torch.cat([each["keys.smooth"] for each in ranks]), tensors["keys.smooth"])
    begin, gains = [0, 0], torch.arange(sum(size[0] for size in sizes)).split([size[0] for size in sizes])
    for whole, gain in zip(books, gains):
        own = len(whole) // 2 if len(whole) > 1 else 1
        for rank, held in enumerate(ranks):
            wanted = slice(rank * own, (rank + 1) * own) if len(whole) > 1 else slice(0, 1)
            flat, count = held["keys.codebooks"].flatten(), whole[wanted].numel()
            assert torch.equal(flat[begin[rank]:begin[rank] + count], whole[wanted].flatten())
            begin[rank] += count
        assert torch.isin(gain, torch.cat([each["keys.gain"] for each in ranks])).all()
    assert begin == [held["keys.codebooks"].numel() for held in ranks]


def basis(draw):
    """A mean and an orthogonal rotation of each head, by the names of a bundle's operand."""
    rotation = np.linalg.qr(draw.standard_normal((KV_HEADS, DIM, DIM)))[0].astype(np.float32)
    return {"mean": torch.from_numpy(draw.standard_normal((KV_HEADS, DIM)).astype(np.float32)), "rotation": torch.from_numpy(rotation)}


def change_of(tensors, operand):
    """(mean [heads, dim], change [heads, dim, dim]): (rows - mean) @ change is what the codebooks of an operand are for."""
    mean = tensors.get(f"{operand}.mean", torch.zeros(KV_HEADS, DIM)).double().numpy()
    if f"{operand}.rotation" in tensors:
        return mean, tensors[f"{operand}.rotation"].double().numpy()
    if f"{operand}.smooth" not in tensors:
        return mean, np.stack([np.eye(DIM)] * KV_HEADS)
    return mean, reference.hadamard(DIM) / tensors[f"{operand}.smooth"].double().numpy()[:, :, None]


def kept_in(pages, tensors, table, fresh):
    """Keys and values as pages hold them for `fresh` rows [2, tokens, heads, dim], whose entries are nearest."""
    rows = []
    for operand, own, entries in zip(("keys", "values"), fresh, dense(pages, tensors, table, fresh.shape[1])):
        mean, change = change_of(tensors, operand)
        changed = np.einsum("thd,hde->the", own.astype(np.float64) - mean, change)
        require_nearest(changed, entries, tensors[f"{operand}.codebooks"], rounding=1e-2)  # fp16 rows
        gain = tensors.get(f"{operand}.gain", torch.ones(KV_HEADS)).double().numpy()
        rows.append(np.einsum("the,hed->thd", entries * gain[:, None], np.linalg.inv(change)) + mean)
    return rows


@pytest.mark.parametrize("name", ["vecinfer", "klt"])
def test_rows_are_transformed_and_keys_lengthened_as_simulated(draw, name):
    klt = vqgen.format_fields({"vector_size": 4, "index_bits": 6, "scope": "head", "center": True, "klt": True})
    smooth = vqgen.format_fields({"vector_size": 4, "index_bits": 6, "scope": "head", "smooth": True, "hadamard": True})
    form, values = (smooth, FORM) if name == "vecinfer" else (klt, klt)
    tensors = {**books_of(draw), "keys.gain": torch.tensor([1.25, 0.9])}
    if name == "vecinfer":
        tensors["keys.smooth"] = torch.from_numpy(draw.uniform(0.5, 2, (KV_HEADS, DIM)).astype(np.float32))
    else:
        tensors |= {f"{operand}.{what}": each for operand in ("keys", "values") for what, each in basis(draw).items()}
    shape = Shape(HEADS, KV_HEADS, DIM, PAGE, 48, 1, 40, piece_tokens=PAGE)
    kernels = Kernels(shape, form, values, torch.float16, DEVICE)
    layer = Layer(kernels, tensors, attend, SCALE)
    batches = Batches(sequences=1, columns=3, page_tokens=PAGE, query_tokens=1, piece_tokens=PAGE, device=DEVICE)
    pages, table = torch.zeros(kernels.cache_shape(3), dtype=torch.int32, device=DEVICE), tensor(np.array([[2, 0, 1]], np.int32))
    fresh = draw.standard_normal((2, 40, KV_HEADS, DIM)).astype(np.float16)
    query = draw.standard_normal((40, HEADS, DIM)).astype(np.float16)
    item = {"keys": form, "values": values}
    held = [held_of(torch.from_numpy(rows).transpose(0, 1)[None], item, tensors, operand)[0].transpose(0, 1).numpy()
            for rows, operand in zip(fresh, ("keys", "values"))]
    done, errors = 0, []
    for count in (17, 22, 1):  # a prompt, a chunk behind two pieces of context, a decode
        span, starts = slice(done, done + count), np.array([0, count], np.int32)
        output = torch.empty(count, HEADS, DIM, dtype=torch.float16, device=DEVICE)
        batch = batches.build([0, count], [done + count], tensor(starts), tensor(np.array([done + count], np.int32)), table, 40)
        assert [len(each.pieces) for each in batch.prompts] == ([] if count == 1 else [-(-done // PAGE)])
        layer.forward(batch, tensor(query[span]), *(tensor(each[span]) for each in fresh), pages, output)
        kept = kept_in(pages, tensors, [2, 0, 1], fresh[:, :done + count])
        keys, values = (each if count == 1 else np.concatenate([each[:done], new[span]]) for each, new in zip(kept, fresh))
        for row in range(count):
            wanted = expected(query[done + row], keys[:done + row + 1], values[:done + row + 1])
            errors.append(reference.worst(output[row].cpu().numpy(), wanted))
        done += count
    assert max(errors) < 4e-3, errors
    # Where two entries are nearly as near, rounding of the transforms decides, and a key or value differs.
    alike = [np.isclose(each, own, atol=1e-3).all(-1) for each, own in zip(held, kept)]
    assert np.mean(alike) > 0.9, alike
