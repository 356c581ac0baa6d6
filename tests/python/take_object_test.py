"""take_object.py takes an object if nothing that decides it differs, and compiles all else."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

LAUNCHER = pathlib.Path(__file__).with_name("take_object.py")
COMPILER = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo compiled >"$2"
"""


class TakeObject(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.compiler = self.root / "c++"
        self.compiler.write_text(COMPILER)
        self.compiler.chmod(0o755)
        self.source = self.root / "a.cpp"
        self.source.write_text("int a;")
        self.other, self.here = self.root / "other", self.root / "here"
        self.other.mkdir()
        self.here.mkdir()
        (self.other / "a.o").write_text("taken")
        command = " ".join(self.command("-Og -DA=1", self.other))
        (self.other / "compile_commands.json").write_text(json.dumps(
            [{"directory": str(self.other), "file": str(self.source), "command": command}]))

    def command(self, options, folder):
        return [str(self.compiler), *options.split(), f"-I{folder}/made", "-MD", "-MF", "a.d", "-o",
                "a.o", "-c", str(self.source)]

    def result(self, options):
        subprocess.run([sys.executable, LAUNCHER, self.other, *self.command(options, self.here)],
                       cwd=self.here, check=True)
        return (self.here / "a.o").read_text().strip()

    def test_optimisation_and_symbols_may_differ(self):
        self.assertEqual(self.result("-O0 -g1 -DA=1 -Wall"), "taken")

    def test_definitions_and_code_generation_may_not(self):
        for options in ("-DA=2", "-DA=1 -DB", "", "-DA=1 -fsanitize=address", "-DA=1 -std=c++23"):
            self.assertEqual(self.result(options), "compiled", options)

    def test_nothing_to_take(self):
        (self.other / "a.o").unlink()
        self.assertEqual(self.result("-DA=1"), "compiled")
        (self.other / "compile_commands.json").write_text("[]")
        self.assertEqual(self.result("-DA=1"), "compiled")


if __name__ == "__main__":
    unittest.main()
