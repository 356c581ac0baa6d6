#!/usr/bin/env python3
"""Prints the table that scripts/quickstart.sh ends with.

  quickstart_table.py FORMATS OUT OP:PRESET...

FORMATS is profiles/formats. For each PRESET, OUT holds what `vqgen run --json` said on calibration
and held-out data (PRESET-calibration.json, PRESET-heldout.json; for OP gemv only PRESET.json).
Exits with 4 if any run was not verified.
"""

import json
import pathlib
import sys


def bits(formats, preset):
    fields = json.loads((formats / f"{preset}.json").read_text())
    return fields["index_bits"] * fields.get("num_codebooks", 1) / fields["vector_size"]


def number(value):
    return "-" if value is None else f"{value:.2e}" if value < 1e-2 else f"{value:.4f}"


def main(formats, out, rows):
    heads = ("op", "format", "bits", "verified", "error", "limit", "loss, calibration", "loss, held-out")
    lines, fine = [heads], True
    for row in rows:
        op, preset = row.split(":")
        if op == "gemv":
            runs = [None, json.loads((out / f"{preset}.json").read_text())]
        else:
            runs = [json.loads((out / f"{preset}-{part}.json").read_text())
                    for part in ("calibration", "heldout")]
        known = [run for run in runs if run]
        ok = all(run["ok"] for run in known)
        fine = fine and ok
        lines.append((
            op, preset, f"{bits(formats, preset):g}", "yes" if ok else "NO",
            number(max(run["rel_err"] for run in known)), number(known[0]["tolerance"]),
            *(number(run.get("rel_err_unquantized") if run else None) for run in runs),
        ))
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    for line in lines:
        print("  ".join(cell.ljust(width) if i < 2 else cell.rjust(width)
                        for i, (cell, width) in enumerate(zip(line, widths))))
    print("\nerror: the generated kernel's output against a double-precision reference on the same codes.")
    print("loss:  the same output against the operation on the tensors before quantization; codebooks")
    print("       were trained on the calibration text alone.")
    return 0 if fine else 4


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]))
