"""From the rounds of one or several runs to figures and verdicts. Nothing here needs a GPU.

A ratio is the median over the rounds of baseline / ours of the same round; times are medians. A later
file takes the place of an earlier one, problem by problem, with the read bandwidth of its own run.
"""
import json
import statistics


class Refused(Exception):
    """A file that says nothing that can be reported; one line with file and problem."""


def no_constant(text):
    raise ValueError(f"{text} is no figure")


def is_time(value):
    """A positive number that a device can have taken; NaN and whole numbers beyond doubles are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e15


def checked_problem(problem, place):
    if problem.get("outcome") != "timed":
        raise Refused(f"{place}: {problem.get('outcome')}: {problem.get('why', '')}; measure it again "
                      "once the plan is right")
    if not problem.get("rounds"):
        raise Refused(f"{place}: no rounds")
    for each in problem["rounds"]:
        own = [each, *([each["warm"]] if "warm" in each else [])]
        timed = [*each["fp16"].values(), *(side[key] for side in own for key in ("ours", "aqlm")
                                           if key == "ours" or side[key])]
        if problem["baseline"] and not each["fp16"]:
            raise Refused(f"{place}: a round without its baseline")
        for times in timed:
            for key in ("us", "eager_us"):
                if not is_time(times.get(key)):
                    raise Refused(f"{place}: {key} is {times.get(key)}, no time")
    if not is_time(problem["code_bytes"]):
        raise Refused(f"{place}: code_bytes is {problem['code_bytes']}")


def read(path):
    """A run's document. Refused where it is broken or a plan of it failed."""
    try:
        document = json.loads(path.read_text(), parse_constant=no_constant)
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: {error}") from error
    if not isinstance(document, dict) or document.get("flagship") != 1:
        raise Refused(f"{path}: no document of bench/flagship run")
    try:
        for problem in document["problems"]:
            checked_problem(problem, f"{path}: {problem['name']}")
        if not all(is_time(each["tb_s"]) for each in document["bandwidth"]):
            raise Refused(f"{path}: the read bandwidth is no speed")
    except (KeyError, TypeError, AttributeError) as error:
        raise Refused(f"{path}: {type(error).__name__}: {error}; not as bench/flagship writes it") \
            from error
    return document


def median(values):
    return statistics.median(list(values))


def warm_of(rounds, fp16):
    """With codebooks warm in the same rounds: time, and ratio to the baseline of that name; None where that
    was not timed in all."""
    if not all("warm" in each for each in rounds):
        return None
    ratio = median(each["fp16"][fp16]["us"] / each["warm"]["ours"]["us"] for each in rounds
                   if fp16 in each["fp16"]) if fp16 else None
    return {"us": median(each["warm"]["ours"]["us"] for each in rounds), "ratio": ratio}


def figures_of(problem, document):
    """Times in us, speed in TB/s of compressed bytes, ratios."""
    rounds = problem["rounds"]
    ours = [each["ours"]["us"] for each in rounds]
    us = median(ours)
    read_tb_s = median(each["tb_s"] for each in document["bandwidth"])
    result = {**problem, "us": us, "eager_us": median(each["ours"]["eager_us"] for each in rounds),
              "spread": max(ours) / min(ours) - 1, "tb_s": problem["code_bytes"] * 1e-6 / us,
              "fp16": None, "ratio": None, "aqlm_us": None, "aqlm_ratio": None,
              "machine": document["machine"]["device"], "read_tb_s": read_tb_s,
              "codebooks": document.get("codebooks", "warm")}  # as they were before one could say
    result["share"] = result["tb_s"] / read_tb_s
    with_fp16 = [each for each in rounds if each["fp16"]]
    if with_fp16:
        names = set.intersection(*(set(each["fp16"]) for each in with_fp16))
        if not names:
            raise Refused(f"{problem['name']}: no baseline is in all rounds")
        best = min(sorted(names), key=lambda name: median(each["fp16"][name]["us"]
                                                          for each in with_fp16))
        result["fp16"] = {"name": best,
                          "us": median(each["fp16"][best]["us"] for each in with_fp16),
                          "eager_us": median(each["fp16"][best]["eager_us"] for each in with_fp16)}
        result["ratio"] = median(each["fp16"][best]["us"] / each["ours"]["us"] for each in with_fp16)
    result["warm"] = warm_of(rounds, result["fp16"] and result["fp16"]["name"])
    with_aqlm = [each for each in rounds if each["aqlm"]]
    if with_aqlm:
        result["aqlm_us"] = median(each["aqlm"]["us"] for each in with_aqlm)
        result["aqlm_ratio"] = median(each["aqlm"]["us"] / each["ours"]["us"] for each in with_aqlm)
    return result


def over_base(problem, base_rounds):
    """Time of a variant over that of what it varies, in the same rounds; None where there are none."""
    if not base_rounds:
        return None
    return median(each["ours"]["us"] / base["ours"]["us"]
                  for each, base in zip(problem["rounds"], base_rounds))


def merged(documents):
    """Figures by problem name, and why others have none."""
    figures, left_out = {}, {}
    for document in documents:
        rounds = {each["name"]: each["rounds"] for each in document["problems"]}
        for problem in document["problems"]:
            figure = figures_of(problem, document)
            figure["over_base"] = over_base(problem, rounds.get(problem.get("of")))
            figures[problem["name"]] = figure
        left_out |= {each["name"]: each["why"] for each in document["left_out"]}
    return figures, {name: why for name, why in left_out.items() if name not in figures}


def drawn(merged):
    """What vqgen.plots draws of the figures that merged() gives."""
    return [{**{key: each[key] for key in ("name", "part", "label", "machine", "config", "code_bytes", "us",
                                           "tb_s", "read_tb_s", "ratio")},
             "fp16_us": each["fp16"] and each["fp16"]["us"]} for each in merged.values()]


def verdict_of_row(figure):
    """The verdict on a row of a table by its ratio to the best FP16."""
    if figure["ratio"] >= figure["goals"]["stretch"]:
        return "met, stretch too"
    return "met" if figure["ratio"] >= figure["goals"]["to_reach"] else "missed"


def cliffs(points, within):
    """Pairs (fewer, more) of rows where more take less time by more than `within` allows, the worst one
    a point."""
    found = []
    for number, point in enumerate(points):
        slower = [each for each in points[:number] if each["us"] > within * point["us"]]
        if slower:
            found.append((max(slower, key=lambda each: each["us"]), point))
    return found
