"""Splits a Markdown page into what check_docs judges: prose, headings, table rows, code and generated blocks."""

import dataclasses
import re

GENERATED = re.compile(r"<!--\s*generated:.*?-->")
END_OF_GENERATED = re.compile(r"<!--\s*end of generated\s*-->")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
MARKER = re.compile(r"<!--\s*(test|source):\s*(\S+)\s*-->")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE_SPAN = re.compile(r"``.+?``|`[^`]+`", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|vs|etc|cf|approx)\.(?=\s|,|\))")
# A mark of its own keeps a marker's place until sentences are apart.
KEPT = re.compile(r"\u27e6(test|source):(\S+?)\u27e7")
SENTENCE_END = re.compile(r"(?<=[.!?])[\")*_\]]*\s+(?=\u27e6|[\"(*_`\[A-Z0-9])")


@dataclasses.dataclass
class Block:
    """Lines of one kind: prose (a paragraph or list item), heading, row (of a table), code or generated."""

    kind: str
    line: int
    lines: list

    @property
    def text(self):
        return "\n".join(self.lines)


@dataclasses.dataclass
class Sentence:
    """A sentence without code spans, links and markers; `markers` are the (kind, name) that follow it."""

    line: int
    text: str
    markers: list


def blocks(text):
    """(blocks of the page, line of a generated block that has no end or 0)."""
    found, kind, fence, opened = [], "", "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if opened:
            if END_OF_GENERATED.search(line):
                opened = 0
            else:
                found[-1].lines.append(line)
            continue
        stripped = line.strip()
        if fence:
            if stripped.startswith(fence):
                fence = kind = ""
            else:
                found[-1].lines.append(line)
            continue
        if GENERATED.search(line):
            opened, kind = number, ""
            found.append(Block("generated", number, []))
        elif stripped.startswith(("```", "~~~")):
            fence, kind = stripped[:3], ""
            found.append(Block("code", number + 1, []))
        elif not stripped:
            kind = ""
        elif re.match(r"#+ ", line):
            kind = ""
            found.append(Block("heading", number, [line.lstrip("# ")]))
        elif stripped.startswith("|"):
            kind = ""
            if not re.fullmatch(r"[|:\-\s]+", stripped):
                found.append(Block("row", number, [line]))
        elif kind != "prose" or ITEM.match(line):
            kind = "prose"
            found.append(Block("prose", number, [ITEM.sub("", line.lstrip("> "), count=1)]))
        else:
            found[-1].lines.append(line)
    return found, opened


def plain(text):
    """Text as it is read: code spans become one word, links their text, comments nothing. Lines stay."""
    text = MARKER.sub(lambda m: f"\u27e6{m[1]}:{m[2]}\u27e7", text)
    text = COMMENT.sub(lambda m: "\n" * m[0].count("\n"), text)
    text = CODE_SPAN.sub(lambda m: "`code`" + "\n" * m[0].count("\n"), text)
    text = LINK.sub(lambda m: m[1] + "\n" * (m[0].count("\n") - m[1].count("\n")), text)
    return ABBREVIATION.sub(lambda m: m[1], text).replace("**", "")


def sentences(block):
    """The block's sentences, each with the markers behind it."""
    text, begin, found = plain(block.text), 0, []
    for end in [m.end() for m in SENTENCE_END.finditer(text)] + [len(text)]:
        piece = text[begin:end]
        markers = [(m[1], m[2]) for m in KEPT.finditer(piece)]
        lead = re.match(r"(?:\s*\u27e6\S+?\u27e7)+", piece)
        if lead and found:  # they stand behind the previous sentence
            found[-1].markers += [(m[1], m[2]) for m in KEPT.finditer(lead[0])]
            markers = [(m[1], m[2]) for m in KEPT.finditer(piece[lead.end() :])]
            begin += lead.end()
            piece = piece[lead.end() :]
        line = block.line + text[:begin].count("\n") + (len(piece) - len(piece.lstrip()) > 0) * piece[
            : len(piece) - len(piece.lstrip())].count("\n")
        words = " ".join(KEPT.sub("", piece).split())
        if words:
            found.append(Sentence(line, words, markers))
        begin = end
    return found
