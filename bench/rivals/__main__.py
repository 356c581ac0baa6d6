"""What users would pick instead: other packages' kernels, FP16 and vqgen in turns on one GPU.

    python3 bench/rivals [--only REGEX] [--rivals NAME...] [--json OUT] [--rounds N] [--budget SECONDS]
                         [--vqgen TOOL | --no-vqgen] [--aqlm PATH] [--codegemm CHECKOUT] [--seed N]
    python3 bench/rivals --list     the problems, and what is missing for each rival

Needs a GPU and PyTorch; --list does not. docs/benchmarks.md has the rest. Exit codes: 0; 1 where an output
is wrong or a side fails; 2 for bad input; 5 where something is missing, and what is there was measured.
"""
import argparse
import pathlib
import shutil
import sys

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1] / "flagship"))

import device  # noqa: E402
import shapes  # noqa: E402
import table  # noqa: E402
import turns  # noqa: E402
from arguments import pattern, positive  # noqa: E402
from ours import Failed  # noqa: E402


def read_arguments(words):
    parser = argparse.ArgumentParser(prog="rivals", description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="say what would be measured, and what is missing")
    parser.add_argument("--only", type=pattern, metavar="REGEX", help="found in the problem's name")
    parser.add_argument("--rivals", nargs="*", choices=turns.RIVALS, default=list(turns.RIVALS))
    parser.add_argument("--vqgen", default="vqgen", metavar="TOOL")
    parser.add_argument("--no-vqgen", dest="vqgen", action="store_const", const=None)
    parser.add_argument("--aqlm", type=pathlib.Path, help="wheel or unpacked package of aqlm")
    parser.add_argument("--codegemm", type=pathlib.Path, metavar="CHECKOUT",
                        help="where its kernels were built")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="no new problems after that")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--measure", action="append", default=[], metavar="OPTION",
                        help="passed to vqgen measure")
    return parser.parse_args(words)


def absent(arguments):
    """The sentence that says what each rival, or vqgen, lacks, by name."""
    missing = {name: turns.RIVALS[name].missing(arguments) for name in arguments.rivals}
    if arguments.vqgen and not shutil.which(arguments.vqgen):
        missing["vqgen"] = (f"no program {arguments.vqgen}: build it and name it with --vqgen, or leave it out "
                            "with --no-vqgen")
    return {name: why for name, why in missing.items() if why}


def listed(arguments, chosen, missing):
    for each in chosen:
        names = [f"{name} {variant}" for name in arguments.rivals for variant in turns.RIVALS[name].VARIANTS
                 if turns.RIVALS[name].takes(each, variant)]
        names += [f"vqgen {name}" for name, _ in shapes.twins(each)] if arguments.vqgen else []
        print(f"{each['name']}: FP16, {', '.join(names)}")
    for name in [*arguments.rivals, *(["vqgen"] if arguments.vqgen else [])]:
        print(f"{name}: {missing.get(name, 'there')}")


def main(words=None):
    arguments = read_arguments(words)
    chosen = shapes.selected(arguments.only)
    if not chosen:
        print("rivals: no problem has such a name", file=sys.stderr)
        return 2
    if arguments.json and not arguments.json.resolve().parent.is_dir():
        print(f"rivals: {arguments.json}: no such folder", file=sys.stderr)
        return 2
    missing = absent(arguments)
    if arguments.list:
        listed(arguments, chosen, missing)
        return 0
    for name, why in missing.items():
        print(f"rivals: {name}: {why}", file=sys.stderr)
    lacking = device.lacking()
    if lacking:
        print(f"rivals: {lacking}", file=sys.stderr)
        return 5
    if "vqgen" in missing:
        arguments.vqgen = None
    rivals = [name for name in arguments.rivals if name not in missing]
    try:
        document = turns.run(arguments, chosen, rivals, missing)
    except Failed as reason:
        print(f"rivals: {reason}", file=sys.stderr)
        return 1
    print(table.markdown(document), end="")
    bad = any(side["outcome"] != "timed" for each in document["problems"] for side in each["sides"].values())
    return 1 if bad else 5 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
