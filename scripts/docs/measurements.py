"""Tables of times for scripts/make_docs.py, from bench/measurements/ and docs/charts/flagship.json."""

from markdown import table
from measured import ENTRY_TYPES, faster, found, one, origin, pair, rows_of, times, without_arguments

HEADS = "32 query and 8 KV heads, `head_dim` 128"  # of all tables of attention that name none
CONTEXT = "docs/charts/flagship.json"


def attention_row(tools, **wanted):
    shape = {"query_heads": 32, "kv_heads": 8, "head_dim": 128, "keys": "vecinfer-d4b8i8", "values": "vecinfer-d4b8i8"}
    return one(rows_of(tools, "attention-fp16"), "attention-fp16", **{**shape, **wanted})


def gemm_row(tools, **wanted):
    return one(rows_of(tools, "gemm-fp16"), "gemm-fp16", **{"layout": "1x1", "weights": "aqlm-2x8i8", **wanted})


def speed_summary(tools):
    """README's table."""
    def short(ratio):
        return f"{ratio:.1f}x" if ratio >= 1.3 else times(ratio)
    def by_m(out_features, in_features, ms):
        rows = (gemm_row(tools, out_features=out_features, in_features=in_features, m=m) for m in ms)
        return " / ".join(short(float(row["fp16_over_us"])) for row in rows)
    lines = [[f"decode attention, 2-bit cache, batch {batch} x {tokens:,} tokens (cuDNN)",
              short(float(attention_row(tools, batch=batch, tokens=tokens)["fp16_over_us"]))]
             for batch, tokens in ((16, 16384), (1, 32768), (1, 8192))]
    step = one(rows_of(tools, "model-steps"), "model-steps", batch=8, tokens=32768, torch_compile="yes")
    lines += [["a step of Llama-3-8B, batch 8 x 32,768 tokens, 2-bit cache / and 2-bit weights",
               " / ".join(short(float(step["fp16_ms"]) / float(step[key]))
                          for key in ("vq_cache_ms", "vq_cache_and_weights_ms"))],
              ["2-bit weights, 28672x8192, batch 1 / 8 / 64 (cuBLAS)", by_m(28672, 8192, (1, 8, 64))],
              ["2-bit weights, 4096x4096, batch 1 / 64 / 128 (cuBLAS)", by_m(4096, 4096, (1, 64, 128))]]
    windows = rows_of(tools, "windows")
    both = [one(windows, "windows", batch=16, tokens=16384, keys="vecinfer-d4b8i8", values="vecinfer-d4b8i8",
                recent_tokens=recent, sinks=sinks, query_tokens=1) for recent, sinks in ((0, 0), (128, 4))]
    slower = float(both[1]["us"]) / float(both[0]["us"])
    return table(["one H200", "FP16 time / vqgen time"], lines) + (
        f"\n\nCache format `vecinfer-d4b8i8`, {HEADS}, weight format `aqlm-2x8i8` (`aqlm-2x8` in the step), cold caches, every "
        "result verified. These times are without a full-precision window; a window of 128 tokens and 4 sink tokens make the "
        f"first row {100 * (slower - 1):.0f} % slower.")


def attention_context(tools):
    """FP16 time / our time by context and batch, the points of docs/charts/context.svg."""
    points = {(each["config"]["shape"]["batch"], each["config"]["shape"]["tokens"]): each["ratio"]
              for each in tools.json(CONTEXT)["figures"] if each["part"] == "context"}
    batches, contexts = (sorted({point[axis] for point in points}) for axis in (0, 1))
    lines = [[str(tokens), *(f"{points[batch, tokens]:.2f}" if (batch, tokens) in points else "-"
                             for batch in batches)] for tokens in contexts]
    return table(["tokens", *(f"batch {batch}" for batch in batches)], lines) + (
        f"\n\nFormat `vecinfer-d4b8`, {HEADS}, no window. Data: `{CONTEXT}`; `-`: not measured.")


def gemm_by_m(tools):
    """FP16 time / our time by batch size."""
    rows = [row for row in rows_of(tools, "gemm-fp16") if row["layout"] == "1x1"]
    ms = sorted({int(row["m"]) for row in rows} - {4})
    lines = []
    for weights, outs, ins in dict.fromkeys((row["weights"], row["out_features"], row["in_features"]) for row in rows):
        points = [found(rows, weights=weights, out_features=outs, in_features=ins, m=m) for m in ms]
        lines.append([f"`{weights}`", f"{outs}x{ins}", *(faster(row) if row else "-" for row in points)])
    lines.sort(key=lambda line: (line[0] != "`aqlm-2x8i8`", line[0]))
    return table(["weights", "out x in", *(f"M = {m}" for m in ms)], lines) + origin("gemm-fp16", rows)


def attention_shapes(tools):
    """The recommended cache format over heads, batches and contexts."""
    rows = [row for row in rows_of(tools, "attention-fp16") if row["keys"] == row["values"] == "vecinfer-d4b8i8"]
    lines = [[f"{row['batch']} x {int(row['tokens']):,}", f"{row['query_heads']}/{row['kv_heads']}", row["head_dim"], row["us"],
              row["fp16_us"], faster(row)] for row in rows]
    head = ["batch x tokens", "query/KV heads", "`head_dim`", "us", "FP16, us", "FP16 / ours"]
    return table(head, lines) + origin("attention-fp16", rows)


def attention_recent(tools):
    """Times with a full-precision window and sinks beside those without."""
    rows = rows_of(tools, "windows")
    form = {"keys": "vecinfer-d4b8i8", "values": "vecinfer-d4b8i8", "query_tokens": 1}
    lines, used = [], []
    for batch, tokens in ((64, 2048), (8, 4096), (8, 8192), (16, 16384), (1, 32768), (1, 131072)):
        shape = {"batch": batch, "tokens": tokens, **form}
        kept = one(rows, "windows", **shape, recent_tokens=128, sinks=4)
        plain = one([row for row in rows if row["commit"] == kept["commit"]], "windows", **shape, recent_tokens=0, sinks=0)
        lines.append([f"{batch} x {tokens:,}", f"{float(plain['us']):.2f}", f"{float(kept['us']):.2f}",
                      f"{float(kept['us']) / float(plain['us']):.2f}"])
        used += [plain, kept]
    return table(["batch x tokens", "us, no window", "us, window 128 and 4 sinks", "with / without"], lines) + (
        f"\n\nFormat `vecinfer-d4b8i8`, {HEADS}.") + origin("windows", used)


def attention_queries(tools):
    """Times of one and of four query tokens per sequence."""
    rows = rows_of(tools, "windows")
    lines, used = [], []
    for batch, tokens in ((64, 2048), (8, 4096), (16, 16384), (1, 32768)):
        for keys, values in ENTRY_TYPES:
            shape = {"batch": batch, "tokens": tokens, "keys": keys, "values": values, "recent_tokens": 0, "sinks": 0}
            four = one(rows, "windows", **shape, query_tokens=4)
            single = one([row for row in rows if row["commit"] == four["commit"]], "windows", **shape, query_tokens=1)
            us = [float(row["us"]) for row in (single, four)]
            lines.append([f"{batch} x {tokens:,}", pair(keys, values), f"{us[0]:.1f}", f"{us[1]:.1f}", f"{us[1] / us[0]:.2f}"])
            used += [single, four]
    head = ["batch x tokens", "keys, values", "us, 1 query token", "us, 4 query tokens", "ratio"]
    return table(head, lines) + f"\n\nNo window, {HEADS}." + origin("windows", used)


def paging(tools):
    """What pages cost attention."""
    rows = rows_of(tools, "paging")
    lines = [[f"{row['batch']} x {int(row['tokens']):,}", row["us_contiguous"], row["pages_16_over_contiguous"],
              row["pages_64_over_contiguous"]] for row in rows]
    note = f"\n\nKeys `{rows[0]['keys']}`, values `{rows[0]['values']}`, {HEADS}, pages in random order, heads before tokens."
    head = ["batch x tokens", "us, no pages", "pages of 16 / no pages", "pages of 64 / no pages"]
    return table(head, lines) + note + origin("paging", rows)


def mixed_lengths(tools):
    """Batches of long and short sequences by either schedule."""
    rows = [row for row in rows_of(tools, "mixed-lengths")
            if row["tokens"] == "20000" and row["plan"].startswith("dataflow=mma ")]
    lines, used = [], []
    for keys, values in ENTRY_TYPES:
        line = [pair(keys, values)]
        for lengths in ("1x500,", "1x20000,", "all full"):
            both = [row for row in rows if (row["keys"], row["values"]) == (keys, values)
                    and row["lengths"].startswith(lengths)]
            even, balanced = (next(row for row in both if f"schedule={by}" in row["plan"]) for by in ("per_sequence", "balanced"))
            line.append(f"{float(even['us']):.1f}, {float(balanced['us']):.1f}")
            used += [even, balanced]
        lines.append(line)
    head = ["us: `per_sequence`, `balanced`", "500 to 20,000 tokens", "one of 20,000, 23 of 625", "all of 20,000"]
    return table(head, lines) + f"\n\nBatch 24, {HEADS}, dataflow `mma`." + origin("mixed-lengths", used)


def model_steps(tools):
    """Steps of one token of a whole model."""
    rows = [row for row in rows_of(tools, "model-steps") if row["torch_compile"] == "yes"]
    def cells(row, key):
        ms = float(row[key])
        return [f"{ms:.2f}", times(float(row["fp16_ms"]) / ms) if row["fp16_ms"] else "-"]
    lines = [[f"{row['batch']} x {int(row['tokens']):,}", row["fp16_ms"] or "does not fit", *cells(row, "vq_cache_ms"),
              *cells(row, "vq_cache_and_weights_ms")] for row in rows]
    head = ["batch x context", "FP16, ms", "2-bit cache, ms", "FP16 / ours", "2-bit cache and weights, ms", "FP16 / ours"]
    return table(head, lines) + origin("model-steps", rows)


def model_capacity(tools):
    """How many sequences fit, and their throughput."""
    rows = rows_of(tools, "model-capacity")
    lines = [[f"{int(row['tokens']):,}", row["fp16_sequences"], f"{int(row['fp16_tokens_per_s']):,}", row["sequences"],
              f"{int(row['tokens_per_s']):,}"] for row in rows]
    head = ["context", "FP16: sequences that fit", "tokens per second", "2-bit cache: sequences that fit", "tokens per second"]
    return table(head, lines) + origin("model-capacity", rows)


VLLM_CACHES = {"fp16": "FP16", "fp8": "FP8", "vecinfer-d4b8i8": "`vecinfer-d4b8i8`", "klt-2bit-keys,klt-2bit-values": "`klt-2bit`"}
VLLM_SHAPES = (1, 32768), (8, 32768), (64, 4096)
VLLM_FULL = 8192  # tokens of each sequence where the cache is full


def vllm_steps(tools):
    """Decode steps in vLLM, what its cache holds, and the tokens per second where it is full."""
    rows = rows_of(tools, "vllm-steps")
    lines, base = [], {}
    kind = lambda row: (row["ranks"], row["weights"], row["cache"], row["recent_tokens"])
    for ranks, weights, cache, recent in dict.fromkeys(map(kind, rows)):
        own = [row for row in rows if kind(row) == (ranks, weights, cache, recent)]
        line = [ranks, VLLM_CACHES[cache], recent or "-", "FP16" if weights == "fp16" else f"`{weights}`"]
        for batch, tokens in VLLM_SHAPES:
            ms = float(one(own, "vllm-steps", batch=batch, tokens=tokens)["step_ms"])
            line.append(f"{ms:.2f} ({times(base.setdefault((ranks, batch, tokens), ms) / ms)})")
        line.append(f"{int(one(own, 'vllm-steps', batch=8, tokens=32768)['capacity_tokens']) / 1e6:.2f} M")
        full = max((row for row in own if row["tokens"] == str(VLLM_FULL)), key=lambda row: int(row["batch"]), default=None)
        if full and int(full["batch"]) > 8:
            speed = 1e3 * int(full["batch"]) / float(full["step_ms"])
            line.append(f"{full['batch']}: {speed:,.0f} ({times(speed / base.setdefault('speed', speed))})")
        else:
            line.append("-")
        lines.append(line)
    head = ["GPUs", "cache", "window", "weights", *(f"{batch} x {tokens:,}, ms" for batch, tokens in VLLM_SHAPES),
            "tokens that fit", f"sequences of {VLLM_FULL:,} that fill the cache: tokens per second"]
    return table(head, lines) + (
        "\n\nLlama-3-8B's shapes with random weights, full CUDA graphs, FlashAttention 3 for FP16; medians of 64 steps. "
        "In brackets: against the first row of as many GPUs. Tokens that fit are of sequences of 32,768.") + origin("vllm-steps", rows)


def vllm_tokens(tools):
    """Greedy tokens of vLLM beside transformers'."""
    rows = rows_of(tools, "vllm-tokens")
    lines = []
    kind = lambda row: (row["ranks"], row["model"], row["weights"], row["keys"], row["values"], row["recent_tokens"], row["mode"])
    widest = {}  # window of each format, the one that is recommended
    for row in rows:
        widest[row["keys"]] = max(widest.get(row["keys"], 0), int(row["recent_tokens"]))
    rows = [row for row in rows if int(row["recent_tokens"]) == widest[row["keys"]]]
    for of_run in dict.fromkeys(map(kind, rows)):
        ranks, model, weights, keys, values, recent, mode = of_run
        each = {row["compared"]: row for row in rows if kind(row) == of_run}
        line = [ranks, model, "FP16" if weights == "fp16" else f"`{weights}`", pair(keys, values), recent, mode]
        for compared in ("vllm", "own codes", "rounding"):
            row = each.get(compared)
            line.append(f"{row['beyond']} of {int(row['steps']):,}" if row else "-")
        lines.append([*line, f"{100 * float(each['vllm']['codes_differ']):.2f} %"])
    head = ["GPUs", "model", "weights", "keys, values", "window", "mode", "vLLM's codes", "own codes", "rounding alone", "codes that differ"]
    return table(head, lines) + origin("vllm-tokens", rows)


def slow_cases(tools):
    """Where vqgen is no faster, or barely, and why."""
    rows = rows_of(tools, "slow-cases")
    lines = []
    for row in rows:
        ends = list(dict.fromkeys(times(float(row[key])) for key in ("least_fp16_over_us", "most_fp16_over_us")))
        lines.append([row["case"], " to ".join(ends), row["reason"]])
    return table(["case", "FP16 time / vqgen time", "why"], lines) + origin("slow-cases", rows)


# Other packages, and how one measures

def rivals(name, keys, label):
    """A table of one line per problem and one column per side."""
    def generator(tools):
        rows = rows_of(tools, name)
        sides = list(dict.fromkeys(row["side"] for row in rows))
        lines = []
        for problem in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
            times_of = {row["side"]: float(row["us"]) for row in rows if tuple(row[key] for key in keys) == problem}
            lines.append([label(problem), *(f"{times_of[side]:.1f}" if side in times_of else "-" for side in sides)])
        return table(["us", *sides], lines) + origin(name, rows)
    return generator


def warm_up(tools):
    """One call after short and long runs of itself."""
    rows = rows_of(tools, "warm-up")
    lines = []
    for problem in dict.fromkeys((row["keys"], row["values"], row["batch"], row["tokens"]) for row in rows):
        keys, values, batch, tokens = problem
        short, long = (row for row in rows if (row["keys"], row["values"], row["batch"], row["tokens"]) == problem)
        lines.append([pair(keys, values), f"{batch} x {int(tokens):,}",
                      *(f"{row['us']} after {row['warm_up_ms']} ms" for row in (short, long)),
                      f"{float(long['us']) / float(short['us']):.2f}"])
    return table(["format", "batch x tokens", "us", "us", "ratio"], lines) + f"\n\nAttention, {HEADS}." + origin("warm-up", rows)


def cold_codebooks(tools):
    """One call with warm and with cold codebooks."""
    rows = rows_of(tools, "cold-codebooks")
    lines = [[row["problem"], row["us_rotated"], row["us_warm"],
              f"{float(row['us_rotated']) / float(row['us_warm']):.2f}"] for row in rows]
    return table(["problem", "us, codebooks rotated", "us, codebooks warm", "ratio"], lines) + origin("cold-codebooks", rows)


GENERATORS = without_arguments({
    "speed-summary": speed_summary,
    "attention-context": attention_context,
    "attention-shapes": attention_shapes,
    "attention-recent": attention_recent,
    "attention-queries": attention_queries,
    "paging": paging,
    "mixed-lengths": mixed_lengths,
    "gemm-by-m": gemm_by_m,
    "model-steps": model_steps,
    "model-capacity": model_capacity,
    "vllm-steps": vllm_steps,
    "vllm-tokens": vllm_tokens,
    "slow-cases": slow_cases,
    "rivals-attention": rivals("rivals-attention", ("batch", "tokens", "query_heads", "kv_heads"),
                               lambda p: f"{p[0]} x {int(p[1]):,}, {p[2]}/{p[3]} heads"),
    "rivals-gemm": rivals("rivals-products", ("matrix", "m"), lambda p: f"{p[0]}, M = {p[1]}"),
    "warm-up": warm_up,
    "cold-codebooks": cold_codebooks,
})
