#!/usr/bin/env python3
"""Measures what the cache and libvqgen cost, and sets it against the figures that they are to reach.

    bench/runtime_figures.py BIN [--backend cuda|host] [--gpu NAME] [--runs N] [--json OUT]

BIN is a folder with vqgen, serving_start and launch_overhead, and library_allocation_test where the
allocations and locks of a launch are to be counted: the targets of that name, of preset travel to
carry them to a GPU machine. Every figure is of fresh processes with caches and tables of their own.

compile runs   CONFIG --gpu NAME, warm, whole processes: as the cost model alone chooses, with the
               tables of the binary, and with a table of one row that is exact
cold key       processes that start at once on one kernel that no cache has
first prepare  one op of one kernel, in the cache, in a fresh process, the context aside; with tables
               likewise
start          twenty kernels of a server of Llama-3-8B: projections of 1, 4, 8 and 64 rows, attention
               of 1 and 16 sequences at 4096 and 32768 tokens; compiled, from the cache, from a pack
launch         what prepare and launch cost the host, over kernels that do nothing

What cannot run here is listed as skipped, with the reason: a program, the compiler, the driver or the
device is missing. The exit code is 1 where a figure misses its goal or something fails. With --backend host the ops are compiled by g++, which says nothing of the
times of an op, so they have no goal there.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ATTENTION = {"op": "attention_decode", "keys": "vecinfer-d4b8", "values": "vecinfer-d4b8",
             "shape": {"batch": 1, "query_heads": 32, "kv_heads": 8, "head_dim": 128,
                       "tokens": 32768}}
NO_ROW = {**ATTENTION, "keys": "vecinfer-d2b8", "values": "vecinfer-d2b8"}  # of the tables that ship
GEMV = {"op": "gemv", "weights": "aqlm-2x8",
        "shape": {"m": 1, "out_features": 28672, "in_features": 4096}}
PROJECTIONS = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
ROWS = [1, 4, 8, 64]
CACHES = [(1, 4096), (1, 32768), (8, 4096), (16, 32768)]  # whose plans differ, so their kernels
KERNELS = 20
MISSING = 5  # the exit code where compiler, driver or device are missing


class Skipped(Exception):
    """What is wanted is not on this machine."""


class Failed(Exception):
    """What is there did not do its work."""


def serving_configs():
    for outputs, inputs in PROJECTIONS:
        for rows in ROWS:
            yield {**GEMV, "op": "gemv" if rows <= 8 else "gemm",
                   "shape": {"m": rows, "out_features": outputs, "in_features": inputs}}
    for batch, tokens in CACHES:
        yield {**ATTENTION, "shape": {**ATTENTION["shape"], "batch": batch, "tokens": tokens}}


class Bench:
    """One run: its binaries, its scratch folder, and the figures as they come."""

    def __init__(self, arguments, work):
        self.arguments, self.work = arguments, work
        self.figures, self.skipped, self.failed, self.fresh = [], [], [], 0

    def tool(self, name):
        path = self.arguments.bin / name
        if not path.exists():
            raise Skipped(f"{name} is not in {self.arguments.bin}")
        return str(path)

    def write(self, name, content):
        path = self.work / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    def environment(self, cache=None, tables="", path=None):
        """The environment of a process with this cache, or a new one, and these tables before the binary's own."""
        self.fresh += 1
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("VQGEN_CACHE", "VQGEN_TUNED", "XDG_"))}
        return {**kept, "HOME": str(self.work), "VQGEN_TUNED_PATH": tables,
                "VQGEN_CACHE_DIR": cache or str(self.work / f"cache-{self.fresh}"),
                **({"VQGEN_CACHE_PATH": path} if path else {})}

    def figure(self, what, unit, values, goal=None, **more):
        """`values`: one, or those of several runs, of which the median counts."""
        runs = values if isinstance(values, list) else [values]
        value = statistics.median(runs)
        met = None if goal is None else value <= goal
        self.figures.append({"what": what, "value": value, "unit": unit, "goal": goal, "met": met,
                             "runs": runs, **more})
        spread = f"{min(runs):.3g} to {max(runs):.3g}" if len(runs) > 1 else ""
        aim = "" if goal is None else f"{'ok' if met else 'MISSED'}: at most {goal:g}"
        print(f"{what:84} {value:9.2f} {unit:11} {spread:17} {aim}", flush=True)

    def attempt(self, what, act):
        try:
            act()
        except Skipped as reason:
            self.skipped.append({"what": what, "why": str(reason)})
            print(f"{what:84} skipped: {reason}", flush=True)
        except Failed as reason:
            self.failed.append({"what": what, "why": str(reason)})
            print(f"{what:84} FAILED: {reason}", flush=True)

    def run(self, command, environment):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            kind = Skipped if done.returncode == MISSING else Failed
            raise kind(f"ends {done.returncode}: {one_line(done.stderr or done.stdout)}")
        return done.stdout


def one_line(text):
    return " ".join(text.split())[:200]


def process_ms(command, environment):
    """Wall time of a whole process, its output thrown away; by spawn, which forks nothing."""
    null = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in (0, 1, 2)]
    begin = time.perf_counter()
    child = os.posix_spawn(command[0], command, environment, file_actions=null)
    status = os.waitpid(child, 0)[1]
    spent = (time.perf_counter() - begin) * 1e3
    if status != 0:
        raise Failed(f"{command[1]} ends {os.waitstatus_to_exitcode(status)}")
    return spent


def table_of_one_row(bench, config, name):
    """A table whose row is the default plan: its name is the first that a tuning asks for."""
    tool, gpu = bench.tool("vqgen"), bench.arguments.gpu
    attention = "keys" in json.loads(pathlib.Path(config).read_text())
    kind = "attention_simt" if attention else "linear_simt"
    nothing = bench.write(f"{name}-none.json", [{"plan": f"{kind}/threads=992", "time_us": 1}])
    journal, table = (str(bench.work / f"{name}.{end}") for end in ("journal", "jsonl"))
    common = [tool, "tune", config, "--gpu", gpu, "--search", "exhaustive", "--max-candidates", "1"]
    environment = bench.environment()
    subprocess.run([*common, "--replay", nothing, "--journal", journal], env=environment,
                   capture_output=True)
    lines = pathlib.Path(journal).read_text().splitlines() if os.path.exists(journal) else []
    asked = [json.loads(line)["screen"]["plan"] for line in lines if '"screen"' in line]
    if not asked:
        raise Failed("vqgen tune asked for no plan")
    replay = bench.write(f"{name}-replay.json", [{"plan": asked[0], "time_us": 9}])
    bench.run([*common, "--replay", replay, "--out", table], environment)
    return table


def warm_compile(bench, name, problem):
    gpu = ["--gpu", bench.arguments.gpu]
    config = bench.write(f"{name}.json", problem)
    row = table_of_one_row(bench, config, name)
    for source, tables, options in (("no table asked", "", ["--planner", "model"]),
                                    ("tables of the binary", "", []), ("exact row", row, [])):
        command = [bench.tool("vqgen"), "compile", config, *gpu, *options]
        environment = bench.environment(tables=tables)
        bench.run(command, environment)  # the cold one
        document = json.loads(bench.run([*command, "--json"], environment))
        states = {each["cache"] for each in document["kernels"]}
        rung = document["plan_from"]["rung"]
        if states != {"hit"} or (tables and rung != "exact"):
            raise Failed(f"the second compile is {states}, its plan from {rung}")
        runs = [process_ms(command, environment) for _ in range(bench.arguments.runs)]
        bench.figure(f"vqgen compile, warm, whole process: {name}, {source} ({rung})", "ms", runs,
                     20)


def one_cold_key(bench):
    count = bench.arguments.processes
    config = bench.write("cold.json", GEMV)
    command = [bench.tool("vqgen"), "compile", config, "--gpu", bench.arguments.gpu, "--json"]
    environment = bench.environment()
    bench.run(command, bench.environment())  # so that a machine that cannot compile is skipped
    begin = time.perf_counter()
    children = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True) for _ in range(count)]
    outputs = [child.communicate()[0] for child in children]
    spent = time.perf_counter() - begin
    failed = sum(child.returncode != 0 for child in children)
    states = [json.loads(output)["kernels"][0]["cache"]
              for child, output in zip(children, outputs) if child.returncode == 0]
    bench.figure(f"{count} processes on one cold key: failed", "processes", failed, 0)
    bench.figure(f"{count} processes on one cold key: compiled", "kernels", states.count("miss"), 2)
    bench.figure(f"{count} processes on one cold key: until all are done", "s", spent)


def serving(bench, configs, environment, buckets=1):
    options = ["--backend", bench.arguments.backend, "--threads", str(bench.arguments.threads),
               "--buckets", str(buckets), "--json"]
    return json.loads(bench.run([bench.tool("serving_start"), *options, *configs], environment))


def first_prepare(bench, name, problem):
    config = bench.write(f"{name}-first.json".replace(" ", "-"), problem)
    goal = 5 if bench.arguments.backend == "cuda" else None
    sources = [("tables of the binary", "")]
    if problem is not NO_ROW:
        sources.append(("exact row", table_of_one_row(bench, config, f"{name}-first")))
    for source, tables in sources:
        environment = bench.environment(tables=tables)
        serving(bench, [config], environment)
        starts = [serving(bench, [config], environment) for _ in range(bench.arguments.runs)]
        if any(start["compiled"] != 0 or start["kernels"] != 1 for start in starts):
            raise Failed(f"not one kernel from the cache: {starts[0]}")
        rungs = ", ".join(starts[0]["rungs"])
        if tables and rungs != "exact":
            raise Skipped(f"its plan comes from {rungs}: the device is no {bench.arguments.gpu}")
        bench.figure(f"first prepare, kernel cached, fresh process: {name}, {source} ({rungs})",
                     "ms", [start["ops_ms"] for start in starts], goal)
    bench.figure(f"runtime and context before that: {name}", "ms",
                 [start["context_ms"] for start in starts])


def serving_start(bench):
    configs = [bench.write(f"serving-{i:02}.json", each)
               for i, each in enumerate(serving_configs())]
    device = bench.arguments.backend == "cuda"
    threads = bench.arguments.threads

    def figure(what, starts, compiled, goal):
        if any(start["kernels"] != KERNELS or start["compiled"] != compiled for start in starts):
            raise Failed(f"not {KERNELS} kernels, {compiled} of them compiled: {starts}")
        bench.figure(f"start with {KERNELS} kernels, {threads} threads: {what}", "ms",
                     [start["ops_ms"] for start in starts], goal if device else None)

    colds, cache = [], None
    for _ in range(bench.arguments.cold_runs):
        environment = bench.environment()
        cache = environment["VQGEN_CACHE_DIR"]
        colds.append(serving(bench, configs, environment))
        entries = len(list(pathlib.Path(cache).rglob("*.vqk")))
        if entries != KERNELS:
            raise Failed(f"the cache has {entries} entries after it, not {KERNELS}")
    figure(f"compiled ({', '.join(colds[0]['rungs'])})", colds, KERNELS, 2000)
    bench.figure("runtime and context before that", "ms", [each["context_ms"] for each in colds])
    runs = range(bench.arguments.runs)
    warm = bench.environment(cache=cache)
    figure("from the cache", [serving(bench, configs, warm) for _ in runs], 0, None)
    pack = str(bench.work / "kernels.vqpack")
    bench.run([bench.tool("vqgen"), "cache", "pack", pack, "--from", cache], bench.environment())
    packed = [serving(bench, configs, bench.environment(path=pack)) for _ in runs]
    figure("from a pack", packed, 0, 50)


def launch(bench):
    figures = json.loads(bench.run([bench.tool("launch_overhead"), "--json"], bench.environment()))
    bench.figure("plan and text of a new kernel", "ms", figures["new_kernel_ms"])
    bench.figure("prepare again, known config", "ns", figures["prepare_again_ns"], 1000)
    bench.figure("lookup by changed row count", "ns", figures["bucket_ns"], 100)
    bench.figure("launch beyond the driver's own call", "ns", figures["launch_ns"], 150)


def allocations(bench):
    """The test fails where a launch allocates or locks; it seeds both, so as to see that it counts."""
    output = bench.run([bench.tool("library_allocation_test")], bench.environment())
    if "[  PASSED  ]" not in output or "[  SKIPPED ]" in output:
        raise Failed("its output says nothing of tests that passed")
    bench.figure("allocations and locks of a launch, by library_allocation_test", "a launch", 0, 0)


def doctor(bench):
    """GPU, driver and NVRTC; it ends with an error where one is missing, and says so all the same."""
    done = subprocess.run([bench.tool("vqgen"), "doctor", "--json"], env=bench.environment(),
                          capture_output=True, text=True)
    return json.loads(done.stdout or "{}").get("findings")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--backend", choices=["cuda", "host"], default="cuda",
                        help="of first prepare and start")
    parser.add_argument("--gpu", default="h200", help="that vqgen compile is for")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--cold-runs", type=int, default=3)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json")
    arguments = parser.parse_args()
    arguments.bin = arguments.bin.resolve()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments, pathlib.Path(folder))
        for name, problem in (("attention", ATTENTION), ("gemv", GEMV)):
            bench.attempt(f"vqgen compile, warm: {name}", lambda: warm_compile(bench, name, problem))
        bench.attempt("one cold key", lambda: one_cold_key(bench))
        for name, problem in (("attention", ATTENTION), ("attention, 4 bit", NO_ROW),
                              ("gemv", GEMV)):
            bench.attempt(f"first prepare: {name}", lambda: first_prepare(bench, name, problem))
        bench.attempt(f"start with {KERNELS} kernels", lambda: serving_start(bench))
        bench.attempt("launch", lambda: launch(bench))
        bench.attempt("allocations and locks of a launch", lambda: allocations(bench))
        if arguments.json:
            result = {"backend": arguments.backend, "gpu": arguments.gpu, "cpus": os.cpu_count(),
                      "doctor": doctor(bench), "figures": bench.figures, "skipped": bench.skipped,
                      "failed": bench.failed}
            pathlib.Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n")
    missed = any(each["met"] is False for each in bench.figures)
    return 1 if missed or bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
