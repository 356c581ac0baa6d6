#!/usr/bin/env python3
"""The problems of bench/regret/ are those that bench/regret_problems.py writes, and vqgen takes them all.
It and scripts/grid_configs.py write nothing where they are asked for help or given wrong arguments.

    regret_problems_test.py SOURCE_DIR VQGEN
"""
import pathlib
import subprocess
import sys
import tempfile


def texts(folder):
    return {path.name: path.read_text() for path in sorted(folder.glob("*.json"))}


def main():
    source, vqgen = map(pathlib.Path, sys.argv[1:])
    kept = texts(source / "bench" / "regret")
    with tempfile.TemporaryDirectory() as folder:
        for script in ["bench/regret_problems.py", "scripts/grid_configs.py"]:
            for arguments, code in [(["--help"], 0), (["--seed"], 2), (["a", "b"], 2)]:
                run = subprocess.run([sys.executable, source.resolve() / script, *arguments],
                                     cwd=folder, capture_output=True)
                assert run.returncode == code, (script, arguments, run.returncode)
        assert not list(pathlib.Path(folder).iterdir()), "wrote something for wrong arguments"
        subprocess.run([sys.executable, source / "bench" / "regret_problems.py", folder], check=True)
        written = texts(pathlib.Path(folder))
    assert len(kept) == 80, len(kept)
    assert kept == written, "write bench/regret anew by bench/regret_problems.py"
    for name in kept:
        run = subprocess.run([vqgen, "explain", source / "bench" / "regret" / name, "--gpu", "h200"],
                             capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, (name, run.stderr)


if __name__ == "__main__":
    main()
