#!/usr/bin/env python3
"""Tables of measurements from made-up files: which row counts, bits of formats, and refusals.

    measurements_test.py SOURCE_DIR
"""

import json
import sys
from pathlib import Path

SOURCE = Path(sys.argv[1])
sys.path.insert(0, str(SOURCE / "scripts" / "docs"))
import format_tables  # noqa: E402
import measured  # noqa: E402
import measurements  # noqa: E402


class Files:
    """The checkout's files, except those given by path."""

    def __init__(self, **texts):
        self.texts = {f"bench/measurements/{name.replace('_', '-')}.csv": text for name, text in texts.items()}

    def text(self, path):
        return self.texts[path] if path in self.texts else (SOURCE / path).read_text()

    def json(self, path):
        return json.loads(self.text(path))


def refused(call, *words):
    try:
        call()
    except ValueError as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError(f"not refused; expected {words}")


def main():
    rows = [{"m": "1", "us": us, "commit": commit} for us, commit in (("5", "a"), ("4", "b"), ("3", "b"), ("2", "a"))]
    assert measured.found(rows[:3], m=1)["us"] == "4"  # the last commit's first row
    assert measured.found(rows, m=1)["us"] == "5" and measured.found(rows, m=2) is None
    refused(lambda: measured.one(rows, "made-up", m=2), "bench/measurements/made-up.csv", "'m': 2")

    stored = {preset: format_tables.bits(format_tables.fields(Files(), preset)) for preset in (
        "vecinfer-d4b8i8", "aqlm-2x8", "int8-channel", "int8-channel, vector_size 4", "int8-token", "int4-kivi-keys",
        "int4-kivi-values")}
    assert list(stored.values()) == [2, 2, 8, 4, 8.25, 5, 5], stored

    head = "case,least_fp16_over_us,most_fp16_over_us,reason,gpu,date,commit\n"
    table = measurements.GENERATORS["slow-cases"]([], Files(slow_cases=head + "one,0.5,1.5,why,H200,2026-01-02,abc\n"))
    assert "| one | **0.50x** to 1.50x | why |" in table and "H200; 2026-01-02; commit abc." in table, table
    refused(lambda: measurements.GENERATORS["slow-cases"]([], Files(slow_cases=head + "one,0.5,1.5,why\n")),
            "slow-cases.csv:2", "number of cells")
    refused(lambda: measurements.GENERATORS["slow-cases"](["x"], Files()), "takes no arguments")
    refused(lambda: format_tables.GENERATORS["loss"](["mine"], Files()), "'mine' is no recipe", "presets")

    windows = Files().text("bench/measurements/windows.csv").splitlines(keepends=True)
    later = ("16,16384,vecinfer-d4b8i8,vecinfer-d4b8i8,128,0,1,dataflow=int8_mma,0,99.94,NVIDIA H200,fffff,2030-01-01,\n")
    table = format_tables.GENERATORS["kv-formats"]([], Files(windows="".join([*windows, later])))
    assert "| 99.9 |" in table and "2030-01-01" in table, table


if __name__ == "__main__":
    main()
