"""Measures: on each problem FP16, the rivals and vqgen take turns, one GPU, one process of PyTorch.

A rival is checked on its first and its last copy before it is timed, and on the first once more after the
last round. One that is wrong, or that its package refuses, is named and has no time.
"""
import json
import pathlib
import tempfile
import time

import aqlm_codes
import baselines
import codegemm_tables
import device
import flashinfer_fp8
import humming_int
import shapes
import table
from checking import Checker, Failed, Wrong
from ours import Turns
from runner import say

RIVALS = {"humming": humming_int, "flashinfer": flashinfer_fp8, "aqlm": aqlm_codes,
          "codegemm": codegemm_tables}
KEPT_SHARE = 0.4  # of the device's memory, for operands that problems of one shape share


def one_line(error):
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


class Timed:
    """A side of a problem that was checked: time() is one turn, in us."""

    def __init__(self, calls, checker, label):
        self.calls, self.checker, self.label = calls, checker, label

    def time(self):
        return self.calls.graph_us()

    def check_again(self):
        self.checker.worst(self.label)


def ready(module, kept, problem, variant, options):
    """A Timed side and what the document says of it. Wrong or Failed where it cannot be timed."""
    prepared = module.prepare(kept, problem, variant, options)
    checker = Checker(prepared)
    errors = {label: checker.worst(label) for label in prepared.choices}  # before any timing
    calls = {label: baselines.Calls(each) for label, each in prepared.choices.items()}
    label = min(calls, key=lambda each: calls[each].graph_us()) if len(calls) > 1 else next(iter(calls))
    told = {"outcome": "timed", "why": "", "bits": prepared.bits, "rel_err": errors[label],
            "tolerance": prepared.tolerance, "copies": prepared.copies, "choice": label}
    return Timed(calls[label], checker, label), told


class Own:
    """vqgen's twins: one process, which checks all of them before its first turn."""

    def __init__(self, tool, chosen, options, scratch):
        self.told, self.number = {}, {}
        paths = []
        for problem in chosen:
            for name, config in shapes.twins(problem):
                self.number[problem["name"], name] = len(paths)
                paths.append(scratch / f"{len(paths):03}.json")
                paths[-1].write_text(json.dumps(config))
        self.turns = Turns(tool, [str(path) for path in paths], "uniform",
                           ["--warm-up", str(baselines.WARM_UP_MS), *options])
        document = self.turns.verified()
        for key, number in self.number.items():
            each = document["configs"][number]["measurement"]
            self.told[key] = {"outcome": each["outcome"], "why": each.get("why", ""),
                              "bits": shapes.bits_of(key[1]), "rel_err": each.get("rel_err"),
                              "tolerance": None, "plan": each["plan"]}

    def sides(self, problem):
        """(name, OwnSide or None where the plan is wrong, what is said) of the problem's twins."""
        for (owner, name), told in self.told.items():
            if owner == problem["name"]:
                is_timed = told["outcome"] == "timed"
                yield f"vqgen {name}", OwnSide(self.turns, self.number[owner, name]) if is_timed else None, told


class OwnSide:
    """One twin, as Timed is one rival."""

    def __init__(self, turns, number):
        self.turns, self.number = turns, number

    def time(self):
        return self.turns.time(self.number, "rotated")["us"]

    def check_again(self):
        """vqgen measured what it had verified."""


class Run:
    def __init__(self, arguments, rivals, missing):
        self.arguments, self.rivals, self.missing = arguments, rivals, missing
        self.begin, self.problems, self.left_out = time.monotonic(), [], []
        self.own = None

    def document(self):
        document = {"rivals": 1, "machine": baselines.machine(), "seed": self.arguments.seed,
                    "versions": {name: RIVALS[name].version() for name in self.rivals},
                    "missing": self.missing, "problems": self.problems, "left_out": self.left_out}
        return {**document, "figures": table.figures(document)}

    def save(self):
        if self.arguments.json:
            self.arguments.json.write_text(json.dumps(self.document(), indent=1) + "\n")

    def sides_of(self, kept, problem):
        """Timed sides by name; what is said of each, those without a time too."""
        timed, told = {}, {}
        for name in self.rivals:
            module = RIVALS[name]
            for variant in module.VARIANTS:
                if not module.takes(problem, variant):
                    continue
                side = f"{name} {variant}"
                try:
                    timed[side], told[side] = ready(module, kept, problem, variant, self.arguments)
                except Wrong as reason:
                    told[side] = {"outcome": "wrong", "why": str(reason)}
                except Failed as reason:
                    told[side] = {"outcome": "failed", "why": str(reason)}
                except Exception as error:  # whatever a package of others raises
                    told[side] = {"outcome": "failed", "why": one_line(error)}
                if told[side]["outcome"] != "timed":
                    say(f"{problem['name']}, {side}: {told[side]['outcome']}: {told[side]['why']}")
        for side, each, said in self.own.sides(problem) if self.own else ():
            told[side] = said
            if each:
                timed[side] = each
        return timed, told

    def measure(self, kept, problem):
        fp16 = baselines.fp16_calls(baselines.Kept(0), problem["config"])
        if not fp16:
            raise Failed(f"{problem['name']}: no backend of PyTorch takes the shape")
        timed, told = self.sides_of(kept, problem)
        turns = [("fp16", name, each.graph_us) for name, each in fp16.items()]
        turns += [("sides", name, each.time) for name, each in timed.items()]
        rounds = []
        for number in range(self.arguments.rounds):
            rounds.append({"fp16": {}, "sides": {}})
            for kind, name, take in reversed(turns) if number % 2 else turns:
                rounds[-1][kind][name] = take()
        for name, each in timed.items():
            try:
                each.check_again()
            except Wrong as reason:
                told[name].update(outcome="wrong", why=f"after the last round: {reason}")
        self.problems.append({**problem, "rounds": rounds, "sides": told})

    def all(self, chosen):
        kept = baselines.Kept(KEPT_SHARE * device.memory_bytes())
        for problem in chosen:
            spent = time.monotonic() - self.begin
            if self.arguments.budget and spent > self.arguments.budget:
                self.left_out.append({"name": problem["name"], "why": "the budget was spent before it"})
                continue
            device.begin_problem(self.arguments.seed)
            self.measure(kept, problem)
            self.save()
            say(f"{problem['name']} done after {time.monotonic() - self.begin:.0f} s")
        self.save()


def run(arguments, chosen, rivals, missing):
    """The document of a run, also written to --json after each problem. Failed where FP16 or vqgen is
    broken; a rival that is wrong is in the document."""
    bench = Run(arguments, rivals, missing)
    with tempfile.TemporaryDirectory() as folder:
        try:
            if arguments.vqgen:
                bench.own = Own(arguments.vqgen, chosen, arguments.measure, pathlib.Path(folder))
            bench.all(chosen)
        finally:
            if bench.own:
                bench.own.turns.close()
    return bench.document()
