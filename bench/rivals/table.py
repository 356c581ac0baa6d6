"""From a run's document to figures and the printed table. Nothing here needs a GPU.

A ratio is the median over the rounds of FP16's time / the side's time in the same round; times are medians.
FP16 is the backend with the smaller median.
"""
import report  # of bench/flagship
from figures import median

SHAPE_COLUMNS = {"products": ("out x in", "rows"),
                 "attention": ("batch", "query heads", "KV heads", "tokens")}


def shape_cells(problem):
    shape = problem["config"]["shape"]
    if problem["part"] == "products":
        return [f"{shape['out_features']}x{shape['in_features']}", str(shape["m"])]
    return [str(shape[key]) for key in ("batch", "query_heads", "kv_heads", "tokens")]


def figure_of(problem):
    """{fp16: {name, us}, sides: {name: {us, ratio}}} of a problem; None where FP16 has no time."""
    rounds = problem["rounds"]
    names = set.intersection(*(set(each["fp16"]) for each in rounds)) if rounds else set()
    if not names:
        return None
    best = min(sorted(names), key=lambda name: median(each["fp16"][name] for each in rounds))
    sides = {}
    for name, side in problem["sides"].items():
        if side["outcome"] == "timed":
            sides[name] = {"us": median(each["sides"][name] for each in rounds),
                           "ratio": median(each["fp16"][best] / each["sides"][name] for each in rounds)}
    fp16 = {"name": best, "us": median(each["fp16"][best] for each in rounds)}
    return {"name": problem["name"], "fp16": fp16, "sides": sides}


def figures(document):
    return [each for each in map(figure_of, document["problems"]) if each]


def part_lines(part, problems):
    """The table of one part: times in us, and in brackets how many times as fast as FP16 of the same run."""
    names = list(dict.fromkeys(name for each in problems for name in each["sides"]))
    rows = []
    for problem in problems:
        figure = figure_of(problem)
        cells = [f"{figure['fp16']['us']:.1f}" if figure else "-"]
        for name in names:
            side = problem["sides"].get(name)
            timed = figure and figure["sides"].get(name)
            cells.append(f"{timed['us']:.1f} ({timed['ratio']:.2f})" if timed
                         else side["outcome"] if side else "-")
        rows.append([*shape_cells(problem), *cells])
    return report.table([*SHAPE_COLUMNS[part], "FP16", *names], rows)


def side_lines(problems):
    """What each side stores, how exact it was at its worst, and what was allowed."""
    sides = {}
    for problem in problems:
        for name, side in problem["sides"].items():
            if side["outcome"] == "timed":
                sides.setdefault(name, []).append(side)
    rows = [[name, f"{timed[0]['bits']:g}", f"{max(each['rel_err'] for each in timed):.1e}",
             f"{timed[0]['tolerance']:.0e}" if timed[0]["tolerance"] else "vqgen's own"]
            for name, timed in sides.items()]
    return report.table(["side", "bits", "largest error", "allowed"], rows) if rows else []


def markdown(document):
    machine = document["machine"]
    lines = [f"{machine['device']}, PyTorch {machine['torch']}, CUDA {machine['cuda']}: "
             f"us, and FP16's time / that time."]
    lines += [f"{name} {version}" for name, version in document["versions"].items() if version]
    for part in SHAPE_COLUMNS:
        problems = [each for each in document["problems"] if each["part"] == part]
        if problems:
            lines += ["", *part_lines(part, problems)]
    lines += ["", *side_lines(document["problems"])]
    lines += [f"\n{name} is missing: {why}." for name, why in document["missing"].items()]
    lines += [f"{problem['name']}, {name}: {side['outcome']}: {side['why']}"
              for problem in document["problems"] for name, side in problem["sides"].items()
              if side["outcome"] != "timed"]
    return "\n".join(lines).rstrip() + "\n"
