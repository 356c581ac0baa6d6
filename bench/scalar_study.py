#!/usr/bin/env python3
"""The study of INT8 quantization of KV caches on this machine's GPU: one command, one table.

"GPU-Accelerated INT8 Quantization for KV Cache Compression in Large Language Models" (2025) times
four kernels over eight sizes up to 131072 x 8192. This does so with int8_quantize and
int8_dequantize: each form, the scales, what moves as many bytes on the device (the faster of PyTorch's
copy and its inversion of words), and PyTorch on all cores of the CPU; and the study's three
measures.

    PYTHONPATH=build/release/python python3 bench/scalar_study.py --json out/study.json

Calls take turns on copies of the matrix that together are several second-level caches, in a CUDA
graph; times are medians of replays. Every result is compared with PyTorch's, bit for bit. Needs
PyTorch and a GPU with 15 GB of free memory for the largest size.
"""

import argparse
import json
import os
import statistics
import sys
import time

SIZES = [(2048, 128), (16384, 256), (65536, 256), (131072, 256), (131072, 1024), (131072, 2048),
         (131072, 4096), (131072, 8192)]
FORMS = {"naive": {"form": "naive", "vector": 1, "tokens": 1},
         "tiled": {"form": "tiled", "vector": 1, "tokens": 1},
         "coarsened": {"form": "coarsened", "vector": 1, "tokens": 8},
         "vectorized": {}}  # the rules' own plan
TYPES = {"f32": 4, "f16": 2, "bf16": 2}
CHUNK = 1 << 26  # elements that PyTorch works on at a time


def median_us(torch, calls, replays):
    """Microseconds of one of `calls`, functions that queue work, one after the other in a graph."""
    for call in calls:  # compiled, and their memory mapped
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for replay in range(replays + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if replay > 1:
            times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times)


def rows_of(matrix):
    """Slices of rows of about CHUNK elements."""
    step = max(1, CHUNK // matrix.shape[1])
    return [slice(at, at + step) for at in range(0, matrix.shape[0], step)]


def quantized_like(torch, matrix, scales):
    """The codes by PyTorch, on the device of the matrix."""
    codes = torch.empty(matrix.shape, dtype=torch.int8, device=matrix.device)
    for rows in rows_of(matrix):
        codes[rows] = (matrix[rows].float() / scales).round_().clamp_(-127, 127).to(torch.int8)
    return codes


def equal(torch, a, b):
    return all(torch.equal(a[rows], b[rows]) for rows in rows_of(a))


def measures(torch, matrix, codes, scales):
    """L2, largest and mean attention-score error, with one query uniform in [-1, 1]."""
    generator = torch.Generator(device=matrix.device).manual_seed(2)
    query = torch.rand(matrix.shape[1], generator=generator, device=matrix.device).double() * 2 - 1
    squares = largest = scores = 0.0
    for rows in rows_of(matrix):
        step = max(1, (rows.stop - rows.start) // 8)
        for at in range(rows.start, min(rows.stop, matrix.shape[0]), step):
            part = slice(at, min(at + step, rows.stop))
            off = matrix[part].double() - (codes[part].float() * scales).double()
            squares += float((off * off).sum())
            largest = max(largest, float(off.abs().max()))
            scores += float((off @ query).abs().sum())
    return {"l2": squares ** 0.5, "largest": largest, "mean_score": scores / matrix.shape[0]}


def cpu_ms(torch, matrix, scales, replays):
    """Milliseconds of quantizing on all cores, by vector instructions, parts that caches hold."""
    step = max(1, (1 << 22) // matrix.shape[1])
    codes = torch.empty(matrix.shape, dtype=torch.int8)
    part = torch.empty((step, matrix.shape[1]), dtype=torch.float32)
    times = []
    for _ in range(replays):
        begin = time.perf_counter()
        for at in range(0, matrix.shape[0], step):
            source = matrix[at:at + step]
            steps = torch.div(source, scales, out=part[:source.shape[0]])
            codes[at:at + step].copy_(steps.round_().clamp_(-127, 127))
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times), codes


def study(torch, vqgen, runtime, tokens, channels, options):
    device = torch.device("cuda", options.device)
    size = TYPES[options.dtype]
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[options.dtype]
    elements = tokens * channels
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    places = max(1, -(-3 * l2_bytes // (elements * (1 + size))))
    generator = torch.Generator(device=device).manual_seed(1)
    matrix = torch.empty((tokens, channels), dtype=dtype, device=device)
    for rows in rows_of(matrix):
        matrix[rows] = torch.rand(matrix[rows].shape, generator=generator, device=device) * 2 - 1
    matrices = [matrix] + [matrix.clone() for _ in range(places - 1)]
    codes = [torch.empty((tokens, channels), dtype=torch.int8, device=device) for _ in matrices]
    calls = max(places, 4 if elements < 1 << 28 else 1)
    of = lambda values, call: values[call % places]

    def op(name, plan, scales=None):
        shape = {"tokens": tokens, "channels": channels}
        if scales:
            shape["scales"] = scales
        config = {"op": name, "dtype": options.dtype, "shape": shape}
        if plan:
            config["plan"] = plan
        return runtime.scalar(config)

    def timed(queue):
        return median_us(torch, [lambda i=i: queue(i) for i in range(calls)], options.replays)

    def figure(us, moved):
        return {"us": us, "gbps": moved / us * 1e-3}

    result = {"tokens": tokens, "channels": channels, "dtype": options.dtype, "places": places}
    wanted_scales = torch.zeros(channels, device=device)
    for rows in rows_of(matrix):
        wanted_scales = torch.maximum(wanted_scales, matrix[rows].abs().amax(0).float())
    wanted_scales /= torch.full_like(wanted_scales, 127)
    wanted = quantized_like(torch, matrix, wanted_scales)

    def require(fine, what):
        if not fine:
            sys.exit(f"scalar_study: {what} of {tokens} x {channels} differs from PyTorch's")

    moved = elements * (1 + size) + 4 * channels
    words = moved // 8
    sources = [torch.zeros(words, dtype=torch.int32, device=device) for _ in range(places)]
    targets = [torch.empty_like(each) for each in sources]
    copies = (lambda i: of(targets, i).copy_(of(sources, i)),
              lambda i: torch.bitwise_not(of(sources, i), out=of(targets, i)))
    result["copy"] = figure(min(timed(each) for each in copies), 8 * words)
    del sources, targets

    scales = torch.empty(channels, device=device)
    whole = op("int8_quantize", {}, "computed")
    whole(matrix, scales, out=codes[0])
    require(torch.equal(scales, wanted_scales), "a scale")
    require(equal(torch, codes[0], wanted), "a code")
    with_scales = timed(lambda i: whole(of(matrices, i), scales, out=of(codes, i)))
    result["quantize_with_scales"] = figure(with_scales, moved + elements * size)
    for form, plan in FORMS.items():
        quantize = op("int8_quantize", plan)
        codes[0].zero_()
        quantize(matrix, scales, out=codes[0])
        require(equal(torch, codes[0], wanted), f"a code by form {form}")
        us = timed(lambda i: quantize(of(matrices, i), scales, out=of(codes, i)))
        result.setdefault("quantize", {})[form] = figure(us, moved)
    result["scales_us"] = with_scales - result["quantize"]["vectorized"]["us"]
    result["measures"] = measures(torch, matrix, codes[0], scales)
    if options.cpu:
        on_cpu = matrix.cpu()
        ms, made = cpu_ms(torch, on_cpu, scales.cpu(), 3)
        require(equal(torch, made.to(device), wanted), "the CPU's code")
        result["cpu_ms"] = ms
        del on_cpu, made
    del wanted
    for each in codes[1:]:
        each.copy_(codes[0])
    for form, plan in FORMS.items():
        dequantize = op("int8_dequantize", plan)
        dequantize(codes[0], scales, out=matrices[0])
        for rows in rows_of(codes[0]):
            require(torch.equal(matrices[0][rows], (codes[0][rows].float() * scales).to(dtype)),
                    f"an element by form {form}")
        us = timed(lambda i: dequantize(of(codes, i), scales, out=of(matrices, i)))
        result.setdefault("dequantize", {})[form] = figure(us, moved)
    return result


def table(results):
    lines = ["| tokens x channels | copy GB/s | form | quantize us | GB/s | of copy | dequantize us "
             "| GB/s | of copy |", "|---|---|---|---|---|---|---|---|---|"]
    for each in results:
        copy = each["copy"]["gbps"]
        for form in FORMS:
            cells = [f"{each['tokens']} x {each['channels']}", f"{copy:.0f}", form]
            for work in ("quantize", "dequantize"):
                own = each[work][form]
                cells += [f"{own['us']:.1f}", f"{own['gbps']:.0f}",
                          f"{100 * own['gbps'] / copy:.0f} %"]
            lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| tokens x channels | scales us | with scales us | GB/s | CPU ms | times the CPU "
              "| L2 error | largest error | mean score error |", "|---|---|---|---|---|---|---|---|---|"]
    for each in results:
        both, lost = each["quantize_with_scales"], each["measures"]
        cpu = each.get("cpu_ms")
        times = f"{cpu * 1e3 / each['quantize']['vectorized']['us']:.0f}" if cpu else "-"
        lines.append(f"| {each['tokens']} x {each['channels']} | {each['scales_us']:.1f} | "
                     f"{both['us']:.1f} | {both['gbps']:.0f} | {f'{cpu:.2f}' if cpu else '-'} | "
                     f"{times} | {lost['l2']:.3f} | {lost['largest']:.6f} | "
                     f"{lost['mean_score']:.4f} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", type=int, default=0, help="number of the GPU")
    parser.add_argument("--dtype", choices=TYPES, default="f32", help="of the matrix")
    parser.add_argument("--sizes", default=",".join(f"{t}x{c}" for t, c in SIZES),
                        help="TOKENSxCHANNELS,..; the study's eight by default")
    parser.add_argument("--replays", type=int, default=15, help="of each graph; the median counts")
    parser.add_argument("--no-cpu", dest="cpu", action="store_false", help="leave the CPU out")
    parser.add_argument("--json", help="file for all figures")
    options = parser.parse_args()
    try:
        import torch
        import vqgen
    except ImportError as error:
        sys.exit(f"scalar_study: {error}; set PYTHONPATH to the build's python folder, and use a "
                 "Python that has PyTorch")
    if not torch.cuda.is_available():
        sys.exit("scalar_study: PyTorch sees no GPU; run this on a machine that has one")
    try:
        sizes = [tuple(int(side) for side in each.split("x")) for each in options.sizes.split(",")]
    except ValueError:
        sizes = []
    if not sizes or any(len(each) != 2 or min(each) < 1 for each in sizes):
        sys.exit(f"scalar_study: --sizes is {options.sizes!r}; it has to be like 2048x128,131072x1024")
    torch.cuda.set_device(options.device)
    stream = torch.cuda.Stream()
    results = []
    with torch.cuda.stream(stream), vqgen.Runtime(options.device) as runtime:
        for tokens, channels in sizes:
            results.append(study(torch, vqgen, runtime, tokens, channels, options))
            print(f"{tokens} x {channels} done", file=sys.stderr)
            torch.cuda.empty_cache()
    environment = {"gpu": torch.cuda.get_device_name(options.device), "torch": torch.__version__,
                   "cpu_threads": torch.get_num_threads(), "vqgen": vqgen.__version__}
    print(f"{environment['gpu']}, {options.dtype}; CPU: {environment['cpu_threads']} threads\n")
    print(table(results))
    if options.json:
        os.makedirs(os.path.dirname(os.path.abspath(options.json)), exist_ok=True)
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"environment": environment, "results": results}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
