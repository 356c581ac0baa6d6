"""What is measured: rows of tables, points of curves and their variants, from problems.json.

A problem is a dict: its `name`, by which variants and merged files refer to it; `part`, the table, curve
or variant that it belongs to; the `config` that vqgen takes; how `codes` are distributed; and its goals.
"""
import itertools
import json
import pathlib

SOURCE = pathlib.Path(__file__).with_name("problems.json")
GOALS = ("feasibility", "to_reach", "stretch")


def laid_over(base, more):
    """`base` with the fields of `more`, objects within objects likewise."""
    result = dict(base)
    for key, value in more.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = laid_over(result[key], value) if both else value
    return result


def shape_name(config):
    shape = config["shape"]
    if config["op"] == "attention_decode":
        return f"B{shape['batch']}-N{shape['tokens']}"
    return f"{shape['out_features']}x{shape['in_features']}-{shape['m']}"


def shape_words(config):
    shape = config["shape"]
    if config["op"] == "attention_decode":
        return f"B{shape['batch']} N{shape['tokens']}"
    rows = shape["m"]
    return f"{shape['out_features']}x{shape['in_features']}, {rows} row{'s' if rows > 1 else ''}"


def of_rows(config):
    """A product of more rows than one is the op gemm."""
    rows = config["shape"].get("m", 1)
    return config if rows == 1 else {**config, "op": "gemm"}


def problem(part, group, label, config, **more):
    config = of_rows(config)
    return {"name": "/".join([part, *group, shape_name(config)]), "part": part, "label": label,
            "config": config, "codes": "uniform", "aqlm": None, "baseline": True, **more}


def table_rows(table):
    for group in table["groups"]:
        for row in group["rows"]:
            config = laid_over(laid_over(table["config"], group.get("config", {})),
                               {"shape": row["shape"]})
            yield problem(table["name"], [group["name"]], group["label"], config,
                          aqlm=group.get("aqlm"), goals={goal: row.get(goal) for goal in GOALS})


def curve_points(curve):
    names = list(curve["points"])
    for values in itertools.product(*curve["points"].values()):
        shape = dict(zip(names, values))
        if shape.get("batch", 1) * shape.get("tokens", 1) > curve.get("most_cached_tokens", 1e18):
            continue
        yield problem(curve["name"], [], curve["label"], laid_over(curve["config"], {"shape": shape}),
                      least_ratio=curve.get("least_ratio"))


def variant_points(variant, rows):
    for name in variant["of"]:
        base = rows[name]
        yield {**base, "name": f"{variant['name']}/{name}", "part": variant["name"],
               "config": laid_over(base["config"], variant.get("config", {})),
               "codes": variant.get("codes", "uniform"), "goals": None, "aqlm": None,
               "baseline": False, "of": name, "most_ratio": variant["most_ratio"]}


def read(path=SOURCE):
    """The document with titles and limits, and all problems in its order."""
    document = json.loads(path.read_text())
    rows = {each["name"]: each for table in document["tables"] for each in table_rows(table)}
    problems = list(rows.values())
    for curve in document["curves"]:
        problems += curve_points(curve)
    for variant in document["variants"]:
        problems += variant_points(variant, rows)
    return document, problems


def parts_of(document):
    return [each["name"] for kind in ("tables", "curves", "variants") for each in document[kind]]


def selected(problems, parts, pattern):
    """The problems of the parts whose names the pattern finds, and what variants among them compare with."""
    chosen = [each for each in problems
              if each["part"] in parts and (pattern is None or pattern.search(each["name"]))]
    wanted = {each["name"] for each in chosen} | {each["of"] for each in chosen if "of" in each}
    return [each for each in problems if each["name"] in wanted]
