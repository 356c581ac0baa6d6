#!/usr/bin/env python3
"""Finds links that lead nowhere.

    links_test.py SOURCE_DIR

In Markdown: relative links to a file and to a heading in it. In all other text files: names of pages, such
as docs/reference/config.md. In the pages: files of the tree, such as `tests/thirds.h`. Links must lead from
README.md to every page of docs/.
"""

import re
import sys
from pathlib import Path

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
MENTION = re.compile(r"(?<![\w/.-])docs/[\w./-]*\w\.(?:md|svg|json)\b")
# A file of the tree in a code span; a part in capitals stands for a name.
CODE_PATH = re.compile(r"`((?:bench|cli|core|examples|generator|heuristics|include|profiles|python|quantizer|runtime|scripts|templates"
                       r"|tests)/[\w./-]+\.[a-z]+)`")


def files(source):
    """Return the files of the checkout, without built or hidden ones."""
    for path in sorted(source.rglob("*")):
        place = path.relative_to(source)
        if path.is_file() and place.parts[0] not in ("build", "out") and not any(p.startswith(".") for p in place.parts):
            yield path


def prose(text):
    """Return the text without its fenced blocks and code spans."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors(text):
    """Return the names of the headings, as code hosts make them, and those of anchors."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    named = set(re.findall(r'<a id="([\w-]+)"></a>', text))
    return named | {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(path):
    """Return (target as written, file, heading or "") of each relative link."""
    for target in LINK.findall(prose(path.read_text())):
        if not re.match(r"[a-z]+:", target):
            name, _, heading = target.partition("#")
            yield target, (path.parent / name).resolve() if name else path, heading


def reached(start):
    seen, ahead = set(), [start]
    while ahead:
        path = ahead.pop()
        if path not in seen and path.suffix == ".md" and path.is_file():
            seen.add(path)
            ahead += [to for _, to, _ in links(path)]
    return seen


def main():
    source = Path(sys.argv[1]).resolve()
    faults, count = [], 0
    for path in files(source):
        where = path.relative_to(source)
        if path.suffix == ".md":
            for target, to, heading in links(path):
                count += 1
                if not to.exists():
                    faults.append(f"{where}: {target}: no such file")
                elif heading and heading not in anchors(to.read_text()):
                    faults.append(f"{where}: {target}: no such heading")
            if where.parts[0] in ("README.md", "docs"):
                named = [name for name in CODE_PATH.findall(path.read_text()) if not re.search(r"(?<![a-z])[A-Z]{2,}(?![a-z])", name)]
                count += len(named)
                faults += [f"{where}: {name}: no such file" for name in named if not (source / name).exists()]
        try:
            mentions = sorted(set(MENTION.findall(path.read_text())))
        except UnicodeDecodeError:
            continue
        count += len(mentions)
        faults += [f"{where}: {name}: no such file" for name in mentions if not (source / name).exists()]
    pages = set((source / "docs").rglob("*.md"))
    faults += [f"{page.relative_to(source)}: no link leads there from README.md"
               for page in sorted(pages - reached(source / "README.md"))]
    print("\n".join(faults) or f"{count} links lead somewhere")
    return 1 if faults or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
