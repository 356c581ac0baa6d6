"""Blocks of the C reference, made from the public headers: each declaration below the comment that
the header has for it.
"""

import re

from markdown import headed, one

COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)
NAME = re.compile(r"\b(\w+)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)\s*;|\}\s*(\w+)\s*;|\btypedef struct \w+ (\w+);|#define (\w+)")


def prose(comment: str) -> str:
    """A comment's text, its paragraphs apart."""
    lines = [re.sub(r"^\s*\* ?", "", line).strip() for line in comment.strip().split("\n")]
    return "\n\n".join(" ".join(part.split("\n")) for part in "\n".join(lines).split("\n\n")).strip()


def chunks(text: str):
    """The parts of a header between empty lines, with comments and braces kept whole."""
    part = []
    for line in text.split("\n"):
        joined = "\n".join(part)
        open_braces = COMMENT.sub("", joined).count("{") - COMMENT.sub("", joined).count("}")
        if line.strip() or open_braces > 0 or joined.count("/*") > joined.count("*/"):
            part.append(line)
        elif part:
            yield joined
            part = []
    if part:
        yield "\n".join(part)


def declarations(text: str) -> str:
    """The header's lines without guards, includes and what is for C++ and the loader."""
    text = re.sub(r"#ifdef __cplusplus\n.*?#endif\n", "", text, flags=re.DOTALL)
    text = re.sub(r"#if defined\(_WIN32\)\n.*?#endif\n", "", text, flags=re.DOTALL)
    text = re.sub(r"#define \w+_H\n|#(?:include|ifndef|endif)[^\n]*\n", "", text)
    return re.sub(r"^([A-Z]+_API )([^;]*;)", without_mark, text, flags=re.MULTILINE)


def without_mark(found) -> str:
    """A declaration without its export mark, its further lines moved as far to the left."""
    return found[2].replace("\n" + " " * len(found[1]), "\n")


def header(args, tools) -> str:
    """All declarations of a header, in its order."""
    path = one(args, "a header")
    parts, first = [], True
    for chunk in chunks(declarations(tools.text(path))):
        comment = COMMENT.match(chunk)
        if not comment and "/*" not in chunk and not NAME.search(chunk):
            continue
        text, code = ("", chunk) if not comment else (prose(comment[1]), chunk[comment.end():].strip("\n"))
        names = ["".join(found) for found in NAME.findall(COMMENT.sub("", code))]
        if first and text and not names:
            first = False
            continue  # the file's own comment
        first = False
        body = "\n\n".join(filter(None, [text, f"```c\n{code}\n```" if names else ""]))
        parts.append(headed(3, names, body) if names else body)
    if not parts:
        raise ValueError(f"{path} declares nothing")
    return "\n\n".join(parts)


GENERATORS = {"header": header}
