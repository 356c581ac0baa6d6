"""FlashInfer: decode attention over a paged cache of 8-bit floats (e4m3), by its FA2 kernels and by XQA.

Numbers are rounded to e4m3 with scale 1, which fits what is drawn here. Pages stand in random order. XQA
rounds queries and probabilities to 8 bits too, hence its larger error; how many parts it splits a sequence
into follows the number of multiprocessors that it is told, and the fastest of several is timed.
"""
import importlib.util
import os
import pathlib
import shutil

import baselines
import shapes
from checking import Prepared, version_of

DISTRIBUTION = "flashinfer-python"
VARIANTS = ("fa2", "xqa")
TOLERANCE = {"fa2": 1e-2, "xqa": 6e-2}
BITS = 8
PAGE = shapes.PAGE_TOKENS
WORKSPACE_BYTES = 256 << 20
SEMAPHORE_BYTES = 8 << 20
TOLD = (1, 2, 3, 4, 6, 8)  # times the multiprocessors of the device


def has_nvcc():
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return bool(shutil.which("nvcc")) or (pathlib.Path(home) / "bin" / "nvcc").is_file()


def missing(_):
    if importlib.util.find_spec("flashinfer") is None:
        return "no package flashinfer-python is installed: pip install flashinfer-python==0.7.2"
    if importlib.util.find_spec("flashinfer_jit_cache") is None and not has_nvcc():
        return ("flashinfer compiles its kernels, and there is no nvcc: install the CUDA toolkit, or the "
                "package flashinfer-jit-cache of the same version")
    return None


def version():
    return version_of(DISTRIBUTION)


def takes(problem, _):
    return problem["part"] == "attention" and problem["config"]["shape"]["tokens"] % PAGE == 0


class Caches:
    """Keys and values [pages][heads][tokens of a page][channels] in e4m3, and the pages of each sequence,
    which all copies share."""

    def __init__(self, shape, seed):
        import torch
        heads, channels = shape["kv_heads"], shape["head_dim"]
        self.batch, pages = shape["batch"], shape["tokens"] // PAGE
        generator = torch.Generator("cuda").manual_seed(seed)
        order = torch.randperm(self.batch * pages, device="cuda", generator=generator)
        self.table = order.to(torch.int32).reshape(self.batch, pages)

        def drawn():
            result = torch.empty(self.batch * pages, heads, PAGE, channels, device="cuda",
                                 dtype=torch.float8_e4m3fn)
            for part in result.split(4096):
                part.copy_(torch.empty(part.shape, device="cuda").normal_(generator=generator))
            return result

        nbytes = 2 * self.batch * shape["tokens"] * heads * channels
        self.copies = [(drawn(), drawn()) for _ in range(baselines.copies_of(nbytes))]

    def of_sequence(self, copy, sequence):
        """Its keys and values [heads][tokens][channels] in double."""
        import torch
        pages = self.table[sequence].long()
        return [each.view(torch.uint8)[pages].view(each.dtype).double().transpose(0, 1).flatten(1, 2)
                for each in self.copies[copy]]  # floats of 8 bits cannot be indexed everywhere


def reference(q, caches, copy):
    """Attention in double over the stored numbers, one sequence after the other."""
    import torch
    results = []
    for sequence in range(caches.batch):
        keys, values = caches.of_sequence(copy, sequence)
        grouped = q[sequence].double().reshape(keys.shape[0], -1, keys.shape[2])
        weights = torch.softmax(grouped @ keys.transpose(1, 2) * keys.shape[2] ** -0.5, dim=-1)
        results.append((weights @ values).reshape(q.shape[1:]))
    return torch.stack(results)


def fa2_choices(shape, q, caches, out):
    import flashinfer
    import torch
    pages = caches.table.shape[1]
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda"), "HND", use_tensor_cores=True,
        backend="fa2")
    wrapper.plan(torch.arange(0, caches.batch + 1, dtype=torch.int32) * pages, caches.table.flatten(),
                 torch.full((caches.batch,), PAGE, dtype=torch.int32), shape["query_heads"],
                 shape["kv_heads"], shape["head_dim"], PAGE, q_data_type=q.dtype,
                 kv_data_type=torch.float8_e4m3fn)
    return {"": [lambda cache=cache: wrapper.run(q, cache, out=out)
                 for cache in baselines.turns_on(caches.copies)]}


def xqa_choices(shape, q, caches, out):
    import torch
    from flashinfer.xqa import xqa
    lengths = torch.full((caches.batch, 1), shape["tokens"], dtype=torch.int32,
                         device="cuda").view(torch.uint32)
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    semaphores = torch.zeros(SEMAPHORE_BYTES, dtype=torch.uint8, device="cuda")
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count

    def call(cache, told):
        xqa(q.unsqueeze(1), *cache, caches.table, lengths, out.unsqueeze(1), workspace, semaphores,
            shape["kv_heads"], PAGE, kv_layout="HND", sm_count=told * multiprocessors)
        return out

    return {f"{told} x multiprocessors": [lambda cache=cache, told=told: call(cache, told)
                                          for cache in baselines.turns_on(caches.copies)]
            for told in TOLD}


def prepare(kept, problem, variant, options):
    import torch
    shape = problem["config"]["shape"]
    caches = kept.get(("flashinfer", *sorted(shape.items())), baselines.ROTATED_BYTES,
                      lambda: Caches(shape, options.seed))
    q = baselines.random(shape["batch"], shape["query_heads"], shape["head_dim"], dtype=torch.float16)
    out = torch.empty_like(q)
    make = fa2_choices if variant == "fa2" else xqa_choices
    return Prepared(make(shape, q, caches, out), len(caches.copies), lambda copy: reference(q, caches, copy),
                    TOLERANCE[variant], BITS, out)
