#!/usr/bin/env python3
"""Times the plans that vqgen takes without measuring against FP16 on the same GPU, in turns.

    bench/compare_fp16.py CONFIG... [--vqgen TOOL] [--rounds N] [--json OUT] [--measure OPTION]...

A round times the FP16 baseline, then `vqgen measure CONFIG`, which verifies before it times.
Baselines are PyTorch's: a product with cuBLAS, decoding attention with the faster of the backends
cuDNN and flash of scaled_dot_product_attention. Both sides are device times of CUDA graphs whose
calls take turns on copies of the large operand, so that no cache holds it. The table has medians
over the rounds; JSON has each round. Needs a GPU and PyTorch; ends 1 where a plan fails.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROTATED_BYTES = 400e6  # of operands that calls take turns on; caches hold 60 MB
REPLAYS = 9


def graph_us(calls):
    """Median microseconds of a call, by replays of one graph that holds all calls."""
    import torch
    for call in calls[:3]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times)


def copies_of(nbytes):
    return max(2, int(ROTATED_BYTES / nbytes) + 1)


def product_us(shape, dtype):
    """cuBLAS: y[rows][out] = x[rows][in] * W[out][in]^T."""
    import torch
    rows, outs, ins = shape.get("rows", 1), shape["out_features"], shape["in_features"]
    x = torch.randn(rows, ins, device="cuda", dtype=dtype)
    weights = [torch.randn(outs, ins, device="cuda", dtype=dtype)
               for _ in range(copies_of(outs * ins * 2))]
    times = graph_us([lambda w=w: torch.nn.functional.linear(x, w)
                      for w in weights * max(1, 20 // len(weights))])
    return {"cuBLAS": times}


def attention_us(shape, dtype):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    b, hq, hk = shape.get("batch", 1), shape["query_heads"], shape["kv_heads"]
    n, d = shape["tokens"], shape["head_dim"]
    q = torch.randn(b, hq, 1, d, device="cuda", dtype=dtype)
    caches = [[torch.randn(b, hk, n, d, device="cuda", dtype=dtype) for _ in range(2)]
              for _ in range(copies_of(b * hk * n * d * 4))]
    times = {}
    for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION),
                          ("flash", SDPBackend.FLASH_ATTENTION)):
        try:
            with sdpa_kernel(backend):
                times[name] = graph_us(
                    [lambda k=k, v=v: torch.nn.functional.scaled_dot_product_attention(
                        q, k, v, enable_gqa=hq != hk)
                     for k, v in caches * max(1, 20 // len(caches))])
        except RuntimeError as error:  # a backend that does not take the shape
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
    return times


def baseline_us(config):
    import torch
    torch.cuda.empty_cache()
    dtype = torch.bfloat16 if config.get("dtype") == "bf16" else torch.float16
    attention = config["op"] == "attention_decode"
    return (attention_us if attention else product_us)(config["shape"], dtype)


def vqgen_measurement(tool, path, options):
    """The one measurement that the tool prints; exits where it is refused or wrong."""
    done = subprocess.run([tool, "measure", path, "--json", *options], capture_output=True,
                          text=True)
    if done.returncode != 0:
        sys.exit(f"{path}: {done.stderr.strip() or done.stdout.strip()}")
    measurement = json.loads(done.stdout)["configs"][0]["measurements"][0]
    if measurement["outcome"] != "timed":
        sys.exit(f"{path}: {measurement['outcome']}: {measurement.get('why', '')}")
    return measurement


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configs", nargs="+")
    parser.add_argument("--vqgen", default="vqgen")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    parser.add_argument("--measure", action="append", default=[], help="passed to vqgen measure")
    arguments = parser.parse_args()
    results = []
    print(f"{'config':44} {'vqgen us':>9} {'FP16 us':>9} {'ratio':>6}  baseline, dataflow",
          flush=True)
    for path in arguments.configs:
        config = json.loads(pathlib.Path(path).read_text())
        rounds = []
        for _ in range(arguments.rounds):
            baselines = baseline_us(config)
            ours = vqgen_measurement(arguments.vqgen, path, arguments.measure)
            rounds.append({"vqgen_us": ours["time_us"], "rel_err": ours["rel_err"],
                           "fp16_us": baselines, "plan": ours["plan"]})
        ours_us = statistics.median(each["vqgen_us"] for each in rounds)
        best = min(rounds[0]["fp16_us"],
                   key=lambda name: statistics.median(each["fp16_us"][name] for each in rounds))
        best_us = statistics.median(each["fp16_us"][best] for each in rounds)
        results.append({"config": config, "name": pathlib.Path(path).stem, "vqgen_us": ours_us,
                        "fp16_us": best_us, "baseline": best, "ratio": best_us / ours_us,
                        "rounds": rounds})
        print(f"{pathlib.Path(path).stem:44} {ours_us:9.2f} {best_us:9.2f} "
              f"{best_us / ours_us:6.2f}  {best}, {rounds[0]['plan']['dataflow']}", flush=True)
        if arguments.json:
            pathlib.Path(arguments.json).write_text(json.dumps(results, indent=1) + "\n")
    print(f"{'geometric mean of the ratios':44} "
          f"{statistics.geometric_mean(each['ratio'] for each in results):26.2f}")


if __name__ == "__main__":
    main()
