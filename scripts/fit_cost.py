#!/usr/bin/env python3
"""Fits the coefficients of the cost model (heuristics/cost.h) to measurements of one GPU.

    vqgen measure CONFIG.json --space --json > measured/CONFIG.json    # for each config, on the GPU
    vqgen regret measured/*.json --json > regret.json
    scripts/fit_cost.py regret.json --gpu h200 --out profiles/cost/h200.json
    scripts/fit_cost.py regret.json --leave-out                        # one shape at a time

A dataflow has one set of coefficients, found by least squares of log(expected / measured) with
damped Gauss-Newton steps; the logarithms of the coefficients are the unknowns, so that none falls
below zero, and are drawn weakly towards those of 1, so that what the data does not tell stays at the
ceiling. Plans near the best of their config count more: weight (best / time) ** 2. Needs nothing but
Python.
"""
import argparse
import json
import math
import re
import sys

IN_TURN = ["launch", "combine", "prologue", "fill", "chain"]
OVERLAPPING = ["memory", "l2", "shared", "lines", "lookups", "arithmetic", "tensor"]
PARTS = IN_TURN + OVERLAPPING
START = {"launch": 2.0, "combine": 1.5}
PRIOR = 0.02  # weight of one unit of logarithm away from the start, as a share of the data's
LEAST = 1e-3


def expected(row, theta, overlap):
    """Time and its derivatives by theta."""
    terms = [math.exp(t) * x for t, x in zip(theta, row)]
    turns = len(IN_TURN)
    gradient = terms[:]
    total = sum(terms[:turns])
    power = sum(t ** overlap for t in terms[turns:])
    if power > 0:
        norm = power ** (1 / overlap)
        total += norm
        for i in range(turns, len(terms)):
            gradient[i] = norm * terms[i] ** overlap / power
    return total, gradient


def solve(matrix, right):
    """Gaussian elimination with the largest pivot."""
    n = len(right)
    rows = [matrix[i][:] + [right[i]] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, n):
            factor = rows[r][i] / rows[i][i]
            for c in range(i, n + 1):
                rows[r][c] -= factor * rows[i][c]
    x = [0.0] * n
    for i in reversed(range(n)):
        x[i] = (rows[i][n] - sum(rows[i][c] * x[c] for c in range(i + 1, n))) / rows[i][i]
    return x


def loss_of(data, theta, start, overlap, prior):
    loss = sum(prior * (t - s) ** 2 for t, s in zip(theta, start))
    for row, time, weight in data:
        loss += weight * math.log(expected(row, theta, overlap)[0] / time) ** 2
    return loss


def fit_with(data, overlap):
    start = [math.log(START.get(part, 1.0)) for part in PARTS]
    prior = PRIOR * sum(weight for _, _, weight in data) / len(PARTS)
    theta = start[:]
    loss = loss_of(data, theta, start, overlap, prior)
    damping = 1e-2
    n = len(theta)
    for _ in range(40):
        hessian = [[0.0] * n for _ in range(n)]
        right = [-prior * (theta[i] - start[i]) for i in range(n)]
        for row, time, weight in data:
            total, gradient = expected(row, theta, overlap)
            off = math.log(total / time)
            slope = [g / total for g in gradient]
            for i in range(n):
                if slope[i] == 0:
                    continue
                right[i] -= weight * off * slope[i]
                for j in range(i + 1):
                    hessian[i][j] += weight * slope[i] * slope[j]
        for i in range(n):
            for j in range(i):
                hessian[j][i] = hessian[i][j]
            hessian[i][i] += prior
        while True:
            damped = [row[:] for row in hessian]
            for i in range(n):
                damped[i][i] += damping * hessian[i][i]
            step = solve(damped, right)
            moved = [max(math.log(LEAST), t + max(-1, min(1, s))) for t, s in zip(theta, step)]
            better = loss_of(data, moved, start, overlap, prior)
            if better < loss or damping > 1e6:
                break
            damping *= 4
        gain = loss - better
        if gain > 0:
            theta, loss = moved, better
        damping = max(damping / 4, 1e-6)
        if gain < 1e-5 * loss:
            break
    return theta, loss


def fit(rows):
    """{dataflow: coefficients} of rows (config, dataflow, ideal, time, best of the config)."""
    result = {}
    for dataflow in sorted({row[1] for row in rows}):
        data = [(ideal, time, (best / time) ** 2)
                for _, flow, ideal, time, best in rows if flow == dataflow]
        tried = [(fit_with(data, overlap), overlap) for overlap in (1.0, 1.5, 2.0, 3.0, 5.0)]
        (theta, _), overlap = min(tried, key=lambda each: each[0][1])
        result[dataflow] = (theta, overlap)
    return result


def read(path):
    rows = []
    for config in json.load(open(path))["configs"]:
        for each in config["timed"]:
            ideal = [each["ideal_us"][part] for part in PARTS]
            rows.append((config["config"], each["dataflow"], ideal, each["time_us"],
                         config["best_us"]))
    return rows


def ranks(values):
    order = sorted(range(len(values)), key=lambda i: values[i])
    result = [0] * len(values)
    for place, i in enumerate(order):
        result[i] = place
    return result


def correlation(a, b):
    """Of the ranks (Spearman)."""
    if len(a) < 3:
        return 1.0
    a, b = ranks(a), ranks(b)
    mean = (len(a) - 1) / 2
    over = sum((x - mean) * (y - mean) for x, y in zip(a, b))
    return over / sum((x - mean) ** 2 for x in a)


def judge(rows, coefficients):
    """(regret of each config, rank correlation of each, ratio of each plan)."""
    by_config = {}
    for config, flow, ideal, time, _ in rows:
        theta, overlap = coefficients[flow]
        by_config.setdefault(config, []).append((expected(ideal, theta, overlap)[0], time))
    regrets, correlations, ratios = {}, [], []
    for config, pairs in by_config.items():
        regrets[config] = min(pairs)[1] / min(time for _, time in pairs)
        correlations.append(correlation([p for p, _ in pairs], [t for _, t in pairs]))
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


def shape_of(config):
    """The size in a config's name, whatever the format: what leave-one-out leaves out."""
    return re.search(r"\d+x\d+(-\d+)?$", config).group(0)


def leave_out(rows):
    regrets, correlations, ratios = {}, [], []
    for shape in sorted({shape_of(row[0]) for row in rows}):
        rest = [row for row in rows if shape_of(row[0]) != shape]
        held = [row for row in rows if shape_of(row[0]) == shape]
        one = judge(held, fit(rest))
        say(f"without {shape}", *one)
        regrets.update(one[0])
        correlations += one[1]
        ratios += one[2]
    say("each shape by a fit without it", regrets, correlations, ratios)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("regret", help="the document of vqgen regret --json")
    parser.add_argument("--gpu", default="h200", help="the profile's name of the GPU measured on")
    parser.add_argument("--out", help="file to write; default: stdout")
    parser.add_argument("--leave-out", action="store_true",
                        help="fit without each shape, and judge on that shape")
    options = parser.parse_args()
    rows = read(options.regret)
    if options.leave_out:
        leave_out(rows)
        return
    coefficients = fit(rows)
    say("all", *judge(rows, coefficients))
    for flow in coefficients:
        say(flow, *judge([row for row in rows if row[1] == flow], coefficients))
    document = {
        "gpu": options.gpu,
        "source": f"{len(rows)} plans timed by vqgen measure --space over scripts/grid_configs.py "
                  f"on the {options.gpu}, fitted by scripts/fit_cost.py",
        "dataflows": {
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
