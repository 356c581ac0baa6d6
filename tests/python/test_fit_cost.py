"""scripts/fit_cost.py finds the coefficients of a made-up GPU from its made-up times."""
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("scipy", reason="scripts/fit_cost.py needs SciPy")

SOURCE = pathlib.Path(os.environ["VQGEN_SOURCE_DIR"])
TABLE = SOURCE / "bench" / "measurements" / "plans.csv.gz"
PARTS = ["launch", "combine", "cluster", "prologue", "fill", "chain", "memory", "l2", "shared", "lines",
         "lookups", "arithmetic", "tensor"]
# The made-up GPU's coefficients; it has no other kernels.
TOLD = {"linear_mma": {"overlap": 2.0, "launch": 3.0, "fill": 2.0, "memory": 1.7, "shared": 0.6,
                       "arithmetic": 1.4, "tensor": 2.5}}


def plan_times():
    spec = importlib.util.spec_from_file_location("plan_times", SOURCE / "bench" / "plan_times.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made_up_us(ideal, coefficients):
    """The model's formula (docs/internals/cost-model.md), written anew."""
    overlap = coefficients["overlap"]
    terms = {part: coefficients.get(part, 1.0) * ideal.get(part, 0.0) for part in PARTS}
    in_turn = sum(terms[part] for part in PARTS[:6])
    return in_turn + sum(terms[part] ** overlap for part in PARTS[6:]) ** (1 / overlap)


def regret(folder):
    files = sorted(str(path) for path in folder.glob("*.json"))
    done = subprocess.run([os.environ["VQGEN_TOOL"], "dev", "regret", *files, "--json"],
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_made_up_gpu_is_fitted_by_one_command(tmp_path):
    tables = plan_times()
    gpu = json.loads((SOURCE / "profiles" / "gpus" / "a100.json").read_text())["name"]
    h200 = [row for row in tables.read(TABLE) if '"dataflow":"mma"' in row["plan"] and "gem" in row["config"]]
    names = sorted({row["problem"] for row in h200})[:30]
    rows = [{**row, "gpu": gpu} for row in h200 if row["problem"] in names]
    specs = tables.profiles()
    folder = tmp_path / "documents"
    folder.mkdir()
    for name, document in tables.documents(rows, specs).items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    times = {}
    for config in regret(folder)["configs"]:
        for each in config["timed"]:
            key = config["config"], tables.compact(each["plan"])
            times[key] = made_up_us(each["ideal_us"], TOLD[each["dataflow"]])
    rows = [{**row, "us": times[row["problem"], row["plan"]]} for row in rows
            if (row["problem"], row["plan"]) in times]
    assert len(rows) > 100
    tables.write(tmp_path / "plans.csv.gz", rows)
    profile = tmp_path / "made-up.json"
    subprocess.run([sys.executable, SOURCE / "scripts" / "fit_cost.py", tmp_path / "plans.csv.gz",
                    "--gpu", "made-up", "--vqgen", os.environ["VQGEN_TOOL"], "--out", profile],
                   capture_output=True, text=True, check=True)
    found = json.loads(profile.read_text())["dataflows"]
    assert set(found) == set(TOLD)
    # Coefficients of parts that hardly count are drawn to 1, so times are what is compared.
    off = []
    for config in regret(folder)["configs"]:
        for each in config["timed"]:
            key = config["config"], tables.compact(each["plan"])
            fitted = made_up_us(each["ideal_us"], found[each["dataflow"]])
            off.append(abs(math.log(fitted / times[key])))
    off.sort()
    assert off[len(off) // 2] < 0.02 and off[-1] < 0.3, (off[len(off) // 2], off[-1])
