#!/usr/bin/env python3
"""Compares the machine code of the kernels that two vqgen tools write for the same configs.

    scripts/compare_sass.py BASE NEW CONFIGS... [--gpu GPU] [--cache FOLDER] [-j JOBS] [--new-configs FOLDER]
    scripts/compare_sass.py --self-test

BASE and NEW are tools. CONFIGS are config files, folders of them, and tuned tables (.jsonl), whose
rows' problems are taken: each tool finds its own plan for them. Where the two spell a config
differently, --new-configs names a folder with NEW's files, by the same names.

Each kernel is exported for GPU, compiled as the exported text says, with nvcc, and disassembled, with
nvdisasm. Compared are launches, instructions without addresses, and numbers of registers; names of
kernels and other comments do not count. Disassemblies stay in the cache, by a digest of the text and the compiler,
so that each text is compiled once. Exit codes: 0 where all are equal; 1 where some are not; 2 where a
tool or a file fails.
"""
import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile

COMPILE = re.compile(r"^// Compile  (nvcc .*-cubin)", re.MULTILINE)
LAUNCH = re.compile(r"^// (Launch: .*)", re.MULTILINE)
KERNEL = re.compile(r"^VQ_KERNEL\w*\((\w+),", re.MULTILINE)
COMMENT = re.compile(r"^\s*(?://|#line ).*\n|^\s*\n", re.MULTILINE)
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")
LABEL = re.compile(r"\.L_x_\d+")
REGISTERS = re.compile(r"Compiling entry function '(\w+)'.*?Used (\d+) registers", re.DOTALL)


class Failure(Exception):
    """One line: what failed, and on what."""


def output_of(command):
    """What the command printed, to both."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except OSError as error:
        raise Failure(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))}: {done.stdout.strip()}")
    return done.stdout


def configs_of(paths):
    """name -> text of a config."""
    found = {}
    for path in map(pathlib.Path, paths):
        if path.suffix == ".jsonl":
            rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
            problems = (row["problem"] for row in rows if "problem" in row)
            found |= {f"{path.name}:{i}": json.dumps(problem) for i, problem in enumerate(problems, 1)}
        else:
            files = sorted(path.glob("*.json")) if path.is_dir() else [path]
            found |= {f"{file.parent.name}/{file.stem}": file.read_text(encoding="utf-8") for file in files}
    return found


def exported(tool, config, gpu, folder):
    """How the kernels are launched, the command that compiles them, and their text without what the
    machine code does not depend on."""
    file, kernel = folder / "config.json", folder / "kernel.cu"
    file.write_text(config, encoding="utf-8")
    output_of([tool, "export", file, "--gpu", gpu, "--out", kernel])
    text = kernel.read_text(encoding="utf-8")
    command = COMPILE.search(text)
    if command is None:
        raise Failure(f"{tool}: its export does not say how it is compiled")
    for number, name in enumerate(KERNEL.findall(text)):
        text = re.sub(rf"\b{name}\b", f"kernel_{number}", text)
    return LAUNCH.findall(text), command.group(1).split(), COMMENT.sub("", text)


def listing(disassembly, registers):
    """The lines that are compared: of each kernel its name, its registers, its instructions."""
    lines = []
    sections = re.split(r"^\.text\.", disassembly, flags=re.MULTILINE)[1:]
    for section in sorted(sections, key=lambda section: section.split(":", 1)[0]):
        name, labels = section.split(":", 1)[0], {}
        lines.append(f"{name}: {registers.get(name, '?')} registers")
        for line in section.splitlines():
            if instruction := INSTRUCTION.match(line):
                lines.append(LABEL.sub(lambda at: labels.setdefault(at.group(), f".L{len(labels)}"),
                                       instruction.group(1)))
            elif label := LABEL.match(line):
                lines.append(labels.setdefault(label.group(), f".L{len(labels)}") + ":")
    return lines


def disassembled(command, text, compiler, folder, cache):
    """The listing of a text, out of the cache where it is there."""
    key = hashlib.sha256("\n".join([compiler, *command, text]).encode()).hexdigest()
    kept = cache / f"{key}.sass"
    if not kept.exists():
        source, cubin = folder / "kernel.cu", folder / "kernel.cubin"
        source.write_text(text, encoding="utf-8")
        said = output_of([*command, "-Xptxas", "-v", "-o", cubin, source])
        lines = listing(output_of(["nvdisasm", "-c", cubin]), dict(REGISTERS.findall(said)))
        if not lines:
            raise Failure(f"{source}: its disassembly has no kernels")
        whole = folder / "whole.sass"
        whole.write_text("\n".join(lines) + "\n", encoding="utf-8")
        whole.replace(kept)
    return kept.read_text(encoding="utf-8").splitlines()


def figures(lines):
    registers = ", ".join(line.split()[1] for line in lines if line.endswith(" registers"))
    count = sum(not line.startswith("Launch") and not line.endswith((" registers", ":")) for line in lines)
    return f"{count} instructions, {registers} registers"


def difference(base, new):
    """None, or what differs first and how many lines do."""
    if base == new:
        return None
    at = next((i for i, (a, b) in enumerate(zip(base, new)) if a != b), min(len(base), len(new)))
    first = " | ".join(lines[at] if at < len(lines) else "(end)" for lines in (base, new))
    return f"{figures(base)} -> {figures(new)}; line {at + 1} first: {first}"


def compared(name, tools, configs, gpu, compiler, cache):
    """(name, None or what differs, were the texts the same?)"""
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        folder = pathlib.Path(folder)
        exports = [exported(tool, config, gpu, folder) for tool, config in zip(tools, configs)]
        base, new = ([*launches, *disassembled(*source, compiler, folder, cache)] for launches, *source in exports)
        return name, difference(base, new), exports[0] == exports[1]


def run(options):
    compiler = output_of(["nvcc", "--version"])
    configs = configs_of(options.configs)
    if not configs:
        raise Failure(f"{' '.join(options.configs)}: no configs")
    news = configs | (configs_of([options.new_configs]) if options.new_configs else {})
    cache = pathlib.Path(options.cache or pathlib.Path(tempfile.gettempdir()) / "vqgen-sass")
    cache.mkdir(parents=True, exist_ok=True)
    same_texts, equal, differing, failures = 0, 0, [], []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        turns = {pool.submit(compared, name, (options.base, options.new), (config, news[name]), options.gpu,
                             compiler, cache): name for name, config in configs.items()}
        for turn in concurrent.futures.as_completed(turns):
            try:
                name, differs, same_text = turn.result()
                same_texts += same_text
                equal += differs is None
                if differs:
                    differing.append(f"{name}: {differs}")
            except Failure as failure:
                failures.append(f"{turns[turn]}: {failure}")
    for line in sorted(differing) + sorted(failures):
        print(line)
    print(f"{options.gpu}: {equal} of {len(configs)} equal ({same_texts} by their texts), "
          f"{len(differing)} differ, {len(failures)} failed")
    return 2 if failures else 1 if differing else 0


def self_test():
    body = ["        /*0000*/                   MOV R1, c[0x0][0x28] ;", ".L_x_7:",
            "        /*0010*/              @!P0 BRA `(.L_x_7) ;"]
    text = "\n.text.kernel_0:\n" + "\n".join(body) + "\n"
    base = listing(text, {"kernel_0": "24"})
    assert base == ["kernel_0: 24 registers", "MOV R1, c[0x0][0x28]", ".L0:", "@!P0 BRA `(.L0)"], base
    assert difference(base, listing(text.replace("L_x_7", "L_x_12").replace("0010", "0020"),
                                    {"kernel_0": "24"})) is None
    for seeded in (listing(text, {"kernel_0": "25"}), listing(text.replace("@!P0", "@P0"), {"kernel_0": "24"}),
                   base[:-1], [*base, "EXIT"]):
        assert difference(base, seeded) and difference(seeded, base), seeded
    assert "2 instructions, 24 registers" in difference(base, base[:2])
    assert COMMENT.sub("", "// a\n\n  // b\n#line 3 \"x\"\nint c;  // d\n") == "int c;  // d\n"
    print("compare_sass: the seeded differences are found")
    return 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("new")
    parser.add_argument("configs", nargs="+")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--cache", help="a folder, kept; default vqgen-sass in the folder for temporary files")
    parser.add_argument("-j", "--jobs", type=int, default=2)
    parser.add_argument("--new-configs")
    try:
        return run(parser.parse_args(arguments))
    except (Failure, OSError, ValueError) as failure:
        print(f"compare_sass: {failure}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
