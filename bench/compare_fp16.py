#!/usr/bin/env python3
"""Times the plans that vqgen takes without measuring against FP16 on the same GPU, in turns.

    bench/compare_fp16.py CONFIG... [--vqgen TOOL] [--rounds N] [--json OUT] [--warm-up MS]
                          [--measure OPTION]...

A round times the FP16 baseline, then `vqgen measure CONFIG`, which verifies before it times. Each side
begins with --warm-up milliseconds of its own calls (10; the flagship benchmark has 100, which bring a
kernel near the card's power limit to that limit).
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

sys.path.insert(0, str(pathlib.Path(__file__).with_name("flagship")))
import baselines


def baseline_us(config, warm_up_ms):
    import torch
    torch.cuda.empty_cache()
    attention = config["op"] == "attention_decode"
    make = baselines.attention_calls if attention else baselines.product_calls
    calls = make({**config, "shape": {"m": 1, "batch": 1, **config["shape"]}})
    return {name: each.graph_us(warm_up_ms) for name, each in calls.items()}


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
    parser.add_argument("--warm-up", type=float, default=10)
    parser.add_argument("--measure", action="append", default=[], help="passed to vqgen measure")
    arguments = parser.parse_args()
    results = []
    print(f"{'config':44} {'vqgen us':>9} {'FP16 us':>9} {'ratio':>6}  baseline, dataflow",
          flush=True)
    for path in arguments.configs:
        config = json.loads(pathlib.Path(path).read_text())
        rounds = []
        for _ in range(arguments.rounds):
            fp16_us = baseline_us(config, arguments.warm_up)
            ours = vqgen_measurement(arguments.vqgen, path,
                                     ["--warm-up", str(arguments.warm_up), *arguments.measure])
            rounds.append({"vqgen_us": ours["time_us"], "rel_err": ours["rel_err"],
                           "fp16_us": fp16_us, "plan": ours["plan"]})
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
