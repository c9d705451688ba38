"""The command line against a complete control plane: real Postgres, Redis and programs, and two simulated nodes."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from typing import IO, Any

import pytest

from deploy.embedded.postgres_cluster import PostgresUnavailable, find_programs
from deploy.embedded.redis import RedisNotFound, find_server
from deploy.embedded.ssh_key import ensure_key_pair
from tests.plugins.requirements import missing_server
from tests.up import copying

pytestmark = pytest.mark.slow

READY = "Ctrl-C stops everything"
UP = (sys.executable, "-m", copying.__name__, "up", "--simulated", "--state")


@pytest.fixture(scope="module")
def config() -> Iterator[Path]:
    """The configuration file of a running `./dev up`, which has one active slice and three free slots."""
    _need_servers()
    state = Path(tempfile.mkdtemp(prefix="sp-cli-"))
    state.chmod(0o711)
    with subprocess.Popen(
        [*UP, str(state)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as up:
        assert up.stdout is not None
        try:
            output = _read_until(up.stdout, READY)
            assert READY in output, output
            yield state / "client.json"
        finally:
            up.send_signal(signal.SIGTERM)
            up.communicate(timeout=60)
            rmtree(state)


def _need_servers() -> None:
    try:
        find_programs()
        find_server()
    except (PostgresUnavailable, RedisNotFound) as missing:
        missing_server(str(missing))


def _read_until(lines: IO[str], wanted: str) -> str:
    output = ""
    for line in lines:
        output += line
        if wanted in line:
            break
    return output


@pytest.fixture
def sliceplane(config: Path, tmp_path: Path) -> "CommandLine":
    return CommandLine({**os.environ, "SLICEPLANE_CONFIG": str(config)}, tmp_path)


class CommandLine:
    """`sliceplane` as a separate process, with an SSH key for the slices that it creates."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self._environment = environment
        self.key = folder / "key"
        ensure_key_pair(self.key)

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "control_plane.cli", *words]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)

    def document(self, *words: str) -> dict[str, Any]:
        done = self(*words, "-o", "json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def create(self, *words: str) -> dict[str, Any]:
        return self.document(
            "allocations", "create", "--sku", "lab.small", "--ssh-key", f"{self.key}.pub", *words
        )


def test_created_allocation_is_shown_and_released(sliceplane: CommandLine) -> None:
    made = sliceplane.create("--label", "team=a", "--lease", "10m")
    assert (made["state"], made["labels"]) == ("active", {"team": "a"})
    identity = made["id"]
    shown = sliceplane("allocations", "show", identity).stdout
    assert made["slots"][0]["private_ip"] in shown
    assert f"node {made['slots'][0]['node_id']} is simulated" in shown
    held = sliceplane.document("slots", "list")["items"]
    assert [slot["id"] for slot in held if slot["allocation_id"] == identity] == [made["slots"][0]["slot_id"]]
    assert sliceplane.document("allocations", "release", identity, "--wait")["state"] == "released"
    assert sliceplane("allocations", "watch", identity).returncode == 0
    events = sliceplane.document("allocations", "events", identity)["items"]
    assert [events[0]["type"], events[-1]["type"]] == ["allocation.requested", "slot.released"]


def test_allocation_of_two_slots_is_placed_on_one_node_and_released_together(sliceplane: CommandLine) -> None:
    made = sliceplane.create("--count", "2")
    assert len({slot["node_id"] for slot in made["slots"]}) == 1
    assert sliceplane.document("allocations", "release", made["id"], "--wait")["state"] == "released"


def test_invalid_create_reports_every_invalid_field_and_records_no_event(sliceplane: CommandLine) -> None:
    before = sliceplane.document("events", "list", "--limit", "1000")
    wrong = ("--image", "x", "--network-mode", "fabric-only", "--lease", "5s", "-o", "json")
    done = sliceplane(
        "allocations", "create", "--sku", "lab.huge", "--ssh-key", f"{sliceplane.key}.pub", *wrong
    )
    assert done.returncode == 1
    fields = {reason["field"] for reason in json.loads(done.stderr)["reasons"]}
    assert fields == {"/sku", "/image", "/network_mode", "/lease_seconds"}
    assert sliceplane.document("events", "list", "--limit", "1000") == before


def test_create_of_more_slots_than_are_free_is_refused_with_advice(sliceplane: CommandLine) -> None:
    done = sliceplane(
        *("allocations", "create", "--sku", "lab.small", "--count", "9", "--ssh-key", f"{sliceplane.key}.pub")
    )
    assert done.returncode == 1
    # The node that another test registers is not connected, and then belongs to the reason.
    assert re.search(r"\[no_(suitable|healthy)_slot\]", done.stderr)
    assert re.search(r"sliceplane (slots list|nodes drift)", done.stderr)


def test_node_registered_twice_gets_a_new_enrolment_token(sliceplane: CommandLine) -> None:
    first = sliceplane.document("nodes", "register", "lab-z")["enrolment_token"]
    assert sliceplane.document("nodes", "show", "lab-z")["state"] == "registered"
    second = sliceplane.document("nodes", "register", "lab-z")["enrolment_token"]
    assert second != first
    assert sliceplane.document("nodes", "reopen-enrolment", "lab-z")["enrolment_token"] not in (first, second)
    assert sliceplane("slots", "approve", "lab-z/0").returncode == 1


def test_caller_creates_shows_and_releases_an_allocation_in_its_project(sliceplane: CommandLine) -> None:
    sliceplane.document("projects", "create", "vision")
    issued = sliceplane.document("keys", "issue", "ci", "--role", "caller", "--project", "vision")
    as_caller = ("--api-key", issued["key"])
    create = ("allocations", "create", "--sku", "lab.small", "--ssh-key", f"{sliceplane.key}.pub")
    made = sliceplane(*as_caller, *create, "-o", "name")
    assert made.returncode == 0, made.stderr
    identity = made.stdout.strip()
    shown = sliceplane(*as_caller, "allocations", "show", identity)
    assert shown.returncode == 0, shown.stderr
    assert "project vision" in shown.stdout
    released = sliceplane(*as_caller, "allocations", "release", identity, "--wait")
    assert released.returncode == 0, released.stderr


def test_unknown_api_key_ends_the_command_with_code_3(sliceplane: CommandLine) -> None:
    assert sliceplane("--api-key", "sp_unknown", "nodes", "list").returncode == 3
