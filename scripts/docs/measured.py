"""What tables of measurements share: the rows of bench/measurements/, and how they are written.

Files keep all runs of a problem. A table takes the first row of the last commit;
bench/measurements/README.md has the columns.
"""

import csv
import io

from markdown import none

FOLDER = "bench/measurements"
# Keys and values, in the order of the tables: those that a reader chooses from, and those that show what an entry type costs.
KV_FORMATS = [("vecinfer-d4b8i8", "vecinfer-d4b8i8"), ("vecinfer-d4b8", "vecinfer-d4b8"), ("klt-1bit-keys", "klt-1bit-values"),
              ("klt-1.5bit-keys", "klt-1.5bit-values"), ("klt-2bit-keys", "klt-2bit-values"),
              ("klt-3bit-keys", "klt-3bit-values"), ("klt-4bit-keys", "klt-4bit-values"),
              ("vecinfer-d4b10i8", "vecinfer-d8b12i8"), ("vecinfer-d4b10", "vecinfer-d8b12"), ("vecinfer-d2b8", "vecinfer-d2b8"),
              ("int4-kivi-keys", "int4-kivi-values"), ("int8-channel", "int8-channel")]
ENTRY_TYPES = [("vecinfer-d4b8i8", "vecinfer-d4b8i8"), ("vecinfer-d4b8i8", "vecinfer-d4b8"), ("vecinfer-d4b8", "vecinfer-d4b8")]


def rows_of(tools, name):
    """The rows of FOLDER/NAME.csv as dicts. Raises ValueError if a row has cells without a column."""
    rows = list(csv.DictReader(io.StringIO(tools.text(f"{FOLDER}/{name}.csv"))))
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise ValueError(f"{FOLDER}/{name}.csv:{number}: the row has another number of cells than the header; "
                             "add or remove cells")
    return rows


def found(rows, **wanted):
    """The first of the last commit's rows that have the wanted cells, or None."""
    fitting = [row for row in rows if all(row[key] == str(value) for key, value in wanted.items())]
    return next((row for row in fitting if row["commit"] == fitting[-1]["commit"]), None)


def one(rows, name, **wanted):
    """The same, of the file NAME. Raises ValueError without one."""
    row = found(rows, **wanted)
    if row is None:
        raise ValueError(f"{FOLDER}/{name}.csv: no row has {wanted}; measure it, or take it out of the table")
    return row


def origin(name, rows, *others):
    """The line below a table: files, and GPU, dates, commits and commands of its rows."""
    def cells(key):
        return list(dict.fromkeys(row[key] for row in rows if row.get(key)))
    commits = cells("commit")
    parts = ["Data: " + ", ".join(f"`{FOLDER}/{each}.csv`" for each in (name, *others)), *cells("gpu"),
             ", ".join(sorted(cells("date"))), f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}" if commits else "",
             *(f"`{each}`" for each in cells("command"))]
    return "\n\n" + "; ".join(filter(None, parts)) + "."


def without_arguments(generators):
    """{ID: generator of args and tools} of functions of tools alone."""
    return {name: lambda args, tools, made=made: none(args) or made(tools) for name, made in generators.items()}


def times(ratio):
    """A ratio of times; one below 1, a loss, is in bold."""
    text = f"{ratio:.2f}x"
    return text if ratio >= 1 else f"**{text}**"


def faster(row):
    return times(float(row["fp16_over_us"]))


def named(preset):
    """A preset's name in code type, with the fields that differ from it."""
    name, *others = preset.split(", ")
    return f"`{name}`" + "".join(f" with `{key}` {value}" for key, value in (other.split() for other in others))


def pair(keys, values):
    return named(keys) if keys == values else f"{named(keys)}, {named(values)}"
