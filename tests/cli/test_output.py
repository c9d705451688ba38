"""Output formats, hints, colours and widths: what every command has in common."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from control_plane.cli.hints import HINTS, hints
from control_plane.cli.yaml_text import yaml_text
from control_plane.decisions.codes import CODES, RefusalClass
from control_plane.decisions.placing.choice import unknown_node
from control_plane.decisions.placing.explanation import node_blocked
from control_plane.decisions.refusals import Objection
from events.values import NodeId
from tests.cli.control_plane import ScriptedPlane, document, page, problem, stream
from tests.cli.examples import ALLOCATION, BRING_UP, NODE, allocation
from tests.cli.outcome import Outcome
from tests.cli.pages.test_pages import SLOT
from tests.cli.terminal import run_on_terminal, without_escapes

Run = Callable[..., Outcome]
SLICEPLANE: Final = (sys.executable, "-m", "control_plane.cli")
STATUS_OF: Final = {
    RefusalClass.IMPOSSIBLE: 422,
    RefusalClass.NOT_PERMITTED: 403,
    RefusalClass.UNAVAILABLE: 409,
    RefusalClass.UNHEALTHY: 503,
}


SKU = {"name": "lab.small", "version": 1, "state": "offered", "vcpus": 1, "memory_mib": 96}


def test_yaml_output_of_a_list_is_one_document(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("GET /v1/skus", page({**SKU, "network_modes": ["a", "b"]}))
    assert sliceplane("skus", "list", "-o", "yaml").out == (
        "items:\n- name: lab.small\n  version: 1\n  state: offered\n  vcpus: 1\n  memory_mib: 96\n"
        "  network_modes:\n  - a\n  - b\nnext_cursor: null\n"
    )


def test_yaml_output_of_a_stream_has_a_document_for_each_event(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("GET /v1/events/watch", stream(*BRING_UP), problem(410, "cursor_expired", "gone"))
    out = sliceplane("events", "follow", "-o", "yaml").out
    assert out.count("---\n") == len(BRING_UP)
    assert "type: allocation.placed\n" in out


def test_name_output_prints_the_name_of_each_resource_on_a_line(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("GET /v1/nodes", page(NODE, {**NODE, "id": "lab-b"}))
    plane.script("GET /v1/skus", page(SKU))
    assert sliceplane("nodes", "list", "-o", "name").out == "lab-a\nlab-b\n"
    assert sliceplane("skus", "list", "--output", "name").out == "lab.small\n"


def test_name_output_of_a_created_allocation_is_its_id(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("POST /v1/allocations", document(allocation("placed"), 202))
    done = sliceplane("allocations", "create", "--sku", "lab.small", "--no-wait", "-o", "name")
    assert (done.out, done.err) == (f"{ALLOCATION}\n", "")


@pytest.mark.parametrize(
    "words", [("status",), ("nodes", "drift"), ("paths", "list"), ("history", "show", "node", "n")]
)
def test_name_output_of_results_without_names_is_refused_without_a_request(
    plane: ScriptedPlane, sliceplane: Run, words: tuple[str, ...]
) -> None:
    assert sliceplane(*words, "-o", "name").code == 2
    assert plane.received == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("lab-a/0", "lab-a/0"),
        ("no bridge br-slice", "no bridge br-slice"),
        ("yes", '"yes"'),
        ("Null", '"Null"'),
        ("12", '"12"'),
        ("1.5e3", '"1.5e3"'),
        ("", '""'),
        (" x", '" x"'),
        ("a: b", '"a: b"'),
        ("# x", '"# x"'),
        ("a #b", '"a #b"'),
        ("- x", '"- x"'),
        ("52:54:00:12:34:56", '"52:54:00:12:34:56"'),
        ("2026-01-02T03:04:05Z", '"2026-01-02T03:04:05Z"'),
        ("a\nb", '"a\\nb"'),
        ("a\u2028\x85\x9b", '"a\\u2028\\u0085\\u009b"'),
        ("é", '"é"'),
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ([], "[]"),
        ({}, "{}"),
    ],
)
def test_value_is_quoted_in_yaml_if_a_reader_would_take_it_for_another_one(value: object, text: str) -> None:
    assert yaml_text({"key": value}) == f"key: {text}\n"
    assert yaml_text([value]) == f"- {text}\n"


def test_nested_lists_and_mappings_are_indented_in_yaml() -> None:
    value = {"a": {"b": [{"c": 1, "d": {"e": 2}}, [3, [4]]]}, "x y": [{}]}
    assert yaml_text(value) == ("a:\n  b:\n  - c: 1\n    d:\n      e: 2\n  - - 3\n    - - 4\nx y:\n- {}\n")


@pytest.mark.parametrize("code", CODES)
def test_every_reason_code_has_a_hint_of_its_own_or_of_its_class(code: str) -> None:
    found = hints((code,), STATUS_OF[CODES[code].refusal_class])
    assert found
    assert all(found)


@pytest.mark.parametrize(
    "code",
    [
        "no_capacity",
        "no_healthy_slot",
        "no_public_address",
        "node_blocked",
        "unknown_node",
        "only_simulated_nodes",
        "unsupported_by_agent",
    ],
)
def test_hint_of_a_refused_allocation_begins_with_what_its_caller_may_do(code: str) -> None:
    for_callers, scope, for_operators = HINTS[code].partition("with the scope fleet:read")
    assert for_callers
    assert scope
    assert not re.search("sliceplane (nodes|slots)", for_callers)
    assert re.search("sliceplane (nodes|slots)", for_operators)


@pytest.mark.parametrize(
    "objection",
    [node_blocked(NodeId("lab-a"), "unreachable"), *unknown_node(NodeId("lab-a")).objections],
)
def test_refusal_of_the_node_of_an_allocation_names_no_command_that_its_caller_may_not_use(
    objection: Objection,
) -> None:
    assert "sliceplane" not in objection.message
    assert "another node" in objection.message


def test_hints_are_for_existing_reason_codes_only() -> None:
    assert HINTS.keys() - CODES.keys() == set()


def test_commands_in_hints_exist(unconfigured: Run) -> None:
    texts = "; ".join(
        hints(tuple(CODES), 409) + tuple(text for status in range(400, 600) for text in hints((), status))
    )
    commands = {
        " ".join(words)
        for part in texts.replace("--project PROJECT ", "").split("sliceplane ")[1:]
        if (words := [word for word in part.split(";")[0].split(" --")[0].split() if word.islower()])
    }
    failed = [command for command in sorted(commands) if unconfigured(*command.split(), "--help").code != 0]
    assert failed == []
    assert len(commands) > 20


def test_refusal_has_the_hint_of_its_code(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("GET /v1/nodes/x", problem(404, "unknown_node", "no node is named x"))
    plane.script("GET /v1/nodes/y", problem(429, "a_code_of_a_newer_release", "too fast"))
    assert "list the nodes: sliceplane nodes list" in sliceplane("nodes", "show", "x").err
    assert "> repeat the command later" in sliceplane("nodes", "show", "y").err


def test_output_on_a_terminal_has_no_colours_if_no_color_is_set(
    plane: ScriptedPlane, environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane.script("GET /v1/nodes", page(NODE))
    coloured = run_on_terminal(*SLICEPLANE, "nodes", "list")[1]
    plain = run_on_terminal("env", "NO_COLOR=1", *SLICEPLANE, "nodes", "list")[1]
    assert "\x1b[32m" in coloured
    assert without_escapes(plain) == without_escapes(coloured)
    assert not any(f"\x1b[{colour}m" in plain for colour in range(30, 38))


def test_table_that_is_wider_than_the_terminal_becomes_a_block_for_each_row(
    plane: ScriptedPlane, environment: None
) -> None:
    plane.script("GET /v1/allocations", page(allocation(), allocation(id="alc-2", project="vision")))
    shown = without_escapes(run_on_terminal(*SLICEPLANE, "allocations", "list", columns=60)[1])
    lines = [line.split(maxsplit=1) for line in shown.splitlines() if line.strip()]
    assert ["id", ALLOCATION] in [[name, value.strip()] for name, value in lines]
    assert ["project", "vision"] in [[name, value.strip()] for name, value in lines]
    wide = without_escapes(run_on_terminal(*SLICEPLANE, "allocations", "list", columns=160)[1])
    assert wide.startswith("ID ")


def test_table_in_a_pipe_has_complete_ids_beside_a_long_text(plane: ScriptedPlane, sliceplane: Run) -> None:
    reason = {"code": "no_lease", "message": "the slice got no address " * 20}
    plane.script("GET /v1/slots", page({**SLOT, "allocation_id": ALLOCATION, "reason": reason}))
    out = sliceplane("slots", "list").out
    assert (str(SLOT["id"]) in out, ALLOCATION in out) == (True, True)


def test_shell_completion_works_without_a_control_plane(home: Path) -> None:
    completing = ("env", "_SLICEPLANE_COMPLETE=complete_bash", "COMP_WORDS=sliceplane allo", "COMP_CWORD=1")
    code, shown = run_on_terminal(*completing, sys.executable, "-c", _ENTRY)
    assert (code, shown.split()) == (0, ["allocations"])


_ENTRY = (
    "import sys; from control_plane.cli.__main__ import main; sys.argv = ['sliceplane']; sys.exit(main())"
)


def test_completion_of_the_shell_can_be_installed_and_shown(unconfigured: Run) -> None:
    assert "--install-completion" in unconfigured("--help").out


def test_failure_with_yaml_output_is_one_json_line(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("GET /v1/nodes", problem(403, "role_missing", "admins only"))
    assert json.loads(sliceplane("nodes", "list", "-o", "yaml").err)["exit_code"] == 3
