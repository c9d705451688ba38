"""The command line as a process of its own, on a terminal and under Ctrl-C."""

import json
import signal
import subprocess
import sys

import pytest

from tests.cli.control_plane import ScriptedPlane, document, page, stream
from tests.cli.examples import ALLOCATION, COMING_UP, NODE, PLACED, RELEASING, REQUESTED, allocation, event
from tests.cli.terminal import on_a_terminal, plain

PATH = f"/v1/allocations/{ALLOCATION}"
SLICEPLANE = (sys.executable, "-m", "control_plane.cli")
CREATE = (*SLICEPLANE, "allocations", "create", "--sku", "lab.small")
RELEASE = (*SLICEPLANE, "allocations", "release", ALLOCATION)


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_ctrl_c_says_that_the_allocation_goes_on(
    plane: ScriptedPlane, environment: None, flags: tuple[str, ...]
) -> None:
    plane.answers("POST /v1/allocations", document(allocation("placed"), 202))
    plane.answers(f"GET {PATH}/watch", stream(REQUESTED, PLACED, hold=True))
    process = subprocess.Popen([*CREATE, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    plane.await_request(f"GET {PATH}/watch")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out == ""
    assert f"sliceplane allocations watch {ALLOCATION}" in err
    assert f"sliceplane allocations release {ALLOCATION}" in err
    assert "Traceback" not in err


def test_ctrl_c_while_a_release_is_waited_for_does_not_advise_to_release(
    plane: ScriptedPlane, environment: None
) -> None:
    plane.answers(f"DELETE {PATH}", document(allocation("releasing", version=9), 202))
    plane.answers(f"GET {PATH}/watch", stream(*COMING_UP, RELEASING, hold=True))
    process = subprocess.Popen(
        [*RELEASE, "--wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    plane.await_request(f"GET {PATH}/watch")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert f"stopped waiting; the release of {ALLOCATION} goes on" in err
    assert f"sliceplane allocations watch {ALLOCATION}" in err
    assert "allocations release" not in err


def test_a_terminal_shows_a_live_line_and_then_the_result(plane: ScriptedPlane, environment: None) -> None:
    plane.answers("POST /v1/allocations", document(allocation("placed"), 202))
    plane.answers(f"GET {PATH}/watch", stream(*COMING_UP, hold=True))
    plane.answers(f"GET {PATH}", document(allocation()))
    plane.answers("GET /v1/nodes/lab-a", document(NODE))
    code, shown = on_a_terminal(*CREATE)
    assert code == 0
    assert "\x1b[" in shown
    assert "after 5.0 s  (requested 0.00 s, placed 0.25 s, provisioning 4.8 s)" in plain(shown)
    assert f"sliceplane ssh {ALLOCATION}" in plain(shown)


def test_ctrl_c_ends_following_without_a_word(plane: ScriptedPlane, environment: None) -> None:
    plane.answers("GET /v1/events/watch", stream(REQUESTED, hold=True))
    follow = [*SLICEPLANE, "events", "follow", "--json"]
    process = subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == REQUESTED
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, "", "")


def test_a_reader_that_leaves_ends_the_stream_quietly(plane: ScriptedPlane, environment: None) -> None:
    plane.answers("GET /v1/events/watch", stream(*(event(n, "x.y") for n in range(1, 5000)), hold=True))
    follow = [*SLICEPLANE, "events", "follow", "--json"]
    process = subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(20) == 1


def test_a_narrow_terminal_cuts_no_id(plane: ScriptedPlane, environment: None) -> None:
    plane.answers("GET /v1/allocations", page(allocation(project="a-project-with-a-long-name")))
    code, shown = on_a_terminal(*SLICEPLANE, "allocations", "list", columns=40)
    assert code == 0
    assert "a-project-with-a-long-name" in plain(shown)


ROADS = {
    "module": SLICEPLANE,
    "entry point": (
        sys.executable,
        "-c",
        "import sys; from control_plane.cli.__main__ import main; sys.exit(main())",
    ),
}


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("imported", ["msgspec", "httpx", "typer", "rich.console"])
def test_ctrl_c_while_it_is_imported_ends_it_without_a_traceback(
    plane: ScriptedPlane, environment: None, road: str, imported: str
) -> None:
    plane.answers("GET /v1/events/watch", stream(REQUESTED, hold=True))
    python, *rest = ROADS[road]
    command = [python, "-X", "importtime", *rest, "events", "follow", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    told = next(line for line in process.stderr if line.split("|")[-1].strip() == imported)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert [line for line in err.splitlines() if not line.startswith("import time:")] == [], told
