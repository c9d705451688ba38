"""The command line `sliceplane` as a separate process: output on a terminal, and interruption by Ctrl-C."""

import json
import signal
import subprocess
import sys

import pytest

from tests.cli.control_plane import ScriptedPlane, document, page, stream
from tests.cli.examples import ALLOCATION, BRING_UP, NODE, PLACED, RELEASING, REQUESTED, allocation, event
from tests.cli.terminal import run_on_terminal, without_escapes

PATH = f"/v1/allocations/{ALLOCATION}"
SLICEPLANE = (sys.executable, "-m", "control_plane.cli")
CREATE = (*SLICEPLANE, "allocations", "create", "--sku", "lab.small")
RELEASE = (*SLICEPLANE, "allocations", "release", ALLOCATION)


@pytest.mark.parametrize(
    "flags",
    [
        (),
        (
            "-o",
            "json",
        ),
    ],
)
def test_ctrl_c_during_create_advises_to_watch_or_release_the_allocation(
    plane: ScriptedPlane, environment: None, flags: tuple[str, ...]
) -> None:
    plane.script("POST /v1/allocations", document(allocation("placed"), 202))
    plane.script(f"GET {PATH}/watch", stream(REQUESTED, PLACED, hold=True))
    process = subprocess.Popen([*CREATE, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    plane.await_request(f"GET {PATH}/watch")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out == ""
    assert f"sliceplane allocations watch {ALLOCATION}" in err
    assert f"sliceplane allocations release {ALLOCATION}" in err
    assert "Traceback" not in err


def test_ctrl_c_during_a_release_reports_that_the_release_continues(
    plane: ScriptedPlane, environment: None
) -> None:
    plane.script(f"DELETE {PATH}", document(allocation("releasing", version=9), 202))
    plane.script(f"GET {PATH}/watch", stream(*BRING_UP, RELEASING, hold=True))
    process = subprocess.Popen(
        [*RELEASE, "--wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    plane.await_request(f"GET {PATH}/watch")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert f"stopped waiting; the release of {ALLOCATION} continues" in err
    assert f"sliceplane allocations watch {ALLOCATION}" in err
    assert "allocations release" not in err


def test_create_on_a_terminal_shows_live_progress_and_then_the_result(
    plane: ScriptedPlane, environment: None
) -> None:
    plane.script("POST /v1/allocations", document(allocation("placed"), 202))
    plane.script(f"GET {PATH}/watch", stream(*BRING_UP, hold=True))
    plane.script(f"GET {PATH}", document(allocation()))
    plane.script("GET /v1/nodes/lab-a", document(NODE))
    code, shown = run_on_terminal(*CREATE)
    assert code == 0
    assert "\x1b[" in shown
    assert "after 5.0 s  (requested 0.00 s, placed 0.25 s, provisioning 4.8 s)" in without_escapes(shown)
    assert f"sliceplane ssh {ALLOCATION}" in without_escapes(shown)


def test_ctrl_c_during_events_follow_ends_it_without_output(plane: ScriptedPlane, environment: None) -> None:
    plane.script("GET /v1/events/watch", stream(REQUESTED, hold=True))
    follow = [*SLICEPLANE, "events", "follow", "-o", "json"]
    process = subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == REQUESTED
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, "", "")


def test_events_follow_ends_without_a_message_when_its_reader_closes_the_pipe(
    plane: ScriptedPlane, environment: None
) -> None:
    plane.script("GET /v1/events/watch", stream(*(event(n, "x.y") for n in range(1, 5000)), hold=True))
    follow = [*SLICEPLANE, "events", "follow", "-o", "json"]
    process = subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(20) == 1


def test_allocations_list_on_a_narrow_terminal_prints_complete_names(
    plane: ScriptedPlane, environment: None
) -> None:
    plane.script("GET /v1/allocations", page(allocation(project="a-project-with-a-long-name")))
    code, shown = run_on_terminal(*SLICEPLANE, "allocations", "list", columns=40)
    assert code == 0
    assert "a-project-with-a-long-name" in without_escapes(shown)


WAYS_TO_START = {
    "module": SLICEPLANE,
    "entry point": (
        sys.executable,
        "-c",
        "import sys; from control_plane.cli.__main__ import main; sys.exit(main())",
    ),
}


@pytest.mark.parametrize("start", WAYS_TO_START)
@pytest.mark.parametrize("imported", ["msgspec", "httpx", "typer", "rich.console"])
def test_ctrl_c_during_the_imports_of_the_cli_ends_it_without_a_traceback(
    plane: ScriptedPlane, environment: None, start: str, imported: str
) -> None:
    plane.script("GET /v1/events/watch", stream(REQUESTED, hold=True))
    python, *rest = WAYS_TO_START[start]
    command = [python, "-X", "importtime", *rest, "events", "follow", "-o", "json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    import_line = next(line for line in process.stderr if line.split("|")[-1].strip() == imported)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert [line for line in err.splitlines() if not line.startswith("import time:")] == [], import_line
