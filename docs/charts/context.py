#!/usr/bin/env python3
"""Draws docs/charts/context.svg from the table "Attention by context" of docs/performance.md.

    context.py           writes the chart
    context.py --check   exit code 1 where the chart is not the one of the table
"""
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(DOCS.parent / "bench" / "flagship"))
from svg import COLOURS, Chart  # noqa: E402


def table(text, heading):
    """The cells of the first table below the heading, row by row."""
    lines = iter(text[text.index(f"## {heading}\n"):].splitlines())
    row = next(line for line in lines if line.startswith("|"))
    while row.startswith("|"):
        yield [cell.strip() for cell in row.strip("|").split("|")]
        row = next(lines)


class LowChart(Chart):
    """Leaves room for the text around it on a README's first screen."""
    HEIGHT = 220


def chart(text):
    (_, *batches), _, *rows = table(text, "Attention by context")
    tokens = [int(row[0]) for row in rows]
    ratios = [float(cell) for row in rows for cell in row[1:] if cell != "-"]
    drawing = LowChart("Attention decode on a 2-bit KV cache, NVIDIA H200: speed against FP16",
                       "tokens of context", "times as fast as FP16", tokens, [1.0, *ratios],
                       x_ticks=tokens, x_words=lambda tick: f"{tick // 1024}k", y_log=False)
    drawing.level(1.0, "FP16")
    for column, (name, colour) in enumerate(zip(batches, COLOURS), 1):
        line = [(int(row[0]), float(row[column]), f"{name}, {row[0]} tokens: {row[column]}")
                for row in rows if row[column] != "-"]
        drawing.points(name, line, colour, True)
    return drawing.document()


def main():
    wanted, path = chart((DOCS / "performance.md").read_text()), DOCS / "charts" / "context.svg"
    if sys.argv[1:] == ["--check"]:
        same = path.is_file() and path.read_text() == wanted
        print("" if same else f"{path}: not the chart of docs/performance.md; run docs/charts/context.py")
        return 0 if same else 1
    path.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
