"""Made-up documents of bench/flagship run, for its tests."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "flagship"))

import problems  # noqa: E402

SOURCE, EVERYTHING = problems.read()
BY_NAME = {each["name"]: each for each in EVERYTHING}


def side(us):
    return {"us": us, "eager_us": us + 5}


def a_round(us, fp16_us=None, aqlm_us=None):
    """The slower backend of the two takes 1.5 times as long."""
    fp16 = {} if fp16_us is None else {"cuDNN": side(fp16_us), "flash": side(1.5 * fp16_us)}
    return {"ours": side(us), "fp16": fp16, "aqlm": side(aqlm_us) if aqlm_us else None}


def measured(name, rounds, code_bytes=20_000_000):
    return {**BY_NAME[name], "outcome": "timed", "why": "", "rel_err": 1e-4, "plan": {},
            "plan_from": {}, "code_bytes": code_bytes, "rounds": rounds}


def document(measured_problems, tb_s=4.0, left_out=()):
    return {"flagship": 1,
            "machine": {"device": "a GPU", "torch": "0", "cuda": "0", "cudnn": 0},
            "vqgen": {}, "bandwidth": [{"tb_s": tb_s, "reader": "sum"}], "spent_s": 1.0,
            "aqlm": {"built": False, "why": "none named"}, "problems": list(measured_problems),
            "left_out": list(left_out)}


def whole(ratio=4.0):
    """Return all problems: ours take 10 us, baselines `ratio` times that."""
    return document(measured(each["name"], [a_round(10, 10 * ratio if each["baseline"] else None)])
                    for each in EVERYTHING)
