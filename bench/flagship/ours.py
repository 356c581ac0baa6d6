"""Our side: processes of `vqgen measure --interactive`, which verify their configs once and then time one of
them whenever it is its turn; and the histograms of codes that stand in tests/data."""
import contextlib
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
KV_HEADS = 8  # of the problems; the sample has 2
FORMATS_OF_CACHES = ("vecinfer-d4b8", "vecinfer-d2b8")
FORMATS_OF_WEIGHTS = ("aqlm-2x8",)


class Failed(Exception):
    """What is there did not do its work; one line."""


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no output"


class Turns:
    """One process, with configs of one distribution of codes. They stay on the device until close()."""

    def __init__(self, tool, configs, codes, options):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [tool, "measure", "--interactive", "--code-distribution", codes, *options, *configs], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)

    def _answer(self):
        line = self.process.stdout.readline()
        if not line.endswith("\n"):
            self.process.wait()
            self.errors.seek(0)
            raise Failed(f"vqgen measure --interactive ends {self.process.returncode}: "
                         f"{last_line(self.errors.read())}")
        return json.loads(line)

    def verified(self):
        """What it says of its device and its configs, once all are verified."""
        return self._answer()

    def time(self, number, codebooks):
        """Times of a config with its codebooks "rotated" or "warm"."""
        try:
            self.process.stdin.write(f"{number} {codebooks}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; its message is the answer
        answer = self._answer()
        return {"us": answer["time_us"], "eager_us": answer["eager_us"]}

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:  # still at its verification
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()


def checked(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{command[1]} ends {done.returncode}: {last_line(done.stderr or done.stdout)}")


def repeated(profile, times):
    """The profile of a cache with so many times the heads: those of the sample, over and over."""
    parts = {key: value * times if isinstance(value, list) else value
             for key, value in profile["parts"].items()}
    return {**profile, "units": profile["units"] * times, "counts": profile["counts"] * times,
            "parts": parts}


def write_profiles(tool, folder):
    """FORMAT.json a format: how often the sample data's codes name each entry. Needs no GPU, and a tool
    with training."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in FORMATS_OF_CACHES + FORMATS_OF_WEIGHTS:
            bundle, profile = pathlib.Path(scratch, name), folder / f"{name}.json"
            if name in FORMATS_OF_CACHES:
                source = ["--input", DATA / "tinycode-kv-heldout.safetensors", "--calibration",
                          DATA / "tinycode-kv-calibration.safetensors", "--keys", "layer2.k",
                          "--key-format", name, "--values", "layer2.v", "--value-format", name,
                          "--queries", "layer2.q"]
            else:
                source = ["--input", DATA / "tinycode-weight.safetensors", "--weights",
                          "blocks.2.down.weight", "--format", name]
            checked([tool, "quantize", *source, "--out", bundle])
            checked([tool, "count-accesses", "--data", bundle, "--out", profile])
            if name in FORMATS_OF_CACHES:
                document = json.loads(profile.read_text())
                document["profiles"] = [repeated(each, KV_HEADS // each["units"])
                                        for each in document["profiles"]]
                profile.write_text(json.dumps(document) + "\n")


def profile_of(problem, folder):
    """The file for codes "captured", or Failed."""
    name = problem["config"].get("keys") or problem["config"].get("weights")
    path = None if folder is None else folder / f"{name}.json"
    if path is None or not path.is_file():
        raise Failed(f"no captured histogram of {name}: see --captured")
    return str(path)
