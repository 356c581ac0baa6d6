#!/usr/bin/env python3
"""Compares the C interface of libvqgen with tests/library/abi.txt: exported symbols, sizes of structs, offsets and sizes
of their fields, and numbers of enumerators.

  scripts/check_abi.py LIBRARY          LIBRARY is a libvqgen.so; prints the differences, exit 1 if there are any
  scripts/check_abi.py LIBRARY --write  rewrites the file; a line that changes or goes breaks callers of this version
  scripts/check_abi.py --self-test      checks that seeded differences are found
"""

import difflib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = ROOT / "tests/library/abi.txt"
HEADERS = ("vqgen/vqgen.h", "vqgen/launch.h")


def names_of(declaration):
    """The names that a declaration of struct members declares, such as `const void *a, *b[2]` or `int (*call)(void)`."""
    pointer = re.search(r"\(\s*\*\s*(\w+)", declaration)
    if pointer:
        return [pointer[1]]
    return [re.search(r"(\w+)\s*(?:\[[^]]*\]\s*)*$", each.strip())[1] for each in declaration.split(",")]


def types_of(text):
    """([(struct, fields)], [(enum, enumerators)]) of a header's text."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    structs = [(name, [each for line in body.split(";") if line.strip() for each in names_of(line)])
               for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.S)]
    enums = [(name, [each.split("=")[0].strip() for each in body.split(",") if each.strip()])
             for body, name in re.findall(r"typedef enum \w+ \{(.*?)\} (\w+);", text, re.S)]
    return structs, enums


def layout_of(include):
    """Lines of all structs and enums of the headers in a folder, as the C compiler lays them out."""
    prints = []
    for header in HEADERS:
        structs, enums = types_of((include / header).read_text(encoding="utf-8"))
        for name, fields in structs:
            prints.append(f'printf("struct {name} %zu\\n", sizeof({name}));')
            prints += [f'printf("  {field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name}*)0)->{field}));'
                       for field in fields]
        for name, enumerators in enums:
            prints.append(f'printf("enum {name} %zu\\n", sizeof({name}));')
            prints += [f'printf("  {each} %d\\n", (int){each});' for each in enumerators]
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "layout.c")
        includes = "".join(f"#include <{header}>\n" for header in HEADERS)
        source.write_text(f"#include <stddef.h>\n#include <stdio.h>\n{includes}int main(void) {{\n"
                          + "\n".join(prints) + "\nreturn 0;\n}\n")
        subprocess.run([os.environ.get("CC", "cc"), "-I", include, source, "-o", source.with_suffix("")], check=True)
        return subprocess.run([source.with_suffix("")], check=True, capture_output=True, text=True).stdout.splitlines()


def symbols_of(library):
    """Lines of the symbols that a shared library exports."""
    shown = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    return sorted(f"symbol {line.split()[-1]}" for line in shown.splitlines())


def differences(before, after):
    return [line for line in difflib.unified_diff(before, after, "abi.txt", "now", lineterm="", n=0)
            if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def self_test():
    text = """typedef struct a { /* one; */ int64_t page, head; const void* p; int n[2]; int (*call)(int x, int y); } a;
              typedef enum e { A = 0, /* B, */ C = 7 } e;"""
    read = types_of(text) == ([("a", ["page", "head", "p", "n", "call"])], [("e", ["A", "C"])])
    now = layout_of(ROOT / "include")
    with tempfile.TemporaryDirectory() as folder:
        include = pathlib.Path(folder)
        (include / "vqgen").mkdir()
        for header in HEADERS:
            (include / header).write_text((ROOT / "include" / header).read_text(encoding="utf-8").replace(
                "int64_t page, head, token;", "int64_t page, head; int32_t token, more;"))
        found = differences(now, layout_of(include))
    wanted = {"-  token 16 8", "+  token 16 4", "+  more 20 4"}
    gone = differences(["symbol a", "symbol b"], ["symbol a"]) == ["-symbol b"]
    print(f"check_abi: a changed struct shows {found}")
    return 0 if read and set(found) == wanted and gone else 1


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) not in (1, 2) or arguments[1:] not in ([], ["--write"]):
        sys.exit(__doc__)
    now = symbols_of(arguments[0]) + layout_of(ROOT / "include")
    if arguments[1:]:
        LIST.write_text("\n".join(now) + "\n", encoding="utf-8")
        return 0
    found = differences(LIST.read_text(encoding="utf-8").splitlines(), now)
    print("".join(f"{line}\n" for line in found) + f"check_abi: {len(now)} lines, {len(found)} differ")
    if found:
        print(f"check_abi: if the change is meant, run scripts/check_abi.py {arguments[0]} --write")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
