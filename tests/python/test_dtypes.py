"""Tensors that the package makes name their dtype: PyTorch's default is the host process's to choose."""
import ast
import pathlib

import vqgen

MAKERS = {"empty", "eye", "full", "linspace", "ones", "rand", "randn", "zeros"}


def unnamed(text):
    """Lines of calls to torch.MAKER() without a dtype; **arguments may have one."""
    return [node.lineno for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute) and node.func.attr in MAKERS
            and isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
            and not any(each.arg in ("dtype", None) for each in node.keywords)]


def test_tensors_are_made_with_a_dtype():
    sources = sorted(pathlib.Path(vqgen.__file__).parent.rglob("*.py"))
    assert len(sources) > 30
    found = {str(path): lines for path in sources if (lines := unnamed(path.read_text(encoding="utf-8")))}
    assert not found


def test_a_call_without_one_is_found():
    assert unnamed("a = torch.zeros(2)\nb = torch.ones(2, dtype=torch.int32)\nc = torch.full((2,), 1.0, **like)") == [1]
