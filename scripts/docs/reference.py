"""Blocks of the reference pages, made from declarations: the config's schema, the tool's lists and
its manual page. No op, field or option of these is known here.
"""

import json
import re

from markdown import code, grouped, headed, none, one, table

SCHEMA = "docs/config.schema.json"


# ---- the schema of config.json ----


def values_of(field: dict) -> str:
    """What a field of the schema may be."""
    if "$ref" in field:
        return "object: " + field["$ref"].rpartition("/")[2]
    if "const" in field:
        return code(field["const"])
    if "enum" in field:
        return ", ".join(code(each) for each in field["enum"])
    for choice in ("oneOf", "anyOf"):
        if choice in field:
            each = dict.fromkeys(values_of(each) for each in field[choice])
            return " or ".join(each)
    kind = field.get("type", "")
    if kind == "array":
        return "list of " + values_of(field["items"]).removeprefix("object: ")
    if kind == "boolean":
        return "`true`, `false`"
    if "minimum" in field or "maximum" in field:
        return f"{field.get('minimum', '')}..{field.get('maximum', '')}"
    return {"string": "text", "integer": "whole number"}.get(kind, kind)


def default_of(name: str, owner: dict) -> str:
    if name in owner.get("required", []):
        return "required"
    default = owner["properties"][name].get("default", {})
    return "" if isinstance(default, (dict, list)) else code(json.dumps(default))


def joined(cells, between: str = "; ") -> str:
    """What objects of the schema say of a field they share, each thing once."""
    return between.join(filter(None, dict.fromkeys(cells)))


def fields_table(*owners: dict, left_out=()) -> str:
    """All fields of objects of the schema with the same fields: the required ones first, in their order."""
    first = owners[0]
    required = [name for name in first.get("required", []) if name in first["properties"]]
    names = required + [name for name in first["properties"] if name not in required]
    return table(["field", "values", "default", "meaning"],
                 [[code(name), joined(values_of(owner["properties"][name]) for owner in owners),
                   joined(default_of(name, owner) for owner in owners),
                   joined(owner["properties"][name].get("description", "") for owner in owners)]
                  for name in names if name not in left_out])


def ops_of(schema: dict) -> dict:
    """{op: its schema}."""
    return {each["properties"]["op"]["const"]: each for each in schema["oneOf"]}


def config_top(args, tools) -> str:
    """The fields of a config, with the ops that have them."""
    none(args)
    ops = ops_of(tools.json(SCHEMA))
    fields = {}
    for op, each in ops.items():
        for name, field in each["properties"].items():
            fields.setdefault(name, []).append((op, field, default_of(name, each)))
    rows = []
    for name, found in fields.items():
        owners = "all" if len(found) == len(ops) else ", ".join(code(op) for op, _, _ in found)
        between = ", " if all("const" in field for _, field, _ in found) else "; "
        rows.append([code(name), owners, joined((values_of(field) for _, field, _ in found), between),
                     joined((default for _, _, default in found), " or "),
                     joined(field.get("description", "") for _, field, _ in found)])
    rows.sort(key=lambda row: (row[3] != "required", row[1] != "all"))
    return table(["field", "ops", "values", "default", "meaning"], rows)


def config_shapes(args, tools) -> str:
    """The fields of `shape`, op by op; ops with the same fields share a table."""
    none(args)
    shapes = {}
    for op, each in ops_of(tools.json(SCHEMA)).items():
        shape = each["properties"]["shape"]
        shapes.setdefault(tuple(shape["properties"]), {})[op] = shape
    return "\n\n".join(headed(3, list(ops), fields_table(*ops.values())) for ops in shapes.values())


def config_definition(args, tools) -> str:
    """The fields of an object that several fields share: NAME of $defs."""
    name = one(args, "the name of a definition of the schema")
    definitions = tools.json(SCHEMA)["$defs"]
    if name not in definitions:
        raise ValueError(f"the schema has no definition '{name}'; it has {', '.join(definitions)}")
    return fields_table(definitions[name])


def plan_fields(args, tools) -> str:
    """The fields of each dataflow's plan, op by op; or of OP-DATAFLOW alone."""
    if args:
        return dataflow_fields(args, tools)
    texts = {}
    for op, each in ops_of(tools.json(SCHEMA)).items():
        plan = each["properties"]["plan"]
        texts[op] = "\n\n".join(
            headed(3, [flow["properties"]["dataflow"]["const"]], fields_table(flow, left_out=["dataflow"]))
            for flow in plan.get("anyOf", [plan]))
    return "\n\n".join(headed(2, names, text) for names, text in grouped(texts))


def dataflow_fields(args, tools) -> str:
    """The fields of one plan: OP-DATAFLOW, as "gemm-mma". OP is a word of the op's name; it only has to be
    one if the fields of ops with this dataflow differ."""
    op, _, dataflow = one(args, "OP-DATAFLOW").partition("-")
    found = {}
    for name, each in ops_of(tools.json(SCHEMA)).items():
        plan = each["properties"]["plan"]
        for flow in plan.get("anyOf", [plan]):
            if flow["properties"]["dataflow"]["const"] == dataflow:
                found[name] = fields_table(flow, left_out=["dataflow"])
    named = [text for name, text in found.items() if op in name.split("_")]
    if not named and len(set(found.values())) != 1:
        raise ValueError(f"no op '{op}' has a dataflow '{dataflow}'; ops with it: {', '.join(found) or 'none'}")
    return (named or list(found.values()))[0]


# ---- what the tool lists ----


SIZES = ["vector_size", "index_bits"]  # what a preset's row says in columns of their own


def cell(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def without_defaults(fields: dict, defaults: dict) -> dict:
    """The fields of a format that differ from the schema's defaults."""
    return {name: value for name, value in fields.items() if name not in defaults or value != defaults[name]}


def presets(args, tools) -> str:
    """The shipped formats. With USE...: those alone that are meant for one of these."""
    declared = tools.json(SCHEMA)["$defs"]["format"]["properties"]
    defaults = {name: field["default"] for name, field in declared.items() if "default" in field}
    rows = []
    for each in tools.vqgen_json("list", "formats")["formats"]:
        if args and each.get("use") not in args:
            continue
        fields = without_defaults(each["format"], defaults)
        parts = fields.get("parts", [fields])
        rest = {name: value for name, value in fields.items() if name not in (*SIZES, "parts")}
        own = ", ".join(name if value is True else f"{name} {cell(value)}" for name, value in rest.items())
        advice = each.get("recommended") or ""
        rows.append([code(each["name"]), each.get("use", ""), "yes" if advice is True else cell(advice),
                     cell(float(each["bits_per_element"])),
                     *(" + ".join(cell(part.get(name, "")) for part in parts) for name in SIZES), own, each["source"]])
    if not rows:
        raise ValueError(f"no preset is for {' or '.join(args) or 'anything'}")
    sizes = [code(name) for name in SIZES]
    return table(["preset", "for", "recommended", "bits per element", *sizes, "other fields", "source"], rows)


GIGA, MEGA, KILO = 1e9, 2**20, 2**10
GPU_COLUMNS = [("arch", "compute capability", code), ("sms", "SMs", str),
               ("memory_bytes", "memory, GB", lambda value: f"{value / GIGA:.0f}"),
               ("memory_gbps", "bandwidth, GB/s", cell),
               ("l2_bytes", "L2, MiB", lambda value: f"{value / MEGA:.4g}"),
               ("shared_bytes_per_block", "shared memory per block, KiB", lambda value: f"{value / KILO:.4g}"),
               ("sm_clock_mhz", "SM clock, MHz", cell)]


def timed_on(gpu: dict) -> str:
    """What ships that was timed on a GPU of `vqgen list gpus`."""
    found = ["cost model"] if gpu["cost_model"] else []
    if gpu["tuned_rows"]:
        found.append(f"{gpu['tuned_rows']} tuned rows")
    return ", ".join(found) or "no"


def gpus(args, tools) -> str:
    """The shipped GPU profiles, and what ships that was timed on them."""
    none(args)
    rows = [[code(each["name"]), each["spec"]["name"],
             *(write(each["spec"][field]) if field in each["spec"] else "" for field, _, write in GPU_COLUMNS),
             timed_on(each)] for each in tools.vqgen_json("list", "gpus")["gpus"]]
    return table(["name", "GPU", *(head for _, head, _ in GPU_COLUMNS), "timed"], rows)


# ---- the manual page ----


def plain(line: str) -> str:
    """Text of the manual page without its escapes."""
    line = re.sub(r"\\f[A-Z]", "", line)
    return line.replace("\\&", "").replace("\\-", "-").replace("\\e", "\\")


def manual(tools) -> dict:
    """{heading: [(kind, text)]}: SS a heading below it, B a term, P a line of text, E one of an example."""
    sections, lines, example = {}, [], False
    for line in tools.vqgen("man").splitlines():
        macro, _, rest = line.partition(" ") if line.startswith(".") else ("", "", line)
        if macro == ".SH":
            lines = sections.setdefault(plain(rest), [])
        elif macro in (".SS", ".B"):
            lines.append((macro[1:], plain(rest)))
        elif macro in (".EX", ".nf", ".EE", ".fi"):
            example = macro in (".EX", ".nf")
        elif not macro:
            lines.append(("E" if example else "P", plain(rest)))
    return sections


def section(name: str, tools) -> list:
    sections = manual(tools)
    if name not in sections:
        raise ValueError(f"vqgen man has no section {name}; it has {', '.join(sections)}")
    return sections[name]


def terms_table(head: list[str], lines: list, left_out=()) -> str:
    """The terms of some lines, each with the text behind it."""
    rows = []
    for kind, text in lines:
        if kind == "B":
            rows.append([text, ""])
        elif rows:
            rows[-1][1] = f"{rows[-1][1]} {text}".strip()
    rows = [[code(term), text] for term, text in rows if term not in left_out]
    return table(head, rows) if rows else ""


COMMON = "--json"  # an option of all commands, which the page's rules tell of


def command_text(lines: list) -> str:
    """What is below a command's heading: its text, its options except COMMON, its examples."""
    if ("B", COMMON) not in lines:
        raise ValueError(f"a command of vqgen man has no {COMMON}, which the page gives to all: {lines[:1]}")
    first = next((at for at, (kind, _) in enumerate(lines) if kind == "B"), len(lines))
    examples = [text for kind, text in lines if kind == "E"]
    return "\n\n".join(filter(None, [
        " ".join(text for kind, text in lines[:first] if kind == "P"),
        terms_table(["option", "meaning"], [line for line in lines[first:] if line[0] != "E"], [COMMON]),
        "\n".join(["```sh", *examples, "```"]) if examples else ""]))


def cli(args, tools) -> str:
    """All commands with their options, as the tool declares them."""
    none(args)
    commands = []
    for kind, text in section("COMMANDS", tools):
        if kind == "SS":
            commands.append((text, []))
        elif commands:
            commands[-1][1].append((kind, text))
    return "\n\n".join(headed(2, [name], command_text(lines)) for name, lines in commands)


def environment(args, tools) -> str:
    """The environment variables that vqgen reads."""
    none(args)
    return terms_table(["variable", "meaning"], section("ENVIRONMENT", tools))


def exit_codes(args, tools) -> str:
    """The exit codes of all commands."""
    none(args)
    text = " ".join(text for _, text in section("EXIT STATUS", tools))
    found = re.findall(r"(\d+) ([^,.;]+)", text)
    if len(found) < 2:
        raise ValueError(f"the section EXIT STATUS of vqgen man lists no codes: {text}")
    return table(["exit code", "meaning"], [[number, meaning.strip()] for number, meaning in found])


GENERATORS = {
    "config-top": config_top,
    "config-shapes": config_shapes,
    "config-definition": config_definition,
    "plan_fields": plan_fields,
    "presets": presets,
    "gpus": gpus,
    "cli": cli,
    "environment": environment,
    "exit-codes": exit_codes,
}
