#!/usr/bin/env python3
"""Keeps measurements of many plans in one table, and gives them back to vqgen dev regret.

    bench/plan_times.py pack TABLE.csv.gz SPACE.json... --commit HASH --power WATTS
    bench/plan_times.py unpack TABLE.csv.gz FOLDER

`pack` adds the timed plans of documents of `vqgen dev space --json` to a table, which it makes if there
is none. A row has the commit, GPU, power limit, problem (a name, and its config), plan, and device time
of one call in microseconds. A plan that the table has already for a problem is left out. `unpack` writes
one such document per problem, with the GPU as profiles/gpus/ describes it.
"""
import argparse
import csv
import gzip
import io
import json
import pathlib
import sys

COLUMNS = ["commit", "gpu", "power_w", "problem", "config", "plan", "us"]
GPUS = pathlib.Path(__file__).resolve().parent.parent / "profiles" / "gpus"


def compact(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def read(table):
    """The rows of a table, as dicts."""
    with gzip.open(table, "rt", newline="") as file:
        return list(csv.DictReader(file))


def write(table, rows):
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with open(table, "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        packed.write(text.getvalue().encode())


def rows_of(document, commit, power):
    """Rows of a document of vqgen dev space --json."""
    for config in document["configs"]:
        # PATH/SEED/attention-00.json becomes SEED-attention-00.
        path = pathlib.PurePath(config["config"])
        name = f"{path.parent.name}-{path.stem}" if path.parent.name.isdigit() else path.stem
        for each in config["measurements"]:
            if each["outcome"] == "timed":
                yield {"commit": commit, "gpu": document["gpu_spec"]["name"], "power_w": power,
                       "problem": name, "config": compact(config["problem"]),
                       "plan": compact(each["plan"]), "us": f"{each['time_us']:.3f}"}


def pack(options):
    rows = read(options.table) if options.table.exists() else []
    had = {(row["gpu"], row["config"], row["plan"]) for row in rows}
    for path in options.documents:
        for row in rows_of(json.loads(path.read_text()), options.commit, options.power):
            key = row["gpu"], row["config"], row["plan"]
            if key not in had:
                had.add(key)
                rows.append(row)
    rows.sort(key=lambda row: (row["gpu"], row["problem"], row["plan"]))
    write(options.table, rows)
    print(f"{len(rows)} plans of {len({row['config'] for row in rows})} problems")


def profiles():
    """GPU profiles by their name."""
    specs = [json.loads(path.read_text()) for path in sorted(GPUS.glob("*.json"))]
    return {spec["name"]: spec for spec in specs}


def documents(rows, specs):
    """{problem: document}; exits where a GPU has no profile."""
    found = {}
    for row in rows:
        if row["gpu"] not in specs:
            sys.exit(f"plan_times: no file in {GPUS} is of '{row['gpu']}'; vqgen doctor writes one")
        document = found.setdefault(row["problem"], {
            "gpu": row["gpu"], "gpu_spec": specs[row["gpu"]],
            "configs": [{"config": row["problem"], "problem": json.loads(row["config"]),
                         "measurements": []}]})
        document["configs"][0]["measurements"].append(
            {"outcome": "timed", "plan": json.loads(row["plan"]), "time_us": float(row["us"])})
    return found


def unpack(options):
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, document in documents(read(options.table), profiles()).items():
        (options.folder / f"{name}.json").write_text(json.dumps(document) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="pack|unpack")
    packing = commands.add_parser("pack", help="add documents to a table")
    packing.add_argument("table", type=pathlib.Path)
    packing.add_argument("documents", type=pathlib.Path, nargs="+")
    packing.add_argument("--commit", required=True, help="the commit that was measured")
    packing.add_argument("--power", required=True, type=int, help="the card's power limit in watts")
    packing.set_defaults(run=pack)
    unpacking = commands.add_parser("unpack", help="write a document per problem")
    unpacking.add_argument("table", type=pathlib.Path)
    unpacking.add_argument("folder", type=pathlib.Path)
    unpacking.set_defaults(run=unpack)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
