"""What generators of blocks share: Markdown, and the counts of their arguments."""


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table. Bars in cells are escaped, empty columns left out."""
    kept = [at for at in range(len(head)) if any(row[at] for row in rows)]
    lines = [[head[at] for at in kept], ["---"] * len(kept)]
    lines += [[row[at].replace("|", "\\|").replace("\n", " ") for at in kept] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text) -> str:
    return f"`{text}`" if text != "" else ""


def one(args: list[str], what: str) -> str:
    if len(args) != 1:
        raise ValueError(f"takes {what}, and {len(args)} arguments are given")
    return args[0]


def none(args: list[str]) -> None:
    if args:
        raise ValueError(f"takes no arguments, and {len(args)} are given")


def grouped(texts: dict) -> list[tuple[list[str], str]]:
    """[(names, text)]: names with equal texts together, in the order of their first."""
    groups = {}
    for name, text in texts.items():
        groups.setdefault(text, []).append(name)
    return [(names, text) for text, names in groups.items()]


def headed(level: int, names: list[str], text: str) -> str:
    return f"{'#' * level} {', '.join(map(code, names))}\n\n{text}"
