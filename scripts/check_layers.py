#!/usr/bin/env python3
"""Checks every #include against the layers of the project, and device code against its rules.

  scripts/check_layers.py [ROOT]        prints FILE:LINE and the rule broken; exit 1 if any is
  scripts/check_layers.py --self-test   checks that seeded violations are found, and no more

docs/internals/architecture.md says what the layers are for. The tables below are the rules.
"""

import pathlib
import re
import sys
import tempfile

# Layer -> layers whose headers it may include. A file belongs to the longest folder listed.
# heuristics, generator, quantizer and runtime/backend are siblings. What trains codebooks is a layer
# of its own, which knows no device: runtime/training gives it one.
BELOW_RUNTIME = ["core", "heuristics", "generator", "quantizer", "runtime/process",
                 "runtime/backend", "runtime/backend/cuda", "runtime/backend/host"]
LAYERS = {
    "core": ["core"],
    "heuristics": ["core", "heuristics"],
    "generator": ["core", "generator"],
    "quantizer": ["core", "quantizer"],
    "quantizer/import": ["core", "quantizer", "quantizer/import"],
    "quantizer/train": ["core", "quantizer", "quantizer/train"],
    "runtime/process": ["core", "runtime/process"],
    "runtime/backend": ["core", "runtime/backend"],
    "runtime/backend/cuda": ["core", "runtime/process", "runtime/backend", "runtime/backend/cuda"],
    "runtime/backend/host": ["core", "runtime/process", "runtime/backend", "runtime/backend/host"],
    "runtime": BELOW_RUNTIME + ["runtime", "runtime/ops"],
    "runtime/ops": BELOW_RUNTIME + ["runtime", "runtime/ops"],
    "runtime/rotating": BELOW_RUNTIME + ["runtime", "runtime/rotating"],
    "runtime/training": BELOW_RUNTIME + ["quantizer/train", "runtime", "runtime/training"],
    "runtime/library": BELOW_RUNTIME + ["quantizer/train", "runtime", "runtime/ops",
                                        "runtime/rotating", "runtime/training", "runtime/library"],
    "runtime/tuning": BELOW_RUNTIME + ["runtime", "runtime/ops", "runtime/tuning"],
    "include": ["include"],
    "python/src": ["python/src"],
    "cli": BELOW_RUNTIME + ["quantizer/import", "quantizer/train", "runtime", "runtime/ops", "runtime/training",
                            "runtime/tuning", "cli"],
}

# Headers of others -> the only folders that may include them.
OUTSIDE = [
    (r"cuda\.h|cuda_\w+\.h|nvrtc\.h", ["runtime/backend/cuda"]),
    (r"dlfcn\.h", ["runtime/backend"]),
    (r"boost/.*", ["runtime/backend/host"]),
    (r"sanitizer/.*", ["runtime/backend/host"]),
    (r"faiss/.*|omp\.h", []),
    (r"openssl/.*", ["core"]),
    (r"CLI/.*", ["cli"]),
    (r"fmt/.*|nlohmann/.*", [layer for layer in LAYERS if layer != "include"]),
    (r"gtest/.*|gmock/.*|benchmark/.*", []),
    (r"Python\.h", ["python/src"]),
    (r"vqgen/.*", ["include", "python/src", "runtime/library", "runtime/ops"]),
]

# What host layers may see of the templates, and which one sees more.
SHARED_WITH_HOST = r"vq/(args|layout)/\w+\.h|vq/kernels/\w+/plan\.h|vq/(types|plan)\.h"
SHARED_WITH_FOLDER = {"runtime/backend/host": r"vq/host_api\.h", "core/format": r"vq/host_element\.h"}

# Device code includes downwards: a header may include others of its rank or a lower one.
TEMPLATE_RANKS = [
    (r"vq/annotations\.h", 0),
    (r"vq/types\.h", 1),
    (r"vq/plan\.h", 2),
    (r"vq/(args|layout)/\w+\.h", 3),
    (r"vq/kernels/\w+/\w+\.h", 4),
    (r"vq/(machine\.cuh|\w+\.h)", 5),
    (r"vq/\w+\.cuh|vq/(codebook|lanes|tokens)/\w+\.cuh", 6),
    (r"vq/ops/\w+\.cuh", 7),
    (r"vq/kernels/\w+/(?!kernel\.cuh)\w+\.cuh", 8),
    (r"vq/kernels/\w+/kernel\.cuh|vq/(rotation|training)/\w+\.cuh", 9),
]
# A kernel's own parts, which the files of its folder alone include.
KERNEL_PART = r"vq/kernels/\w+/\w+\.cuh"
MACHINE = "templates/machine"
HOST_MACHINE = "templates/machine/host"
HOST_MACHINE_STANDARD = r"cstdint|cstddef|cstring|cmath|bit|type_traits"
MACHINE_ONLY = [
    (r"^\s*#\s*(if|ifdef|ifndef|elif|else)\b", "a preprocessor condition"),
    (r"\basm\b", "asm"),
    (r"\b__\w+", "a builtin or compiler keyword"),
    (r"\b(threadIdx|blockIdx|blockDim|gridDim|warpSize)\b", "a CUDA variable"),
]

# What results are judged by shares no code with the kernels, nor with what makes or launches them.
REFERENCES = r"runtime/(ops/\w+/(reference|hard_data)|verify/\w+)\.(h|cpp)"
SEEN_BY_REFERENCES = (r"core/.*|runtime/(ops/\w+/reference|verify/\w+)\.h", r"[a-z_]+|fmt/.*|unistd\.h")

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
SOURCES = {".h", ".hpp", ".cpp", ".cuh", ".cu", ".def"}


def matches(pattern, text):
    return re.fullmatch(pattern, text) is not None


def within(path, folder):
    return path == folder or path.startswith(folder + "/")


def layer_of(path):
    found = [layer for layer in LAYERS if within(path, layer)]
    return max(found, key=len) if found else None


def without_comments(text):
    """Comments and string literals blanked, line numbers kept; include lines stay whole."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)

    def blank(match):
        start = text.rfind("\n", 0, match.start()) + 1
        if match.group().startswith('"') and INCLUDE.match(text[start : match.end()]):
            return match.group()
        return "\n" * match.group().count("\n") or " "

    return token.sub(blank, text)


def host_include_fault(root, path, quoted, angled):
    """The rule that an include of a host file breaks, or None."""
    layer = layer_of(path)
    if matches(REFERENCES, path) and not matches(SEEN_BY_REFERENCES[0 if quoted else 1], quoted or angled):
        return f"{quoted or angled}: a reference sees core/ and other references alone"
    if quoted:
        target = layer_of(quoted)
        if not (root / quoted).is_file():
            return f'"{quoted}" is not a path from the root of the project'
        if target not in LAYERS[layer]:
            return f"{layer} must not include {target or quoted} (may: {', '.join(LAYERS[layer])})"
        return None
    if angled.startswith("vq/"):
        if matches(SHARED_WITH_HOST, angled) or any(
            within(path, folder) and matches(pattern, angled)
            for folder, pattern in SHARED_WITH_FOLDER.items()
        ):
            return None
        return f"<{angled}> is device code; hosts see <vq/args/>, <vq/layout/>, <vq/kernels/> but for kernel.cuh, <vq/plan.h> and <vq/types.h>"
    for pattern, folders in OUTSIDE:
        if matches(pattern, angled) and not any(within(path, folder) for folder in folders):
            return f"<{angled}> belongs in {' or '.join(folders) or 'tests'} only"
    return None


def rank_of(header):
    return next((rank for pattern, rank in TEMPLATE_RANKS if matches(pattern, header)), None)


def template_include_fault(path, quoted, angled):
    """The rule that an include of a template breaks, or None."""
    if quoted:
        return f'"{quoted}": templates include <vq/...> only'
    if within(path, HOST_MACHINE) and matches(HOST_MACHINE_STANDARD, angled):
        return None
    if not angled.startswith("vq/"):
        return f"<{angled}>: templates include <vq/...> only"
    mine = rank_of(path[path.index("vq/") :]) if "vq/" in path else None
    theirs = rank_of(angled)
    if mine is None or theirs is None:
        return f"{path} or <{angled}> has no rank; add it to TEMPLATE_RANKS"
    if matches(KERNEL_PART, angled) and not within(path, "templates/" + angled.rpartition("/")[0]):
        return f"<{angled}> is a part of another kernel; move what kernels share to templates/vq/ops"
    if theirs > mine:
        return f"<{angled}> stands above this file; device code includes downwards"
    return None


def file_faults(root, path, text):
    """(line, rule) for each fault of one file."""
    template = within(path, "templates")
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        include = INCLUDE.match(line)
        if include:
            quoted, angled = include.groups()
            fault = (template_include_fault(path, quoted, angled) if template
                     else host_include_fault(root, path, quoted, angled))
            if fault:
                yield number, fault
        elif template and not within(path, MACHINE):
            for pattern, what in MACHINE_ONLY:
                if re.search(pattern, line):
                    yield number, f"{what} outside {MACHINE}"


def check(root):
    """(path, line, rule) for all files of the layers and the templates, and how many files."""
    faults, files = [], 0
    for folder in sorted({layer.split("/")[0] for layer in LAYERS} | {"templates"}):
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in SOURCES and file.is_file():
                files += 1
                path = file.relative_to(root).as_posix()
                text = file.read_text(encoding="utf-8")
                faults += [(path, line, rule) for line, rule in file_faults(root, path, text)]
    return faults, files


# Path -> (line, whether it is a fault) pairs, for --self-test.
SEEDS = {
    "core/a.h": [("#include <vq/layout/codes.h>", 0), ('#include "heuristics/a.h"', 1),
                 ("#include <vq/machine.cuh>", 1), ("#include <cuda.h>", 1),
                 ("#include <openssl/evp.h>", 0), ("// #include <cuda.h>", 0)],
    "heuristics/a.h": [('#include "core/a.h"', 0), ('#include "generator/a.h"', 1),
                       ("#include <string>", 0), ("#include <openssl/evp.h>", 1)],
    "generator/a.h": [('#include "core/a.h"', 0), ('#include "quantizer/a.h"', 1),
                      ('#include "a.h"', 1), ('#include "runtime/backend/a.h"', 1)],
    "quantizer/a.h": [('#include "core/a.h"', 0), ("#include <faiss/Index.h>", 1),
                      ('#include "quantizer/train/a.h"', 1)],
    "quantizer/import/a.h": [('#include "quantizer/a.h"', 0), ('#include "quantizer/train/a.h"', 1)],
    "quantizer/train/a.h": [('#include "quantizer/a.h"', 0), ("#include <faiss/Index.h>", 1),
                            ('#include "runtime/backend/a.h"', 1)],
    "runtime/training/a.h": [('#include "quantizer/train/a.h"', 0),
                             ('#include "runtime/library/a.h"', 1)],
    "runtime/backend/a.h": [('#include "core/a.h"', 0), ('#include "runtime/a.h"', 1)],
    "runtime/backend/cuda/a.h": [("#include <cuda.h>", 0), ("#include <nvrtc.h>", 0),
                                 ("#include <dlfcn.h>", 0),
                                 ('#include "runtime/backend/host/a.h"', 1)],
    "runtime/backend/host/a.h": [("#include <vq/host_api.h>", 0), ("#include <nvrtc.h>", 1),
                                 ('  #  include "generator/a.h"', 1)],
    "runtime/a.h": [('#include "runtime/backend/cuda/a.h"', 0), ('#include "generator/a.h"', 0),
                    ('#include "cli/a.h"', 1), ("#include <dlfcn.h>", 1)],
    "runtime/library/a.h": [('#include "runtime/a.h"', 0), ("#include <vqgen/vqgen.h>", 0),
                            ('#include "quantizer/train/a.h"', 0)],
    "runtime/ops/a/op.h": [("#include <vqgen/launch.h>", 0), ('#include "runtime/a.h"', 0),
                           ('#include "runtime/library/a.h"', 1), ("#include <vq/args/a.h>", 0)],
    "runtime/ops/a/reference.cpp": [("#include <vq/layout/a.h>", 1), ('#include "core/a.h"', 0),
                                    ('#include "runtime/a.h"', 1), ("#include <cmath>", 0),
                                    ("#include <vqgen/launch.h>", 1)],
    "runtime/b.h": [('#include "runtime/library/a.h"', 1), ('#include "quantizer/train/a.h"', 1), ("#include <vqgen/vqgen.h>", 1)],
    "include/vqgen/vqgen.hpp": [("#include <vqgen/vqgen.h>", 0), ("#include <memory>", 0),
                                ('#include "core/a.h"', 1), ("#include <fmt/format.h>", 1)],
    "cli/a.h": [('#include "runtime/a.h"', 0), ("#include <CLI/CLI.hpp>", 0),
                ("#include <gtest/gtest.h>", 1)],
    "templates/vq/ops/a.cuh": [("#include <vq/machine.cuh>", 0), ("#include <cstdint>", 1),
                               ("#include <vq/codebook/a.cuh>", 0), ('#include "core/a.h"', 1),
                               ("#if 1", 1), ("// #if 1 and asm", 0), ("  __syncthreads();", 1),
                               ('  asm("");', 1), ("int i = threadIdx.x;", 1),
                               ("if constexpr (true) {}  /* __ldg */", 0)],
    "templates/vq/kernels/a/kernel.cuh": [("#include <vq/kernels/a/part.cuh>", 0),
                                          ("#include <vq/kernels/b/part.cuh>", 1)],
    "templates/vq/codebook/a.cuh": [("#include <vq/ops/a.cuh>", 1)],
    "templates/vq/layout/a.h": [("#include <vq/types.h>", 0), ("#include <vq/machine.cuh>", 1)],
    "templates/machine/host/vq/machine.cuh": [("#include <cmath>", 0), ("#include <thread>", 1),
                                              ("#if 1", 0), ("#include <vq/types.h>", 0)],
    "templates/machine/cuda/vq/machine.cuh": [("#include <cuda_fp16.h>", 1), ('asm("");', 0)],
}


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, lines in SEEDS.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text("".join(line + "\n" for line, _ in lines))
        found = [(path, line) for path, line, _ in check(root)[0]]
        seeded = [(path, number) for path, lines in sorted(SEEDS.items())
                  for number, (_, fault) in enumerate(lines, 1) if fault]
    for path, line in sorted(set(seeded) - set(found)):
        print(f"{path}:{line}: missed: {SEEDS[path][line - 1][0]}")
    for path, line in sorted(set(found) - set(seeded)):
        print(f"{path}:{line}: wrongly reported: {SEEDS[path][line - 1][0]}")
    print(f"check_layers: {len(seeded)} seeded faults, {len(set(found) & set(seeded))} found")
    return 0 if sorted(set(found)) == sorted(seeded) else 1


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    root = pathlib.Path(arguments[0] if arguments else __file__).resolve()
    root = root if arguments else root.parent.parent
    faults, files = check(root)
    if files == 0:
        sys.exit(f"check_layers: no sources under {root}")
    for path, line, rule in faults:
        print(f"{path}:{line}: {rule}")
    print(f"check_layers: {files} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
