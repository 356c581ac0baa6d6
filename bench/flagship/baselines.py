"""The other side, by PyTorch on the GPU: SDPA and cuBLAS in FP16 or BF16, and how fast memory can be read.

Calls take turns on copies of the large operand that no cache holds. Every figure is a device time of
replays of one CUDA graph with all calls, `us`, or the time of the same calls launched one by one,
`eager_us`: from the first launch until the device is done.
"""
import contextlib
import gc
import statistics
import sys
import time

ROTATED_BYTES = 400e6  # of operands that calls take turns on; the second-level cache holds 60 MB
LARGE_BYTES = 1e9      # an operand that needs no copy: a call leaves nothing of its beginning
LEAST_CALLS = 20
REPLAYS = 9
EAGER_RUNS = 5
WARM_UP_MS = 100  # of a side's own calls before a turn is timed: the clock is its own, not the other's
READ_BYTES = 1 << 32


def copies_of(nbytes):
    return 1 if nbytes > LARGE_BYTES else max(2, int(ROTATED_BYTES / nbytes) + 1)


def turns_on(operands):
    return operands * max(1, -(-LEAST_CALLS // len(operands)))


class Calls:
    """Calls captured into a graph at once. `around` makes the context that each capture and eager run
    needs. RuntimeError where a call is refused."""

    def __init__(self, calls, around=contextlib.nullcontext):
        import torch
        self.calls, self.around = calls, around
        with around():
            for call in calls[:3]:
                call()
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                for call in calls:
                    call()
        self.graph.replay()
        torch.cuda.synchronize()

    def graph_us(self, warm_up_ms=WARM_UP_MS):
        import torch
        warm = time.perf_counter() + warm_up_ms * 1e-3
        while time.perf_counter() < warm:
            self.graph.replay()
            torch.cuda.synchronize()
        times = []
        for _ in range(REPLAYS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self.graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / len(self.calls))
        return statistics.median(times)

    def eager_us(self):
        import torch
        times = []
        with self.around():
            for _ in range(EAGER_RUNS + 1):
                begin = time.perf_counter()
                for call in self.calls:
                    call()
                torch.cuda.synchronize()
                times.append((time.perf_counter() - begin) * 1e6 / len(self.calls))
        return statistics.median(times[1:])

    def time(self):
        return {"us": self.graph_us(), "eager_us": self.eager_us()}


def element_type(config):
    import torch
    return torch.bfloat16 if config.get("dtype") == "bf16" else torch.float16


def random(*shape, dtype):
    import torch
    return torch.empty(*shape, device="cuda", dtype=dtype).normal_()


def product_calls(config):
    """cuBLAS: y[rows][out] = x[rows][in] * W[out][in]^T."""
    import torch
    shape, dtype = config["shape"], element_type(config)
    outputs, inputs = shape["out_features"], shape["in_features"]
    x = random(shape["m"], inputs, dtype=dtype)
    weights = [random(outputs, inputs, dtype=dtype) for _ in range(copies_of(outputs * inputs * 2))]
    return {"cuBLAS": Calls([lambda w=w: torch.nn.functional.linear(x, w)
                             for w in turns_on(weights)])}


def attention_calls(config):
    """SDPA by each backend that takes the shape."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    shape, dtype = config["shape"], element_type(config)
    batch, query_heads, heads = shape["batch"], shape["query_heads"], shape["kv_heads"]
    cache = (batch, heads, shape["tokens"], shape["head_dim"])
    q = random(batch, query_heads, 1, shape["head_dim"], dtype=dtype)
    nbytes = 4 * batch * heads * shape["tokens"] * shape["head_dim"]
    caches = [[random(*cache, dtype=dtype) for _ in range(2)] for _ in range(copies_of(nbytes))]
    calls = {}
    for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION),
                          ("flash", SDPBackend.FLASH_ATTENTION)):
        try:
            calls[name] = Calls(
                [lambda k=k, v=v: torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, enable_gqa=query_heads != heads) for k, v in turns_on(caches)],
                lambda backend=backend: sdpa_kernel(backend))
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:  # a backend that does not take the shape
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
    return calls


def shape_key(config):
    """Problems of one key have one baseline, whatever their formats."""
    return (config["op"] == "attention_decode", config.get("dtype", "f16"),
            tuple(sorted(config["shape"].items())))


def operand_bytes(config):
    shape = config["shape"]
    if config["op"] == "attention_decode":
        one = 4 * shape["batch"] * shape["kv_heads"] * shape["tokens"] * shape["head_dim"]
    else:
        one = 2 * shape["out_features"] * shape["in_features"]
    return one * copies_of(one)


class Kept:
    """Prepared calls by key, made at first use and kept for later rounds within so many bytes."""

    def __init__(self, most_bytes):
        self.most_bytes, self.held = most_bytes, {}

    def get(self, key, nbytes, make):
        import torch
        if key not in self.held:
            while self.held and nbytes + sum(size for size, _ in self.held.values()) > self.most_bytes:
                del self.held[next(iter(self.held))]
                gc.collect()
                torch.cuda.empty_cache()
            self.held[key] = nbytes, make()
        return self.held[key][1]


def fp16_calls(kept, config):
    make = attention_calls if config["op"] == "attention_decode" else product_calls
    return kept.get(shape_key(config), operand_bytes(config), lambda: make(config))


class Readers:
    """What reads memory and does little else; the fastest one is what a kernel can hope for."""

    def __init__(self):
        import torch
        words = random(READ_BYTES // 2, dtype=torch.float16)
        floats, rows, x = words.view(torch.float32), words.view(-1, 8192), random(
            1, 8192, dtype=torch.float16)
        self.calls = {"sum": lambda: floats.sum(), "amax": lambda: floats.amax(),
                      "cuBLAS, one row": lambda: torch.nn.functional.linear(x, rows)}

    def time(self):
        """TB/s of the fastest, and which it is."""
        import torch
        best = None
        for name, call in self.calls.items():
            call()
            for _ in range(3):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                call()
                end.record()
                torch.cuda.synchronize()
                speed = READ_BYTES * 1e-12 / (begin.elapsed_time(end) * 1e-3)
                if best is None or speed > best["tb_s"]:
                    best = {"tb_s": speed, "reader": name}
        return best


def machine():
    import torch
    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
            "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
