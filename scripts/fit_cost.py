#!/usr/bin/env python3
"""Fits the coefficients of the cost model (heuristics/cost.h) to measurements of one GPU.

    scripts/fit_cost.py bench/measurements/plans.csv.gz --towards profiles/cost/h100.json
    scripts/fit_cost.py plans.csv.gz --gpu h100 --out profiles/cost/h100.json
    scripts/fit_cost.py plans.csv.gz --towards profiles/cost/h100.json --leave-out

The measurements are a table of bench/plan_times.py, for which `vqgen dev regret` counts the work of each
plan, or the document that `vqgen dev regret --json` has written. --leave-out judges each tenth of the
problems by a fit without it.

A dataflow has one set of coefficients, found by least squares of log(expected / measured); the
logarithms of the coefficients are the unknowns, so that none falls below zero, and are drawn weakly
towards those of 1, so that what the data does not tell stays at the ceiling, or towards an earlier
profile's (--towards), whose overlaps and other dataflows stay. Plans near the best of
their config count more: weight (best / time) ** 2. Needs SciPy.
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy
    import scipy.optimize
    import scipy.stats
except ImportError:
    if not {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit("fit_cost: SciPy is missing; install python3-scipy")

IN_TURN = ["launch", "combine", "cluster", "prologue", "fill", "chain"]
OVERLAPPING = ["memory", "l2", "shared", "lines", "lookups", "arithmetic", "tensor"]
PARTS = IN_TURN + OVERLAPPING
START = {"launch": 2.0, "combine": 1.5}
PRIOR = 0.02  # towards 1: weight of one unit of logarithm away from the start, as a share of the data's
PRIOR_OF_PROFILE = 0.1  # of 0.003 to 1, by problems that no fit had seen
LEAST = 1e-3


def expected(rows, theta, overlap):
    """[rows] times and [rows][parts] derivatives of their logarithms by theta."""
    terms = numpy.exp(theta) * rows
    turns = len(IN_TURN)
    power = (terms[:, turns:] ** overlap).sum(axis=1, keepdims=True)
    total = terms[:, :turns].sum(axis=1, keepdims=True) + power ** (1 / overlap)
    terms[:, turns:] **= overlap
    terms[:, turns:] *= power ** (1 / overlap) / numpy.where(power > 0, power, 1)
    return total[:, 0], terms / total


def fit_with(data, overlap, start, weight):
    rows, times, weights = (numpy.array(each) for each in zip(*data))
    prior = math.sqrt(weight * weights.sum() / len(PARTS))
    roots = numpy.sqrt(weights)

    def off(theta):
        total, _ = expected(rows, theta, overlap)
        return numpy.concatenate([roots * numpy.log(total / times), prior * (theta - start)])

    def slopes(theta):
        _, slope = expected(rows, theta, overlap)
        return numpy.vstack([roots[:, None] * slope, prior * numpy.eye(len(start))])

    found = scipy.optimize.least_squares(off, start, slopes, bounds=(math.log(LEAST), numpy.inf))
    return found.x, found.cost


def fit(rows, earlier=None):
    """{dataflow: coefficients} of rows (config, dataflow, ideal, time, best of the config)."""
    result = {}
    ceilings = numpy.log([START.get(part, 1.0) for part in PARTS])
    for dataflow in sorted({row[1] for row in rows}):
        data = [(ideal, time, (best / time) ** 2)
                for _, flow, ideal, time, best in rows if flow == dataflow]
        before = (earlier or {}).get(dataflow)
        if before:
            start = numpy.log([max(before[part], 2 * LEAST) for part in PARTS])
            tried = [(fit_with(data, before["overlap"], start, PRIOR_OF_PROFILE), before["overlap"])]
        else:
            tried = [(fit_with(data, overlap, ceilings, PRIOR), overlap)
                     for overlap in (1.0, 1.5, 2.0, 3.0, 5.0)]
        (theta, _), overlap = min(tried, key=lambda each: each[0][1])
        result[dataflow] = (theta, overlap)
    return result


def regret_of(table, tool):
    """The document of vqgen dev regret on a table of bench/plan_times.py; exits where it fails."""
    scripts = pathlib.Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, scripts.parent / "bench" / "plan_times.py", "unpack", table,
                        folder], check=True)
        done = subprocess.run([tool, "dev", "regret", *sorted(pathlib.Path(folder).glob("*.json")),
                               "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"fit_cost: {table}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def read(path, tool):
    rows = []
    table = path.endswith(".csv.gz")
    for config in (regret_of(path, tool) if table else json.load(open(path)))["configs"]:
        for each in config["timed"]:
            ideal = [each["ideal_us"].get(part, 0.0) for part in PARTS]  # older documents lack some
            rows.append((config["config"], each["dataflow"], ideal, each["time_us"],
                         config["best_us"]))
    return rows


def judge(rows, coefficients):
    """(regret of each config, rank correlation of each, ratio of each plan)."""
    by_config = {}
    for config, flow, ideal, time, _ in rows:
        total, _ = expected(numpy.array([ideal]), *coefficients[flow])
        by_config.setdefault(config, []).append((total[0], time))
    regrets, correlations, ratios = {}, [], []
    for config, pairs in by_config.items():
        regrets[config] = min(pairs)[1] / min(time for _, time in pairs)
        ranks = scipy.stats.spearmanr(pairs).statistic if len(pairs) > 2 else 1.0
        correlations.append(ranks)
        ratios += [max(p / t, t / p) for p, t in pairs]
    return regrets, correlations, ratios


def mean(ratios):
    return math.exp(sum(math.log(r) for r in ratios) / len(ratios))


def say(title, regrets, correlations, ratios):
    ordered = sorted(ratios)
    print(f"{title}: regret {mean(regrets.values()):.3f} by geometric mean of {len(regrets)}, "
          f"{max(regrets.values()):.2f} at worst ({max(regrets, key=regrets.get)}); error "
          f"{ordered[len(ordered) // 2]:.3f} median, {ordered[-1]:.2f} worst of {len(ordered)}; "
          f"rank correlation {sorted(correlations)[len(correlations) // 2]:.3f} median, "
          f"{min(correlations):.3f} least", file=sys.stderr)


def leave_out(rows, earlier):
    """Judges a tenth of the problems after the other by a fit without it."""
    tenths = 10
    regrets, correlations, ratios = {}, [], []
    names = sorted({row[0] for row in rows})
    for tenth in range(tenths):
        out = set(names[tenth::tenths])
        coefficients = fit([row for row in rows if row[0] not in out], earlier)
        held = [row for row in rows if row[0] in out and row[1] in coefficients]
        one = judge(held, coefficients)
        regrets.update(one[0])
        correlations += one[1]
        ratios += one[2]
    say("each tenth by a fit without it", regrets, correlations, ratios)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements", help="TABLE.csv.gz, or the document of vqgen dev regret --json")
    parser.add_argument("--vqgen", default="build/dev/bin/vqgen", help="the tool; default: %(default)s")
    parser.add_argument("--gpu", default="h100", help="the profile's name of the GPU measured on")
    parser.add_argument("--out", help="file to write; default: stdout")
    parser.add_argument("--towards", metavar="PROFILE",
                        help="an earlier profile that coefficients are drawn towards")
    parser.add_argument("--leave-out", action="store_true",
                        help="fit without each tenth of the problems, and judge on that tenth")
    options = parser.parse_args()
    rows = read(options.measurements, options.vqgen)
    towards = json.load(open(options.towards)) if options.towards else {"dataflows": {}}
    earlier = towards["dataflows"]
    if options.leave_out:
        leave_out(rows, earlier)
        return
    coefficients = fit(rows, earlier)
    say("all", *judge(rows, coefficients))
    for flow in coefficients:
        say(flow, *judge([row for row in rows if row[1] == flow], coefficients))
    document = {
        "gpu": options.gpu,
        "source": f"{len(rows)} plans of {len({row[0] for row in rows})} problems, fitted by "
                  f"scripts/fit_cost.py",
        **({"dense_gemm": towards["dense_gemm"]} if "dense_gemm" in towards else {}),
        "dataflows": earlier | {
            flow: {"overlap": overlap,
                   **{part: float(f"{math.exp(t):.4g}") for part, t in zip(PARTS, theta)}}
            for flow, (theta, overlap) in coefficients.items()},
    }
    text = json.dumps(document, indent=2) + "\n"
    if options.out:
        open(options.out, "w").write(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
