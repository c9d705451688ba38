"""The registry of names: every refusal code is declared once, and docs/names/ lists all public names."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.decisions.codes import CODES
from deploy.catalogue import names
from deploy.checks.names import FOLDER
from deploy.setup.repository import ROOT

CLAIMS = {"ip", "mac", "pci", "port", "public", "slot", "subnet"}
COMPUTED = {
    *(f"{claim}_taken" for claim in CLAIMS),
    *(f"unknown_{kind}" for kind in ("address", "allocation", "device", "ingress", "node", "slot")),
    "content_too_large",
    "method_not_allowed",
    "not_found",
}
"""Codes that are made from the kind of a claim, the kind of a resource, or the name of an HTTP status."""


def constants(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def codes_of_objections() -> Iterator[str]:
    for path in sorted((ROOT / "control_plane").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                called = node.func.id if isinstance(node.func, ast.Name) else ""
                if called in {"Objection", "PydanticCustomError", "time_limit"}:
                    yield str(node.args[0].value)


def test_reason_code_of_every_refusal_is_declared() -> None:
    assert sorted({*codes_of_objections()} - CODES.keys()) == []


def test_every_declared_reason_code_is_used_by_the_control_plane() -> None:
    modules = [path for path in (ROOT / "control_plane").rglob("*.py") if path.name != "codes.py"]
    used = {constant for path in modules for constant in constants(path)}
    assert sorted(CODES.keys() - used - COMPUTED) == []


def test_reason_codes_of_refused_claims_cover_every_kind_of_claim() -> None:
    kinds = set()
    for node in ast.walk(ast.parse((ROOT / "events" / "claims.py").read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Name(id="Claim"), args=[ast.Constant(value=str(kind)), *_]):
                kinds.add(kind)
            case _:
                pass
    assert kinds == CLAIMS


@pytest.mark.parametrize("name", names.LISTS)
def test_recorded_lists_of_public_names_in_the_docs_equal_the_names_in_the_code(name: str) -> None:
    assert (FOLDER / f"{name}.txt").read_text(encoding="utf-8") == names.text_of(name)
