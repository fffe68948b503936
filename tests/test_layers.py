"""Imports go strictly downward, and nothing heavy is imported before it is needed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import synchronoise

PACKAGE = Path(synchronoise.__file__).parent

TABLE = (PACKAGE.parent.parent / "docs" / "architecture.md").read_text()


def levels(table: str) -> dict[str, int]:
    """The level of every module (or package of modules) in the table of docs/architecture.md."""
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", table, re.MULTILINE)
    return {name: int(level) for level, names in rows for name in re.findall(r"`(\w+)(?:\.py|/)`", names)}


LEVEL = levels(TABLE)
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
HEAVY = {"torch", "transformers", "ot", "distributed", "flint", "diffrax", "torchsde", "matplotlib"}


def room(path: Path) -> str:
    """The name under which a file stands in the table: its module, or the package that holds it."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(source: str) -> set[str]:
    """The modules a source imports when it is imported itself (not inside a function or for types only)."""
    found: set[str] = set()

    def visit(body):
        for node in body:
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                origin = f"synchronoise.{node.module or ''}".rstrip(".") if node.level else str(node.module)
                found.update({f"{origin}.{alias.name}" for alias in node.names} | {origin})
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                visit(node.orelse)
            elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for name in ("body", "orelse", "finalbody", "handlers"):
                    visit(getattr(node, name, []))

    visit(ast.parse(source).body)
    return found


def upward(name: str, source: str) -> list[str]:
    """The rooms a module of room `name` imports although they are not below it."""
    rooms = {module.split(".")[1] for module in imports(source) if module.startswith("synchronoise.")}
    return sorted(other for other in rooms & set(LEVEL) - {name} if LEVEL[other] >= LEVEL[name])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_strictly_downward(path):
    assert room(path) in LEVEL, "give the new module a row in docs/architecture.md"
    assert upward(room(path), path.read_text()) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_optional_or_heavy_package_at_the_top(path):
    allowed = {"torch", "transformers"} if room(path) == "probe" else set()
    assert {module.split(".")[0] for module in imports(path.read_text())} & HEAVY <= allowed


def test_the_table_has_no_module_that_is_not_there():
    assert set(LEVEL) == {room(path) for path in MODULES}


def test_the_rule_notices_an_upward_import():
    assert upward("store", "def f():\n    from synchronoise.cli import app\n") == []
    assert upward("store", "from synchronoise.cli import app") == ["cli"]
    assert upward("store", "from synchronoise import simulation") == ["simulation"]
    assert upward("store", "from . import simulation") == ["simulation"]
    assert upward("store", "from .noise import MLP") == ["noise"]
    assert upward("store", "try:\n    import synchronoise.model\nexcept ImportError:\n    pass") == ["model"]


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("synchronoise", {"jax", "scipy", "pydantic", "xarray", "matplotlib"}),
        ("synchronoise.cli", {"jax", "scipy", "pydantic", "xarray", "matplotlib"}),
        ("synchronoise.kernel, synchronoise.theory", {"jax", "xarray", "matplotlib", "pydantic"}),
        ("synchronoise.config", {"jax", "xarray", "matplotlib"}),
        ("synchronoise.store", {"jax", "matplotlib", "pydantic"}),
    ],
)
def test_what_an_import_does_not_pull_in(modules, absent):
    script = f"import sys, {modules}; print(*sorted({absent!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
