#!/usr/bin/env python3
"""The rounds of the flagship benchmark: the tool on the host backend, made-up baselines, and faults on either
side.  flagship_run_test.py VQGEN"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

import made_up

import aqlm_kernels
import baselines
import figures
import ours
import report
import runner

TOOL = sys.argv.pop()
GEMV = {"op": "gemv", "dtype": "f16", "weights": "aqlm-1x8",
        "shape": {"m": 1, "out_features": 32, "in_features": 64}}


def tiny(name, codes="uniform", config=None, **more):
    return {"name": name, "part": "products", "label": "1x8", "config": config or GEMV, "codes": codes,
            "aqlm": None, "baseline": True, "goals": {"feasibility": None, "to_reach": 1, "stretch": 2},
            **more}


class MadeUp:
    """Made-up baselines: figures of no device, and the requests in their order."""

    def __init__(self, test):
        self.asked, self.made = [], 0
        for name in ("Kept", "Readers", "machine", "fp16_calls"):
            self.put(test, baselines, name, getattr(self, name))
        time = ours.Turns.time

        def timed(turns, number, codebooks):
            self.asked.append(f"ours {number}" + " warm" * (codebooks == "warm"))
            return time(turns, number, codebooks)
        self.put(test, ours.Turns, "time", timed)

    @staticmethod
    def put(test, owner, name, value):
        kept = getattr(owner, name)
        setattr(owner, name, value)
        test.addCleanup(setattr, owner, name, kept)

    @staticmethod
    def Kept(_):
        class All:
            def get(self, key, nbytes, make):
                return make()
        return All()

    class Readers:
        def time(self):
            return {"tb_s": 4.0, "reader": "sum"}

    def machine(self):
        return {"device": "none", "torch": "0", "cuda": "0", "cudnn": 0}

    def fp16_calls(self, _, config):
        test = self

        class Calls:
            def time(self):
                test.asked.append("fp16")
                return made_up.side(100.0)
        return {"cuBLAS": Calls()}


class Run(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def arguments(self, **more):
        return argparse.Namespace(**{"vqgen": TOOL, "measure": ["--backend=host"], "rounds": 2,
                                     "budget": None, "aqlm": None, "captured": None, "codebooks": "rotated",
                                     "json": self.path / "run.json", **more})

    def tool(self, text):
        path = self.path / "tool"
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return str(path)

    def told(self, outcome):
        """Return the report of a tool on one config."""
        return json.dumps({"gpu": "", "gpu_spec": {}, "backend": "", "configs": [
            {"measurement": {"outcome": outcome, "why": "rel_err 1", "plan": {}}, "plan_from": {},
             "code_bytes": 8}]})

    def test_sides_take_turns_and_variants_share_the_baseline(self):
        fake = MadeUp(self)
        tool = self.tool(f"""echo '{self.told("timed")}'
            while read n; do echo '{{"time_us": 10, "eager_us": 12}}'; done""")
        problems = [tiny("one"), tiny("two", "zipf:1.2", baseline=False, of="one", most_ratio=1.05)]
        document = runner.run(self.arguments(vqgen=tool), problems)
        self.assertEqual(fake.asked, ["fp16", "ours 0", "ours 0", "ours 0", "ours 0", "fp16"])
        self.assertEqual([len(each["rounds"]) for each in document["problems"]], [2, 2])
        self.assertEqual(document["left_out"], [])
        merged = figures.merged([figures.read(self.path / "run.json")])[0]
        self.assertEqual((merged["one"]["ratio"], merged["one"]["eager_us"]), (10, 12))
        self.assertEqual(document["figures"], figures.drawn(merged))
        self.assertEqual([(each["name"], each["us"], each["fp16_us"]) for each in document["figures"]],
                         [("one", 10, 100), ("two", 10, 100)])
        self.assertEqual(merged["two"]["over_base"], 1)

    def test_codebooks_of_both_kinds_take_turns_in_one_run(self):
        fake = MadeUp(self)
        tool = self.tool(f"""echo '{self.told("timed")}'
            while read n books; do
              case $books in rotated) us=20;; warm) us=10;; *) exit 2;; esac
              echo '{{"time_us": '$us', "eager_us": 22}}'; done""")
        asked = {"both": ["ours 0", "ours 0 warm"], "warm": ["ours 0 warm"], "rotated": ["ours 0"]}
        for codebooks, turns in asked.items():
            fake.asked.clear()
            document = runner.run(self.arguments(vqgen=tool, rounds=1, codebooks=codebooks), [tiny("one")])
            self.assertEqual(fake.asked, ["fp16", *turns])
            figure = figures.merged([figures.read(self.path / "run.json")])[0]["one"]
            self.assertEqual(document["codebooks"], "rotated" if codebooks == "both" else codebooks)
            self.assertEqual((figure["us"], figure["ratio"]), (10, 10) if codebooks == "warm" else (20, 5))
            self.assertEqual(figure["warm"], {"us": 10, "ratio": 10} if codebooks == "both" else None)

    def test_a_tool_that_ends_between_turns_is_told(self):
        MadeUp(self)
        tool = self.tool(f"echo '{self.told('timed')}'; read n; echo device lost >&2; exit 5\n")
        with self.assertRaises(ours.Failed) as caught:
            runner.run(self.arguments(vqgen=tool), [tiny("one")])
        self.assertIn("ends 5: device lost", str(caught.exception))

    def test_a_spent_budget_and_absent_histograms_leave_problems_out(self):
        MadeUp(self)
        document = runner.run(self.arguments(budget=1e-9),
                              [tiny("one"), tiny("two", "captured")])
        self.assertEqual(document["problems"], [])
        self.assertEqual([each["name"] for each in document["left_out"]], ["two", "one"])
        self.assertIn("--captured", document["left_out"][0]["why"])
        self.assertIn("budget", document["left_out"][1]["why"])

    def test_the_tool_itself_and_an_absent_aqlm(self):
        MadeUp(self)
        problems = [tiny("one", "zipf:1.2", aqlm="1x8")]
        document = runner.run(self.arguments(rounds=1, aqlm=self.path), problems)
        read = figures.read(self.path / "run.json")
        self.assertEqual(figures.merged([read])[0]["one"]["code_bytes"], 32 * 64 // 8)
        self.assertIn("not measured", report.markdown(made_up.SOURCE, problems, [read]))
        self.assertFalse(document["aqlm"]["built"])
        self.assertIn("cuda_kernel.cu", document["aqlm"]["why"])
        self.assertIsNone(document["problems"][0]["rounds"][0]["aqlm"])

    def test_a_wrong_plan_is_not_timed(self):
        fake = MadeUp(self)
        tool = self.tool(f"echo '{self.told('wrong')}'; cat >/dev/null\n")
        document = runner.run(self.arguments(vqgen=tool), [tiny("one")])
        self.assertEqual(document["problems"][0]["outcome"], "wrong")
        self.assertEqual(fake.asked, [])
        with self.assertRaises(figures.Refused):
            figures.read(self.path / "run.json")

    def test_a_tool_that_ends_is_named_with_its_last_line(self):
        MadeUp(self)
        for text in ("echo no >&2; echo device gone >&2; exit 5\n",
                     "printf '{\"gp'; echo device gone >&2; exit 5\n"):
            with self.assertRaises(ours.Failed) as caught:
                runner.run(self.arguments(vqgen=self.tool(text)), [tiny("one")])
            self.assertIn("ends 5: device gone", str(caught.exception))

    def test_an_unknown_format_is_refused_by_the_tool(self):
        MadeUp(self)
        with self.assertRaises(ours.Failed) as caught:
            runner.run(self.arguments(), [tiny("one", config={**GEMV, "weights": "nothing"})])
        self.assertIn("ends 2", str(caught.exception))


class Protocol(unittest.TestCase):
    def turns(self, lines, *more):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "config.json")
            path.write_text(json.dumps(GEMV))
            return subprocess.run([TOOL, "measure", "--interactive", "--backend=host", *more, path],
                                  input=lines, capture_output=True, text=True)

    def test_a_line_a_turn_until_one_is_no_config(self):
        done = self.turns("0\n1\n0\n")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
        self.assertIn("'1' on standard input", done.stderr)
        told, turn = map(json.loads, done.stdout.splitlines())
        self.assertEqual(told["configs"][0]["measurement"]["outcome"], "timed")
        self.assertNotIn("time_us", told["configs"][0]["measurement"])
        self.assertEqual((turn["config"], turn["codebooks"]), (0, "warm"))  # of a host
        self.assertTrue(0 < turn["low_us"] <= turn["time_us"] <= turn["high_us"])
        self.assertGreater(turn["eager_us"], 0)

    def test_it_times_the_taken_plan_alone(self):
        done = self.turns("", "--plans", "p.json")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("leave out --plans", done.stderr)


class Sources(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def wheel(self, *names):
        path = self.path / "aqlm.whl"
        with zipfile.ZipFile(path, "w") as file:
            for name in names:
                file.writestr(name, "")
        return path

    def test_of_a_wheel_and_of_a_folder(self):
        inner = "aqlm/inference_kernels/"
        path = self.wheel("aqlm/__init__.py", inner + "cuda_kernel.cpp", inner + "cuda_kernel.cu")
        found = aqlm_kernels.source_folder(path, self.path)
        self.assertEqual(found, self.path / "aqlm" / inner)
        self.assertEqual(aqlm_kernels.source_folder(self.path / "aqlm", self.path), found)

    def test_none_is_told(self):
        for path in (self.wheel("aqlm/cuda_kernel.cpp"), self.path / "nowhere"):
            with self.assertRaises(ours.Failed):
                aqlm_kernels.source_folder(path, self.path)

    def test_a_wheel_stays_within_the_folder(self):
        scratch = self.path / "scratch"
        aqlm_kernels.source_folder(self.wheel("../../cuda_kernel.cpp", "../../cuda_kernel.cu"), scratch)
        self.assertFalse((self.path / "cuda_kernel.cpp").exists())


class Rotation(unittest.TestCase):
    def test_copies_are_past_the_cache_and_calls_enough(self):
        for nbytes in (1, 10 ** 4, 10 ** 6, 33_554_432, 10 ** 8, 9 * 10 ** 8, 10 ** 10):
            copies = baselines.copies_of(nbytes)
            self.assertGreaterEqual(copies * nbytes, 180e6)
        for count in (1, 2, 7, 19, 20, 21, 400):
            turns = baselines.turns_on(list(range(count)))
            self.assertEqual(len(turns) % count, 0)
            self.assertGreaterEqual(len(turns), 20)

    def test_layers_of_aqlm_have_codebooks_of_their_own_or_share_them(self):
        class Tensor:
            def clone(self):
                return Tensor()
        books, scales = Tensor(), Tensor()
        for codebooks, own in (("rotated", 3), ("warm", 1)):
            layers = aqlm_kernels.layers_of([1, 2, 3], books, scales, codebooks)
            self.assertEqual([layer[0] for layer in layers], [1, 2, 3])
            self.assertEqual(layers[0][1:], (books, scales))
            self.assertEqual([len({id(layer[i]) for layer in layers}) for i in (1, 2)], [own, own])

    def test_histograms_repeat_by_heads(self):
        profile = {"units": 2, "counts": [1, 2], "parts": {"number": 1, "hot": 1, "counts": [3, 4]}}
        self.assertEqual(ours.repeated(profile, 2), {
            "units": 4, "counts": [1, 2, 1, 2], "parts": {"number": 1, "hot": 1, "counts": [3, 4, 3, 4]}})


if __name__ == "__main__":
    unittest.main()
