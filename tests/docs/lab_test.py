#!/usr/bin/env python3
"""Checks docs/lab/, its data and the pages that cite them.

    lab_test.py SOURCE_DIR

Each topic has a page with a filled block, and each page has a topic. A trial's id that a page of docs/ cites,
such as [tc-01](../lab/gemm-tensor-cores.md), belongs to that page's topic. Rows that break a rule of their
column are refused with file and line.
"""

import re
import sys
from pathlib import Path

CITED = re.compile(r"\[([a-z0-9]+-\d{2,3})\]\(([^)]*)\)")
GOOD = {"experiments": "id,topic,gpu,commit,change,predicted,before_us,after_us,shape,verdict,why\n"
                       "a-01,tuning,,,one change,,2.5,2,,kept,a reason\n",
        "runs": "topic,gpu,commit,op,format,problem,plan,us,baseline,baseline_us,baseline_over_us,note\n"
                "tuning,,,gemv,,a problem,,2,FP16,4,,\n"}
# File, replaced text, replacement, and words of the refusal.
BAD = [("experiments", "one change", "many " * 16, "change has 16 words"),
       ("experiments", "a reason", "many " * 21, "why has 21 words"),
       ("experiments", "2.5", "fast", "before_us 'fast'"),
       ("experiments", "kept", "good", "verdict 'good'"),
       ("experiments", "tuning", "nothing", "topic 'nothing'"),
       ("experiments", "a reason", "a reason, too", "another number of cells"),
       ("experiments", "a reason", "a reason\na-01,tuning,,,twice,,,,,kept,", "id 'a-01'"),
       ("runs", ",4,", ",4 us,", "baseline_us '4 us'"),
       ("runs", "tuning", "nothing", "topic 'nothing'")]


class Made:
    """Tools of made-up files."""

    def __init__(self, files):
        self.files = files

    def text(self, path):
        return self.files[Path(path).stem]


class Checkout:
    """Tools of the checkout."""

    def __init__(self, root):
        self.root = root

    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8")


def main():
    source = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(source / "scripts" / "docs"))
    sys.dont_write_bytecode = True
    import lab
    faults = []

    tools = Checkout(source)
    for topic in lab.TOPICS:
        path = source / "docs" / "lab" / f"{topic}.md"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if f"<!-- generated: lab {topic} -->" not in text:
            faults.append(f"docs/lab/{topic}.md: no block of its topic; add <!-- generated: lab {topic} -->")
        elif lab.lab([topic], tools) not in text:
            faults.append(f"docs/lab/{topic}.md: stale; run scripts/make_docs.py")
    for path in sorted((source / "docs" / "lab").glob("*.md")):
        if path.stem not in (*lab.TOPICS, "README"):
            faults.append(f"docs/lab/{path.name}: of no topic of scripts/docs/lab.py; add the topic, or remove the page")

    topics, cited = {row["id"]: row["topic"] for row in lab.rows_of(tools, lab.TRIALS)}, 0
    for path in sorted((source / "docs").rglob("*.md")):
        for name, target in CITED.findall(path.read_text(encoding="utf-8")):
            cited += 1
            if Path(target).stem != topics.get(name):
                faults.append(f"{path.relative_to(source)}: {name} is no trial of {target}; it is of {topics.get(name, 'no topic')}")

    if lab.lab(["tuning"], Made(GOOD)).count("\n") < 6:
        faults.append("a trial and a point give no two tables")
    for name, before, after, words in BAD:
        files = GOOD | {name: GOOD[name].replace(before, after, 1)}
        try:
            lab.lab(["tuning"], Made(files))
            faults.append(f"a row with '{after}' is taken")
        except ValueError as error:
            if words not in str(error) or not re.match(rf"bench/measurements/{name}\.csv:[23]: ", str(error)):
                faults.append(f"a row with '{after}' is refused by '{error}', without '{words}'")

    print("\n".join(faults) or f"{len(lab.TOPICS)} topics have pages, {cited} trials are cited, {len(BAD)} bad rows are refused")
    return 1 if faults or cited == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
