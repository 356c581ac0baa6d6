"""Pictures of what the tool, bench/flagship and vqgen.eval measured, by matplotlib.

    python -m vqgen.plots KIND FILE.json... --out PICTURE.{svg,png,pdf}

The function of a kind takes one or several documents, parsed or as paths, and returns a Figure of all
that they hold. ValueError names in one line the document that is not what it should be; Empty, one of
these, says that nothing was measured. ImportError where matplotlib is missing, OSError of files.
"""

# bench/flagship loads this file by itself: it imports nothing of vqgen.
import argparse
import functools
import io
import itertools
import json
import math
import os
import pathlib
import re
import statistics
import sys

INK = "#222222"
LEVEL = {"color": INK, "ls": "--", "lw": 1}
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "vqgen", "text.parse_math": False,
         "font.sans-serif": ["DejaVu Sans"], "font.size": 9, "axes.titlesize": 10,
         "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.grid": True,
         "grid.color": "#dddddd", "axes.axisbelow": True, "axes.spines.top": False,
         "axes.spines.right": False, "lines.markersize": 4}
# Without dates the same document gives the same picture.
METADATA = {".svg": {"Date": None, "Creator": None}, ".png": {}, ".pdf": {"CreationDate": None}}
MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class Empty(ValueError):
    """The documents hold nothing that the picture shows."""


def styled(function):
    @functools.wraps(function)
    def wrapped(*arguments):
        try:
            import matplotlib.style
        except ImportError as error:
            raise ImportError("needs matplotlib; pip install matplotlib") from error
        with matplotlib.style.context(["default", STYLE]):
            return function(*arguments)
    return wrapped


def read(documents, writer, items):
    """What `items` makes of each document, in one list; Empty where that is nothing."""
    found = []
    for document in documents:
        place = "document"
        try:
            if isinstance(document, (str, os.PathLike)):
                place = os.fspath(document)
                document = json.loads(pathlib.Path(place).read_bytes())
            found += items(document)
        except MALFORMED as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"{place}: not JSON as {writer} writes it: {why}") from error
    if not found:
        raise Empty(f"nothing to draw: {writer} measured none of it")
    return found


def number(value, least=0.0):
    if isinstance(value, bool) or not math.isfinite(value) or value < least:
        raise ValueError(f"{value!r} is no figure of {least:g} or more")
    return value


positive = functools.partial(number, least=1e-12)


def words(text):
    """As one line, without what XML does not take."""
    return "".join(each if each.isprintable() else " " for each in text)


def panels(rows, columns, width, height):
    from matplotlib.figure import Figure
    figure = Figure((width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def logarithmic(axis, values):
    from matplotlib import ticker
    many = max(values) > 8 * min(values)
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)) if many else ticker.MaxNLocator(5))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(ticker.NullLocator())


def cut(values, size):
    """Checked, in rows of that size."""
    if len(values) % size:
        raise ValueError(f"{len(values)} counts are no rows of {size}")
    return [[number(each) for each in values[at:at + size]] for at in range(0, len(values), size)]


def hot_tensors(document):
    for each in document["profiles"]:
        size, parts = each["entries"], each["parts"]
        counts, followed = cut(each["counts"], size), cut(parts["counts"], parts["hot"])
        place = max(range(len(counts)), key=lambda i: sum(counts[i]))
        accesses = cut(parts["accesses"], parts["number"])[place]
        first = place * len(accesses)
        cells = [[count * size / max(reads, 1) for count in row] for row, reads in
                 zip(followed[first:first + len(accesses)], accesses, strict=True)]
        title = f"{each['item']}.{each['operand']}, codebook {place} of {len(counts)}"
        yield words(title), sorted(counts[place], reverse=True), cells, each["operand"]


@styled
def access_counts(*documents):
    """Draw `vqgen count-accesses --out`: how uneven the accesses of entries are in each tensor's most read
    codebook, and how steady those of its hottest over parts of the rows (VQ-LLM, figures 8 and 9)."""
    tensors = read(documents, "vqgen count-accesses --out", hot_tensors)
    figure, grid = panels(len(tensors), 2, 5.5, 3.2)
    for (title, counts, cells, operand), (left, right) in zip(tensors, grid):
        mean = statistics.fmean(counts)
        most = mean + 3 * statistics.pstdev(counts)
        left.plot(counts, drawstyle="steps-mid")
        left.axhline(mean, **LEVEL, label=f"mean {mean:.4g}")
        left.axhline(most, color="C3", ls=":", label=f"mean + 3 sigma {most:.4g}, "
                     f"{sum(each > most for each in counts)} entries above")
        left.legend()
        left.set(title=f"{title}: {sum(counts)} accesses", xlabel="entries, the most read first",
                 ylabel="accesses", ylim=(0, None))
        image = right.imshow(cells, aspect="auto", vmin=0, interpolation="nearest")
        figure.colorbar(image, ax=right, label="accesses, in means of the part")
        right.grid(False)
        right.set(title="how steady", xlabel=f"the {len(cells[0])} hottest of all, by rank",
                  ylabel=f"part of the {'output features' if operand == 'weights' else 'tokens'}")
    return figure


def tunings(document):
    for each in document["problems"]:
        timed = [(number(trial["at_s"]), place, positive(trial["time_us"]), trial)
                 for place, trial in enumerate(each["trials"], 1) if trial["outcome"] == "timed"]
        points = {words(trial["plan"]): (positive(trial["expected_us"]), us)
                  for *_, us, trial in timed if trial["expected_us"] is not None}
        row = each.get("row", {"plan": "", "default_plan": "", "default_us": 0})
        ends = number(each["spent_s"]), len(each["trials"])
        if timed:
            yield (words(each["label"]), points, words(row["plan"]), words(row["default_plan"]),
                   number(row["default_us"]), timed, ends)


def draw_landscape(axes, points, winner, default):
    ends = [end(time for point in points.values() for time in point) for end in (min, max)]
    axes.plot(ends, ends, **LEVEL)
    for flow in sorted({plan.split("/")[0] for plan in points}):
        own = [point for plan, point in points.items() if plan.split("/")[0] == flow]
        axes.plot(*zip(*own), "o", alpha=0.7, mew=0, label=flow)
    for name, plan, size in (("winner", winner, 13), ("default", default, 9)):
        if plan in points:
            axes.plot(*zip(points[plan]), "o", ms=size, mfc="none", mec=INK, label=name)
    logarithmic(axes.xaxis, ends)
    logarithmic(axes.yaxis, ends)
    axes.legend()


@styled
def landscape(*documents):
    """Draw `vqgen tune --json`, a row of panels for each problem: every timed candidate, expected by the
    cost model against measured, by dataflow, on the diagonal where the model is right, winner and
    default ringed; and the best time so far over seconds and over candidates."""
    found = read(documents, "vqgen tune --json", tunings)
    figure, grid = panels(len(found), 3, 5, 4.2)
    for (label, points, *plans, default_us, timed, ends), (left, *others) in zip(found, grid):
        left.set(title=label, xlabel="expected by the cost model, us", ylabel="measured, us")
        if points:
            draw_landscape(left, points, *plans)
        best = list(itertools.accumulate((us for *_, us, _ in timed), min))
        for column, axes in enumerate(others):
            at = [each[column] for each in timed]
            axes.plot([*at, max(ends[column], at[-1])], [*best, best[-1]], drawstyle="steps-post")
            if default_us:
                axes.axhline(default_us, **LEVEL, label="default in the finals")
                axes.legend()
            axes.set(xlabel=("seconds", "candidates")[column], ylabel="best so far, us")
    return figure


def ablations(document):
    for config in document["configs"]:
        measured = [(row, row.get("measurement")) for row in config["rows"]]
        yield words(config["config"]), [
            (words(row["name"]), positive(m["time_us"]) if m else 0, number(row.get("ratio_to_gc") or 0))
            for row, m in measured]


@styled
def ablation(*documents):
    """Draw `vqgen dev ablate --json`: the best time of each row of each config, and its ratio to GC's."""
    found = read(documents, "vqgen dev ablate --json", ablations)
    figure, grid = panels(len(found), 1, 7, 1 + 0.25 * max(len(rows) for _, rows in found))
    for (title, bars), axes in zip(found, grid.flat):
        drawn = axes.barh(range(len(bars)), [us for _, us, _ in bars])
        axes.bar_label(drawn, [(f"{us:.2f} us" if us else "none") + (f", {ratio:.2f} of GC" if ratio
                                else "") for _, us, ratio in bars], padding=3)
        axes.set_yticks(range(len(bars)), [name for name, *_ in bars])
        axes.grid(False, axis="y")
        axes.margins(x=0.3)
        axes.invert_yaxis()
        axes.set(title=title, xlabel="us")
    return figure


def flagship(documents, parts, point):
    """`point` of each figure of the parts; a later document's goes over an earlier one's."""
    found = read(documents, "bench/flagship run --json", lambda document: [
        (each["name"], point(each)) for each in document["figures"] if each["part"] in parts])
    return list(dict(found).values())


def subject(each):
    return words(f"{each['label']}, {each['machine']}")


def tick_points(axes, at, tick):
    axes.set_xscale("log")
    axes.set_xticks(at, map(tick, at))
    axes.minorticks_off()


@styled
def context(*documents):
    """Draw `bench/flagship run --json`: FP16 time / our time of attention by tokens, a line a batch."""
    points = flagship(documents, ("context",), lambda each: (
        positive(each["config"]["shape"]["batch"]), positive(each["config"]["shape"]["tokens"]),
        positive(each["ratio"]), subject(each)))
    figure, ((axes,),) = panels(1, 1, 7.5, 3.4)
    tick_points(axes, sorted({each[1] for each in points}), lambda tokens: f"{tokens / 1024:g}k")
    for batch in sorted({each[0] for each in points}):
        axes.plot(*zip(*sorted(each[1:3] for each in points if each[0] == batch)), "o-",
                  label=f"batch {batch}")
    axes.axhline(1, **LEVEL, label="FP16")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    axes.set(title=f"Attention decode, {points[0][3]}", xlabel="tokens of context",
             ylabel="times as fast as FP16", ylim=(0, None))
    return figure


@styled
def rows(*documents):
    """Draw `bench/flagship run --json`: times of a GEMM by its rows, of vqgen and of cuBLAS."""
    points = sorted(flagship(documents, ("rows",), lambda each: (
        positive(each["config"]["shape"]["m"]), positive(each["us"]), positive(each["fp16_us"]),
        "{out_features}x{in_features}, ".format(**each["config"]["shape"]) + subject(each))))
    figure, ((axes,),) = panels(1, 1, 7.5, 3.4)
    tick_points(axes, [each[0] for each in points], str)
    for place, name in ((1, "vqgen"), (2, "cuBLAS FP16")):
        axes.plot(*zip(*((each[0], each[place]) for each in points)), "o-", label=name)
    axes.legend()
    axes.set(title=f"GEMM of {points[0][3]}", xlabel="rows", ylabel="us", ylim=(0, None))
    return figure


@styled
def roofline(*documents):
    """Draw `bench/flagship run --json`: TB/s of codes against bytes of a call. Below the read bandwidth
    what a call costs besides reading shows."""
    points = flagship(documents, ("attention", "products", "context", "rows"), lambda each: (
        positive(each["code_bytes"]) * 1e-6, positive(each["tb_s"]), positive(each["read_tb_s"]),
        {"attention_decode": "attention decode"}.get(each["config"]["op"], "products")))
    figure, ((axes,),) = panels(1, 1, 7.5, 4.4)
    for kind in sorted({each[3] for each in points}):
        axes.plot(*zip(*(each[:2] for each in points if each[3] == kind)), "o", label=kind)
    speed = statistics.median(each[2] for each in points)
    axes.axhline(speed, **LEVEL, label=f"read bandwidth, {speed:.2f} TB/s")
    logarithmic(axes.xaxis, [each[0] for each in points])
    logarithmic(axes.yaxis, [speed, *(each[1] for each in points)])
    axes.legend(loc="lower right")
    axes.set(title="Compressed bytes read a second", xlabel="MB of codes a call", ylabel="TB/s")
    return figure


def losses(document):
    found = document["accuracy"]
    rows = [each for each in found["rows"] if each["loss"] is not None]
    several = len({str(each.get("calibration")) for each in rows}) > 1
    for each in rows:
        raw = "".join(f", {name} {each[name]}" for name in ("recent_tokens", "sinks") if each[name])
        if each.get("flush_block", 1) > 1:
            raw += f", {each['flush_block']} leave it together"
        if several:
            raw += f", {each['calibration']['sequences']} of {each['calibration']['text']}"
        yield (number(each["bits"]), number(each["loss"]),
               words(" / ".join(dict.fromkeys((each["keys"], each["values"]))) + raw),
               number(found["unquantized"]))


LEAST_RISE = 1e-4  # nats; what is less stands here, as a logarithmic axis has no 0
MARKERS = "os^vD*PX<>hp"


@styled
def accuracy(*documents):
    """Draw `vqgen.eval --json`: the loss through the kernels above the unquantized one, by bits an element."""
    points = read(documents, "vqgen.eval --json", losses)
    figure, ((axes,),) = panels(1, 1, 8.5, 4)
    for i, (bits, loss, name, unquantized) in enumerate(points):
        axes.plot([bits], [max(loss - unquantized, LEAST_RISE)], MARKERS[i % len(MARKERS)], label=name)
    axes.axhline(LEAST_RISE, **LEVEL)
    logarithmic(axes.yaxis, [0.5 * LEAST_RISE, *(line.get_ydata()[0] for line in axes.lines)])
    axes.margins(x=0.1)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    references = ", ".join(f"{each:.4g}" for each in sorted({each[3] for each in points}))
    axes.set(title=f"Accuracy; unquantized {references}", xlabel="bits an element",
             ylabel=f"loss above it, nats a token, {LEAST_RISE:g} at least")
    return figure


def by_channel(document):
    for row in document["accuracy"]["rows"]:
        for operand in ("keys", "values") if "errors" in row else ():
            yield (operand, words(f"{row[operand]}, {number(row['bits']):.3g} bits"),
                   [positive(each) for each in row["errors"]["evaluated"][operand]["by_channel"]])


@styled
def channels(*documents):
    """Draw `vqgen.eval --errors --json`: mean squared errors by channel, a line a row (VQKV, figure 2)."""
    found = read(documents, "vqgen.eval --errors --json", by_channel)
    figure, grid = panels(2, 1, 8.5, 2.6)
    for operand, axes in zip(("keys", "values"), grid.flat):
        lines = dict.fromkeys((name, tuple(each)) for kind, name, each in found if kind == operand)
        for name, each in lines:
            axes.plot(each, lw=1, label=name)
        logarithmic(axes.yaxis, [value for _, each in lines for value in each])
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        axes.set(title=f"Reconstruction of {operand}", xlabel="channel of a head", ylabel="mean squared error")
    return figure


def of_sizes(document):
    for each in document["results"]:
        errors, cpu = each["measures"], 1e3 * positive(each["cpu_ms"])
        millions = positive(each["tokens"]) * positive(each["channels"]) / 1e6
        us = {words(name): positive(of["us"]) for name, of in each["quantize"].items()}
        yield ((millions, us | {"CPU": cpu}), (millions, {name: cpu / us[name] for name in us}),
               (millions, {"any form": positive(errors["l2"])}),
               (each["channels"], {"any form": positive(errors["mean_score"])}))


@styled
def study(*documents):
    """Draw `bench/scalar_study.py --json`: times and errors by size (the INT8 study, figures 1, 2, 4 and 5)."""
    figure, grid = panels(2, 2, 5, 2.8)
    titles = "Quantizing, us", "Times as fast as the CPU", "L2 error", "Mean error of scores"
    for axes, title, points in zip(grid.flat, titles, zip(*read(documents, "bench/scalar_study.py", of_sizes))):
        for name in points[0][1]:
            axes.plot(*zip(*sorted((at, of[name]) for at, of in points)), "o-", label=name)
        logarithmic(axes.xaxis, [at for at, _ in points])
        logarithmic(axes.yaxis, [value for _, of in points for value in of.values()])
        axes.set(title=title, xlabel="channels" if title == titles[-1] else "millions of elements")
        axes.legend()
    return figure


KINDS = {each.__name__: each
         for each in (access_counts, landscape, ablation, context, rows, roofline, accuracy, channels, study)}


@styled
def save(figure, path):
    """Writes an SVG, PNG or PDF, by the path's suffix."""
    path = pathlib.Path(path)
    if path.suffix not in METADATA:
        raise ValueError(f"{path}: a picture is .svg, .png or .pdf")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:], metadata=METADATA[path.suffix], dpi=150)
    content = drawn.getvalue()
    if path.suffix == ".svg":  # a line a group
        content = re.sub(rb"\s*\n(?!\s*<g )\s*", b" ", content).strip() + b"\n"
    path.write_bytes(content)


def main():
    parser = argparse.ArgumentParser(prog="vqgen.plots", description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("files", nargs="+", metavar="FILE.json")
    parser.add_argument("--out", required=True, metavar="PICTURE.{svg,png,pdf}")
    options = parser.parse_args()
    try:
        save(KINDS[options.kind](*options.files), options.out)
    except (ImportError, OSError, ValueError) as error:
        print(f"vqgen.plots: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
