#!/usr/bin/env python3
"""Runs each benchmark of the Google Benchmark suite once on the host backend.
kernels_bench_test.py KERNELS_BENCH"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = sys.argv.pop()
CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "configs"


def bench(*arguments):
    return subprocess.run([TOOL, "--backend=host", *map(str, arguments)], capture_output=True, text=True)


class KernelsBench(unittest.TestCase):
    def test_each_example_is_verified_and_timed_once(self):
        done = bench("--benchmark_format=json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        benchmarks = json.loads(done.stdout)["benchmarks"]
        names = [each["name"].split("/")[0] for each in benchmarks]
        self.assertCountEqual(names, [path.stem for path in CONFIGS.glob("*.json")])
        for each in benchmarks:
            self.assertFalse(each.get("error_occurred"), each)
            self.assertEqual(each["iterations"], 1)
            self.assertGreater(each["real_time"], 0)
            self.assertRegex(each["label"], r"^(attention|linear|append|dequantize|merge|scalar)_[a-z0-9_]+/")

    def test_a_problem_without_a_kernel_is_a_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "none.json")
            config = json.loads((CONFIGS / "tinycode-projection.json").read_text())
            path.write_text(json.dumps({**config, "plan": {"threads": 33}}))
            done = bench(path, "--benchmark_format=json")
            self.assertEqual(done.returncode, 1)
            self.assertTrue(json.loads(done.stdout)["benchmarks"][0]["error_occurred"])

    def test_what_it_does_not_know_is_refused(self):
        for argument, word in (("--backend=tpu", "--backend=tpu"), ("none.json", "none.json")):
            done = bench(argument)
            self.assertEqual(done.returncode, 2)
            self.assertIn(word, done.stderr)


if __name__ == "__main__":
    unittest.main()
