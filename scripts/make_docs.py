#!/usr/bin/env python3
"""Fills the generated blocks of README.md and docs/**/*.md.

    scripts/make_docs.py [--check] [--vqgen PATH] [PAGE...]

A block is a line `<!-- generated: ID ARGS -->`, text, and a line `<!-- end of generated -->`. Markers
inside fenced code are left alone. The text comes from the generator ID: an entry of the dict
GENERATORS of a module in scripts/docs/, called as `generator(args, tools)` with the list of ARGS and
a Tools. It returns Markdown, or raises ValueError with one line.

Exit codes: 0 all blocks are filled, 1 --check found stale ones, 2 a block cannot be filled.
"""

import argparse
import functools
import importlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODULES = ROOT / "scripts" / "docs"
BEGIN = re.compile(r"<!-- generated:\s*(?P<id>[\w-]+)(?P<args>.*?)\s*-->\s*$")
END = "<!-- end of generated -->"
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class Tools:
    """What generators read: the checkout, and the tool's own output."""

    def __init__(self, root: pathlib.Path, vqgen: pathlib.Path):
        self.root = root
        self._vqgen = vqgen

    @functools.cache
    def vqgen(self, *arguments: str) -> str:
        """The stdout of `vqgen ARGUMENTS...`, run in the checkout. Raises ValueError if it fails."""
        named = " ".join(["vqgen", *arguments])
        try:
            done = subprocess.run([self._vqgen, *arguments], cwd=self.root, capture_output=True, text=True)
        except OSError as error:
            raise ValueError(f"{named}: {self._vqgen} cannot be run: {error.strerror}; build the target vqgen, or give "
                             "another binary by --vqgen") from None
        if done.returncode != 0:
            raise ValueError(f"{named}: exit code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def vqgen_json(self, *arguments: str):
        """The document of `vqgen ARGUMENTS... --json`."""
        return json.loads(self.vqgen(*arguments, "--json"))

    def json(self, path: str):
        """The document in a file of the checkout."""
        return json.loads(self.text(path))

    def text(self, path: str) -> str:
        """The text of a file of the checkout."""
        try:
            return (self.root / path).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror}") from None


def load_generators() -> dict:
    """{ID: function} of all modules; one without GENERATORS is a helper of others."""
    generators = {}
    sys.path.insert(0, str(MODULES))
    for path in sorted(MODULES.glob("*.py")):
        own = getattr(importlib.import_module(path.stem), "GENERATORS", {})
        for twice in generators.keys() & own.keys():
            raise ValueError(f"{path.relative_to(ROOT)}: the generator '{twice}' is in another module too; rename one")
        generators |= own
    return generators


def generated(place, match, generators, tools) -> list[str]:
    """The lines of a block's text. `place` is "file:line"."""
    name = match["id"]
    if name not in generators:
        raise ValueError(f"{place}: '{name}' is no generator; take one of {', '.join(sorted(generators))}")
    try:
        text = generators[name](shlex.split(match["args"]), tools)
    except ValueError as error:
        raise ValueError(f"{place}: {name}: {error}") from None
    return ["", *text.strip("\n").split("\n"), ""]


def filled(page, text, generators, tools, faults: list[str]) -> tuple[str, list[str]]:
    """The page with its blocks filled, and the "file:line: ID ARGS" of those that were stale. Blocks that
    cannot be filled stay as they are, and are told to `faults`."""
    lines = text.split("\n")
    result, stale, fence, at = [], [], "", 0
    while at < len(lines):
        line = lines[at]
        result.append(line)
        at += 1
        marks = FENCE.match(line)
        if fence:
            fence = "" if marks and line.strip().startswith(fence) and not line.strip().strip(fence[0]) else fence
            continue
        if marks:
            fence = marks[1]
            continue
        if line.strip() == END:
            raise ValueError(f"{page}:{at}: ends a block that nothing begins; remove it, or add a line "
                             "<!-- generated: ID ARGS --> above")
        match = BEGIN.match(line)
        if not match:
            continue
        try:
            end = lines.index(END, at)
        except ValueError:
            end = len(lines)
        inner = next((number for number in range(at, end) if BEGIN.match(lines[number])), end)
        if end == len(lines) or inner < end:
            raise ValueError(f"{page}:{at}: the block '{match['id']}' has no end; add a line {END}")
        new = lines[at:end]
        try:
            new = generated(f"{page}:{at}", match, generators, tools)
        except ValueError as error:
            faults.append(str(error))
        if lines[at:end] != new:
            stale.append(f"{page}:{at}: {match['id']}{match['args']}")
        result += [*new, END]
        at = end + 1
    return "\n".join(result), stale


def pages_of(given: list[str]) -> list[pathlib.Path]:
    if given:
        return [pathlib.Path(name).resolve() for name in given]
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", metavar="PAGE", nargs="*", help="pages to fill [README.md and docs/**/*.md]")
    parser.add_argument("--check", action="store_true", help="write nothing; name each stale block and exit with 1")
    parser.add_argument("--vqgen", metavar="PATH", type=pathlib.Path, default=ROOT / "build/dev/bin/vqgen",
                        help="the tool to ask [build/dev/bin/vqgen]")
    options = parser.parse_args()
    tools, faults = Tools(ROOT, options.vqgen.absolute()), []
    try:
        generators = load_generators()
    except ValueError as error:
        parser.error(str(error))
    stale = 0
    for path in pages_of(options.pages):
        try:
            text = path.read_text(encoding="utf-8")
            new, blocks = filled(os.path.relpath(path, ROOT), text, generators, tools, faults)
            if new != text and not options.check:
                path.write_text(new, encoding="utf-8")
        except (OSError, ValueError) as error:
            faults.append(str(error))
            continue
        stale += len(blocks)
        for block in blocks:
            print(f"{block}: stale; run scripts/make_docs.py" if options.check else f"{block}: filled")
    for fault in faults:
        print(f"make_docs: {fault}", file=sys.stderr)
    if faults:
        return 2
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
