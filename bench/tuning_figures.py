#!/usr/bin/env python3
"""Measures the tuner: how near a budget comes to all candidates, how far two runs agree, whether kills
change a row, and what a sweep gained.

    bench/tuning_figures.py strategies CONFIG... [--budget 60s] [--exhaustive-budget 1h] [--rounds N]
    bench/tuning_figures.py seeds CONFIG|SWEEP... [--seeds 1 2] [--rounds N] [--by turns|rows]
    bench/tuning_figures.py kills WORK [--kills N] [--within SECONDS]
    bench/tuning_figures.py sweep TUNE_JSON...

strategies  each config by --search and by exhaustive; the two winners are then measured against each
            other, in turns over --rounds processes of vqgen measure. Goal: a ratio of 1.03 at most
seeds       each config or sweep once a seed, from nothing, and a verdict on each problem: same winner;
            within the band, where winners are others whose times differ by no more than the noise that
            the rows state, the larger of the two; or outside. Other winners are measured against each
            other like those above, or by the times of their two rows with --by rows. The goal is that
            none is outside. `apart` is what the rows' times differ by, the winner the same or not
kills       a config or a sweep whose process group is killed at random moments and started again by the
            same command until it is done. Then its journals, alone, are gone through once more by a
            run that nothing ends: table and journals must come out the same, byte for byte, and rows
            that were in the table when a kill came must be there at the end as they were. A kill must
            have come after an answer of the device, else nothing was shown: see --within
sweep       default over tuned of what vqgen tune SWEEP --json wrote, of any number of shards

Options of all: --vqgen TOOL, --json OUT, --tune OPTION (passed to vqgen tune and measure, such as
--tune=--backend=host), --search OPTION (passed to vqgen tune alone, such as --search=--replay=FILE; with a
recording nothing can be measured, and the times of the rows are compared instead). Journals and tables
are kept in --work, where that is named. Ends 1 where a goal is missed.
"""
import argparse
import json
import math
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time


def tune_command(arguments, work, folder, *more):
    return [arguments.vqgen, "tune", str(work), "--out", str(folder / "table.jsonl"), "--json",
            *arguments.tune, *arguments.search, *more]


def tune_all(arguments, work, folder, *more):
    """What vqgen tune says of its problems."""
    folder.mkdir(parents=True)
    document = run(tune_command(arguments, work, folder, *more))
    (folder / "gpu.json").write_text(json.dumps(document["gpu_spec"]))
    return document["problems"]


def tune(arguments, work, folder, *more):
    """The tuning of the first problem, with the wall time as wall_s."""
    begin = time.monotonic()
    first = tune_all(arguments, work, folder, *more)[0]
    return {**first, "wall_s": time.monotonic() - begin}


def run(command, environment=None):
    done = subprocess.run(command, capture_output=True, text=True,
                          env={**os.environ, **(environment or {})})
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        sys.exit(f"{' '.join(command[:3])}: ends {done.returncode}: {lines[-1] if lines else ''}")
    return json.loads(done.stdout)


def whole_plan(arguments, config, folder):
    """The winner with all its fields: a name leaves out those that vqgen measure would choose anew."""
    document = run([arguments.vqgen, "explain", config, "--gpu", str(folder / "gpu.json"), "--json"],
                   {"VQGEN_TUNED_PATH": str(folder / "table.jsonl")})
    rung = document["plan_from"]["rung"]
    if rung not in ("exact", "codes"):
        sys.exit(f"{config}: its plan comes from {rung}, not from the row that was tuned")
    return document["plan"]


def head_to_head(arguments, config, one, other):
    """Time of the first folder's winner over the second's: a ratio a round, in turns."""
    plans = [whole_plan(arguments, config, folder) for folder in (one, other)]
    path, ratios = one / "plans.json", []
    for number in range(arguments.rounds):
        turn = -1 if number % 2 else 1
        path.write_text(json.dumps(plans[::turn]))
        document = run([arguments.vqgen, "measure", config, "--plans", str(path), "--json",
                        *arguments.tune])
        measured = document["configs"][0]["measurements"][::turn]
        for each in measured:
            if each["outcome"] != "timed":
                sys.exit(f"{config}: {each['outcome']}: {each.get('why', '')}")
        ratios.append(measured[0]["time_us"] / measured[1]["time_us"])
    return ratios


def by_rows(arguments):
    return (getattr(arguments, "by", "turns") == "rows" or
            any(word.startswith("--replay") for word in arguments.search))


def compared(arguments, config, one, other):
    """Compares two tunings, (folder, problem) each: whether they have one winner, and their times."""
    same = one[1]["row"]["plan"] == other[1]["row"]["plan"]
    if same:
        ratios = [1.0]
    elif by_rows(arguments):
        ratios = [one[1]["row"]["time_us"] / other[1]["row"]["time_us"]]
    else:
        ratios = head_to_head(arguments, config, one[0], other[0])
    return {"config": config, "same": same, "ratio": statistics.median(ratios), "rounds": ratios}


def short(problem):
    row = problem["row"]
    return {"plan": row["plan"], "time_us": row["time_us"], "default_us": row["default_us"],
            "noise": row["noise"], "rank": problem["winner_rank"], "space": problem["space"],
            "tried": len(problem["trials"]), "exhausted": problem["exhausted"],
            "spent_s": problem["spent_s"]}


def strategies(arguments, work):
    print(f"{'config':36} {'us':>8} {'of all':>8} {'ratio':>6} {'rounds':>13} {'tried':>11} "
          f"{'s':>6} {'s of all':>8}")
    results = []
    for number, config in enumerate(arguments.configs):
        folders = [work / f"{number}-{name}" for name in ("budget", "exhaustive")]
        quick = tune(arguments, config, folders[0], "--search", arguments.search, "--budget",
                     arguments.budget)
        whole = tune(arguments, config, folders[1], "--search", "exhaustive", "--budget",
                     arguments.exhaustive_budget)
        result = {**compared(arguments, config, (folders[0], quick), (folders[1], whole)),
                  arguments.search: {**short(quick), "wall_s": quick["wall_s"]},
                  "exhaustive": {**short(whole), "wall_s": whole["wall_s"]}}
        result["met"] = result["ratio"] <= 1.03
        results.append(result)
        spread = f"{min(result['rounds']):.3f}..{max(result['rounds']):.3f}"
        print(f"{pathlib.Path(config).stem:36} {quick['row']['time_us']:8.2f} "
              f"{whole['row']['time_us']:8.2f} {result['ratio']:6.3f} {spread:>13} "
              f"{len(quick['trials']):>5}/{len(whole['trials']):<5} {quick['wall_s']:6.1f} "
              f"{whole['wall_s']:8.1f}  {'ok' if result['met'] else 'MISSED: at most 1.03'}"
              f"{'' if whole['exhausted'] else '; the exhaustive search ran out of its budget'}",
              flush=True)
    return results


def verdict_on(result, noise):
    if result["same"]:
        return "same winner"
    return "within the band" if abs(math.log(result["ratio"])) <= math.log1p(noise) else "outside"


def compare_seeds(arguments, folders, problems, number):
    """Compares one problem tuned by two seeds; its canonical text is a config."""
    config = folders[0] / f"problem-{number}.json"
    config.write_text(json.dumps(problems[0]["row"]["problem"]))
    result = compared(arguments, str(config), *zip(folders, problems))
    rows = [each["row"] for each in problems]
    noise = max(row["noise"] for row in rows)
    verdict = verdict_on(result, noise)
    return {**result, "label": problems[0]["label"], "noise": noise, "verdict": verdict,
            "apart": abs(math.log(rows[0]["time_us"] / rows[1]["time_us"])),
            "tunings": list(map(short, problems)), "met": verdict != "outside"}


def seeds(arguments, work):
    print(f"{'problem':44} {'seeds':>9} {'ratio':>6} {'apart':>6} {'noise':>6}  verdict")
    results = []
    for number, item in enumerate(arguments.configs):
        tuned = {}
        for seed in arguments.seeds:
            folder = work / f"{number}-seed-{seed}"
            tuned[seed] = folder, tune_all(arguments, item, folder, "--search",
                                           arguments.search, "--budget", arguments.budget,
                                           "--seed", str(seed))
        first = arguments.seeds[0]
        for seed in arguments.seeds[1:]:
            folders, both = zip(tuned[first], tuned[seed])
            if [each["label"] for each in both[0]] != [each["label"] for each in both[1]]:
                sys.exit(f"{item}: seeds {first} and {seed} tuned other problems")
            for place, pair in enumerate(zip(*both)):
                if not all("row" in each for each in pair):
                    sys.exit(f"{item}: {pair[0]['label']}: a seed timed no candidate of it")
                result = {**compare_seeds(arguments, folders, pair, place), "seeds": [first, seed]}
                results.append(result)
                print(f"{result['label']:44} {first:>4}/{seed:<4} {result['ratio']:6.3f} "
                      f"{100 * result['apart']:5.2f}% {100 * result['noise']:5.2f}%  "
                      f"{result['verdict']}", flush=True)
    counts = {word: sum(each["verdict"] == word for each in results)
              for word in ("same winner", "within the band", "outside")}
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return results


def contents(folder, pattern):
    return {path.name: path.read_bytes() for path in sorted(folder.glob(pattern))}


def rows_of(folder):
    return set(b"".join(contents(folder, "table.jsonl").values()).splitlines())


def end_at_random(command, within):
    """Starts it and kills its process group at some moment; whether it was done before, and when."""
    moment = random.uniform(0, within)
    begin = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors,
                                 start_new_session=True)
        try:
            child.wait(timeout=moment)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return False, moment
        if child.returncode != 0:
            errors.seek(0)
            sys.exit(f"vqgen tune ends {child.returncode}: {errors.read().decode().strip()}")
    return True, time.monotonic() - begin


def kills(arguments, work):
    random.seed(arguments.random)
    killed, again = work / "killed", work / "again"
    killed.mkdir(parents=True)
    more = ["--search", arguments.search, "--budget", arguments.budget]
    command = tune_command(arguments, arguments.work_item, killed, *more)
    moments, published = [], set()
    for _ in range(arguments.kills):
        done, moment = end_at_random(command, arguments.within)
        lines = sum(text.count(b"\n") for text in contents(killed, "*.journal").values())
        print(f"{'done' if done else 'killed'} after {moment:.1f} s, {lines} lines in journals",
              flush=True)
        if done:
            break
        moments.append({"after_s": moment, "lines": lines})
        published |= rows_of(killed)
    else:
        run(command)
    again.mkdir()
    for journal in killed.glob("*.journal"):
        shutil.copy(journal, again)
    run(tune_command(arguments, arguments.work_item, again, *more))
    result = {"work": arguments.work_item, "kills": moments,
              "same_table": contents(killed, "table.jsonl") == contents(again, "table.jsonl"),
              "kept_rows": published <= rows_of(killed),
              "same_journals": contents(killed, "*.journal") == contents(again, "*.journal")}
    amidst = [each for each in moments if each["lines"] > 1]  # a journal begins with its header
    result["met"] = (result["same_table"] and result["kept_rows"] and result["same_journals"] and
                     len(amidst) > 0)
    print(f"{len(moments)} kills, {len(amidst)} after an answer; rows that were in the table "
          f"{'stayed' if result['kept_rows'] else 'CHANGED'}; a run over the journals alone gives "
          f"{'the same table' if result['same_table'] else 'ANOTHER TABLE'} and "
          f"{'measures nothing' if result['same_journals'] else 'MEASURES MORE'}")
    return [result]


def sweep(arguments, _):
    problems, skipped = [], 0
    for path in arguments.documents:
        document = json.loads(pathlib.Path(path).read_text())
        problems += document["problems"]
        skipped = max(skipped, len(document.get("skipped", [])))  # each shard lists them all
    gains = [(each["gain"], each["weight"], each["label"]) for each in problems if each.get("gain")]
    if not gains:
        sys.exit("no problem with a gain")
    logs = [(math.log(gain), weight) for gain, weight, _ in gains]
    ranks = [each["winner_rank"] for each in problems if each.get("winner_rank") is not None]
    result = {
        "problems": len(problems), "tuned": len(gains), "skipped": skipped,
        "mean": math.exp(statistics.fmean(log for log, _ in logs)),
        "weighted": math.exp(sum(log * weight for log, weight in logs) /
                             sum(weight for _, weight in logs)),
        "least": min(gains)[::2], "worst": max(gains)[::2],
        "default_kept": sum(each["row"]["plan"] == each["row"]["default_plan"]
                            for each in problems if "row" in each),
        "median_rank": statistics.median(ranks) if ranks else None,
        "candidates": sum(len(each["trials"]) for each in problems),
        "spent_s": sum(each["spent_s"] for each in problems), "met": None}
    for name, value in result.items():
        if name != "met":
            print(f"{name:14} {value:.3f}" if isinstance(value, float) else f"{name:14} {value}")
    return [result]


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--vqgen", default="vqgen")
    common.add_argument("--json")
    common.add_argument("--work", type=pathlib.Path)
    common.add_argument("--tune", action="append", default=[])
    common.add_argument("--search", action="append", default=[])
    common.add_argument("--search", default="model")
    common.add_argument("--budget", default="60s")
    common.add_argument("--rounds", type=int, default=7)
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("strategies", parents=[common])
    part.add_argument("configs", nargs="+")
    part.add_argument("--exhaustive-budget", default="1h")
    part = parts.add_parser("seeds", parents=[common])
    part.add_argument("configs", nargs="+")
    part.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    part.add_argument("--by", choices=["turns", "rows"], default="turns")
    part = parts.add_parser("kills", parents=[common])
    part.add_argument("work_item", metavar="WORK")
    part.add_argument("--kills", type=int, default=5)
    part.add_argument("--within", type=float, default=10)
    part.add_argument("--random", type=int, default=1, help="seed of the moments")
    part = parts.add_parser("sweep", parents=[common])
    part.add_argument("documents", nargs="+")
    return parser.parse_args()


def main():
    arguments = read_arguments()
    parts = {"strategies": strategies, "seeds": seeds, "kills": kills, "sweep": sweep}
    with tempfile.TemporaryDirectory() as scratch:
        results = parts[arguments.part](arguments, arguments.work or pathlib.Path(scratch))
    if arguments.json:
        document = {"part": arguments.part, "options": arguments.tune + arguments.search,
                    "strategy": arguments.search, "budget": arguments.budget, "results": results}
        pathlib.Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 1 if any(each["met"] is False for each in results) else 0


if __name__ == "__main__":
    sys.exit(main())
