#!/usr/bin/env python3
"""Writes the licences of the libraries whose code a wheel carries, as Debian's and Ubuntu's packages state them.

    notices.py OUTPUT

The packages that the wheel was built from have the copyright lines of their own versions. A library without such
a file, or a licence without its text, fails the build.
"""

import re
import sys
from pathlib import Path

LIBRARIES = [("Boost.Context", "libboost-context[0-9]*-dev"), ("CLI11", "libcli11-dev"), ("fmt", "libfmt-dev"),
             ("JSON for Modern C++", "nlohmann-json3-dev"), ("OpenSSL", "libssl-dev")]
CARRIED = re.compile(r"\*$|include/|libs/context/\*$")  # not files of tests and tools
HEAD = """vqgen's wheel contains code of the libraries below. Their licences follow. The whole text of the Apache
License 2.0 is in the file LICENSE beside this one.
"""


def paragraphs(text):
    """Return the fields of each paragraph, by name (debian-policy, copyright-format 1.0)."""
    for paragraph in re.split(r"\n\s*\n", text):
        fields = re.findall(r"^(\w[\w-]*):[ \t]*(.*(?:\n[ \t].*)*)", paragraph, re.MULTILINE)
        if fields:
            yield dict(fields)


def notice(name, text):
    """Return copyright lines and licences of the files of a library that a wheel contains."""
    found = list(paragraphs(text))
    texts = {each["License"].split("\n")[0].strip(): each["License"].partition("\n")[2]
             for each in found if "\n" in each.get("License", "")}
    carried = [each for each in found if any(map(CARRIED.match, each.get("Files", "").split()))]
    lines, licences = [], []
    for each in carried:
        lines += [line.strip() for line in each["Copyright"].strip().split("\n")]
        licences.append(each["License"].split("\n")[0].strip())
    if not licences or not all(map(texts.get, licences)):
        raise SystemExit(f"notices: {name}: no text of its licences {licences} in its copyright file; "
                         "see python/notices.py")
    parts = [name, "=" * len(name), "", *(f"Copyright {line}" for line in dict.fromkeys(lines))]
    for licence in dict.fromkeys(licences):
        body = (re.sub(r"^ ", "", line).rstrip() for line in texts[licence].split("\n"))
        parts += ["", f"License: {licence}", "", *("" if line == "." else line for line in body)]
    return "\n".join(parts).rstrip() + "\n"


def main():
    found = [HEAD]
    for name, package in LIBRARIES:
        paths = sorted(Path("/usr/share/doc").glob(f"{package}/copyright"))
        if not paths:
            raise SystemExit(f"notices: {name}: no copyright file of package {package}; "
                             "build wheels for others on Debian or Ubuntu, with these packages")
        found.append(notice(name, paths[-1].read_text(encoding="utf-8")))
    Path(sys.argv[1]).write_text("\n\n".join(found), encoding="utf-8")


if __name__ == "__main__":
    main()
