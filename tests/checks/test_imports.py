"""Rules that import-linter cannot check: imports of the set-up program of `./dev`, and calls of `sleep` in tests."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.checks.files import ROOT, place, python_files


def test_modules_of_deploy_setup_import_only_the_standard_library_and_each_other() -> None:
    own = {path.stem for path in (ROOT / "deploy/setup").glob("*.py")}
    foreign = [
        f"{place(path, line)}: {module}"
        for path in python_files(below="deploy/setup")
        for module, line in _imports(path)
        if module.split(".")[0] not in sys.stdlib_module_names
        and not (module == "deploy.setup" or module.removeprefix("deploy.setup.") in own)
    ]
    assert foreign == []


def test_tests_sleep_only_inside_a_while_loop() -> None:
    sleeping = [
        place(path, call.lineno)
        for path in python_files(below="tests")
        for call in _calls_outside_while(_parsed(path))
        if ast.unparse(call.func) in {"time.sleep", "asyncio.sleep", "sleep"}
        and ast.unparse(call.args[0]) != "0"
    ]
    assert sleeping == []


def _calls_outside_while(node: ast.AST) -> Iterator[ast.Call]:
    """Yield calls outside `while` loops: a sleep is allowed only in a loop that repeatedly checks a condition."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child
        if not isinstance(child, ast.While):
            yield from _calls_outside_while(child)


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.lineno


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))
