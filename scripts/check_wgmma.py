#!/usr/bin/env python3
"""Finds instructions that write a register which products of warp groups in flight still read.

    nvdisasm -c kernel.cubin > kernel.sass      (a cubin of sm_90a: nvcc -arch=sm_90a -cubin FILE.cu)
    scripts/check_wgmma.py kernel.sass...
    scripts/check_wgmma.py --kernels VQGEN      the same of kernels that VQGEN writes, nvcc and nvdisasm on PATH
    scripts/check_wgmma.py --self-test

Products (HGMMA, of bytes IGMMA) read their operand a from registers until a wait (WARPGROUP.DEPBAR) says that they are
done; ptxas keeps that in mind along a straight line, and not always around a loop (docs/internals/traps.md). The
text is walked in order, with each loop twice and conditional branches not taken. Exit codes: 0, also
where there are no products; 1 where something is written too early; 2 for a file that is no disassembly.
"""
import contextlib
import io
import itertools
import json
import pathlib
import re
import subprocess
import sys
import tempfile

TURNS = 2  # of each loop: the second begins with the first's products in flight
PRODUCTS = ("HGMMA", "IGMMA")
MOST_STEPS = 1_000_000
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T\d]+\s+)?(.*?)\s*;")
LABEL = re.compile(r"(\.L_x_\d+):")
NO_RESULT = ("ST", "RED", "BAR", "R2UR", "ISETP", "FSETP", "HSETP2", "PLOP3", "BRA", "EXIT", "WARPGROUP")


def kernels(text):
    """name, instructions, label -> number of the instruction that follows it."""
    for section in re.split(r"^\.text\.", text, flags=re.MULTILINE)[1:]:
        instructions, labels = [], {}
        for line in section.splitlines():
            if label := LABEL.match(line):
                labels[label.group(1)] = len(instructions)
            elif instruction := INSTRUCTION.match(line):
                instructions.append(instruction.group(1))
        yield section.split(":", 1)[0], instructions, labels


def written(operation, operands):
    """The registers that an instruction writes."""
    first = re.match(r"(?:U?P\d+,\s*)?R(\d+)\b", operands)
    if first is None or operation.startswith(NO_RESULT):
        return ()
    count = 1
    if operation.startswith("LD"):
        count = 4 if ".128" in operation else 2 if ".64" in operation else 1
    elif ".WIDE" in operation or operation.startswith("CS2R"):
        count = 2
    begin = int(first.group(1))
    return range(begin, begin + count)


def faults(instructions, labels):
    """The instructions that write what products in flight read, each with the register."""
    groups, opened, found, turns = [], set(), {}, {}
    at = steps = 0
    while at < len(instructions) and steps < MOST_STEPS:
        steps += 1
        operation, _, operands = instructions[at].partition(" ")
        operands = operands.strip()
        if operation.startswith(PRODUCTS):
            a = re.match(r"R\d+,\s*R(\d+)", operands)
            if a:
                opened.update(range(int(a.group(1)), int(a.group(1)) + 4))
            if "gsb0" in operands:
                groups.append(opened)
                opened = set()
        elif operation.startswith("WARPGROUP.DEPBAR"):
            pending = int(re.search(r"gsb0, 0x([0-9a-f]+)", operands).group(1), 16)
            groups = groups[len(groups) - pending:] if pending < len(groups) else groups
        elif operation == "BRA":
            target = labels.get((re.search(r"\.L_x_\d+", operands) or [""])[0], len(instructions))
            if target <= at and turns.get(at, 0) < TURNS:
                turns[at] = turns.get(at, 0) + 1
                at = target
                continue
        else:
            for register in written(operation, operands):
                if any(register in group for group in (*groups, opened)):
                    found.setdefault(at, f"{instructions[at]}: R{register}")
        at += 1
    return list(found.values())


def disassemblies(tool, folder):
    """The machine code of GEMM by warpgroups: formats of one stage, two, two with factors, and of bytes; few rows
    and many; look-ups ahead or not; splits merged by a kernel or a cluster. Appends of wide
    sub-vectors too."""
    formats = ("gptvq-2", "aqlm-2x8", "quip-4")
    made = [(weights, rows, {"dataflow": "wgmma", "prefetch_steps": ahead, "fetch_only_warps": idle})
            for weights, rows, (ahead, idle) in itertools.product(formats, (8, 64), ((0, 0), (1, 0), (1, 2)))]
    merged = [{"code_words": words, "splits": 4, "combine": combine}
              for words, combine in ((1, "kernel"), (4, "cluster"))]
    made += [(weights, rows, {"dataflow": "wgmma_large_m", **merging})
             for weights, rows, merging in itertools.product((*formats, "aqlm-2x8i8"), (64, 128), merged)]
    made = [(weights, rows, {**plan, "outputs_per_warp": 16}) for weights, rows, plan in made]
    made += [("aqlm-2x8i8", rows, {"dataflow": "int8_wgmma", "prepack_x": before, **merging})
             for rows, before, merging in itertools.product((16, 64), (0, 1), merged)]
    configs = [(f"{plan['dataflow']}-{weights}-{rows}",
                {"op": "gemm", "weights": weights,
                 "shape": {"m": rows, "out_features": 7168, "in_features": 4096},
                 "plan": {**plan, "threads": 512, "rows_per_block": rows}})
               for weights, rows, plan in made]
    configs += [(f"products-{dtype}",
                 {"op": "kv_append", "dtype": dtype, "keys": "vqkv-llama-3.1-8b-keys",
                  "values": "vqkv-llama-3.1-8b-values",
                  "shape": {"batch": 1, "kv_heads": 8, "head_dim": 128, "tokens": 8192, "new_tokens": 4096},
                  "plan": {"dataflow": "gemm", "warpgroups": 1}}) for dtype in ("f16", "bf16")]
    for number, (name, described) in enumerate(configs):
        base = folder / f"{number}-{name}"
        config, text, cubin, listed = (base.with_name(base.name + end)
                                       for end in (".json", ".cu", ".cubin", ".sass"))
        config.write_text(json.dumps(described))
        for command in ([tool, "export", config, "--gpu", "h200", "--out", text],
                        ["nvcc", "-std=c++17", "-arch=sm_90a", "-cubin", "-o", cubin, text]):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with open(listed, "w", encoding="utf-8") as out:
            subprocess.run(["nvdisasm", "-c", cubin], check=True, stdout=out)
        yield str(listed)


def listing(body):
    lines = (line if line.startswith(".") else f"        /*{16 * i:04x}*/    {line} ;"
             for i, line in enumerate(body))
    return "\n.text.kernel:\n" + "\n".join(lines) + "\n"


def self_test():
    """Loops of two products, with and without a wait where the loop begins anew."""
    product = ["HGMMA.64x64x16.F32 R24, R60, gdesc[UR20], R24",
               "HGMMA.64x64x16.F32 R24, R56, gdesc[UR20], R24, gsb0"]
    look_up = ["LDS.128 R56, [R4]", "@P0 LDS.64 R62, [R4]"]
    wait = ["WARPGROUP.DEPBAR.LE gsb0, 0x0"]
    wait_but_one = ["WARPGROUP.DEPBAR.LE gsb0, 0x1"]
    back = ["@!P1 BRA `(.L_x_1)"]
    for found, body in (
            (0, [".L_x_1:", *wait, *look_up, *product, *back]),
            (2, [".L_x_1:", *wait_but_one, *look_up, *product, *back]),
            (2, [".L_x_1:", *look_up, *wait, *product, *back]),
            (1, [*product, "MOV R61, R4", *wait, "MOV R60, R4"]),
            (1, [product[0], "IMAD.WIDE R62, R1, R2, R4", product[1]]),
            (0, [*product, "STS [R60], R4", "ISETP.GE.AND P0, PT, R60, R4, PT", *wait]),
            (1, ["IGMMA.64x64x32.S8.S8 R24, R60, gdesc[UR20], R24, gsb0", "MOV R60, R4"]),
            (0, ["HGMMA.64x64x16.F32 R24, gdesc[UR20], R24, gsb0", "MOV R20, R4"])):
        (name, instructions, labels), = kernels(listing(body))
        assert name == "kernel" and len(instructions) == sum(not x.startswith(".") for x in body)
        early = faults(instructions, labels)
        assert len(early) == found, (body, early)
    assert not list(kernels("no disassembly"))
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert main(["/nowhere/kernel.sass"]) == 2 and "/nowhere/kernel.sass" in said.getvalue()
    print("check_wgmma: the seeded faults are found")
    return 0


def main(paths):
    if paths == ["--self-test"]:
        return self_test()
    if len(paths) == 2 and paths[0] == "--kernels":
        with tempfile.TemporaryDirectory() as folder:
            try:
                return main(list(disassemblies(paths[1], pathlib.Path(folder))))
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"check_wgmma: {error}", file=sys.stderr)
                return 2
    if not paths or paths[0].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    wrong = False
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            print(f"{path}: {error}; give it what nvdisasm -c prints", file=sys.stderr)
            return 2
        found = list(kernels(text))
        if not found:
            print(f"{path}: no .text section; give it what nvdisasm -c prints", file=sys.stderr)
            return 2
        for name, instructions, labels in found:
            early = faults(instructions, labels)
            products = sum(each.startswith(PRODUCTS) for each in instructions)
            print(f"{path}: {name}: {products} products, {len(early)} writes to what they read")
            for each in early[:5]:
                print(f"  {each}")
            wrong = wrong or bool(early)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
