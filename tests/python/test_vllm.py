"""The cache of vqgen.vllm without vLLM: batches, codebooks and transforms, on the host backend or a GPU (test_vllm_traces.py)."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")  # of the simulation

import reference
import vqgen
from vqgen.simulation import held_of
from vqgen.vllm._batch import Batches, split
from vqgen.vllm._pages import Kernels, Layer, Shape, of_heads
from vllm_reference import (DEVICE, DIM, FORM, HEADS, KV_HEADS, PAGE, SCALE, attend, books_of, dense, expected,
                            half_by_default, require_nearest, tensor)

__all__ = ["half_by_default"]  # the fixture
MAX_BUCKETS = 1  # of the fixture own_cache
TOKENS, PAGES = 96, 20
COLUMNS = TOKENS // PAGE


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
