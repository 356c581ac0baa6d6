"""The report: Markdown tables with verdicts. What was not measured is named, never left out."""
from figures import cliffs, merged, verdict_of_row
from problems import shape_words

NOT_MEASURED = "not measured"


def table(columns, rows):
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]


def number(value, form):
    return "-" if value is None else format(value, form)


def times(value, form=".2f"):
    return "-" if value is None else f"{value:{form}}x"


def ours_cells(figure):
    return [f"{figure['us']:.2f}", f"{figure['eager_us']:.2f}", f"{figure['tb_s']:.2f}",
            f"{100 * figure['share']:.0f} %"]


def fp16_cells(figure):
    fp16 = figure["fp16"]
    return [f"{fp16['us']:.2f} ({fp16['name']})", f"{fp16['eager_us']:.2f}",
            times(figure["ratio"])]


def is_warm_too(figures):
    return any(figure["warm"] for figure in figures)


def warm_cells(figure):
    warm = figure and figure["warm"]
    return [number(warm and warm["us"], ".2f"), times(warm and warm["ratio"])]


WARM_COLUMNS = ["us, codebooks warm", "ratio, codebooks warm"]


def aqlm_cells(problem, figure):
    if problem["aqlm"] is None:
        return ["-", "-"]
    if figure is None or figure["aqlm_us"] is None:
        return [NOT_MEASURED, NOT_MEASURED]
    return [f"{figure['aqlm_us']:.2f}", times(figure["aqlm_ratio"])]


def rows_of_table(problems, figures, has_aqlm):
    warm = is_warm_too(figures[each["name"]] for each in problems if each["name"] in figures)
    columns = ["format", "shape", "us", "eager us", "TB/s", "of read", "FP16 us", "FP16 eager us",
               "ratio", *(WARM_COLUMNS if warm else []), *(["AQLM us", "ratio to AQLM"] if has_aqlm else []), "feasibility", "to reach",
               "stretch", "verdict"]
    rows = []
    for each in problems:
        figure, goals = figures.get(each["name"]), each["goals"]
        measured = ([*ours_cells(figure), *fp16_cells(figure)] if figure
                    else [NOT_MEASURED, *["-"] * 6])
        rows.append([each["label"], shape_words(each["config"]), *measured,
                     *(warm_cells(figure) if warm else []),
                     *(aqlm_cells(each, figure) if has_aqlm else []),
                     times(goals["feasibility"], "g"), times(goals["to_reach"], "g"),
                     times(goals["stretch"], "g"),
                     verdict_of_row(figure) if figure else NOT_MEASURED])
    return table(columns, rows)


def verdict_counts(problems, figures):
    rows = [each for each in problems if each["name"] in figures]
    missed = [each for each in rows if verdict_of_row(figures[each["name"]]) == "missed"]
    words = f"{len(rows) - len(missed)} of {len(problems)} rows met, {len(missed)} missed"
    absent = len(problems) - len(rows)
    return words + (f", {absent} {NOT_MEASURED}." if absent else ".")


def context_part(curve, problems, figures):
    batches, tokens = curve["points"]["batch"], curve["points"]["tokens"]
    by_shape = {(each["config"]["shape"]["batch"], each["config"]["shape"]["tokens"]): each
                for each in problems}

    def cell(batch, length):
        point = by_shape.get((batch, length))
        if point is None:
            return "-"
        figure = figures.get(point["name"])
        if not figure:
            return NOT_MEASURED
        warm = figure["warm"]
        return f"{figure['us']:.1f} us, {times(figure['ratio'])}" + (
            f" (codebooks warm {warm['us']:.1f} us, {times(warm['ratio'])})" if warm else "")

    lines = table(["tokens", *(f"batch {batch}" for batch in batches)],
                  [[length, *(cell(batch, length) for batch in batches)] for length in tokens])
    measured = [figures[each["name"]] for each in problems if each["name"] in figures]
    slower = [each for each in measured if each["ratio"] < curve["least_ratio"]]
    verdict = "missed at " + ", ".join(
        f"{shape_words(each['config'])} ({times(each['ratio'])})" for each in slower) if slower else "met"
    return [*lines, "", f"Never slower than FP16: {verdict}; {len(measured)} of {len(problems)} points "
            f"measured. Points of more than {curve['most_cached_tokens']} tokens in all (-) are none."]


def rows_part(curve, problems, figures):
    points = [(each, figures.get(each["name"])) for each in problems]
    measured = [figure for _, figure in points if figure]
    warm = is_warm_too(measured)
    lines = table(["rows", "us", "eager us", "TB/s", "of read", "cuBLAS us", "cuBLAS eager us", "ratio",
                   *(WARM_COLUMNS if warm else [])],
                  [[each["config"]["shape"]["m"],
                    *([*ours_cells(figure), *fp16_cells(figure)] if figure
                      else [NOT_MEASURED, *["-"] * 6]),
                    *(warm_cells(figure) if warm else [])] for each, figure in points])
    found = cliffs(measured, curve["monotone_within"])
    verdict = "missed: " + "; ".join(
        f"{more['config']['shape']['m']} rows take {more['us']:.2f} us, "
        f"{fewer['config']['shape']['m']} take {fewer['us']:.2f}" for fewer, more in found) \
        if found else "met"
    return [*lines, "", f"Monotone within {100 * (curve['monotone_within'] - 1):.0f} %: {verdict}; "
            f"{len(measured)} of {len(points)} points measured."]


def variant_part(problems, figures):
    rows = []
    for each in problems:
        figure = figures.get(each["name"])
        over = figure and figure["over_base"]
        cells = [each["of"], number(figure and figure["us"], ".2f"), times(over, ".3f"),
                 times(each["most_ratio"], "g")]
        verdict = NOT_MEASURED if over is None else \
            "met" if over <= each["most_ratio"] else "missed"
        rows.append([*cells, verdict])
    return table(["problem", "us", "its time over that of the problem", "at most", "verdict"], rows)


def sources(documents):
    lines = []
    for document in documents:
        machine, speeds = document["machine"], [each["tb_s"] for each in document["bandwidth"]]
        readers = sorted({each["reader"] for each in document["bandwidth"]})
        lines.append(f"{machine['device']}, PyTorch {machine['torch']}, CUDA {machine['cuda']}: "
                     f"{len(speeds)} rounds, {document['spent_s']:.0f} s; codebooks "
                     f"{document.get('codebooks', 'warm')}; read bandwidth "
                     f"{min(speeds):.2f} to {max(speeds):.2f} TB/s ({', '.join(readers)}).")
        if not document["aqlm"]["built"] and document["aqlm"]["why"]:
            lines.append(f"AQLM: {NOT_MEASURED}: {document['aqlm']['why']}.")
        lines += [f"AQLM at {each['name']}: {NOT_MEASURED}: {each['aqlm_why']}."
                  for each in document["problems"] if "aqlm_why" in each]
    return lines


def markdown(source, problems, documents, charts=()):
    """The whole report of documents that figures.read() gave; `source` and `problems` as
    problems.read() has them, `charts` as paths from where the report will stand. A part without a single
    figure is one line."""
    figures, left_out = merged(documents)
    lines = ["\n".join(sources(documents)), ""]
    if figures:
        spread = max(figures.values(), key=lambda each: each["spread"])
        lines += [f"Largest difference between rounds of one of ours: {100 * spread['spread']:.1f} % "
                  f"({spread['name']}).", ""]
    for kind in ("tables", "curves", "variants"):
        for each in source[kind]:
            own = [problem for problem in problems if problem["part"] == each["name"]]
            lines += [f"### {each['title']}", ""]
            if not any(problem["name"] in figures for problem in own):
                lines += [f"{NOT_MEASURED.capitalize()}.", ""]
            elif kind == "tables":
                has_aqlm = any(problem["aqlm"] for problem in own)
                lines += [*rows_of_table(own, figures, has_aqlm), "", verdict_counts(own, figures), ""]
            elif kind == "variants":
                lines += [*variant_part(own, figures), ""]
            else:
                part = context_part if "batch" in each["points"] else rows_part
                lines += [*part(each, own, figures), ""]
    lines += [f"![{name.split('/')[-1]}]({name})" for name in charts]
    if left_out:
        lines += ["", "Left out:", "", *(f"- {name}: {why}" for name, why in left_out.items())]
    return "\n".join(lines).rstrip() + "\n"
