"""Tables of formats for scripts/make_docs.py: bits, speed and loss."""

import markdown
from markdown import table
from measured import KV_FORMATS, faster, found, named, one, origin, pair, rows_of, without_arguments


def fields(tools, preset):
    """The fields of "PRESET" or "PRESET, FIELD NUMBER"."""
    name, *others = preset.split(", ")
    merged = dict(tools.json(f"profiles/formats/{name}.json"))
    for other in others:
        key, value = other.split()
        merged[key] = int(value)
    return merged


def bits(form, head_dim=128):
    """Stored bits per element: codes, and the 32-bit words of scales that grow with the tokens."""
    if "parts" in form:
        return sum(bits(part) * len(part["channels"]) for part in form["parts"]) / head_dim
    stages = form.get("num_codebooks", 1)
    total = form["index_bits"] * stages / form["vector_size"]
    if form.get("token_scales"):
        total += 32 / form.get("group_channels", head_dim)
    if form.get("group_tokens"):
        total += 32 / form["group_tokens"]
    return total


def loss_rise(losses, keys, values, recent):
    """The rise of the last measurement."""
    base = float(one(losses, "loss", keys="", values="")["kernels_nats_per_byte"])
    fitting = [row for row in losses if (row["keys"], row["values"], row["recent_tokens"], row["sinks"]) ==
             (keys, values, str(recent), "0") and row["recipe"] in ("presets", "scalars", "operands", "klt")]
    if not fitting:
        return "-"
    return f"+{max(float(fitting[-1]['kernels_nats_per_byte']) - base, 0):.4f}"


def kv_formats(tools):
    """Bits, speed and loss of KV-cache formats, without and with a full-precision window of 128."""
    windows, losses, warm = rows_of(tools, "windows"), rows_of(tools, "loss"), rows_of(tools, "warm-up")
    lines, used = [], []
    for keys, values in KV_FORMATS:
        key_bits, value_bits = bits(fields(tools, keys)), bits(fields(tools, values))
        line = [pair(keys, values), f"{(key_bits + value_bits) / 2:g}"]
        shape = {"batch": 16, "tokens": 16384, "keys": keys, "values": values, "sinks": 0}
        recent = 128
        plain = found(windows, **shape, recent_tokens=0, query_tokens=1)
        kept = found(windows, **shape, recent_tokens=128, query_tokens=1)
        draft = found(windows, **shape, recent_tokens=0, query_tokens=4)
        if not kept:  # scales of token groups need a window of their own
            kept = one(warm, "warm-up", keys=keys, values=values, batch=16, warm_up_ms=10)
            recent = int(kept["recent_tokens"])
        mark = "" if recent == 128 else f" ({recent})"
        line += [f"{float(plain['us']):.1f}" if plain else "-", loss_rise(losses, keys, values, 0),
                 f"{float(kept['us']):.1f}{mark}", loss_rise(losses, keys, values, recent) + mark,
                 f"{float(draft['us']):.1f}" if draft else "-"]
        lines.append(line)
        used += [row for row in (plain, kept, draft) if row]
    base = one(losses, "loss", keys="", values="")["kernels_nats_per_byte"]
    fp16 = one(rows_of(tools, "attention-fp16"), "attention-fp16", keys="vecinfer-d4b8i8", values="vecinfer-d4b8i8",
               batch=16, tokens=16384, query_heads=32, head_dim=128)["fp16_us"]
    head = ["keys, values (one name: both)", "bits per element", "us, no window", "loss, no window", "us, window 128",
            "loss, window 128", "us, no window, 4 query tokens"]
    note = ("\n\nTimes: one H200, batch 16 x 16,384 tokens, 32 query and 8 KV heads, `head_dim` 128; FP16 (cuDNN) takes "
            f"{fp16} us in a run of its own. Losses: nats per byte above the {base} of the unquantized sample model; those of "
            "KLT formats and of `vecinfer-d4b8i8` are with the gain of keys, the others without it. A number in parentheses "
            "is the window of a format that needs another one. `-`: not measured.")
    used = [row for row in used if "warm_up_ms" not in row]
    return table(head, lines) + note + origin("windows", used, "warm-up", "loss")


def weight_formats(tools):
    """Bits, weight error and speed of weight formats."""
    speeds, errors = rows_of(tools, "gemm-fp16"), rows_of(tools, "weight-errors")
    lines, used = [], []
    for name in ("aqlm-2x8i8", "aqlm-2x8", "aqlm-1x8", "aqlm-1x16i8", "aqlm-1x16", "quip-2", "quip-4"):
        line = [f"`{name}`", f"{bits(fields(tools, name)):g}"]
        error = found(errors, format=name)
        line.append(error["relative_error"] if error else "-")
        for m in (1, 8, 64):
            row = found(speeds, weights=name, layout="1x1", out_features=28672, in_features=8192, m=m)
            line.append(faster(row) if row else "-")
            used += [row] if row else []
        lines.append(line)
    return table(["weights", "bits per weight", "relative weight error", "M = 1", "M = 8", "M = 64"], lines) + (
        "\n\nSpeed: FP16 time / vqgen time, 28672x8192, one H200. Error: one projection of the sample model. "
        "`-`: not measured.") + origin("gemm-fp16", used, "weight-errors")


def klt_losses(rows, base):
    """Keys and values of one kind a line: rise of the loss, divergence and pass keys, without and with a window."""
    lines = {}
    for row in rows:
        name = row["keys"].removesuffix("-keys")
        shown = f"`{name}`" if name.startswith("klt") and " " not in name else name
        line = lines.setdefault(name, [shown])
        line += [f"+{float(row['kernels_nats_per_byte']) - base:.4f}", row["divergence"],
                 f"{100 * float(row['another_token']):.1f} %", f"{100 * float(row['pass_keys']):.0f} %"]
    parts = ("rise", "divergence", "another byte", "pass keys")
    return table(["keys and values", *(f"{part}, {window}" for window in ("no window", "window 128") for part in parts)],
                 list(lines.values()))


def loss(args, tools):
    """One recipe of `python3 -m vqgen.eval`: loss RECIPE."""
    recipe = markdown.one(args, "the name of a recipe")
    columns = {"presets": ("keys", "values", "recent_tokens"), "scalars": ("keys", "values", "recent_tokens"),
               "transforms": ("key_transforms",), "codebooks": ("keys",), "operands": ("keys", "values"),
               "recent": ("recent_tokens", "sinks"), "calibration": ("calibration",), "klt": ()}
    if recipe not in columns:
        raise ValueError(f"'{recipe}' is no recipe; take one of {', '.join(columns)}")
    everything = rows_of(tools, "loss")
    base = float(one(everything, "loss", keys="", values="")["kernels_nats_per_byte"])
    rows = [row for row in everything if row["recipe"] == recipe and row["keys"]]
    if recipe == "klt":
        keys = 100 * float(one(everything, "loss", keys="", values="")["pass_keys"])
        return klt_losses(rows, base) + f"\n\nThe unquantized model repeats {keys:.0f} % of the pass keys." + origin("loss", rows)
    has_bits = recipe in ("presets", "scalars", "operands")
    lines = []
    for row in rows:
        line = [named(row[key]) if key in ("keys", "values") and row[key] else row[key] for key in columns[recipe]]
        if has_bits:
            mean = (bits(fields(tools, row["keys"])) + bits(fields(tools, row["values"]))) / 2
            line.append(f"{mean:g}")
        kernels = float(row["kernels_nats_per_byte"])
        lines.append([*line, f"{kernels:.4f}", row["simulated_nats_per_byte"], f"+{max(kernels - base, 0):.4f}"])
    words = {"recent_tokens": "window", "key_transforms": "transforms of the keys", "calibration": "codebooks trained on"}
    head = [words.get(key, key) for key in columns[recipe]]
    head += (["bits per element"] if has_bits else []) + ["loss, kernels", "loss, simulated", "rise"]
    return table(head, lines) + origin("loss", rows)


def weight_losses(tools):
    """Loss of the sample model with quantized linear layers."""
    rows = rows_of(tools, "weight-losses")
    base = float(one(rows, "weight-losses", weights="")["simulated_nats_per_byte"])
    rows = [row for row in rows if row["weights"]]
    lines = [[f"`{row['weights']}`", row["how"], row["bits"], row["relative_error"], row["simulated_nats_per_byte"],
              f"+{float(row['simulated_nats_per_byte']) - base:.4f}"] for row in rows]
    return table(["weights", "made by", "bits per weight", "relative weight error", "loss, simulated", "rise"], lines) + origin(
        "weight-losses", rows)


def loss_summary(tools):
    """README's table of what 2 bits cost."""
    losses = rows_of(tools, "loss")
    def loss_of(keys, values, recent):
        return one(losses, "loss", keys=keys, values=values, recent_tokens=recent)["kernels_nats_per_byte"]

    lines = [["FP16", loss_of("", "", 0), "-"]]
    for keys, values in (("vecinfer-d4b8i8",) * 2, ("klt-2bit-keys", "klt-2bit-values")):
        lines.append([f"2 bits, {pair(keys, values)}", loss_of(keys, values, 0), loss_of(keys, values, 128)])
    return table(["cache of the sample model", "loss, nats per byte", "newest 128 tokens in full precision"], lines)


def quickstart_errors(tools):
    """What scripts/quickstart.sh prints."""
    rows = rows_of(tools, "quickstart")
    lines = [[f"`{row['format']}`", row["op"], f"{bits(fields(tools, row['format'])):g}", row["rel_err"],
              row["loss_calibration"] or "-", row["loss_heldout"]] for row in rows]
    return table(["format", "op", "bits per element", "error of the kernel", "loss, calibration text", "loss, held-out text"],
                 lines) + origin("quickstart", rows)


GENERATORS = {"loss": loss, **without_arguments({
    "kv-formats": kv_formats,
    "weight-formats": weight_formats,
    "weight-losses": weight_losses,
    "loss-summary": loss_summary,
    "quickstart-errors": quickstart_errors,
})}
