#!/usr/bin/env python3
"""Interrupts vqgen again and again, and looks at what is left.

  tests/cli/signal_storm.py VQGEN --count 500          500 SIGINTs and 500 SIGTERMs

Half of each come within 150 ms after a compilation has begun, of a kernel that no cache has. The
others come at any moment of compile, run, quantize and tune. Each command has a temporary folder, a
cache and an output folder of its own. It must end by the signal within --within seconds, unless it
had ended well before; no process that it started, no temporary file and no lock may be left, and
outputs and caches are whole or absent. Exit 1, and a line each, where something is left.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "tests/data"
GEMV = {"op": "gemv", "shape": {"m": 1, "out_features": 256, "in_features": 256},
        "weights": "gptvq-2"}
ATTENTION = ROOT / "examples/configs/tinycode-layer.json"
EARLY_SECONDS = 0.15
MARK = "VQGEN_SIGNAL_STORM"  # in the environment of all that a command starts


def commands(folder):
    """Name -> arguments."""
    config, out = str(folder / "gemv.json"), folder / "out"
    kinds = {
        "compile": ["compile", config, "--gpu", "h200", "--out", str(out / "kernel")],
        "run": ["run", config, "--backend", "host"],
        "tune": ["tune", config, "--backend", "host", "--budget", "2s", "--out",
                 str(out / "table.jsonl")],
        "quantize": [
            "quantize", "--input", str(DATA / "tinycode-kv-heldout.safetensors"), "--calibration",
            str(DATA / "tinycode-kv-calibration.safetensors"), "--out", str(out / "bundle"),
            "--keys", "layer2.k", "--key-format", "vecinfer-d4b8", "--values", "layer2.v",
            "--value-format", "vecinfer-d4b8", "--queries", "layer2.q"],
    }
    return kinds


class Trial:
    """One command in its own folder."""

    def __init__(self, tool, folder, name):
        self.tool, self.folder, self.mark = tool, folder, f"{os.getpid()}-{folder.name}"
        for part in ("tmp", "cache", "out", "home"):
            (folder / part).mkdir(parents=True)
        (folder / "gemv.json").write_text(json.dumps(GEMV))
        self.environment = {
            **os.environ, "TMPDIR": str(folder / "tmp"), "VQGEN_CACHE_DIR": str(folder / "cache"),
            "HOME": str(folder / "home"), "VQGEN_TUNED_PATH": str(folder / "home"),
            MARK: self.mark}
        arguments = (["compile", str(ATTENTION), "--gpu", "h200"] if name == "early"
                     else commands(folder)[name])
        self.process = subprocess.Popen([tool, *arguments], env=self.environment,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=open(folder / "err", "w"))

    def begun(self):
        """Wait until the key is locked, which is when the compilation begins."""
        while self.process.poll() is None and not any(self.folder.glob("cache/locks/*")):
            time.sleep(0.0005)

    def interrupt(self, number, within):
        """Return the seconds until the end; None if it had ended before. Raises a fault."""
        if self.process.poll() is not None:
            return self.ended_well()
        start = time.monotonic()
        self.process.send_signal(number)
        try:
            code = self.process.wait(within)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not end within {within} s") from None
        if code == 0:
            return None
        if code != -number:
            raise AssertionError(f"ended with {code}: {(self.folder / 'err').read_text()!r}")
        return time.monotonic() - start

    def ended_well(self):
        if self.process.returncode != 0:
            raise AssertionError(f"ended with {self.process.returncode} before the signal: "
                                 f"{(self.folder / 'err').read_text()!r}")

    def descendants(self):
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self.mark}\0".encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                pass  # it has ended, or is another user's
        return found

    def check(self):
        until = time.monotonic() + 1
        while (left := self.descendants()) and time.monotonic() < until:
            time.sleep(0.01)
        faults = [f"still runs: {each}" for each in left]
        faults += [f"temporary: {each.name}" for each in (self.folder / "tmp").iterdir()]
        cached = [each for each in self.folder.glob("cache/**/*") if each.is_file()]
        faults += [f"in the cache: {each.name}" for each in cached if each.suffix != ".vqk"]
        if cached:
            verified = subprocess.run([self.tool, "cache", "verify"], env=self.environment,
                                      capture_output=True, text=True, check=False)
            if verified.returncode != 0:
                faults.append(f"cache verify: {verified.stdout}{verified.stderr}")
        faults += self.torn_outputs()
        if faults:
            raise AssertionError("; ".join(faults))

    def torn_outputs(self):
        kernels = sorted(each.suffix for each in self.folder.glob("out/kernel/*"))
        if kernels not in ([], [".cu", ".cubin", ".json"]):
            yield f"a part of three outputs: {kernels}"
        for path in self.folder.glob("out/**/*"):
            if not path.is_file() or path.suffix in (".cu", ".cubin"):
                continue
            try:
                if path.suffix in (".jsonl", ".journal"):
                    text = path.read_text()
                    if not text.endswith("\n"):
                        raise ValueError("is empty or breaks off")
                    for line in text.splitlines():
                        json.loads(line)
                elif path.suffix == ".json":
                    json.loads(path.read_text())
                elif path.name == "bundle":
                    check_safetensors(path.read_bytes())
                else:
                    raise ValueError("is nobody's output")
            except ValueError as error:
                yield f"torn: {path.name}: {error}"


def check_safetensors(data):
    length, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    if 8 + length + max(ends) != len(data):
        raise ValueError("lacks bytes")


def has_nvrtc(tool):
    doctor = subprocess.run([tool, "doctor", "--json"], capture_output=True, text=True, check=False)
    return any(each["what"] == "NVRTC" and each["ok"]
               for each in json.loads(doctor.stdout)["findings"])


def undisturbed_seconds(tool, work, kinds):
    """Return how long each command takes undisturbed, up to ten seconds."""
    seconds = {}
    for name in kinds:
        trial = Trial(tool, work / f"alone-{name}", name)
        start = time.monotonic()
        try:
            trial.process.wait(10)
            trial.ended_well()
        except subprocess.TimeoutExpired:
            trial.process.terminate()
            trial.process.wait()
        seconds[name] = time.monotonic() - start
        trial.check()
    return seconds


def one(tool, folder, name, number, delay, within):
    trial = Trial(tool, folder, name)
    if name == "early":
        trial.begun()
    try:
        trial.process.wait(delay)
    except subprocess.TimeoutExpired:
        pass
    try:
        took = trial.interrupt(number, within)
        trial.check()
    finally:
        trial.process.kill()
        trial.process.wait()
    shutil.rmtree(folder)
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("tool")
    parser.add_argument("--count", type=int, default=500, help="of each of the two signals")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--within", type=float, default=2, help="seconds to end in")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore the first
        signal.signal(number, signal.SIG_DFL)
    draw = random.Random(options.seed)
    work = pathlib.Path(tempfile.mkdtemp(prefix="vqgen-storm-"))
    kinds = list(commands(work))
    nvrtc = has_nvrtc(options.tool)
    if not nvrtc:
        print("no NVRTC here: compile is left out")
        kinds.remove("compile")
    seconds = undisturbed_seconds(options.tool, work, kinds)
    trials = []
    for number in (signal.SIGINT, signal.SIGTERM):
        for i in range(options.count):
            early = i % 2 == 0 and nvrtc
            name = "early" if early else draw.choice(kinds)
            delay = draw.uniform(0, EARLY_SECONDS if early else seconds[name])
            trials.append((name, number, delay))
    draw.shuffle(trials)

    faults, ended, before = [], collections.defaultdict(list), collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = {pool.submit(one, options.tool, work / f"{i}", *trial, options.within): (i, trial)
                for i, trial in enumerate(trials)}
        for run in concurrent.futures.as_completed(runs):
            i, (name, number, delay) = runs[run]
            what = f"{name} {number.name}"
            if run.exception() is not None:
                faults.append(f"{what} after {delay * 1000:.0f} ms, in {work / str(i)}: "
                              f"{run.exception()}")
            elif run.result() is None:
                before[what] += 1
            else:
                ended[what].append(run.result())
    for fault in faults:
        print(fault)
    for what in sorted(set(ended) | set(before)):
        took = [f"{seconds * 1000:.0f} ms" for seconds in sorted(ended[what])]
        times = f", in {took[len(took) // 2]} (median) to {took[-1]}" if took else ""
        print(f"{what}: {len(took)} ended by it{times}; {before[what]} had ended before")
    print(f"signal_storm: {len(trials)} signals, {len(faults)} faults")
    if not faults:
        shutil.rmtree(work)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
