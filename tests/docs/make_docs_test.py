#!/usr/bin/env python3
"""Tests scripts/make_docs.py: what it fills, what it finds stale and what it refuses; and that the blocks
made
from declarations are complete.

    make_docs_test.py SOURCE_DIR
"""

import importlib
import json
import pathlib
import sys
import types
import unittest

SOURCE = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path[:0] = [str(SOURCE / "scripts"), str(SOURCE / "scripts" / "docs")]
make_docs = importlib.import_module("make_docs")
END = "<!-- end of generated -->"
TOOLS = make_docs.Tools(SOURCE, pathlib.Path("/nonexistent"))


def refuse(args, tools):
    raise ValueError(f"no {args[0]}")


def filled(text, faults=None):
    return make_docs.filled("page.md", text, {"echo": lambda args, tools: "|".join(args), "refuse": refuse}, TOOLS,
                            [] if faults is None else faults)


class Driver(unittest.TestCase):
    def test_fills_a_block_and_leaves_the_rest(self):
        text, stale = filled(f"a\n<!-- generated: echo x 'y z' -->\nold\n{END}\nb\n")
        self.assertEqual(text, f"a\n<!-- generated: echo x 'y z' -->\n\nx|y z\n\n{END}\nb\n")
        self.assertEqual(stale, ["page.md:2: echo x 'y z'"])
        self.assertEqual(filled(text), (text, []))

    def test_markers_in_code_are_text(self):
        text = f"```\n<!-- generated: nothing -->\n```\n~~~~\n```\n{END}\n~~~~\n"
        self.assertEqual(filled(text), (text, []))

    def test_text_of_a_block_may_hold_code(self):
        text, _ = filled(f"<!-- generated: echo ``` -->\n```\n{END}\nb\n<!-- generated: echo c -->\n{END}")
        self.assertEqual(text.count(END), 2)
        self.assertIn("\nc\n", text)

    def test_a_block_that_cannot_be_filled_stays_and_is_named(self):
        text, faults = f"<!-- generated: ehco -->\na\n{END}\n<!-- generated: refuse it -->\nb\n{END}", []
        self.assertEqual(filled(text, faults), (text, []))
        self.assertEqual(faults, ["page.md:1: 'ehco' is no generator; take one of echo, refuse",
                                  "page.md:4: refuse: no it"])

    def test_blocks_without_an_end_or_a_beginning_are_named(self):
        for text, words in ((f"a\n<!-- generated: echo x -->\n", "page.md:2: the block 'echo' has no end"),
                            (f"<!-- generated: echo x -->\n<!-- generated: echo x -->\n{END}", "page.md:1: the block"),
                            (f"a\n{END}", "page.md:2: ends a block that nothing begins")):
            with self.assertRaises(ValueError) as caught:
                filled(text)
            self.assertTrue(str(caught.exception).startswith(words), caught.exception)

    def test_a_missing_tool_is_named_with_the_remedy(self):
        with self.assertRaisesRegex(ValueError, "/nonexistent cannot be run.*--vqgen"):
            TOOLS.vqgen("list")


class Generators(unittest.TestCase):
    """Every declared name is in the blocks of the reference."""

    def block(self, name, *args):
        return make_docs.load_generators()[name](list(args), TOOLS)

    def test_all_fields_of_the_schema(self):
        schema = json.loads((SOURCE / "docs" / "config.schema.json").read_text())
        text = "\n".join([self.block("config-top"), self.block("config-shapes"), self.block("plan_fields"),
                          *(self.block("config-definition", name) for name in schema["$defs"])])

        def names(node):
            if isinstance(node, list):
                return set().union(*map(names, node))
            if not isinstance(node, dict):
                return set()
            own = set(node["properties"]) if isinstance(node.get("properties"), dict) else set()
            return own.union(*map(names, node.values()))

        fields = names(schema) - {"dataflow"}
        self.assertGreater(len(fields), 50)
        self.assertEqual([name for name in sorted(fields) if f"`{name}`" not in text], [])

    def test_fields_of_one_dataflow(self):
        whole = self.block("plan_fields")
        for op, dataflow in (("gemm", "wgmma"), ("gemm", "warpgroups"), ("any", "forms")):
            if f"### `{dataflow}`" in whole:
                self.assertIn(self.block("plan_fields", f"{op}-{dataflow}"), whole)
        with self.assertRaisesRegex(ValueError, "no op 'gemm' has a dataflow 'none'"):
            self.block("plan_fields", "gemm-none")

    def test_a_field_without_a_default_or_bounds(self):
        reference = importlib.import_module("reference")
        owner = {"properties": {"a": {"type": "integer", "minimum": 1}, "b": {"$ref": "#/$defs/c"},
                                "d": {"type": "array", "items": {"enum": ["x", "y"]}, "description": "p | q"}},
                 "required": ["d"]}
        self.assertEqual(reference.fields_table(owner).splitlines()[2:],
                         ["| `d` | list of `x`, `y` | required | p \\| q |", "| `a` | 1.. |  |  |", "| `b` | object: c |  |  |"])

    def test_all_functions_of_the_headers(self):
        for name in ("vqgen.h", "launch.h"):
            text = self.block("header", f"include/vqgen/{name}")
            source = (SOURCE / "include" / "vqgen" / name).read_text()
            declared = {line.split("(")[0].split()[-1].lstrip("*") for line in source.splitlines()
                        if line.startswith("VQGEN_API ") and "(" in line}
            self.assertGreater(len(declared), 5)
            self.assertEqual([each for each in sorted(declared) if f"{each}(" not in text], [])

    def test_all_public_names_of_the_package(self):
        for module, least in (("vqgen", 10), ("vqgen.configs", 10), ("vqgen.torch", 5), ("vqgen.hf", 3)):
            text = self.block("python", module)
            self.assertGreater(text.count("\n### `"), least - 2, module)

    def test_the_manual_page_is_read_whole(self):
        reference = importlib.import_module("reference")
        page = (".SH COMMANDS\n.SS tool go file\nGoes\n.TP\n.B file\nA file (required)\n.TP\n.B \\-\\-by A|B\nHow\n[A]\n"
                ".TP\n.B \\-\\-json\nOne document\n.PP\n.EX\ntool go f \\-\\-by A\n.EE\n"
                ".SH EXIT STATUS\nExit codes: 0 ok, 2 bad input.\n.SH ENVIRONMENT\n.TP\n.B TOOL_X\n\\&.x\n")
        tools = types.SimpleNamespace(vqgen=lambda *_: page)
        self.assertEqual(reference.cli([], tools).splitlines()[-6:],
                         ["| `file` | A file (required) |", "| `--by A\\|B` | How [A] |", "",
                          "```sh", "tool go f --by A", "```"])
        bare = types.SimpleNamespace(vqgen=lambda *_: page.replace("json", "text"))
        with self.assertRaisesRegex(ValueError, "a command of vqgen man has no --json"):
            reference.cli([], bare)
        self.assertEqual(reference.exit_codes([], tools).splitlines()[-2:], ["| 0 | ok |", "| 2 | bad input |"])
        self.assertEqual(reference.environment([], tools).splitlines()[-1], "| `TOOL_X` | .x |")


if __name__ == "__main__":
    unittest.main()
