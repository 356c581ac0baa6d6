"""Tables of docs/lab/ for scripts/make_docs.py: trials and measured points of a topic.

bench/measurements/experiments.csv has a row for each thing tried: `predicted`, `before_us` and `after_us`
are device time of the shape, `verdict` says whether the change is in the kernels ("kept"), is a plan that
tuning may take ("tuner") or was left out ("dropped"). runs.csv has a row for each measured point that no
other file has, with the time of a baseline. `commit` recorded the row: `git show COMMIT` has the text
around it. Cells are empty where nothing was said. A row that breaks a rule of its column is refused.
"""

import re
import statistics

import measured
from markdown import none, one, table

TRIALS, RUNS = "experiments", "runs"
VERDICTS = ("kept", "tuner", "dropped")
WORDS = {"change": 15, "why": 20}
NUMBERS = ("before_us", "after_us", "us", "baseline_us", "baseline_over_us")

# What the notes of ablations and of the trial of fusions have.
SIMT = re.compile(r"simt: global ([\d.]+), shared ([\d.]+), boundary ([\d.]+), registers ([\d.]+)")
FUSION = re.compile(r"([\d.]+) times the time, ([\d.]+) to ([\d.]*\d)")

# Topics in the order of the index: the title of the page.
TOPICS = {
    "attention-mma": "Attention on tensor cores",
    "attention-int8": "Attention with int8 keys and values",
    "attention-speculative": "Attention with several query tokens",
    "attention-paged": "Attention on paged caches",
    "attention-short-context": "Attention over short contexts",
    "attention-scalar-codes": "Attention on scalar codes (KIVI, INT4, INT8)",
    "attention-histogram": "Attention on VQKV by histograms",
    "mixed-lengths": "Batches of mixed lengths",
    "merge-and-launch": "Merging splits, overlapping launches, placing blocks",
    "kv-append-dequantize": "KV-cache append and dequantize",
    "gemv-lut": "GEMV by lookup tables",
    "gemv-sliced-codebook": "GEMV with sliced codebooks",
    "gemm-tensor-cores": "GEMM on tensor cores",
    "gemm-int8": "GEMM with int8 entries",
    "gemm-large-m": "GEMM with large M",
    "scalar-quantize": "Matrices to int8 and back",
    "placement": "Where codebook entries are",
    "cost-model": "The cost model",
    "tuning": "Tuning and measuring",
    "hardware-rates": "Rates of the hardware",
    "runtime-costs": "Costs of library and cache",
    "quantization-loss": "Loss by format and calibration",
}


def words(text: str) -> int:
    return sum(any(letter.isalnum() for letter in word) for word in text.split())


def path(name: str) -> str:
    return f"{measured.FOLDER}/{name}.csv"


def rows_of(tools, name: str) -> list[dict]:
    """The rows of TRIALS or RUNS. Raises ValueError with file, line and column of a cell that breaks a rule."""
    rows, seen = measured.rows_of(tools, name), set()
    for number, row in enumerate(rows, 2):
        place = f"{path(name)}:{number}"
        if row["topic"] not in TOPICS:
            raise ValueError(f"{place}: topic '{row['topic']}' has no page; add it to TOPICS in scripts/docs/lab.py")
        for column in NUMBERS:
            if row.get(column) and not row[column].replace(".", "", 1).isdigit():
                raise ValueError(f"{place}: {column} '{row[column]}' is not a number; put words in the last column")
        for column, most in WORDS.items():
            if words(row.get(column, "")) > most:
                raise ValueError(f"{place}: {column} has {words(row[column])} words and may have {most}; shorten it")
        if row.get("verdict", "kept") not in VERDICTS:
            raise ValueError(f"{place}: verdict '{row['verdict']}' is none of {', '.join(VERDICTS)}; take one of them")
        if row.get("id") in seen:
            raise ValueError(f"{place}: id '{row['id']}' is in another row too; number it anew")
        seen |= {row["id"]} if "id" in row else set()
    return rows


def ratio(slow: str, fast: str) -> str:
    return f"{float(slow) / float(fast):.2f}x" if slow and fast else ""


def gpu(row: dict) -> str:
    return row["gpu"].replace("NVIDIA ", "")


def trials(rows: list[dict]) -> str:
    """Kept trials first, then those left to the tuner, then dropped ones; of each the largest gain first.

    A link reaches a row by its id."""
    def place(row):
        gain = float(row["before_us"]) / float(row["after_us"]) if row["before_us"] and row["after_us"] else 0
        return VERDICTS.index(row["verdict"]), -gain, row["id"]
    head = ["id", "change", "GPU", "shape", "predicted", "before, us", "after, us", "speed-up", "verdict", "why, and other shapes", "recorded by"]
    return table(head, [[f'<a id="{row["id"]}"></a>{row["id"]}', row["change"], gpu(row), row["shape"], row["predicted"], row["before_us"], row["after_us"],
                         ratio(row["before_us"], row["after_us"]), row["verdict"], row["why"], row["commit"]]
                        for row in sorted(rows, key=place)])


def runs(rows: list[dict]) -> str:
    """Measured points by operation and format, in the order of the file."""
    head = ["operation", "format", "problem", "GPU", "plan", "us", "baseline", "baseline, us", "baseline / us", "notes", "recorded by"]
    return table(head, [[row["op"], row["format"], row["problem"], gpu(row), row["plan"], row["us"], row["baseline"], row["baseline_us"],
                         row["baseline_over_us"] + "x" if row["baseline_over_us"] else ratio(row["baseline_us"], row["us"]),
                         row["note"], row["commit"]]
                        for row in sorted(rows, key=lambda row: (row["op"], row["gpu"], row["format"]))])


def lab(args: list[str], tools) -> str:
    """Trials and measured points of the topic ARGS[0]."""
    topic = one(args, "a topic")
    if topic not in TOPICS:
        raise ValueError(f"'{topic}' is no topic; take one of {', '.join(TOPICS)}")
    tried, measured = ([row for row in rows_of(tools, name) if row["topic"] == topic] for name in (TRIALS, RUNS))
    if not tried and not measured:
        raise ValueError(f"no row of {path(TRIALS)} or {path(RUNS)} has the topic '{topic}'; add one, or remove the page")
    parts = []
    if tried:
        parts += [trials(tried), f"Data: `{path(TRIALS)}`."]
    if measured:
        parts += [runs(measured), f"Data: `{path(RUNS)}`."]
    return "\n\n".join(parts)


def lab_topics(args: list[str], tools) -> str:
    """The index: a link to each topic, and how many rows it has."""
    none(args)
    tried, measured = rows_of(tools, TRIALS), rows_of(tools, RUNS)

    def count(rows, topic, *verdicts):
        number = sum(row["topic"] == topic and row.get("verdict") in (verdicts or (None,)) for row in rows)
        return str(number) if number else ""
    return table(["topic", "kept", "left to the tuner", "dropped", "measured points"],
                 [[f"[{title}]({topic}.md)", *(count(tried, topic, verdict) for verdict in VERDICTS), count(measured, topic)]
                  for topic, title in TOPICS.items()])


def ratios(pairs: list[tuple[float, float]]) -> str:
    """The geometric mean of slow / fast, and its least and most: "3.72x (1.23 to 13.08)"."""
    found = [slow / fast for slow, fast in pairs]
    return f"{statistics.geometric_mean(found):.2f}x ({min(found):.2f} to {max(found):.2f})"


def paper_methods(args: list[str], tools) -> str:
    """What the methods cost that choosing leaves out (heuristics/papers/papers.h), from both files."""
    none(args)
    tried, measured = rows_of(tools, TRIALS), rows_of(tools, RUNS)
    ask, rows = "`--placement vq-llm`, `dev ablate`", []
    placed = {}  # by operation: times with entries in registers, of the best other simt plan, and of the best plan
    forms = {}  # by operation and problem: times by form
    for row in (each for each in measured if each["gpu"] == "NVIDIA H200"):
        note = SIMT.search(row["note"])
        if row["topic"] == "placement" and note:
            *others, registers = map(float, note.groups())
            placed.setdefault(row["op"], []).append((registers, min(others), float(row["us"])))
        if row["topic"] == "scalar-quantize" and row["plan"].startswith("form="):
            forms.setdefault((row["op"], row["problem"]), {})[row["plan"][5:]] = float(row["us"])
    for op, times in sorted(placed.items()):
        rows.append(["entries in registers, `simt`", "VQ-LLM, V-B", op, ask, ratios([(slow, fast) for slow, fast, _ in times]),
                     ratios([(slow, best) for slow, _, best in times]), str(len(times))])
    for found in (FUSION.search(row["why"]) for row in tried if row["id"] == "pl-07"):
        mean, least, most = found.groups()
        rows.append(["fusion `registers` or `shared`", "VQ-LLM, VI-B", "gemm", ask, f"{mean}x ({least} to {most})", "", ""])
    for form in ("naive", "tiled", "coarsened"):
        times = [(each[form], each["vectorized"]) for each in forms.values()]
        rows.append([f"form `{form}`", "INT8 study, 5.3", "int8 ops", "`dev space --papers`", ratios(times), ratios(times), str(len(times))])
    return table(["method", "paper", "operation", "ask by", "time / time of the kernel without it", "time / time of the fastest plan", "shapes"], rows)


GENERATORS = {"lab": lab, "lab-topics": lab_topics, "paper-methods": paper_methods}
