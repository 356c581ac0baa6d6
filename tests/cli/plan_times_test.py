#!/usr/bin/env python3
"""bench/plan_times.py keeps what it is given, and what the planner chooses is near the best of the plans
that bench/measurements/plans.csv.gz has timed.

    plan_times_test.py SOURCE_DIR VQGEN
"""
import collections
import importlib.util
import json
import math
import pathlib
import subprocess
import sys
import tempfile

# The most that the chosen plans may take, of the best that was timed: geometric means.
MOST = {"attention_decode": 1.04, "gemm": 1.06}
LEAST_PROBLEMS, LEAST_PLANS = 200, 3000


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def keeps_what_it_is_given(script, tables, folder):
    document = {"gpu_spec": {"name": "NVIDIA H200"}, "configs": [
        {"config": "space/7/product-01.json", "problem": {"op": "gemv", "shape": {"m": 1}},
         "measurements": [{"outcome": "timed", "plan": {"b": 1, "a": 2}, "time_us": 3.14159},
                          {"outcome": "wrong", "plan": {"b": 2, "a": 2}}]}]}
    table, path = folder / "plans.csv.gz", folder / "document.json"
    path.write_text(json.dumps(document))
    run = [sys.executable, script, "pack", table, path, "--commit", "abc", "--power", "700"]
    subprocess.run(run, check=True, capture_output=True)
    first = table.read_bytes()
    subprocess.run(run, check=True, capture_output=True)
    assert table.read_bytes() == first, "a plan that the table has was added again"
    rows = tables.read(table)
    assert rows == [{"commit": "abc", "gpu": "NVIDIA H200", "power_w": "700", "problem": "7-product-01",
                     "config": '{"op":"gemv","shape":{"m":1}}', "plan": '{"a":2,"b":1}', "us": "3.142"}], rows
    tables.write(table, [{**rows[0], "gpu": "NVIDIA X1"}])
    done = subprocess.run([sys.executable, script, "unpack", table, folder / "out"], capture_output=True,
                          text=True)
    assert done.returncode == 1 and "'NVIDIA X1'" in done.stderr and "vqgen doctor" in done.stderr, done


def chooses_near_the_best(vqgen, rows, tables, folder):
    assert len({row["config"] for row in rows}) >= LEAST_PROBLEMS and len(rows) >= LEAST_PLANS, len(rows)
    problems = {}
    for name, document in tables.documents(rows, tables.profiles()).items():
        (folder / f"{name}.json").write_text(json.dumps(document))
        problems[name] = document["configs"][0]["problem"]["op"].replace("gemv", "gemm")
    done = subprocess.run([vqgen, "dev", "regret", *sorted(folder.glob("*.json")), "--json"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ratios, unknown = collections.defaultdict(list), collections.Counter()
    for config in json.loads(done.stdout)["configs"]:
        op = problems[config["config"]]
        regret = config["regret"]["model"]
        if regret is None:
            unknown[op] += 1  # the plan that is chosen now was not timed
        else:
            ratios[op].append(math.log(regret))
    for op, most in MOST.items():
        mean = math.exp(sum(ratios[op]) / len(ratios[op]))
        print(f"{op}: {mean:.4f} of the best by {len(ratios[op])} problems; "
              f"{unknown[op]} choose a plan that was not timed")
        assert mean <= most, (op, mean)
        assert unknown[op] <= len(ratios[op]) / 4, f"{op}: measure anew, by profiles/cost/README.md"


def main():
    source, vqgen = map(pathlib.Path, sys.argv[1:])
    script = source / "bench" / "plan_times.py"
    tables = load(script)
    with tempfile.TemporaryDirectory() as folder:
        keeps_what_it_is_given(script, tables, pathlib.Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        rows = tables.read(source / "bench" / "measurements" / "plans.csv.gz")
        chooses_near_the_best(vqgen, rows, tables, pathlib.Path(folder))


if __name__ == "__main__":
    main()
