#!/usr/bin/env python3
"""Counts the lines of product code: after clang-format, without blank lines and comments.

  scripts/code_size.py                  the working tree, by folder
  scripts/code_size.py --commit REV     a revision
  scripts/code_size.py --against REV    a revision, the tree or --commit beside it, and the change
  scripts/code_size.py --self-test      checks the counting on seeded text

Product is C++, CUDA, Python and shell below FOLDERS, but for the scripts that test, measure or
describe the project. CMake files, data and docs are not counted. The .clang-format of the working
tree formats every revision, so that a change of style moves no figure.
"""

import argparse
import fnmatch
import io
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

FOLDERS = ["cli", "core", "generator", "heuristics", "include", "profiles", "python", "quantizer",
           "runtime", "scripts", "templates"]
NOT_PRODUCT = ["scripts/check_*", "scripts/*test*", "scripts/*bench*", "scripts/code_size.py",
               "scripts/write_*", "scripts/compare_sass.py", "scripts/grid_configs.py",
               "scripts/make_sample_data.py"]
FORMATTED = {".c", ".cpp", ".cu", ".cuh", ".def", ".h", ".hpp"}
SCRIPTS = {".py", ".sh"}
ROOT = pathlib.Path(__file__).resolve().parent.parent
# Literals come first: what looks like a comment inside one is none.
C_TOKEN = re.compile(r"""
    (?P<text> R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"
            | "(?:\\.|[^"\\\n])*"
            | (?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+')
  | (?P<comment> //(?:\\\n|[^\n])* | /\*.*?\*/)
""", re.DOTALL | re.VERBOSE)


def c_lines(text):
    """Lines of C++ or CUDA that hold more than space and comments."""
    def blanked(match):
        return match["text"] or re.sub(r"[^\n]+", " ", match["comment"])
    return sum(1 for line in C_TOKEN.sub(blanked, text).splitlines() if line.strip())


def script_lines(text):
    return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("#"))


def is_product(path):
    return (path.split("/")[0] in FOLDERS and pathlib.PurePath(path).suffix in FORMATTED | SCRIPTS
            and not any(fnmatch.fnmatch(path, pattern) for pattern in NOT_PRODUCT))


def git(*arguments):
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True)
    if done.returncode != 0:
        sys.exit(f"code_size: git {' '.join(arguments)}: {done.stderr.decode().strip()}")
    return done.stdout


def product_of(commit):
    """Path -> bytes of the product's files in a revision, or in the working tree for None."""
    if commit is None:
        listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode()
        paths = filter(is_product, listed.split("\0"))
        return {path: (ROOT / path).read_bytes() for path in paths if (ROOT / path).is_file()}
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar
                if member.isfile() and is_product(member.name)}


def counted(files):
    """Folder -> lines."""
    lines = dict.fromkeys(FOLDERS, 0)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / ".clang-format").write_bytes((ROOT / ".clang-format").read_bytes())
        formatted = []
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
            if pathlib.PurePath(path).suffix in FORMATTED:
                formatted.append(path)
        if formatted and subprocess.run(["clang-format", "-i", *formatted], cwd=folder).returncode:
            sys.exit("code_size: clang-format failed")
        for path in files:
            count = c_lines if path in formatted else script_lines
            lines[path.split("/")[0]] += count((folder / path).read_text(encoding="utf-8"))
    return lines


def show(columns):
    """Prints name -> counts as a table; of two, how the second differs from the first."""
    header = "".join(f"{name:>14}" for name in columns)
    print(f"{'':<12}{header}" + ("        change" if len(columns) == 2 else ""))
    for folder in FOLDERS + ["total"]:
        row = [sum(lines.values()) if folder == "total" else lines[folder]
               for lines in columns.values()]
        if any(row):
            change = f"{100 * (row[1] / row[0] - 1):+13.1f}%" if len(row) == 2 and row[0] else ""
            print(f"{folder:<12}" + "".join(f"{count:>14}" for count in row) + change)


def self_test():
    seeds = {  # path -> (text, lines; None where the file is no product)
        "core/a.cpp": ('// one\nint a;  // two\n\n/* three\n   four */\nint b; /* five\n*/ int c;\n', 3),
        "core/b.h": ('auto s = "// no comment";\nchar c = \'"\';\n// comment "\nint n = 1\'000;\n', 3),
        "core/c.cpp": ('auto s = R"(\n// text\n)";\n', 3),
        "cli/d.cpp": ("int f(int a,\n      int b)\n{\n  return a;\n}\n", 1),  # as clang-format has it
        "runtime/e.cpp": ("// goes on \\\nint a;\nint b;\n", 1),
        "templates/f.cuh": ("#pragma once\n", 1),
        "scripts/g.py": ("#!/usr/bin/env python3\n# comment\n\nx = 1  # code\n", 1),
        "scripts/gpu_test.sh": ("true\n", None),
        "tests/h.cpp": ("int a;\n", None),
        "core/CMakeLists.txt": ("x\n", None),
    }
    faults = 0
    for path, (text, expected) in seeds.items():
        found = sum(counted({path: text.encode()}).values()) if is_product(path) else None
        if found != expected:
            faults += 1
            print(f"code_size: {path}: {found} lines, not {expected}")
    print(f"code_size: {len(seeds)} seeded files, {faults} faults")
    return 1 if faults else 0


def main():
    parser = argparse.ArgumentParser(description="Counts the lines of product code.")
    parser.add_argument("--commit", metavar="REV", help="a revision instead of the working tree")
    parser.add_argument("--against", metavar="REV", help="a revision to compare with")
    parser.add_argument("--self-test", action="store_true", help="check the counting itself")
    options = parser.parse_args()
    if not shutil.which("clang-format"):
        sys.exit("code_size: clang-format is missing: apt-get install clang-format")
    if options.self_test:
        return self_test()
    columns = {options.against: counted(product_of(options.against))} if options.against else {}
    columns[options.commit or "tree"] = counted(product_of(options.commit))
    show(columns)
    return 0


if __name__ == "__main__":
    sys.exit(main())
