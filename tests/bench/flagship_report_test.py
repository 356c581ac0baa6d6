#!/usr/bin/env python3
"""The report of the flagship benchmark: figures and verdicts by hand, missing data, and refusals.
Its charts are drawn in tests/python/test_plots.py.  flagship_report_test.py VQGEN"""
import copy
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

from made_up import BY_NAME, EVERYTHING, ROOT, SOURCE, a_round, document, measured, side, whole

import figures
import problems
import report

ROW = "attention/d4b8/B1-N196608"  # 5.0 to reach, stretch 6.0
PRODUCT = "products/2x8/28672x8192-1"
VARIANT = "zipf/" + PRODUCT
TOOL = sys.argv.pop()


def cells_of(text, *first):
    """Return the line of a table that begins with these cells."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    found = [line for line in lines if line[:len(first)] == list(first)]
    assert len(found) == 1, (first, found)
    return found[0]


def text_of(*documents):
    return report.markdown(SOURCE, EVERYTHING, list(documents))


class Figures(unittest.TestCase):
    def test_a_row_by_hand(self):
        one = document([measured(ROW, [a_round(10, 40), a_round(20, 80), a_round(10, 60)])])
        figure = figures.merged([one])[0][ROW]
        # Medians would give 6; the rounds give 4, 4 and 6.
        self.assertEqual(figure["ratio"], 4)
        self.assertEqual((figure["us"], figure["eager_us"]), (10, 15))
        self.assertAlmostEqual(figure["tb_s"], 2.0)
        self.assertAlmostEqual(figure["share"], 0.5)
        self.assertEqual(figure["fp16"], {"name": "cuDNN", "us": 60, "eager_us": 65})
        self.assertAlmostEqual(figure["spread"], 1.0)
        line = cells_of(text_of(one), "d4b8, 8 KV heads (2 bit)", "B1 N196608")
        self.assertEqual(line[2:], ["10.00", "15.00", "2.00", "50 %", "60.00 (cuDNN)", "65.00", "4.00x",
                                    "4x", "5x", "6x", "missed"])

    def test_verdicts_at_the_goal(self):
        for us, verdict in ((10 / 4.99, "missed"), (2, "met"), (10 / 5.99, "met"),
                            (10 / 6.01, "met, stretch too")):
            figure = figures.merged([document([measured(ROW, [a_round(us, 10)])])])[0][ROW]
            self.assertEqual(figures.verdict_of_row(figure), verdict, us)

    def test_the_better_backend_is_taken_over_all_rounds(self):
        rounds = [a_round(10, 40), a_round(10, 40)]
        rounds[1]["fp16"]["flash"] = side(30)
        figure = figures.merged([document([measured(ROW, rounds)])])[0][ROW]
        self.assertEqual((figure["fp16"]["name"], figure["ratio"]), ("cuDNN", 4))
        rounds[0]["fp16"]["flash"] = side(30)
        figure = figures.merged([document([measured(ROW, rounds)])])[0][ROW]
        self.assertEqual((figure["fp16"]["name"], figure["ratio"]), ("flash", 3))

    def test_a_later_file_takes_a_problem_over_with_its_bandwidth(self):
        first = document([measured(ROW, [a_round(10, 40)]), measured(PRODUCT, [a_round(8, 40)])],
                         left_out=[{"name": VARIANT, "why": "late"}])
        second = document([measured(ROW, [a_round(5, 40)]), measured(VARIANT, [a_round(5)])], 8.0)
        merged, left_out = figures.merged([first, second])
        self.assertEqual((merged[ROW]["ratio"], merged[ROW]["share"]), (8, 0.5))
        self.assertEqual(merged[PRODUCT]["ratio"], 5)
        self.assertEqual(left_out, {})
        # The problem that it varies was measured in another run, so there is no figure.
        self.assertIsNone(merged[VARIANT]["over_base"])

    def test_variants(self):
        for us, verdict in ((10.5, "met"), (10.6, "missed")):
            one = document([measured(PRODUCT, [a_round(10, 40)]), measured(VARIANT, [a_round(us)])])
            lines = [line for line in text_of(one).splitlines()
                     if line.startswith(f"| {PRODUCT}") and "1.05x" in line]
            self.assertIn(f"{us / 10:.3f}x | 1.05x | {verdict} |", lines[0])

    def test_cliffs(self):
        def of(*times):
            return figures.cliffs([{"us": us} for us in times], 1.1)
        self.assertEqual(of(1, 2, 3, 3, 4), [])
        self.assertEqual(of(10, 9.2, 11), [])
        self.assertEqual([(a["us"], b["us"]) for a, b in of(10, 12, 9, 11)], [(12, 9)])
        draw = random.Random(1)
        for _ in range(200):
            times = [draw.uniform(1, 1.5) for _ in range(6)]
            worst = any(a > 1.1 * b for i, b in enumerate(times) for a in times[:i])
            self.assertEqual(bool(of(*times)), worst)


class Missing(unittest.TestCase):
    def test_what_is_not_measured_is_named(self):
        text = text_of(document([measured(ROW, [a_round(1, 10)])],
                                left_out=[{"name": PRODUCT, "why": "the budget was spent before it"}]))
        line = cells_of(text, "d8b8 (1 bit)", "B16 N16384")
        self.assertEqual((line[2], line[-1]), ("not measured", "not measured"))
        self.assertIn("1 of 51 rows met, 0 missed, 50 not measured.", text)
        self.assertIn(f"- {PRODUCT}: the budget was spent before it", text)
        self.assertIn("AQLM: not measured: none named.", text)
        for title in (each["title"] for kind in ("tables", "curves", "variants")
                      for each in SOURCE[kind]):
            self.assertIn(title, text)

    def test_aqlm_is_a_figure_or_not_measured(self):
        name = "2x8 (2 bit)"
        without = cells_of(text_of(whole()), name, "28672x8192, 1 row", "10.00", "15.00", "2.00", "50 %",
                           "40.00 (cuDNN)", "45.00", "4.00x", "not measured")
        self.assertEqual(without[10], "not measured")
        one = document([measured(PRODUCT, [a_round(10, 40, 20)])])
        line = cells_of(text_of(one), name, "28672x8192, 1 row", "10.00")
        self.assertEqual(line[9:11], ["20.00", "2.00x"])

    def test_codebooks_warm_stand_beside_those_rotated(self):
        text = text_of(whole())
        self.assertNotIn("codebooks warm", text.split("###", 1)[1])
        self.assertIn("; codebooks warm; ", text)  # of a document that does not say
        one = {**whole(), "codebooks": "rotated"}
        for each in one["problems"]:
            for each_round in each["rounds"]:
                each_round["warm"] = {"ours": {"us": 8.0, "eager_us": 9.0}, "aqlm": None}
        text = text_of(one)
        self.assertIn("; codebooks rotated; ", text)
        self.assertIn("| ratio | us, codebooks warm | ratio, codebooks warm | AQLM us |", text)
        line = cells_of(text, "2x8 (2 bit)", "28672x8192, 1 row", "10.00")
        self.assertEqual(line[8:11], ["4.00x", "8.00", "5.00x"])
        self.assertIn("10.0 us, 4.00x (codebooks warm 8.0 us, 5.00x)", text)
        one["problems"][0]["rounds"][0]["warm"]["ours"]["us"] = 0
        self.refused_text(one)

    def refused_text(self, one):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "run.json")
            path.write_text(json.dumps(one))
            with self.assertRaises(figures.Refused):
                figures.read(path)

    def test_curves(self):
        text = text_of(whole())
        self.assertIn("Never slower than FP16: met; 30 of 30 points measured.", text)
        self.assertIn("Monotone within 10 %: met; 12 of 12 points measured.", text)
        one = whole()
        for each in one["problems"]:
            if each["name"] == "context/B8-N1024":
                each["rounds"] = [a_round(10, 9.9)]
            if each["name"] == "rows/28672x8192-8":
                each["rounds"] = [a_round(11.5, 40)]
        text = text_of(one)
        self.assertIn("Never slower than FP16: missed at B8 N1024 (0.99x); ", text)
        self.assertIn("missed: 12 rows take 10.00 us, 8 take 11.50", text)


class Refused(unittest.TestCase):
    def refused(self, text, *words):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "run.json")
            path.write_text(text)
            with self.assertRaises(figures.Refused) as caught:
                figures.read(path)
            message = str(caught.exception)
            for word in (str(path), *words):
                self.assertIn(word, message)
            self.assertNotIn("\n", message)

    def edited(self, edit):
        one = document([measured(ROW, [a_round(10, 40), a_round(10, 40)])])
        edit(one)
        return json.dumps(one)

    def test_figures_that_are_none(self):
        for value in (float("nan"), float("inf"), 0, -1, "10", None, True, 10 ** 400):
            for where in ("ours", "fp16"):
                def edit(one, value=value, where=where):
                    each = one["problems"][0]["rounds"][1]
                    (each["ours"] if where == "ours" else each["fp16"]["flash"])["us"] = value
                with self.subTest(value=str(value)[:9], where=where):
                    self.refused(self.edited(edit))
        self.refused(self.edited(lambda one: one["bandwidth"][0].update(tb_s=0)), "bandwidth")
        self.refused(self.edited(lambda one: one["problems"][0].update(code_bytes=0)), "code_bytes")

    def test_failed_rows(self):
        for outcome in ("wrong", "compile_failed", "infeasible"):
            self.refused(self.edited(lambda one: one["problems"][0].update(
                outcome=outcome, why="rel_err 1")), ROW, outcome, "rel_err 1")
        self.refused(self.edited(lambda one: one["problems"][0].update(rounds=[])), ROW, "no rounds")
        self.refused(self.edited(lambda one: one["problems"][0]["rounds"][0].update(fp16={})), ROW,
                     "without its baseline")

    def test_no_documents(self):
        whole_text = json.dumps(document([measured(ROW, [a_round(10, 40)])]))
        for text in ("", "[]", "{}", "3", '{"flagship": 2}', whole_text[:-20]):
            self.refused(text)
        for key in ("problems", "bandwidth"):
            self.refused(self.edited(lambda one: one.pop(key)), key)
        for key in ("rounds", "code_bytes", "baseline"):
            self.refused(self.edited(lambda one: one["problems"][0].pop(key)))
        self.refused(self.edited(lambda one: one["problems"][0]["rounds"][0].update(ours=3)))

    def test_the_command(self):
        with tempfile.TemporaryDirectory() as folder:
            path, out = pathlib.Path(folder, "run.json"), pathlib.Path(folder, "out.md")
            command = [sys.executable, "-B", str(ROOT / "bench" / "flagship"), "report", str(path),
                       "--out", str(out)]
            path.write_text(json.dumps(whole()))
            self.assertEqual(subprocess.run(command).returncode, 0)
            self.assertIn("### ", out.read_text())
            path.write_text("{}")
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))


class Problems(unittest.TestCase):
    def test_they_are_what_the_goals_are_about(self):
        self.assertEqual(len(BY_NAME), len(EVERYTHING))
        rows = [each for each in EVERYTHING if each["part"] in ("attention", "products")]
        self.assertEqual(len(rows), 119)
        for each in rows:
            self.assertLess(each["goals"]["to_reach"], each["goals"]["stretch"], each["name"])
        for each in EVERYTHING:
            if "of" in each:
                base = copy.deepcopy(BY_NAME[each["of"]]["config"])
                self.assertEqual({**each["config"], "dtype": "f16"}, base)

    def test_selecting_a_variant_takes_its_base_along(self):
        chosen = problems.selected(EVERYTHING, ["zipf"], re.compile("4096x4096"))
        self.assertEqual([each["name"] for each in chosen],
                         ["products/2x8/4096x4096-1", "zipf/products/2x8/4096x4096-1"])

    def test_vqgen_has_a_plan_for_each_row(self):
        with tempfile.TemporaryDirectory() as folder:
            for each in EVERYTHING:
                if each["part"] not in ("attention", "products", "bf16"):
                    continue
                path = pathlib.Path(folder, "config.json")
                path.write_text(json.dumps(each["config"]))
                done = subprocess.run([TOOL, "explain", str(path), "--gpu", "h200"],
                                      capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, each["name"] + done.stderr)


if __name__ == "__main__":
    unittest.main()
