"""The charts of a report, as SVG: ratio by context, time by rows, and the roofline."""
from problems import shape_words
from svg import COLOURS, Chart


def part(figures, name):
    return [each for each in figures.values() if each["part"] == name]


def context_chart(figures):
    points = part(figures, "context")
    if not points:
        return None
    tokens = sorted({each["config"]["shape"]["tokens"] for each in points})
    chart = Chart("Attention decode, d4b8 (2 bit), 8 KV heads: FP16 time / our time", "tokens of context",
                  "ratio", tokens, [1.0, *(each["ratio"] for each in points)], x_ticks=tokens,
                  x_words=lambda tick: f"{tick // 1024}k", y_log=False)
    chart.level(1.0, "as fast as FP16")
    batches = sorted({each["config"]["shape"]["batch"] for each in points})
    for colour, batch in zip(COLOURS, batches):
        line = sorted((each["config"]["shape"]["tokens"], each["ratio"],
                       f"{shape_words(each['config'])}: {each['ratio']:.2f}")
                      for each in points if each["config"]["shape"]["batch"] == batch)
        chart.points(f"batch {batch}", line, colour, True)
    return chart.document()


def rows_chart(figures):
    points = sorted(part(figures, "rows"), key=lambda each: each["config"]["shape"]["rows"])
    if not points:
        return None
    rows = [each["config"]["shape"]["rows"] for each in points]
    times = [each["us"] for each in points] + [each["fp16"]["us"] for each in points]
    shape = points[0]["config"]["shape"]
    chart = Chart(f"A product of {shape['out_features']}x{shape['in_features']} by rows, 2x8 (2 bit)",
                  "rows", "us", rows, times, x_ticks=rows, x_words=str, y_log=False)
    for colour, name, us in ((COLOURS[0], "vqgen", lambda each: each["us"]),
                             (COLOURS[1], "cuBLAS FP16", lambda each: each["fp16"]["us"])):
        line = [(row, us(each), f"{name}, {row} rows: {us(each):.2f} us")
                for row, each in zip(rows, points)]
        chart.points(name, line, colour, True)
    return chart.document()


def roofline_chart(figures, read_tb_s):
    """Speed against bytes of a call: below the roof what a call costs besides reading shows."""
    kinds = {"attention decode": [], "products": []}
    for each in figures.values():
        if each["part"] in ("attention", "products", "context", "rows"):
            kind = "attention decode" if each["config"]["op"] == "attention_decode" else "products"
            kinds[kind].append((each["code_bytes"] * 1e-6, each["tb_s"],
                                f"{each['label']}, {shape_words(each['config'])}: "
                                f"{each['tb_s']:.2f} TB/s, {each['us']:.2f} us"))
    points = [point for kind in kinds.values() for point in kind]
    if not points:
        return None
    chart = Chart("Compressed bytes read a second", "MB of codes a call", "TB/s",
                  [x for x, _, _ in points], [read_tb_s, *(y for _, y, _ in points)])
    chart.level(read_tb_s, f"read bandwidth of the run, {read_tb_s:.2f} TB/s")
    for colour, (name, line) in zip(COLOURS, kinds.items()):
        if line:
            chart.points(name, line, colour, False)
    return chart.document()


def write(folder, figures, read_tb_s):
    """The charts that there are figures for; their names."""
    folder.mkdir(parents=True, exist_ok=True)
    charts = {"context": context_chart(figures), "rows": rows_chart(figures),
              "roofline": roofline_chart(figures, read_tb_s)}
    for name, text in charts.items():
        if text:
            (folder / f"flagship-{name}.svg").write_text(text)
    return [f"flagship-{name}.svg" for name, text in charts.items() if text]
