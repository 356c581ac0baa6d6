#!/usr/bin/env python3
"""Runs the commands of README.md and the pages of docs/ as they are written.

    commands_test.py SOURCE_DIR BUILD_DIR [DOCUMENT...]

Commands are in ```sh blocks. Each document's commands run in one shell, in order, in the folder that
quickstart leaves: links to the checkout, the build as build/release, a bundle in out/quickstart, and an
empty home. Commands in SKIPPED do not run; their reasons are printed. A command in any other block fails
the test, except a synopsis with words in capitals to fill in; README.md has none.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GPU = "needs a GPU"
BUILDS = "builds for minutes; the test run builds the same"
WHEEL = "the test python_wheel does so"
MODEL = "needs a model; tests/cli/model_test.cpp runs it on a made-up one"
CHECKPOINT = "needs a checkpoint; tests/cli/import_test.cpp imports a made-up one"
PICTURES = "needs matplotlib; tests/python/test_plots.py draws the same"

# Document, what its command begins with, why it is not run here.
SKIPPED = [
    ("README.md", "bash scripts/quickstart.sh", "installs and builds; this test runs in what it leaves"),
    ("README.md", "python3 -m venv", WHEEL),
    ("README.md", "out/venv/bin/python", WHEEL),
    ("docs/accuracy.md", "python3 -m vqgen.eval", "needs PyTorch and a model; tests/python/test_eval.py runs it"),
    ("docs/benchmarks.md", "python3 bench/flagship run", GPU + " and PyTorch"),
    ("docs/benchmarks.md", "python3 bench/flagship report", "reads what a GPU measured"),
    ("docs/benchmarks.md", "python3 bench/compare_fp16.py", GPU + " and PyTorch"),
    ("docs/benchmarks.md", "python3 bench/rivals --vqgen", GPU + " and packages of others; the test rivals runs it made up"),
    ("docs/benchmarks.md", "nvidia-smi", GPU),
    ("docs/benchmarks.md", "ncu", GPU),
    ("docs/performance.md", "vqgen measure", GPU),
    ("docs/reference/cli.md", "vqgen measure examples/configs/llama3-8b-attention-2bit.json", GPU),
    ("docs/reference/cli.md", "vqgen tune", GPU),
    ("docs/reference/cli.md", "vqgen dev", GPU + ", or files that one measured"),
    ("docs/guides/deploy.md", "bash scripts/wheel.sh", "the test python_portable_wheel does so"),
    ("docs/guides/embedding.md", "source scripts/lib/deps.sh", BUILDS),
    ("docs/guides/embedding.md", "cmake --preset release", BUILDS),
    ("docs/guides/embedding.md", "cmake --build build/release", BUILDS),
    ("docs/guides/huggingface.md", "python3 -m venv", WHEEL),
    ("docs/guides/huggingface.md", "out/venv/bin/pip", WHEEL),
    ("docs/guides/huggingface.md", "python3 -m vqgen.eval", "needs PyTorch and a GPU; tests/python/test_eval.py runs it"),
    ("docs/guides/pytorch.md", "python3 -m venv", WHEEL),
    ("docs/guides/pytorch.md", "out/venv/bin/pip", WHEEL),
    ("docs/guides/model.md", "vqgen quantize my-model", MODEL),
    ("docs/guides/model.md", "vqgen inspect my-model", MODEL),
    ("docs/reference/cli.md", "vqgen inspect my-model", MODEL),
    ("docs/guides/checkpoints.md", "vqgen import", CHECKPOINT),
    ("docs/reference/cli.md", "vqgen import", CHECKPOINT),
    ("docs/guides/tuning.md", "vqgen tune examples/configs/tinycode-layer.json --budget 60s", GPU),
    ("docs/guides/tuning.md", "vqgen tune llama-3-8b", GPU),
    ("docs/guides/tuning.md", "vqgen db merge tables/shard", "reads what GPUs measured"),
    ("docs/guides/vllm.md", "python3 -m venv", WHEEL),
    ("docs/guides/vllm.md", "out/vllm/bin/", GPU + " and vLLM; tests/python/test_vllm_engine.py runs the third with a bundle"),
    ("docs/guides/vllm.md", "curl", GPU + " and vLLM"),
    ("docs/performance.md", "python3 bench/rivals --vqgen", GPU + " and packages of others; the test rivals runs it made up"),
]

# The bundle of quickstart, which later documents use.
QUICKSTART = """build/release/bin/vqgen quantize --input tests/data/tinycode-kv-heldout.safetensors \\
  --calibration tests/data/tinycode-kv-calibration.safetensors --out out/quickstart/vecinfer-d4b8-heldout \\
  --keys layer2.k --key-format vecinfer-d4b8 --values layer2.v --value-format vecinfer-d4b8 \\
  --queries layer2.q --keep-original"""

COMMAND = re.compile(r"\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(?:vqgen|cmake|ctest|bash|source|cc|python3|scripts/\S+|bench/\S+"
                     r"|build/\S+)\s+\S")
SYNOPSIS = re.compile(r"\[-|\.\.\.|(?<![\w$={/-])[A-Z]{3,}\b(?!=)")  # vqgen dev ablate CONFIG... [--budget N]


def blocks(text):
    """Return (number of the first line, tag, lines) of each fenced or indented block."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        if lines[number].startswith("```"):
            tag, begin = lines[number][3:].strip(), number + 1
            number = begin
            while not lines[number].startswith("```"):
                number += 1
            yield begin + 1, tag, lines[begin:number]
        elif lines[number].startswith("    "):
            begin = number
            while number < len(lines) and lines[number].startswith("    "):
                number += 1
            yield begin + 1, "indented", lines[begin:number]
            continue
        number += 1


def commands(first, lines):
    """Return (line number, command) of each, with continued lines and here-documents joined."""
    begin, command, end = first, "", None
    for number, line in enumerate(lines, first):
        if not command:
            begin = number
            here = re.search(r"<<'(\w+)'", line)
            end = here and here[1]
        command += line + "\n"
        if line == end:
            end = None
        if not line.endswith("\\") and end is None:
            if command.strip() and not command.lstrip().startswith("#"):
                yield begin, command.rstrip("\n")
            command = ""


def read(document, text, faults):
    """Return the document's commands to run; add to `faults` those that are neither run nor skipped."""
    found = []
    for first, tag, lines in blocks(text):
        for number, command in commands(first, lines):
            if tag != "sh" and not COMMAND.match(command):
                continue
            words = " ".join(command.split())
            why = next((why for where, begins, why in SKIPPED
                        if where == document and words.startswith(begins)), None)
            if why:
                print(f"{document}:{number}: skipped, {why}: {words}")
            elif tag == "sh":
                found.append((number, command))
            elif document == "README.md" or not SYNOPSIS.search(re.sub(r"\s#.*", "", command)):
                faults.append(f"{document}:{number}: a command outside of a ```sh block, which nothing runs: {words}")
    return found


def sandbox(source, build, work):
    """Make the folder that quickstart leaves."""
    for entry in source.iterdir():
        if entry.name not in ("build", "out") and not entry.name.startswith("."):
            (work / entry.name).symlink_to(entry)
    (work / "build").mkdir()
    (work / "build" / "release").symlink_to(build)
    (work / "out" / "quickstart").mkdir(parents=True)
    (work / "home").mkdir()
    run("scripts/quickstart.sh", [(0, QUICKSTART)], work)


def run(document, found, work):
    """Run them in one shell, which ends at the first failure. Return whether all succeeded."""
    script = "set -e\n"
    for number, command in found:
        script += f"printf '== %s\\n' {document}:{number} >&3\n{command}\n"
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("VQGEN_", "XDG_")) or name == "VQGEN_NVRTC"}
    environment["HOME"] = str(work / "home")
    places, log = work / "places", work / "log"
    start = time.monotonic()
    with open(places, "w") as to, open(log, "w") as output:
        done = subprocess.run(["bash", "-c", f"exec 3>{places}\n{script}"], cwd=work, env=environment,
                              stdout=output, stderr=subprocess.STDOUT, timeout=600)
    last = (places.read_text().split() or ["", "before its first command"])[-1]
    if done.returncode != 0:
        print(f"{last}: exit code {done.returncode}; the end of its output:")
        print("\n".join(log.read_text(errors="replace").splitlines()[-15:]))
        return False
    print(f"{document}: {len(found)} commands ran, {time.monotonic() - start:.0f} s")
    return True


def main():
    source, build = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    everything = [source / "README.md"] + sorted((source / "docs").rglob("*.md"))
    asked = [source / name for name in sys.argv[3:]] or everything
    faults, ok = [], True
    with tempfile.TemporaryDirectory(prefix="vqgen-docs-") as folder:
        work = Path(folder)
        sandbox(source, build, work)
        for path in asked:
            document = str(path.relative_to(source))
            found = read(document, path.read_text(), faults)
            if found:
                ok = run(document, found, work) and ok
    print("\n".join(faults))
    return 0 if ok and not faults else 1


if __name__ == "__main__":
    sys.exit(main())
