#!/usr/bin/env python3
"""Looks for fields of a config that docs/config.md does not name.

    config_fields_test.py SOURCE_DIR

Fields are the properties of docs/config.schema.json, which follows from the code. The page names a
field as `field`, or between quotes in an example.
"""
import json
import re
import sys
from pathlib import Path


def properties(schema):
    """The names of all properties, at any depth."""
    if isinstance(schema, list):
        return set().union(*map(properties, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    own = set(schema["properties"]) if isinstance(schema.get("properties"), dict) else set()
    return own.union(*(properties(each) for each in schema.values()))


def main():
    docs = Path(sys.argv[1]) / "docs"
    named = set(re.findall(r'[`"]([a-z_0-9$]+)[`"]', (docs / "config.md").read_text()))
    fields = properties(json.loads((docs / "config.schema.json").read_text()))
    if len(fields) < 50:
        sys.exit(f"config_fields_test: {len(fields)} fields in the schema; its form has changed")
    missing = sorted(fields - named - {"$schema"})
    if missing:
        sys.exit(f"docs/config.md does not name {', '.join(missing)}")


if __name__ == "__main__":
    main()
