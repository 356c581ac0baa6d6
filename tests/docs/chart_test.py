#!/usr/bin/env python3
"""Compares the table "Attention by context" of docs/performance.md with docs/charts/flagship.json, from which
the chart is drawn (tests/python/test_plots.py).

    chart_test.py SOURCE_DIR
"""

import json
import sys
from pathlib import Path


def table(text, heading):
    """Return the cells of the first table below the heading, row by row."""
    lines = iter(text[text.index(f"## {heading}\n"):].splitlines())
    row = next(line for line in lines if line.startswith("|"))
    while row.startswith("|"):
        yield [cell.strip() for cell in row.strip("|").split("|")]
        row = next(lines)


def main():
    docs = Path(sys.argv[1]) / "docs"
    (_, *batches), _, *rows = table((docs / "performance.md").read_text(), "Attention by context")
    written = {(int(name.removeprefix("batch ")), int(row[0])): float(cell)
               for row in rows for name, cell in zip(batches, row[1:], strict=True) if cell != "-"}
    figures = json.loads((docs / "charts" / "flagship.json").read_text())["figures"]
    drawn = {(each["config"]["shape"]["batch"], each["config"]["shape"]["tokens"]): each["ratio"]
             for each in figures if each["part"] == "context"}
    for point in sorted(written.keys() | drawn.keys()):
        if written.get(point) != drawn.get(point):
            print(f"batch {point[0]}, {point[1]} tokens: {written.get(point)} in docs/performance.md, "
                  f"{drawn.get(point)} in docs/charts/flagship.json; correct one, and draw the chart again")
    return 0 if written == drawn and written else 1


if __name__ == "__main__":
    sys.exit(main())
