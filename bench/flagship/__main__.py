"""The flagship benchmark: vqgen's kernels against FP16 and AQLM on one GPU, and the report of it.

    python3 bench/flagship run [--vqgen TOOL] [--json OUT] [--charts DIR] [--parts PART...] [--only REGEX]
                               [--rounds N] [--budget SECONDS] [--codebooks rotated|warm|both]
                               [--aqlm PATH] [--captured DIR]
    python3 bench/flagship report JSON... [--out FILE] [--charts DIR]
    python3 bench/flagship configs DIR        the configs, one file a problem
    python3 bench/flagship profiles DIR       histograms of the sample data's codes, for --captured

run needs a GPU and PyTorch, the others do not; docs/internals/testing.md has the rest. Exit codes: 0; 1 where a
plan is wrong or a side fails; 2 for bad input.
"""
import argparse
import json
import os
import pathlib
import re
import sys

import charts
import figures
import ours
import problems
import report
from arguments import pattern, positive

OFF_BY_DEFAULT = ("captured",)  # needs --captured


def write_report(source, everything, documents, arguments, out):
    text = report.markdown(source, everything, documents)
    if arguments.charts:
        beside = out.parent if out else pathlib.Path.cwd()
        names = [os.path.relpath(arguments.charts / name, beside)
                 for name in charts.write(arguments.charts, figures.merged(documents)[0])]
        text = report.markdown(source, everything, documents, names)
    if out:
        out.write_text(text)
    else:
        print(text, end="")


def run(source, everything, arguments):
    import runner
    parts = arguments.parts or [part for part in problems.parts_of(source)
                                if arguments.captured or part not in OFF_BY_DEFAULT]
    chosen = problems.selected(everything, parts, arguments.only)
    if not chosen:
        sys.exit("flagship: no problem of these parts has such a name")
    document = runner.run(arguments, chosen)
    wrong = [each for each in document["problems"] if each["outcome"] != "timed"]
    for each in wrong:
        print(f"flagship: {each['name']}: {each['outcome']}: {each['why']}", file=sys.stderr)
    document["problems"] = [each for each in document["problems"] if each["outcome"] == "timed"]
    document["left_out"] += [{"name": each["name"], "why": each["outcome"]} for each in wrong]
    if document["bandwidth"]:
        write_report(source, everything, [document], arguments, None)
    return 1 if wrong else 0


def configs(everything, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for each in everything:
        if "of" not in each or each["codes"] == "uniform":
            name = re.sub(r"[^\w.-]", "-", each["name"])
            (folder / f"{name}.json").write_text(json.dumps(each["config"], indent=2) + "\n")


def read_arguments(parts):
    parser = argparse.ArgumentParser(prog="flagship", description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("run", help="measure; needs a GPU and PyTorch")
    verb.add_argument("--vqgen", default="vqgen")
    verb.add_argument("--parts", nargs="+", choices=parts)
    verb.add_argument("--only", type=pattern, metavar="REGEX", help="found in the problem's name")
    verb.add_argument("--rounds", type=positive, default=3)
    verb.add_argument("--budget", type=float, metavar="SECONDS", help="no new turns after that")
    verb.add_argument("--codebooks", choices=("rotated", "warm", "both"), default="rotated",
                      help="rotated: each call reads another layer's (default); warm: all the same ones")
    verb.add_argument("--json", type=pathlib.Path)
    verb.add_argument("--charts", type=pathlib.Path, metavar="DIR")
    verb.add_argument("--aqlm", type=pathlib.Path, help="wheel or unpacked package of aqlm")
    verb.add_argument("--captured", type=pathlib.Path, metavar="DIR", help="as `profiles` writes it")
    verb.add_argument("--measure", action="append", default=[], metavar="OPTION",
                      help="passed to vqgen measure")
    verb = verbs.add_parser("report", help="tables and charts of runs")
    verb.add_argument("documents", nargs="+", type=pathlib.Path, metavar="JSON")
    verb.add_argument("--out", type=pathlib.Path)
    verb.add_argument("--charts", type=pathlib.Path, metavar="DIR")
    verb = verbs.add_parser("configs", help="write the configs")
    verb.add_argument("folder", type=pathlib.Path)
    verb = verbs.add_parser("profiles", help="write histograms of codes")
    verb.add_argument("folder", type=pathlib.Path)
    verb.add_argument("--vqgen", default="vqgen")
    return parser.parse_args()


def main():
    source, everything = problems.read()
    arguments = read_arguments(problems.parts_of(source))
    try:
        if getattr(arguments, "charts", None):
            charts.require()
        if arguments.verb == "run":
            return run(source, everything, arguments)
        if arguments.verb == "report":
            documents = [figures.read(path) for path in arguments.documents]
            write_report(source, everything, documents, arguments, arguments.out)
        elif arguments.verb == "configs":
            configs(everything, arguments.folder)
        else:
            ours.write_profiles(arguments.vqgen, arguments.folder)
    except figures.Refused as reason:
        print(f"flagship: {reason}", file=sys.stderr)
        return 2
    except ours.Failed as reason:
        print(f"flagship: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
