"""Blocks of the Python reference, made from signatures and docstrings, which are parsed, not imported.
No name of the package's parts is known here.
"""

import ast
import re

from markdown import code, none, one, table

PACKAGE = "python/vqgen"
EXTENSION = "vqgen._core"  # which a stub declares


def public_names(tree: ast.Module) -> list[str]:
    """The names of __all__, else what is defined at the top and begins with no underscore."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(to, "id", "") == "__all__" for to in node.targets):
            return ast.literal_eval(node.value)
    return [node.name for node in tree.body
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_")]


def source_of(module: str, tools) -> ast.Module:
    """The parsed file of "vqgen" or "vqgen.name"; stubs of the extension."""
    below = module.removeprefix("vqgen").removeprefix(".").replace(".", "/") or "__init__"
    suffix = ".py" if (tools.root / PACKAGE / f"{below}.py").exists() else ".pyi"
    return ast.parse(tools.text(f"{PACKAGE}/{below}{suffix}"))


def definition(module: str, name: str, tools):
    """The node that defines a name, where it is imported from; None for what no Python file defines."""
    tree = source_of(module, tools)
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vqgen"):
            for each in node.names if node.module != EXTENSION else []:
                if (each.asname or each.name) == name and (node.module, each.name) != (module, name):
                    return definition(node.module, each.name, tools)
    return None


def parameters_of(arguments: ast.arguments) -> list[str]:
    """Each parameter as it is written, with the marks of kinds between them."""
    plain = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(plain) - len(arguments.defaults)) + arguments.defaults
    parts = [parameter(*each) for each in zip(plain, defaults)]
    if arguments.posonlyargs:
        parts.insert(len(arguments.posonlyargs), "/")
    if arguments.vararg or arguments.kwonlyargs:
        parts.append("*" + (parameter(arguments.vararg, None) if arguments.vararg else ""))
    parts += [parameter(*each) for each in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    return parts + (["**" + parameter(arguments.kwarg, None)] if arguments.kwarg else [])


def parameter(each: ast.arg, default) -> str:
    text = each.arg + (f": {ast.unparse(each.annotation)}" if each.annotation else "")
    if default is None:
        return text
    return text + (" = " if each.annotation else "=") + ast.unparse(default).replace("'", '"')


def signature(name: str, function, method: bool) -> str:
    """The call, one parameter a line where it is long."""
    parts = parameters_of(function.args)[1 if method else 0:]
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    text = f"{name}({', '.join(parts)}){returns}"
    if len(text) <= 100:
        return text
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){returns}"])


def described(node) -> str:
    """The docstring: its first paragraph as prose, the rest as it is written."""
    text = (ast.get_docstring(node) or "").strip()
    first, _, rest = text.partition("\n\n")
    if re.match(r"\w+(, \w+)*:\s", first):  # arguments at once
        first, rest = "", text
    fence = "~~~" if "```" in rest else "```"
    return "\n\n".join(filter(None, [" ".join(first.split()), f"{fence}text\n{rest}\n{fence}" if rest else ""]))


def own_fields(node: ast.ClassDef) -> list[str]:
    """Annotated fields of a dataclass or named tuple, as they are written."""
    return [ast.unparse(each) for each in node.body
            if isinstance(each, ast.AnnAssign) and not each.target.id.startswith("_")]


def documented_class(name: str, node: ast.ClassDef) -> list[str]:
    methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    head = f"class {name}({bases})" if bases else f"class {name}"
    made_by_users = "__init__" in methods and not any(
        ast.unparse(each.annotation or ast.Constant(0)).startswith("_") for each in methods["__init__"].args.args)
    if made_by_users:
        head = signature(name, methods["__init__"], True)
    elif fields := own_fields(node):
        head = "\n".join([head + ":", *(f"    {field}" for field in fields)])
    parts = [f"### `{name}`", f"```python\n{head}\n```", described(node)]
    if made_by_users:
        parts.append(described(methods["__init__"]))
    for own, method in methods.items():
        if own.startswith("_") and own != "__call__":
            continue
        decorators = [ast.unparse(each) for each in method.decorator_list]
        if any(each.endswith("setter") for each in decorators):
            continue
        shown = f"{name}.{own}"
        if "property" in decorators:
            call = shown + (f": {ast.unparse(method.returns)}" if method.returns else "")
        else:
            call = signature(shown, method, "staticmethod" not in decorators)
        parts += [f"#### `{shown}`", f"```python\n{call}\n```", described(method)]
    return parts


def python(args, tools) -> str:
    """The public names of MODULE, or NAME... of it: signatures and docstrings."""
    if not args:
        raise ValueError("takes a module and, if not all of it, names")
    module, *names = args
    parts = []
    for name in names or public_names(source_of(module, tools)):
        node = definition(module, name, tools)
        if isinstance(node, ast.ClassDef):
            parts += documented_class(name, node)
        elif node is not None:
            parts += [f"### `{name}`", f"```python\n{signature(name, node, False)}\n```", described(node)]
        elif names:
            raise ValueError(f"{module} has no class or function '{name}'")
    return "\n\n".join(filter(None, parts))


def is_literal(node) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def python_options(args, tools) -> str:
    """The command line of MODULE, from its calls of add_argument()."""
    rows = []
    for node in ast.walk(source_of(one(args, "a module"), tools)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            named = {each.arg: each.value for each in node.keywords}
            literal = {name: ast.literal_eval(value) for name, value in named.items()
                       if name in ("help", "metavar", "nargs") or name in ("choices", "action") and is_literal(value)}
            option = ast.literal_eval(node.args[0])
            flag = literal.get("action", "") in ("store_true", "store_false")
            value = literal.get("metavar", "|".join(literal.get("choices", ())) or
                                option.strip("-").upper().replace("-", "_"))
            term = option if flag else f"{option} {value}" if option.startswith("-") else value
            if literal.get("nargs") in ("+", "*"):
                term += "..."
            default = "" if "default" not in named or flag else code(ast.unparse(named["default"]).replace("'", '"'))
            rows.append((node.lineno, [code(term), default, literal.get("help", "")]))
    return table(["option", "default", "meaning"], [row for _, row in sorted(rows)])


def python_kinds(args, tools) -> str:
    """The functions that the table NAME of MODULE names, each with its docstring's first paragraph."""
    if len(args) != 2:
        raise ValueError(f"takes a module and the name of a table in it, and {len(args)} arguments are given")
    tree = source_of(args[0], tools)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    value = next((node.value for node in tree.body if isinstance(node, ast.Assign) and
                  any(getattr(to, "id", "") == args[1] for to in node.targets)), None)
    named = [node.id for node in ast.walk(value) if isinstance(node, ast.Name) and node.id in functions] if value else []
    if not named:
        raise ValueError(f"{args[0]} has no table '{args[1]}' of functions")
    return table(["kind", "what it shows"],
                 [[code(name), " ".join((ast.get_docstring(functions[name]) or "").partition("\n\n")[0].split())]
                  for name in named])


def python_errors(args, tools) -> str:
    """The package's exceptions with their bases."""
    none(args)
    tree = source_of(EXTENSION, tools)
    found = {}
    for node in tree.body:
        bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
        if any(base in found or base.endswith("Error") for base in bases):
            found[node.name] = (bases, node)
    return table(["exception", "also a", "raised when"],
                 [[f"`vqgen.{name}`", ", ".join(code(f"vqgen.{base}" if base in found else base) for base in bases),
                   " ".join((ast.get_docstring(node) or "").split())] for name, (bases, node) in found.items()])


def examples(args, tools) -> str:
    """The programs of a folder, each with the first sentence of its docstring."""
    folder = one(args, "a folder")
    rows = [[f"`{path.name}`", (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
             .partition("\n\n")[0].replace("\n", " ")] for path in sorted((tools.root / folder).glob("*.py"))]
    if not rows:
        raise ValueError(f"{folder} has no *.py")
    return table([f"`{folder}/`", "what it shows"], rows)


GENERATORS = {
    "python": python,
    "python-options": python_options,
    "python-errors": python_errors,
    "python-kinds": python_kinds,
    "examples": examples,
}
