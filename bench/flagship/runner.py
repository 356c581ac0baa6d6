"""Measures: all sides in turns, round after round, on one GPU.

Our processes verify all of their configs before the first round; baselines are prepared in the first and
kept. A round goes through the shapes; of each it times the FP16 baseline, which problems of one shape
share, then each problem and its AQLM kernel, every other round the other way around.
"""
import json
import pathlib
import sys
import tempfile
import time

import aqlm_kernels
import baselines
import figures
from ours import Failed, Turns, profile_of

KEPT_BYTES = 90e9  # of operands of baselines; all of the problems take less, and rounds find them made


def say(text):
    print(text, file=sys.stderr, flush=True)


class Run:
    def __init__(self, arguments, problems, scratch):
        self.arguments, self.scratch = arguments, scratch
        self.begin = time.monotonic()
        self.left_out = []
        self.problems = [{**each, "rounds": []} for each in problems]
        self.bandwidth, self.processes, self.vqgen = [], [], {}
        self.aqlm, self.aqlm_why = None, ""
        self.codebooks = "warm" if arguments.codebooks == "warm" else "rotated"

    def spent_s(self):
        return time.monotonic() - self.begin

    def leave_out(self, problem, why):
        self.left_out.append({"name": problem["name"], "why": why})

    # Before the rounds.

    def start_ours(self):
        """A process for each distribution of codes, all at work on their data at once."""
        groups = {}
        for number, each in enumerate(self.problems):
            try:
                captured = each["codes"] == "captured"
                codes = profile_of(each, self.arguments.captured) if captured else each["codes"]
            except Failed as reason:
                self.leave_out(each, str(reason))
                continue
            config = self.scratch / f"{number:03}.json"
            config.write_text(json.dumps(each["config"]))
            groups.setdefault(codes, []).append((each, str(config)))
        for codes, members in groups.items():
            turns = Turns(self.arguments.vqgen, [config for _, config in members], codes,
                          ["--warm-up", str(baselines.WARM_UP_MS), *self.arguments.measure])
            self.processes.append((turns, [each for each, _ in members]))
        for turns, members in self.processes:
            document = turns.verified()
            self.vqgen = {key: document[key] for key in ("gpu", "gpu_spec", "backend")}
            for number, (each, told) in enumerate(zip(members, document["configs"])):
                measured = told["measurement"]
                each.update(outcome=measured["outcome"], why=measured.get("why", ""),
                            rel_err=measured.get("rel_err"), plan=measured["plan"],
                            plan_from=told["plan_from"], code_bytes=told["code_bytes"])
                each["turn"] = lambda books, turns=turns, number=number: turns.time(number, books)
        self.problems = [each for each in self.problems if "outcome" in each]

    def build_aqlm(self):
        if not any(each["aqlm"] for each in self.problems):
            return
        try:
            self.aqlm = aqlm_kernels.build(self.arguments.aqlm, self.scratch)
        except Failed as reason:
            self.aqlm_why = str(reason)
            say(f"aqlm: {reason}")

    # A round.

    def time_aqlm(self, kept, each, codebooks):
        if self.aqlm is None or not each["aqlm"] or "aqlm_why" in each:
            return None
        key = ("aqlm", each["aqlm"], codebooks, baselines.shape_key(each["config"]))
        try:
            calls, each["aqlm_rel_err"] = kept.get(
                key, baselines.ROTATED_BYTES,
                lambda: aqlm_kernels.checked_calls(self.aqlm, each["aqlm"], each["config"], codebooks))
        except Failed as reason:
            each["aqlm_why"] = str(reason)
            say(f"aqlm: {reason}")
            return None
        return calls.time()

    def time_own(self, kept, each, codebooks):
        return {"ours": each["turn"](codebooks), "aqlm": self.time_aqlm(kept, each, codebooks)}

    def time_shape(self, kept, members, turned):
        """One turn of all problems of a shape."""
        def fp16():
            if not any(each["baseline"] for each in members):
                return {}
            calls = baselines.fp16_calls(kept, members[0]["config"])
            if not calls:
                raise Failed(f"{members[0]['name']}: no backend of SDPA takes the shape")
            return {name: each.time() for name, each in calls.items()}

        shared = {} if turned else {"fp16": fp16()}
        for each in members:
            each["rounds"].append(self.time_own(kept, each, self.codebooks))
            if self.arguments.codebooks == "both":
                each["rounds"][-1]["warm"] = self.time_own(kept, each, "warm")
        if turned:
            shared["fp16"] = fp16()
        for each in members:
            each["rounds"][-1].update(shared)

    def rounds(self, save):
        shapes = {}
        for each in self.problems:
            if each["outcome"] == "timed":
                shapes.setdefault(baselines.shape_key(each["config"]), []).append(each)
        kept, readers = baselines.Kept(KEPT_BYTES), baselines.Readers()
        for number in range(self.arguments.rounds):
            self.bandwidth.append(readers.time())
            for members in shapes.values():
                if self.arguments.budget and self.spent_s() > self.arguments.budget:
                    say(f"the budget was spent in round {number + 1}")
                    return
                self.time_shape(kept, members, number % 2 == 1)
            save()
            say(f"round {number + 1} of {self.arguments.rounds} done after {self.spent_s():.0f} s")

    def document(self):
        problems = [{key: value for key, value in each.items() if key != "turn"}
                    for each in self.problems if each["outcome"] != "timed" or each["rounds"]]
        unreached = [{"name": each["name"], "why": "the budget was spent before it"}
                     for each in self.problems if each["outcome"] == "timed" and not each["rounds"]]
        document = {"flagship": 1, "machine": baselines.machine(), "vqgen": self.vqgen,
                    "codebooks": self.codebooks, "bandwidth": self.bandwidth, "spent_s": self.spent_s(),
                    "aqlm": {"built": self.aqlm is not None, "why": self.aqlm_why},
                    "problems": problems, "left_out": self.left_out + unreached}
        timed = {**document, "problems": [each for each in problems if each["outcome"] == "timed"]}
        try:
            drawn = figures.drawn(figures.merged([timed])[0])
        except figures.Refused as reason:  # which the report says again; what was measured is kept
            say(f"no figures to draw: {reason}")
            drawn = []
        return {**document, "figures": drawn}


def run(arguments, problems):
    """The document of a run, also written to --json after each round. Failed where a side is broken; a plan
    that is wrong is in the document."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Run(arguments, problems, pathlib.Path(folder))

        def save():
            if arguments.json:
                pathlib.Path(arguments.json).write_text(json.dumps(bench.document(), indent=1) + "\n")

        try:
            bench.start_ours()
            say(f"{len(bench.problems)} problems verified after {bench.spent_s():.0f} s")
            bench.build_aqlm()
            bench.rounds(save)
        finally:
            for turns, _ in bench.processes:
                turns.close()
        save()
        return bench.document()
