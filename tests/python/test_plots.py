"""Charts: their points match documents that the real tool wrote, or that are made by hand if they need a GPU;
the
committed charts match their figures; other documents are refused in one line."""

import copy
import json
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

import vqgen.plots as plots

SOURCE = pathlib.Path(os.environ["VQGEN_SOURCE_DIR"])
FLAGSHIP = SOURCE / "docs" / "charts" / "flagship.json"
CHARTS = {"context": "context", "rows": "flagship-rows", "roofline": "flagship-roofline"}
PRODUCT = {"op": "gemv", "weights": "aqlm-1x8",
           "shape": {"m": 1, "out_features": 256, "in_features": 1024}}


def vqgen(folder, *arguments):
    return subprocess.run([os.environ["VQGEN_TOOL"], *map(str, arguments)], cwd=folder, text=True,
                          capture_output=True)


def told(folder, *arguments):
    done = vqgen(folder, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """Return a profile of keys with 2 heads and 128 tokens, the output of vqgen count-accesses --json, and
    its file."""
    folder = tmp_path_factory.mktemp("profile")
    draw = np.random.default_rng(3)
    names = {"l.k": 0, "l.v": 1}
    header = json.dumps({name: {"dtype": "F16", "shape": [2, 128, 64],
                                "data_offsets": [32768 * place, 32768 * (place + 1)]}
                         for name, place in names.items()}).encode()
    data = draw.standard_normal(2 * 2 * 128 * 64).astype(np.float16).tobytes()
    (folder / "t").write_bytes(len(header).to_bytes(8, "little") + header + data)
    done = vqgen(folder, "quantize", "--input", "t", "--out", "b", "--keys", "l.k", "--values", "l.v",
                 "--key-format", '{"vector_size": 4, "index_bits": 5}', "--value-format",
                 '{"vector_size": 8, "index_bits": 4, "scope": "head"}')
    if done.returncode == 3:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    return told(folder, "count-accesses", "--data", "b", "--out", "p.json"), folder / "p.json"


@pytest.fixture(scope="module")
def tuning(tmp_path_factory):
    """Tune a sweep of two problems on a recording; return the path of the output of vqgen tune --json."""
    folder = tmp_path_factory.mktemp("tuning")
    (folder / "c.json").write_text(json.dumps(PRODUCT))
    (folder / "none.json").write_text('[{"plan": "linear_simt/threads=992", "time_us": 1}]')
    common = ["--gpu", "h200", "--max-candidates", 40, "--search", "exhaustive", "--replay"]
    vqgen(folder, "tune", "c.json", "--journal", "asked", *common, "none.json")
    asked = [json.loads(line) for line in (folder / "asked").read_text().splitlines()]
    names = [line["screen"]["plan"] for line in asked if "screen" in line]
    assert len(names) == 40
    times = [{"plan": name, "time_us": 9 - 0.1 * (place % 37)} for place, name in enumerate(names)]
    (folder / "times.json").write_text(json.dumps(times))
    (folder / "sweep.json").write_text(json.dumps({
        "model": {"name": "tiny", "source": "a test"}, "formats": {"weights": ["aqlm-1x8"]},
        "ops": [{"name": "up", "shape": {"m": 1, "out_features": [256, 512], "in_features": 1024}}]}))
    document = told(folder, "tune", "sweep.json", *common, "times.json")
    (folder / "tune.json").write_text(json.dumps(document))
    return folder / "tune.json"


@pytest.fixture(scope="module")
def ablated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ablation")
    (folder / "a.json").write_text(json.dumps(
        {"op": "gemv", "shape": {"m": 1, "out_features": 16, "in_features": 64},
         "weights": {"vector_size": 8, "index_bits": 4}}))
    return told(folder, "dev", "ablate", "a.json", "--backend", "host", "--gpu", "h200", "--budget", 3)


def lines(axes):
    """Return label -> points of what is drawn as lines and markers."""
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def words(axes):
    return axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()


def test_access_counts_is_what_the_profile_counts(profile):
    summary, path = profile
    figure = plots.access_counts(path)
    profiles = json.loads(path.read_text())["profiles"]
    assert len(figure.axes) == 3 * len(profiles) == 6  # with the scales of colours
    for place, each in enumerate(profiles):
        left, right = figure.axes[2 * place:2 * place + 2]
        codebooks = np.reshape(each["counts"], (-1, each["entries"]))
        most_read = codebooks.sum(1).argmax()
        counts = np.sort(codebooks[most_read])[::-1]
        drawn = lines(left)
        curve, *levels = drawn.items()
        assert curve[1] == [[rank, count] for rank, count in enumerate(counts)]
        assert words(left) == (f"l.{each['operand']}, codebook {most_read} of {len(codebooks)}: "
                               f"{counts.sum()} accesses", "entries, the most read first", "accesses")
        assert levels[0][0] == f"mean {counts.mean():.4g}"
        limit = counts.mean() + 3 * counts.std()
        assert levels[1][0] == f"mean + 3 sigma {limit:.4g}, {(counts > limit).sum()} entries above"
        parts = each["parts"]
        shape = (len(codebooks), parts["number"], parts["hot"])
        accesses = np.reshape(parts["accesses"], shape[:2])[most_read]
        cells = np.reshape(parts["counts"], shape)[most_read] * each["entries"] / accesses[:, None]
        assert np.allclose(right.images[0].get_array(), cells)
        assert words(right)[2] == "part of the tokens"
    assert summary["tensors"][0]["accesses"] == sum(profiles[0]["counts"])


def test_landscape_has_every_timed_candidate_and_the_best_so_far(tuning):
    figure = plots.landscape(tuning)
    problems = json.loads(tuning.read_text())["problems"]
    assert len(figure.axes) == 3 * len(problems) == 6
    for place, problem in enumerate(problems):
        left, seconds, candidates = figure.axes[3 * place:3 * place + 3]
        assert words(left) == (problem["label"], "expected by the cost model, us", "measured, us")
        timed = {trial["plan"]: [trial["expected_us"], trial["time_us"]]
                 for trial in problem["trials"] if trial["outcome"] == "timed"}
        assert timed and left.get_xscale() == left.get_yscale() == "log"
        drawn = lines(left)
        for flow in {plan.split("/")[0] for plan in timed}:
            own = [point for plan, point in timed.items() if plan.split("/")[0] == flow]
            assert drawn[flow] == own
        assert drawn["winner"] == [timed[problem["row"]["plan"]]]
        default = timed.get(problem["row"]["default_plan"])
        assert drawn.get("default") == (default and [default])
        best, so_far = [], 1e9
        for number, trial in enumerate(problem["trials"], 1):
            if trial["outcome"] == "timed":
                so_far = min(so_far, trial["time_us"])
                best.append([number, so_far])
        curve, level = candidates.lines
        assert curve.get_xydata().tolist() == [*best, [len(problem["trials"]), so_far]]
        assert [y for _, y in seconds.lines[0].get_xydata()][:-1] == [us for _, us in best]
        assert set(level.get_ydata()) == {problem["row"]["default_us"]}
        assert (seconds.get_xlabel(), candidates.get_xlabel()) == ("seconds", "candidates")


@pytest.mark.parametrize("times", [[(7, 7)], [(7, 7), (7, 7)], [(1e-3, 1e6), (1e6, 1e-3)], [(0.01, 0.02)]])
def test_landscape_of_whatever_times_there_are(times, tmp_path):
    trials = [{"plan": f"flow/{place}", "outcome": "timed", "time_us": us, "expected_us": expected, "at_s": 0}
              for place, (expected, us) in enumerate(times)]
    figure = plots.landscape({"problems": [{"label": "one", "trials": trials, "spent_s": 0, "why": "none"}]})
    assert sorted(lines(figure.axes[0])["flow"]) == sorted([expected, us] for expected, us in times)
    assert len(figure.axes[1].lines) == 1  # without a default
    plots.save(figure, tmp_path / "p.svg")
    assert not re.search(r"\b(nan|inf)\b", (tmp_path / "p.svg").read_text())


def test_landscape_of_failures_and_odd_names(tuning, tmp_path):
    document = json.loads(tuning.read_text())
    first, second = document["problems"]
    for trial in second["trials"]:
        trial["outcome"] = "hung"
    first["label"] = "<b>&\"o\" $x_ \\frac{1}{\n\x01\ud800]]>"
    for trial in first["trials"][1:]:
        trial["expected_us"] = None
    figure = plots.landscape(document, document)
    assert len(figure.axes) == 6  # the one that was timed, twice
    plots.save(figure, tmp_path / "odd.svg")
    texts = texts_of(tmp_path / "odd.svg")
    assert texts.count('<b>&"o" $x_ \\frac{1}{   ]]>') == 2
    with pytest.raises(plots.Empty, match="vqgen tune --json"):
        plots.landscape({"problems": [second]})


def test_ablation_has_the_rows_of_each_config(ablated):
    figure = plots.ablation(ablated, ablated)
    rows = ablated["configs"][0]["rows"]
    assert len(figure.axes) == 2
    for axes in figure.axes:
        assert words(axes) == ("a.json", "us", "")
        assert [label.get_text() for label in axes.get_yticklabels()] == [row["name"] for row in rows]
        us = [row["measurement"]["time_us"] if "measurement" in row else 0 for row in rows]
        assert [bar.get_width() for bar in axes.patches] == us
        assert 0 in us and max(us) > 0
        for text, row in zip(axes.texts, rows):
            wanted = f"{row['measurement']['time_us']:.2f} us" if "measurement" in row else "none"
            assert text.get_text().startswith(wanted)
            if row.get("ratio_to_gc"):
                assert text.get_text().endswith(f", {row['ratio_to_gc']:.2f} of GC")


def test_flagship_draws_each_figure_once_and_the_last_one():
    document = json.loads(FLAGSHIP.read_text())
    later = copy.deepcopy(document)
    later["figures"] = [each for each in later["figures"] if each["name"] == "context/B8-N4096"]
    later["figures"][0]["ratio"] = 9.5
    axes = plots.context(FLAGSHIP, later).axes[0]
    drawn = lines(axes)
    assert words(axes) == ("Attention decode, d4b8, 8 KV heads (2 bit), NVIDIA H200", "tokens of context",
                           "times as fast as FP16")
    points = {(each["config"]["shape"]["batch"], each["config"]["shape"]["tokens"]): each["ratio"]
              for each in document["figures"] if each["part"] == "context"}
    points[8, 4096] = 9.5
    for batch in (1, 8, 32, 128):
        assert drawn[f"batch {batch}"] == [[n, ratio] for (b, n), ratio in sorted(points.items())
                                           if b == batch]
    assert sum(map(len, drawn.values())) == 30 + 2

    axes = plots.rows(document).axes[0]
    figures = [each for each in document["figures"] if each["part"] == "rows"]
    for name, key in (("vqgen", "us"), ("cuBLAS FP16", "fp16_us")):
        assert lines(axes)[name] == [[each["config"]["shape"]["m"], each[key]] for each in figures]
    assert words(axes) == ("GEMM of 28672x8192, 2x8 (2 bit), NVIDIA H200", "rows", "us")

    axes = plots.roofline(document).axes[0]
    drawn = lines(axes)
    assert set(drawn) == {"attention decode", "products", "read bandwidth, 4.39 TB/s"}
    both = drawn["attention decode"] + drawn["products"]
    assert np.allclose(sorted(both), sorted([each["code_bytes"] * 1e-6, each["tb_s"]]
                                            for each in document["figures"]))


def test_flagship_draws_its_own_runs(tmp_path):
    sys.path.insert(0, str(SOURCE / "tests" / "bench"))
    import made_up
    import charts
    import figures
    merged = figures.merged([made_up.whole()])[0]
    assert charts.write(tmp_path, merged) == [f"flagship-{kind}.svg" for kind in CHARTS]
    axes = plots.context({"figures": figures.drawn(merged)}).axes[0]
    assert {y for name, points in lines(axes).items() if "batch" in name for _, y in points} == {4.0}
    assert charts.write(tmp_path, {}) == []
    name = "rows/28672x8192-1"
    one = {name: merged[name]}
    assert charts.write(tmp_path, one) == ["flagship-rows.svg", "flagship-roofline.svg"]
    (tmp_path / "run.json").write_text(json.dumps(made_up.whole()))
    subprocess.run([sys.executable, SOURCE / "bench" / "flagship", "report", "run.json", "--out", "r.md",
                    "--charts", "c"], check=True, cwd=tmp_path)
    assert "![flagship-rows.svg](c/flagship-rows.svg)" in (tmp_path / "r.md").read_text()
    assert (tmp_path / "c" / "flagship-context.svg").is_file()


def points_of(axes):
    return [line.get_xydata().tolist() for line in axes.lines[:-1]]


def names_of(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_accuracy_is_what_is_lost():
    rows = [{"keys": "d2b8", "values": "d2b8", "recent_tokens": 0, "sinks": 0, "bits": 4, "loss": 3.25},
            {"keys": "d4b8", "values": "d8b8", "recent_tokens": 16, "sinks": 0, "bits": 2.25, "loss": 3.5},
            {"keys": "int8", "values": "int8", "recent_tokens": 0, "sinks": 0, "bits": 8, "loss": 3.124}]
    axes = plots.accuracy({"accuracy": {"unquantized": 3.125, "rows": rows}}).axes[0]
    assert points_of(axes) == [[[4, 0.125]], [[2.25, 0.375]], [[8, plots.LEAST_RISE]]]
    assert names_of(axes) == ["d2b8", "d4b8 / d8b8, recent_tokens 16", "int8"]
    assert words(axes) == ("Accuracy; unquantized 3.125", "bits an element",
                           "loss above it, nats a token, 0.0001 at least")


def test_accuracy_names_what_codebooks_were_trained_on_where_that_differs():
    rows = [{"keys": "d2b8", "values": "d2b8", "recent_tokens": 0, "sinks": 0, "bits": 4, "loss": loss,
             "calibration": {"text": "prose", "sequences": count}}
            for loss, count in ((3.25, 1), (3.5, 6), (None, 7))]  # the last was only simulated
    axes = plots.accuracy({"accuracy": {"unquantized": 3.125, "rows": rows}}).axes[0]
    assert points_of(axes) == [[[4, 0.125]], [[4, 0.375]]]
    assert names_of(axes) == ["d2b8, 1 of prose", "d2b8, 6 of prose"]


def test_channels_are_what_was_lost_of_each():
    def row(name, bits, scale):
        return {"keys": name, "values": "v", "bits": bits, "errors": {"evaluated": {
            operand: {"by_channel": [scale * factor * each for each in (1, 2, 8)]}
            for operand, factor in (("keys", 1), ("values", 10))}}}
    rows = [row("k", 2, 0.25), {"keys": "without errors", "bits": 2}, row("p", 2.75, 0.5)]
    figure = plots.channels({"accuracy": {"rows": rows}})
    for axes, operand, factor, names in zip(figure.axes, ("keys", "values"), (1, 10), ("kp", "vv")):
        assert [line.get_ydata().tolist() for line in axes.lines] == [
            [scale * factor * each for each in (1, 2, 8)] for scale in (0.25, 0.5)]
        assert names_of(axes) == [f"{names[0]}, 2 bits", f"{names[1]}, 2.75 bits"]
        assert words(axes) == (f"Reconstruction of {operand}", "channel of a head", "mean squared error")
    with pytest.raises(plots.Empty, match="--errors"):
        plots.channels({"accuracy": {"rows": rows[1:2]}})


def test_study_is_of_each_form_by_size():
    sizes = [{"tokens": tokens, "channels": 500, "cpu_ms": 0.5, "measures": {"l2": 2, "mean_score": 0.25},
              "quantize": {name: {"us": us} for name, us in (("naive", 50), ("vectorized", 20))}}
             for tokens in (4000, 2000)]
    time, times, l2, scores = plots.study({"results": sizes}).axes
    for axes, names, values in ((time, ["naive", "vectorized", "CPU"], (50, 20, 500)),
                                (times, ["naive", "vectorized"], (10, 25)), (l2, ["any form"], (2,))):
        assert names_of(axes) == names
        assert [line.get_xydata().tolist() for line in axes.lines] == [[[1, at], [2, at]] for at in values]
    assert scores.lines[0].get_xydata().tolist() == [[500, 0.25]] * 2 and scores.get_xlabel() == "channels"
    with pytest.raises(ValueError, match="scalar_study.py"):
        plots.study({"results": [sizes[0] | {"cpu_ms": 0}]})


def texts_of(path):
    root = xml.etree.ElementTree.parse(path).getroot()
    return ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("kind", CHARTS)
def test_committed_charts_are_those_of_their_figures(kind, tmp_path):
    for name in ("a.svg", "b.svg"):
        plots.save(plots.KINDS[kind](FLAGSHIP), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    committed = SOURCE / "docs" / "charts" / f"{CHARTS[kind]}.svg"
    assert committed.stat().st_size < 30_000
    assert texts_of(committed) == texts_of(tmp_path / "a.svg")
    # Another matplotlib version may shift them by less than two points of a chart of 540.
    drawn, expected = (np.array(re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', path.read_text()), float)
                       for path in (committed, tmp_path / "a.svg"))
    assert len(drawn) > 20 and np.abs(drawn - expected).max() < 2


def test_the_command_draws_each_suffix(tuning, tmp_path):
    for suffix, start in (("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
        out = tmp_path / f"p.{suffix}"
        subprocess.run([sys.executable, "-m", "vqgen.plots", "landscape", tuning, tuning, "--out", out],
                       check=True)
        assert out.read_bytes().startswith(start)


def refused(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["plots", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        plots.main()
    told = capsys.readouterr()
    assert (end.value.code, told.out) == (2, "")
    return told.err


def test_what_is_no_such_document_is_refused_in_a_line(tuning, tmp_path, capsys, monkeypatch):
    document = json.loads(FLAGSHIP.read_text())
    path, out = tmp_path / "bad.json", tmp_path / "p.svg"

    def expect(kind, content, *parts):
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        error = refused(capsys, monkeypatch, kind, path, "--out", out)
        assert error.startswith("vqgen.plots: ") and error.count("\n") == 1, error
        assert all(part in error for part in parts), error
        assert not out.exists()

    for kind in plots.KINDS:
        for content in (b"", b"{", b"[" * 100_000, b"\xff", 3, None, [1], {"figures": 3},
                        {"problems": [{}]}, {"profiles": [{}]}, {"configs": [{}]}, [{"format": "x"}]):
            expect(kind, content, "bad.json: not JSON as ")
    for value in (float("nan"), float("inf"), 0, -1, "10", None, True, 10 ** 400, [1]):
        for place in ("us", "config"):
            bad = copy.deepcopy(document)
            each = [each for each in bad["figures"] if each["part"] == "rows"][3]
            each.update({"us": value} if place == "us" else {"config": {**each["config"], "shape": {
                **each["config"]["shape"], "m": value}}})
            expect("rows", bad, "bad.json", "bench/flagship run --json")
    profile = {"item": "l", "operand": "keys", "entries": 4, "counts": [1, 2, 3, 4],
               "parts": {"number": 1, "hot": 2, "accesses": [10], "counts": [4, 3]}}
    for wrong in ({"entries": 3}, {"entries": 0}, {"counts": []}, {"counts": ["1"] * 4},
                  {"parts": {**profile["parts"], "number": 2}},
                  {"parts": {**profile["parts"], "counts": [4]}}):
        expect("access_counts", {"profiles": [{**profile, **wrong}]}, "vqgen count-accesses --out")
    expect("rows", {"figures": []}, "nothing to draw")
    error = refused(capsys, monkeypatch, "rows", tmp_path / "none.json", "--out", out)
    assert "none.json" in error and error.count("\n") == 1
    for name, word in (("p.gif", ".svg, .png or .pdf"), ("none/p.svg", "none/p.svg")):
        error = refused(capsys, monkeypatch, "rows", FLAGSHIP, "--out", tmp_path / name)
        assert word in error and error.count("\n") == 1


def test_the_package_imports_no_pictures_and_pictures_no_pytorch():
    for module, absent in (("vqgen", "vqgen.plots matplotlib"), ("vqgen.plots", "matplotlib torch numpy")):
        code = f"import sys, {module}; sys.exit(any(name in sys.modules for name in {absent.split()}))"
        subprocess.run([sys.executable, "-c", code], check=True)
