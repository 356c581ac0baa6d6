#!/usr/bin/env python3
"""Checks what holds for every text file: no paths of one machine, no file longer than a reader takes in; and that no
script fails because a reader of a pipe ends first.

400 lines are the guide. A longer file is in LONG with the reason why its parts belong together.

  scripts/check_files.py [ROOT]        prints FILE:LINE and the rule broken; exit 1 if any is
  scripts/check_files.py --self-test   checks that seeded violations are found, and no more
"""

import pathlib
import re
import sys
import tempfile

MAX_LINES = 400
SKIPPED_FOLDERS = {".git", "build", "out", ".venv", "__pycache__"}
LONG = {  # path: why one file
    "LICENSE": "a licence",
    "docs/config.schema.json": "generated",
    "tests/golden/choices.txt": "generated",
    "templates/vq/kernels/attention_int8_mma/kernel.cuh": "a block's run, from the query to the merge",
    "templates/vq/ops/warp_softmax.cuh": "a softmax and its sum of values, which share registers",
    "templates/vq/ops/attention_work.cuh": "the work of a block of attention, which each dataflow calls",
}
# Measured data, a line for each point.
DATA = re.compile(r"bench/measurements/[\w-]+\.csv")
# Lines that scripts/make_docs.py writes, which do not count.
GENERATED = re.compile(r"^<!-- generated: .*?^<!-- end of generated -->$", re.MULTILINE | re.DOTALL)
# Home directories and workspaces; /usr, /tmp and the like are the same on all machines.
EARLY_READER = re.compile(r"\|\s*(?:head\b|grep\s+(?:-\w+\s+)*-\w*[qm])")  # ends before its writer does
MACHINE_PATH = re.compile(r"(?<![\w.}~])/(?:home|root|work|workspace|Users|mnt)/\w")


def text_of(path):
    """The file's text, or None if it is binary."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def file_faults(path, text):
    lines = text.splitlines()
    by_hand = len((GENERATED.sub("", text) if path.endswith(".md") else text).splitlines())
    if by_hand > MAX_LINES and path not in LONG and not DATA.fullmatch(path):
        yield len(lines), f"{by_hand} lines, over the guide of {MAX_LINES}; split it, or say in LONG why not"
    piped = "pipefail" in text and (path.endswith(".sh") or text.startswith("#!/usr/bin/env bash"))
    for number, line in enumerate(lines, 1):
        if piped and not line.lstrip().startswith("#") and EARLY_READER.search(line):
            yield number, "with pipefail, a writer that outlives its reader fails the script; use sed -n 1,Np, or <<<"
        found = MACHINE_PATH.search(line)
        if found:
            yield number, f"a path of one machine: {line[found.start() : found.start() + 40]}"


def check(root):
    """(path, line, rule) for all text files, and how many files."""
    faults, files = [], 0
    for file in sorted(root.rglob("*")):
        relative = file.relative_to(root)
        if SKIPPED_FOLDERS & set(relative.parts) or file.is_symlink() or not file.is_file():
            continue
        text = text_of(file)
        if text is not None:
            files += 1
            path = relative.as_posix()
            faults += [(path, line, rule) for line, rule in file_faults(path, text)]
    return faults, files


def self_test():
    home, long = "/".join(["", "home", "someone"]), "x\n" * (MAX_LINES + 1)
    inside = "runtime/mnt/a.h"  # of the project: no fault
    seeds = {  # path -> (text, lines with faults)
        "a.md": (f"fine\nsee {home}/notes\n", [2]),
        "b.cpp": (f'open("{home}/x");\n#include "{inside}"\n', [1]),
        "c.cpp": (long, [MAX_LINES + 1]),
        "d.cpp": (long[2:], []),
        "LICENSE": (long, []),
        "bench/measurements/a.csv": (long, []),
        "bench/a.csv": (long, [MAX_LINES + 1]),
        "d.md": (f"<!-- generated: x -->\n{long}<!-- end of generated -->\n", []),
        "e.md": (f"<!-- generated: x -->\n<!-- end of generated -->\n{long}", [MAX_LINES + 3]),
        "a.sh": ("set -o pipefail\nsort x | head -n 1\nsort x | sed -n 1p\nx | grep -qx y\nx | grep -v y\n# x | head\n",
                 [2, 4]),
        "b.sh": ("sort x | head -n 1\n", []),
        "build/e.md": (home + "/x", []),
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, (text, _) in seeds.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        found = sorted((path, line) for path, line, _ in check(root)[0])
    seeded = sorted((path, line) for path, (_, lines) in seeds.items() for line in lines)
    print(f"check_files: seeded {seeded}, found {found}")
    return 0 if found == seeded else 1


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    root = pathlib.Path(arguments[0] if arguments else __file__).resolve()
    root = root if arguments else root.parent.parent
    faults, files = check(root)
    if files == 0:
        sys.exit(f"check_files: no files under {root}")
    for path, line, rule in faults:
        print(f"{path}:{line}: {rule}")
    print(f"check_files: {files} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
