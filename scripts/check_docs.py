#!/usr/bin/env python3
"""Checks the pages of docs/ and the READMEs: their length, their sentences, their words.

  scripts/check_docs.py [--all-listed] [PATH...]   pages and folders [all with pages]
  scripts/check_docs.py --texts [FOLDER...]        retired words in help, errors, docstrings, the schema
  scripts/check_docs.py --self-test                checks that seeded violations are found, and no more

Prints FILE:LINE: rule, exit 1 if any rule is broken. The tables are in scripts/docs/: limits.csv has the
pages and their words by hand (without headings, code, tables and generated blocks), banned_phrases.txt
the words, text_exceptions.txt what --texts lets pass. Pages whose state in limits.csv is `old`, and pages
that are not in it, are judged with --all-listed alone, or when a PATH names them.

Markers, each behind its sentence or in its table row:
  <!-- test: NAME -->    a test that fails if the sentence about the choice of plans becomes false
  <!-- source: FILE -->  the number is a constant of this file, not a measurement
"""

import ast
import bisect
import csv
import fnmatch
import itertools
import json
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "docs"))
import page_text  # noqa: E402

MAX_WORDS = 30
MAX_NUMBERS = 2
PAGE_FOLDERS = ["README.md", "docs", "bench", "examples", "profiles", "templates", "tests/data"]
TEXT_FOLDERS = ["cli", "core", "docs", "generator", "heuristics", "python/vqgen", "quantizer", "runtime"]
BEGINNINGS = re.compile(r"[\"(_]*(Of|That of|Those|Likewise|The same|In place of|By(?! default))\b")
# Not in an identifier, a version of a language or a name such as 16-bit.
NUMBER = re.compile(r"(?<![\w.+#^-])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?:(?:[x/]|\^-?)\d[\d.]*)*(?!-(?:bit|byte|wide)\b)(?!\d)")
MEASUREMENT = re.compile(
    r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)(?:\s?(?:[u\u00b5\u03bcnm]s|[GTM]B/s|[GT]FLOPS?|tokens/s)(?![\w/])|\s?%|x(?![\w])"
    r"|\s+times\s+(?:faster|slower|as fast|as long))")
CHOICE = re.compile(r"\b(chosen|choose|chooses|picks?|picked|selects?|selected|prefers?|planner)\b", re.I)
ABSOLUTE = re.compile(r"\b(never|always|only)\b", re.I)


class Rules:
    """The tables of scripts/docs/, and the names of the tests of `root`."""

    def __init__(self, root, tables):
        self.root = root
        with open(tables / "limits.csv", newline="") as file:
            self.limits = [(row["page"], int(row["words"]), row["state"]) for row in csv.DictReader(file)]
        self.prose, self.everywhere = read_phrases(tables / "banned_phrases.txt")
        self._tests = None

    def limit(self, page):
        """(most words, state) of a page, or None if it is not listed."""
        return next(((words, state) for name, words, state in self.limits if fnmatch.fnmatchcase(page, name)), None)

    def has_test(self, name):
        if self._tests is None:
            self._tests = "\n".join(file.read_text(errors="ignore") for file in sorted((self.root / "tests").rglob("*"))
                                    if file.suffix in (".cpp", ".h", ".py") or file.name == "CMakeLists.txt")
        word = re.escape(name.split("::")[-1])
        found = re.search(rf"\bNAME {word}\b|\bdef {word}\b", self._tests)
        if re.fullmatch(r"\w+\.\w+", name):
            suite, test = name.split(".")
            found = found or re.search(rf"\bTEST(_[PF])?\(\s*{suite}\s*,\s*{test}\s*\)", self._tests)
        return found is not None


def read_phrases(path):
    """(prose, everywhere): lists of (pattern, what to write)."""
    lists, section = {"prose": [], "everywhere": []}, None
    for line in path.read_text().splitlines():
        line = line.strip()
        if line in ("[prose]", "[everywhere]"):
            section = lists[line[1:-1]]
        elif line and not line.startswith("#"):
            phrase, _, write = line.partition(" => ")
            if phrase.startswith("re:"):
                pattern = phrase[3:]
            else:
                pattern = r"(?<![\w-])" + r"\s+".join(map(re.escape, phrase.split())) + r"(?!\w)"
            section.append((re.compile(pattern, re.I), write))
    return lists["prose"], lists["everywhere"]


def retired(text, first_line, phrases):
    """(line, rule) of each retired phrase, also over ends of lines."""
    lines = [line.strip() for line in text.split("\n")]
    begins = list(itertools.accumulate((len(line) + 1 for line in lines), initial=0))
    for pattern, write in phrases:
        for found in pattern.finditer(" ".join(lines)):
            line = first_line + bisect.bisect_right(begins, found.start()) - 1
            yield line, f"'{' '.join(found[0].split())}' is retired; write {write}"


def is_constant(number, markers, root):
    """True if a `source` marker names a file of the tree that has the number, or a share that it says."""
    value = float(number.replace(",", ""))
    forms = {f"{form:g}" for form in (value, value / 100, 1 + value / 100, 1 - value / 100)}
    files = [root / name for kind, name in markers if kind == "source"]
    return any(file.is_file() and forms & {f"{float(n):g}" for n in re.findall(r"\d+(?:\.\d+)?", file.read_text())}
               for file in files)


def sentence_faults(sentence, rules):
    text = sentence.text
    words = len(text.split())
    if words > MAX_WORDS:
        yield f"a sentence of {words} words, more than {MAX_WORDS}: {text[:60]}..."
    numbers = [found[0] for found in NUMBER.finditer(text)]
    if len(numbers) > MAX_NUMBERS:
        yield f"{len(numbers)} numbers in a sentence ({', '.join(numbers)}), more than {MAX_NUMBERS}; make a table"
    begin = BEGINNINGS.match(text)
    if begin:
        yield f"a sentence begins with '{begin[1]}'; begin with its subject: {text[:60]}"


def claim_faults(text, markers, rules):
    """Faults of a sentence or table row by what it claims."""
    for found in MEASUREMENT.finditer(text):
        if not is_constant(found[1], markers, rules.root):
            yield f"a measurement outside of a generated block: '{found[0]}' (or mark <!-- source: FILE -->)"
    tests = [name for kind, name in markers if kind == "test"]
    if CHOICE.search(text) and ABSOLUTE.search(text) and not tests:
        yield f"'{ABSOLUTE.search(text)[0]}' about a choice names no test; add <!-- test: NAME -->: {text[:60]}"
    for name in tests:
        if not rules.has_test(name):
            yield f"there is no test {name} in tests/"


def page_faults(text, most_words, rules):
    """(line, rule) of each fault of a page."""
    found, unclosed = page_text.blocks(text)
    if unclosed:
        yield unclosed, "a generated block without <!-- end of generated -->"
    words = sum(len(s.text.split()) for block in found if block.kind == "prose" for s in page_text.sentences(block))
    if most_words is not None and words > most_words:
        yield 1, f"{words} words by hand, more than {most_words}"
    for block in found:
        if block.kind == "generated":
            continue
        yield from retired(block.text, block.line, rules.everywhere)
        if block.kind == "code":
            continue
        yield from retired(page_text.plain(block.text), block.line, rules.prose)
        for sentence in page_text.sentences(block) if block.kind == "prose" else []:
            for rule in [*sentence_faults(sentence, rules), *claim_faults(sentence.text, sentence.markers, rules)]:
                yield sentence.line, rule
        if block.kind == "row":
            row = page_text.plain(block.text)
            markers = [(m[1], m[2]) for m in page_text.KEPT.finditer(row)]
            for rule in claim_faults(page_text.KEPT.sub("", row).replace("|", " ").strip(), markers, rules):
                yield block.line, rule


def check_pages(root, rules, paths, all_listed):
    """(faults as (page, line, rule), how many pages were judged)."""
    faults, judged = [], 0
    for given in paths:
        folder = (root / given).is_dir()
        for file in sorted((root / given).rglob("*.md")) if folder else [root / given]:
            page = file.relative_to(root).as_posix()
            limit = rules.limit(page)
            if limit is None and (all_listed or not folder):
                faults.append((page, 1, "not in scripts/docs/limits.csv; a new page needs a place there"))
            if limit is None or (limit[1] == "old" and not all_listed):
                continue
            judged += 1
            faults += [(page, line, rule) for line, rule in sorted(page_faults(file.read_text(), limit[0], rules))]
    return faults, judged


def literals(source):
    """(line, text) of each string of C++ source, adjacent ones joined."""
    source = re.sub(r"^\s*#.*$|//[^\n\"]*$", "", source, flags=re.M)
    for found in re.finditer(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*', source):
        parts = re.findall(r'"((?:[^"\\\n]|\\.)*)"', found[0])
        yield source[: found.start()].count("\n") + 1, "".join(parts)


def python_texts(source):
    """(line, text) of each docstring of Python source, and of each string that has a blank."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            for part in node.values:  # which the walk comes to by themselves
                part.seen = True
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            if not getattr(node, "seen", False):
                yield node.lineno, node.value


def texts_of(root, folders):
    """(path, line, text) of what users read: strings of C++ that have a blank or are an option, strings and
    docstrings of the Python package that have a blank, descriptions of the schema. `folders` are paths that they begin with; all without."""
    for file in sorted(file for folder in TEXT_FOLDERS for file in (root / folder).rglob("*")):
        path = file.relative_to(root).as_posix()
        if folders and not path.startswith(tuple(folders)):
            continue
        if file.suffix in (".cpp", ".h"):
            for line, text in literals(file.read_text()):
                if " " in text or text.startswith("--"):
                    yield path, line, text
        elif file.suffix == ".py":
            for line, text in python_texts(file.read_text()):
                yield path, line, text
        elif path == "docs/config.schema.json":
            for line, text in enumerate(file.read_text().splitlines(), 1):
                described = re.match(r'\s*"description": (".*?"),?$', text)
                if described:
                    yield path, line, json.loads(described[1])


def check_texts(root, rules, exceptions, folders=()):
    """(faults, how many texts): retired words in texts_of() that no exception excuses."""
    texts = list(texts_of(root, folders))
    faults, used = [], set()
    for path, line, text in texts:
        for _, rule in [*retired(text, line, rules.prose), *retired(text, line, rules.everywhere)]:
            word = re.match(r"'(.*?)'", rule)[1].lower()
            excused = next((e for e in exceptions if e[0] == word and fnmatch.fnmatchcase(path, e[1])), None)
            if excused:
                used.add(excused)
            else:
                faults.append((path, line, f"{rule}: {text[:60]}"))
    if not folders:
        faults += [("scripts/docs/text_exceptions.txt", 1, f"nothing needs the exception {word} | {where}")
                   for word, where in exceptions if (word, where) not in used]
    return faults, len(texts)


def read_exceptions(path):
    """(word, path pattern) of each line WORD | PATH | REASON."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(part.strip() for part in line.split("|")[:2]) for line in lines]


def self_test():
    seeds = ROOT / "scripts" / "docs" / "check_docs_seeds.md"
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in ("docs/internals", "docs/guides", "tests", "cli"):
            (root / name).mkdir(parents=True)
        (root / "docs/internals/traps.md").write_text(seeds.read_text())
        (root / "docs/internals/lessons.md").write_text("<!-- generated: x -->\n9 us by hand\n")
        (root / "docs/guides/deploy.md").write_text("A word.\n" * 301)
        (root / "docs" / "unlisted.md").write_text("No limit is known.\n")
        (root / "tests/a_test.cpp").write_text("TEST(Choice, IsMade) {}\n")
        (root / "heuristics.h").write_text("constexpr double kShare = 1.12;\n")
        (root / "cli/a.cpp").write_text('f("--hotness", "The fast "\n  "multiprocessor", "hotness");\n')
        (root / "python/vqgen").mkdir(parents=True)
        (root / "python/vqgen/a.py").write_text('hotness = "hotness"\n\n\ndef f():\n    """By hotness."""\n')
        (root / "docs/config.schema.json").write_text('{\n"description": "a window_batch",\n"kv_decode": 1\n}\n')
        rules = Rules(root, ROOT / "scripts" / "docs")
        faults, judged = check_pages(root, rules, ["docs"], True)
        texts = [(path, line) for path, line, _ in check_texts(root, rules, [])[0]]
        excuses = [("multiprocessor", "cli/*"), ("--hotness", "cli/*"), ("hotness", "cli/a.cpp")]
        excused = [(path, line) for path, line, _ in check_texts(root, rules, excuses[:2])[0]]
        unneeded = check_texts(root, rules, excuses)[0][-1][0]
        lenient = [path for path, _, _ in check_pages(root, rules, ["docs"], False)[0]]
        named = check_pages(root, rules, ["docs" + "/unlisted.md"], False)[0]
    expected = [("docs/guides/deploy.md", 1), ("docs/internals/lessons.md", 1), ("docs" + "/unlisted.md", 1)]
    for number, line in enumerate(seeds.read_text().splitlines(), 1):
        expected += [("docs/internals/traps.md", number)] * int((re.search(r"faults=(\d)", line) or [0, 0])[1])
    found = sorted((path, line) for path, line, _ in faults)
    ok = (found == sorted(expected) and judged == 3 and ("docs" + "/unlisted.md") not in lenient and len(named) == 1
          and unneeded.endswith("text_exceptions.txt")
          and texts == [("cli/a.cpp", 1), ("cli/a.cpp", 1), ("docs/config.schema.json", 2),
                        ("python/vqgen/a.py", 5)] and excused == texts[2:])
    print(f"check_docs: {len(expected)} seeded, {len(found)} found, texts {texts}")
    for fault in faults if not ok else []:
        print("{}:{}: {}".format(*fault), "" if fault[:2] in expected else "(not seeded)")
    print(*(f"not found: {fault}" for fault in expected if fault not in found), sep="\n", end="")
    return 0 if ok else 1


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    rules = Rules(ROOT, ROOT / "scripts" / "docs")
    texts = arguments[:1] == ["--texts"]
    if texts:
        exceptions = read_exceptions(ROOT / "scripts" / "docs" / "text_exceptions.txt")
        faults, count = check_texts(ROOT, rules, exceptions, arguments[1:])
    else:
        all_listed = "--all-listed" in arguments
        paths = [argument for argument in arguments if argument != "--all-listed"]
        for path in paths:
            if not pathlib.Path(path).exists() or not pathlib.Path(path).resolve().is_relative_to(ROOT):
                sys.exit(f"check_docs: '{path}' is no page or folder of this checkout; name one below {ROOT}")
        paths = [pathlib.Path(path).resolve().relative_to(ROOT).as_posix() for path in paths]
        faults, count = check_pages(ROOT, rules, paths or PAGE_FOLDERS, all_listed)
    if count == 0 and not faults:
        sys.exit("check_docs: nothing to check; name pages of scripts/docs/limits.csv, or folders that have texts")
    for path, line, rule in faults:
        print(f"{path}:{line}: {rule}")
    print(f"check_docs: {count} {'texts' if texts else 'pages'}, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
