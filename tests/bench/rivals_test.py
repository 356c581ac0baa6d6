#!/usr/bin/env python3
"""The rivals beside FP16: missing ones are reported, wrong results refused, and figures computed by hand.
Everything here is made up; no GPU, no PyTorch and no rival package is needed.  rivals_test.py VQGEN"""
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

from made_up import ROOT

sys.path.insert(0, str(ROOT / "bench" / "rivals"))

import aqlm_codes  # noqa: E402
import baselines  # noqa: E402
import checking  # noqa: E402
import codegemm_tables  # noqa: E402
import device  # noqa: E402
import flashinfer_fp8  # noqa: E402
import humming_int  # noqa: E402
import shapes  # noqa: E402
import table  # noqa: E402
import turns  # noqa: E402

TOOL = sys.argv.pop()
COMMAND = [sys.executable, "-B", str(ROOT / "bench" / "rivals")]
PRODUCT = "products/4096x4096-1"


def loaded_main():
    """Load the program as a module; every package's program has its name."""
    spec = importlib.util.spec_from_file_location("rivals_main", ROOT / "bench" / "rivals" / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAIN = loaded_main()


class Number:
    """A tensor of one number, with what the checks read."""

    def __init__(self, value):
        self.value = value

    def double(self):
        return self

    def __sub__(self, other):
        return Number(self.value - other.value)

    def norm(self):
        return abs(self.value)


class Rival:
    """A rival of one variant, whose calls return the given outputs and take so many us."""
    VARIANTS = ("v",)

    def __init__(self, log, outputs, us=10.0, choices=("",), why=None):
        self.log, self.outputs, self.us, self.choices, self.why = log, outputs, us, choices, why

    def missing(self, _):
        return self.why

    def version(self):
        return "1.2"

    def takes(self, problem, _):
        return problem["part"] == "products"

    def prepare(self, kept, problem, variant, options):
        if isinstance(self.outputs, Exception):
            raise self.outputs

        def call(copy):
            self.log.append(f"call {copy}")
            output = self.outputs[copy]
            return Number(output.pop(0) if len(output) > 1 else output[0])

        calls = [lambda copy=copy: call(copy) for copy in range(len(self.outputs))]
        for each in calls:
            each.us = self.us
        choices = {name: list(calls) for name in self.choices}
        for number, (name, each) in enumerate(choices.items()):
            each[0] = lambda copy=0: call(copy)
            each[0].us = self.us / (1 + number)  # later choices are faster
        return checking.Prepared(choices, len(calls), lambda copy: Number(100.0), 1e-2, 2)


class MadeUp(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.log = []

    def put(self, owner, name, value):
        kept = getattr(owner, name)
        setattr(owner, name, value)
        self.addCleanup(setattr, owner, name, kept)

    def world(self, **rivals):
        """Return a made-up device, made-up baselines and these rivals."""
        log = self.log

        class Calls:
            def __init__(self, calls):
                self.us = calls[0].us

            def graph_us(self):
                log.append(f"time {self.us:g}")
                return self.us

        class Backend:
            def __init__(self, us):
                self.times = list(us)

            def graph_us(self):
                log.append("time fp16")
                return self.times.pop(0)

        self.put(device, "lacking", lambda: None)
        self.put(device, "memory_bytes", lambda: 1e9)
        self.put(device, "begin_problem", lambda seed: log.append(f"seed {seed}"))
        self.put(baselines, "Calls", Calls)
        self.put(baselines, "machine", lambda: {"device": "a GPU", "torch": "0", "cuda": "0", "cudnn": 0})
        self.put(baselines, "fp16_calls", lambda kept, config: {"cuBLAS": Backend([100, 120, 140]),
                                                               "other": Backend([90, 130, 150])})
        self.put(turns, "RIVALS", rivals)

    def run_main(self, *words):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = MAIN.main([*words, "--json", str(self.path / "run.json")])
        return code, out.getvalue(), err.getvalue()

    def document(self):
        return json.loads((self.path / "run.json").read_text())

    def tool(self, outcome="timed", us=20):
        """Return a vqgen that reports this for each config."""
        path = self.path / "tool"
        each = {"measurement": {"outcome": outcome, "why": "rel_err 1", "plan": {}, "rel_err": 1e-4}}
        path.write_text(f"""#!{sys.executable}
import json, sys
configs = [word for word in sys.argv[1:] if word.endswith(".json")]
print(json.dumps({{"configs": [{each!r}] * len(configs)}}), flush=True)
for line in sys.stdin:
    print(json.dumps({{"time_us": {us}, "eager_us": 1}}), flush=True)
""")
        path.chmod(0o755)
        return str(path)


class Turns(MadeUp):
    def test_sides_take_turns_and_are_checked_before_and_after(self):
        self.world(one=Rival(self.log, [[100.5], [100.2], [99.0]]))
        code, out, _ = self.run_main("--only", PRODUCT + "$", "--no-vqgen", "--rounds", "3")
        self.assertEqual(code, 0)
        fp16 = ["time fp16", "time fp16"]
        self.assertEqual(self.log, ["seed 1", "call 0", "call 2", *fp16, "time 10", "time 10", *fp16,
                                    *fp16, "time 10", "call 0", "call 2"])
        side = self.document()["problems"][0]["sides"]["one v"]
        self.assertEqual((side["outcome"], side["rel_err"], side["copies"]), ("timed", 0.01, 3))
        self.assertIn("| 4096x4096 | 1 | 120.0 | 10.0 (12.00) |", out)
        self.assertIn("| one v | 2 | 1.0e-02 | 1e-02 |", out)
        self.assertIn("one 1.2", out)

    def test_the_fastest_choice_is_timed_and_named(self):
        self.world(one=Rival(self.log, [[100.0]], choices=("a", "b", "c")))
        code, _, _ = self.run_main("--only", PRODUCT + "$", "--no-vqgen", "--rounds", "1")
        document = self.document()
        self.assertEqual((code, document["problems"][0]["sides"]["one v"]["choice"]), (0, "c"))
        self.assertAlmostEqual(document["figures"][0]["sides"]["one v"]["us"], 10 / 3)

    def test_vqgen_takes_turns_and_a_wrong_plan_has_no_time(self):
        for outcome, code in (("timed", 0), ("wrong", 1)):
            self.world(one=Rival(self.log, [[100.0]]))
            done = self.run_main("--only", PRODUCT + "$", "--vqgen", self.tool(outcome), "--rounds", "2")
            self.assertEqual(done[0], code, done)
            figure = self.document()["figures"][0]
            self.assertEqual(figure["fp16"], {"name": "cuBLAS", "us": 110})
            self.assertEqual(figure["sides"].get("vqgen aqlm-2x8"),
                             {"us": 20, "ratio": 5.5} if outcome == "timed" else None)
            self.assertEqual("rel_err 1" in done[1], outcome == "wrong")

    def test_the_tool_itself_takes_the_twins(self):
        with tempfile.TemporaryDirectory() as folder:
            for each in shapes.everything():
                for _, config in shapes.twins(each):
                    path = pathlib.Path(folder, "config.json")
                    path.write_text(json.dumps(config))
                    done = subprocess.run([TOOL, "explain", str(path), "--gpu", "h200"], capture_output=True,
                                          text=True)
                    self.assertEqual(done.returncode, 0, each["name"] + done.stderr)

    def test_a_spent_budget_leaves_problems_out(self):
        self.world(one=Rival(self.log, [[100.0]]))
        code, _, _ = self.run_main("--only", "products/4096x4096", "--no-vqgen", "--budget", "1e-9")
        document = self.document()
        self.assertEqual((code, document["problems"], len(document["left_out"])), (0, [], 9))
        self.assertIn("budget", document["left_out"][0]["why"])


class Refused(MadeUp):
    def refused(self, outputs, outcome, *words):
        self.log.clear()
        self.world(one=Rival(self.log, outputs), two=Rival(self.log, [[100.0]], us=30.0))
        code, out, err = self.run_main("--only", PRODUCT + "$", "--no-vqgen", "--rounds", "1")
        document = self.document()
        side = document["problems"][0]["sides"]["one v"]
        self.assertEqual((code, side["outcome"]), (1, outcome))
        self.assertEqual(list(document["figures"][0]["sides"]), ["two v"])
        for word in words:
            self.assertIn(word, side["why"])
            self.assertIn(word, out)
        return err

    def test_a_wrong_output_is_not_timed(self):
        for outputs in ([[102.0]], [[float("nan")]], [[100.0], [98.0]], [[float("inf")], [100.0]]):
            err = self.refused(outputs, "wrong", "rel_err", "0.01 is allowed")
            self.assertIn("one v: wrong", err)
            self.assertNotIn("time 10", self.log)

    def test_one_that_is_wrong_after_the_last_round_has_no_time(self):
        self.refused([[100.0, 150.0]], "wrong", "after the last round", "5.00e-01")

    def test_an_output_that_a_call_leaves_as_it_was_is_seen(self):
        class Output(Number):
            def fill_(self, value):
                self.value = value

        output = Output(100.0)
        for calls, writes in ((lambda: output, False), (lambda: output.fill_(100.0) or output, True)):
            prepared = checking.Prepared({"": [calls]}, 1, lambda copy: Number(100.0), 1e-2, 8, output)
            if writes:
                self.assertEqual(checking.Checker(prepared).worst(""), 0)
            else:
                self.assertRaises(checking.Wrong, checking.Checker(prepared).worst, "")

    def test_what_a_package_raises_is_one_line(self):
        self.refused(RuntimeError("no kernel\nfor this"), "failed", "RuntimeError: no kernel")
        self.refused(AssertionError(), "failed", "AssertionError")
        self.refused(checking.Failed("not built"), "failed", "not built")


class Missing(MadeUp):
    OPTIONS = types.SimpleNamespace(aqlm=None, codegemm=None)

    def test_each_rival_says_what_to_get(self):
        self.put(importlib.util, "find_spec", lambda name: None)
        for module, words in ((humming_int, ("pip install", "humming-kernels[cu13]==")),
                              (flashinfer_fp8, ("pip install flashinfer-python==",)),
                              (aqlm_codes, ("pip install aqlm==", "--aqlm")),
                              (codegemm_tables, ("there is no package", "naver-aics/codegemm", "--codegemm"))):
            why = module.missing(self.OPTIONS)
            self.assertNotIn("\n", why)
            for word in words:
                self.assertIn(word, why)

    def test_another_package_of_the_name_is_not_humming(self):
        (self.path / "humming").mkdir()
        self.put(importlib.util, "find_spec", lambda name: types.SimpleNamespace(
            submodule_search_locations=[str(self.path / "humming")]))
        self.assertIn("humming-kernels", humming_int.missing(self.OPTIONS))
        (self.path / "humming" / "layer.py").write_text("")
        self.assertIsNone(humming_int.missing(self.OPTIONS))

    def test_flashinfer_without_a_compiler(self):
        self.put(importlib.util, "find_spec", lambda name: None if "cache" in name else object())
        for there in (True, False):
            self.put(flashinfer_fp8, "has_nvcc", lambda there=there: there)
            self.assertEqual(flashinfer_fp8.missing(self.OPTIONS) is None, there)

    def test_a_checkout_of_codegemm_is_found_once_it_is_built(self):
        self.put(importlib.util, "find_spec", lambda name: None)
        options = types.SimpleNamespace(codegemm=self.path)
        self.assertIn(str(self.path), codegemm_tables.missing(options))
        (self.path / "kernels").mkdir()
        (self.path / "kernels" / "codegemm_kernel.cpython-312.so").write_text("")
        self.assertIsNone(codegemm_tables.missing(options))
        self.assertEqual(codegemm_tables.built_in(self.path), self.path / "kernels")

    def test_what_is_there_is_measured_and_the_run_ends_5(self):
        self.world(one=Rival(self.log, [[100.0]]), two=Rival(self.log, [], why="no package two: install it"))
        code, out, err = self.run_main("--only", PRODUCT + "$", "--vqgen", str(self.path / "none"))
        self.assertEqual(code, 5)
        self.assertIn("rivals: two: no package two: install it\n", err)
        self.assertIn("two is missing: no package two: install it.", out)
        self.assertIn("vqgen is missing", out)
        document = self.document()
        self.assertEqual(list(document["missing"]), ["two", "vqgen"])
        self.assertEqual(list(document["figures"][0]["sides"]), ["one v"])

    def command(self, *words):
        """Run the program where no package can be found."""
        environment = {**os.environ, "PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}
        return subprocess.run([*COMMAND, *words], capture_output=True, text=True, env=environment)

    def test_the_command_without_a_gpu(self):
        if device.lacking() is None:
            self.skipTest("there is a GPU")
        done = self.command("--rivals", "codegemm", "--no-vqgen")
        self.assertEqual(done.returncode, 5)
        self.assertIn("PyTorch", done.stderr)
        self.assertIn("rivals: codegemm: no module codegemm_kernel: there is no package", done.stderr)

    def test_the_command_lists(self):
        done = self.command("--list", "--vqgen", TOOL)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertIn(f"{PRODUCT}: FP16, humming int2, humming int2-g128, humming int4, aqlm 2x8, aqlm 1x16, "
                      "codegemm m1v4, codegemm m2v8, vqgen aqlm-2x8, vqgen aqlm-2x8i8", lines)
        self.assertIn("attention/B1-H28-K4-N32768: FP16, flashinfer fa2, flashinfer xqa, vqgen d4b8, "
                      "vqgen d4b8i8, vqgen d4b8i8-paged, vqgen int8", lines)
        self.assertIn("vqgen: there", lines)
        self.assertEqual(len(lines), 27 + 8 + 5)

    def test_bad_input(self):
        for words in (["--only", "("], ["--only", "nothing"], ["--rivals", "nobody"], ["--rounds", "0"],
                      ["--json", str(self.path / "nowhere" / "run.json")]):
            self.assertEqual(self.command(*words).returncode, 2, words)


class Figures(unittest.TestCase):
    def test_medians_and_ratios_by_hand(self):
        config = {"shape": {"m": 1, "out_features": 4, "in_features": 8}}
        problem = {"name": "p", "part": "products", "config": config, "sides": {
            "a": {"outcome": "timed", "bits": 2, "rel_err": 1e-3, "tolerance": 1e-2},
            "b": {"outcome": "wrong", "why": "rel_err 1"}}, "rounds": [
            {"fp16": {"x": 100, "y": 90}, "sides": {"a": 50}},
            {"fp16": {"x": 100, "y": 130}, "sides": {"a": 20, "b": 1}},
            {"fp16": {"x": 120, "y": 140}, "sides": {"a": 40, "b": 1}}]}
        self.assertEqual(table.figure_of(problem), {
            "name": "p", "fp16": {"name": "x", "us": 100}, "sides": {"a": {"us": 40, "ratio": 3}}})
        text = "\n".join(table.part_lines("products", [problem]))
        self.assertIn("| 4x8 | 1 | 100.0 | 40.0 (3.00) | wrong |", text)
        self.assertIsNone(table.figure_of({**problem, "rounds": []}))

    def test_the_problems_are_those_of_the_table(self):
        names = [each["name"] for each in shapes.everything()]
        self.assertEqual((len(names), len(set(names))), (35, 35))
        for name in ("products/28672x8192-256", "products/14336x4096-32", "attention/B1-H32-K8-N196608",
                     "attention/B4-H64-K8-N131072"):
            self.assertIn(name, names)
        by_rows = {each["config"]["shape"].get("m"): each["config"]["op"] for each in shapes.everything()}
        self.assertEqual((by_rows[1], by_rows[2], by_rows[None]), ("gemv", "gemm", "attention_decode"))


if __name__ == "__main__":
    unittest.main()
