"""The charts of a report, drawn by vqgen.plots of this checkout: ratio by context, time by rows, and the roofline."""
import importlib.util
import pathlib

import figures

PLOTS = pathlib.Path(__file__).resolve().parents[2] / "python" / "vqgen" / "plots.py"


def load():
    """vqgen.plots by its file, since a checkout has no extension that the package could import."""
    spec = importlib.util.spec_from_file_location("vqgen_plots", PLOTS)
    plots = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plots)
    return plots


def require():
    """Refused where there is no matplotlib: found before a run, not after."""
    if importlib.util.find_spec("matplotlib") is None:
        raise figures.Refused("--charts needs matplotlib; pip install matplotlib, or leave it out")


def write(folder, merged):
    """The charts that there are figures for, as figures.merged() gives them; their names."""
    plots, names = load(), []
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("context", "rows", "roofline"):
        try:
            picture = plots.KINDS[kind]({"figures": figures.drawn(merged)})
        except plots.Empty:
            continue
        names.append(f"flagship-{kind}.svg")
        plots.save(picture, folder / names[-1])
    return names
