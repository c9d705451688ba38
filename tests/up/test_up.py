"""`./dev up` as a user has it: it shows its work, goes on after a crash, and leaves nothing behind when it ends."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.embedded.layout import SYSTEM_STATE, Layout, default_state
from deploy.embedded.program import layouts, parsed
from tasks.trust import trust
from tests.faults.embedded import traces
from tests.interrupting import interrupted
from tests.servers.lab import kept_folder
from tests.servers.postgres import server_folder
from tests.waiting import until

REPOSITORY = Path(__file__).resolve().parents[2]
REAL = pytest.param("real", marks=[pytest.mark.node, pytest.mark.slow])
pytestmark = pytest.mark.timeout(300)


class Up:
    """A running `up`, and what it has said so far."""

    def __init__(self, state: Path, *options: str) -> None:
        self.layout = Layout(state)
        self.said = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "deploy.embedded", "up", "--state", str(state), *options],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line

    def until_said(self, words: str, seconds: float = 90.0) -> None:
        until(lambda: words in self.said or self.process.poll() is not None, f"it said {words!r}", seconds)
        assert words in self.said, self.said

    def end(self, number: signal.Signals) -> int:
        """Signal it and wait for its end; returns the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(120)
        self._reader.join(10)
        return status


@pytest.fixture
def state() -> Iterator[Path]:
    with server_folder() as folder:
        made = folder / "state"
        made.mkdir()
        kept = kept_folder() / "images"
        kept.mkdir(parents=True, exist_ok=True)
        (made / "images").symlink_to(kept)
        yield made
        down(made)  # what a test that failed left running, or lying about


def options(kind: str) -> tuple[str, ...]:
    return ("--simulated",) if kind == "simulated" else ()


@pytest.mark.parametrize("kind", ["simulated", REAL])
def test_once_shows_a_slice_come_and_go_and_leaves_nothing(state: Path, kind: str) -> None:
    up = Up(state, "--once", *options(kind))
    assert up.wait() == 0, up.said
    for words in ("allocation.requested", "slot.claimed", "allocation.activated", "nothing differs"):
        assert words in up.said
    if kind == "real":
        assert "another key is refused" in up.said
        assert re.search(r"log in to the guest at 198\.51\.100\.\d+:2\d{4} from outside", up.said)
        assert re.search(r"guest: alc-[0-9a-z]{26}", up.said)
    assert traces(up.layout) == []


@pytest.mark.parametrize("kind", ["simulated", REAL])
def test_after_everything_was_killed_the_next_up_has_its_slice_active_again(state: Path, kind: str) -> None:
    first = Up(state, *options(kind))
    first.until_said("Ctrl-C stops everything")
    [before] = active(first.layout)
    kill_everything(first)
    until(lambda: not [each for each in traces(first.layout) if each.startswith("process")], "all is dead")
    second = Up(state, *options(kind))
    second.until_said("Ctrl-C stops everything")
    assert active(second.layout) == [before]
    assert f"slice {before[0]} is from an earlier run" in second.said
    assert "allocation.requested" in first.said
    assert "allocation.requested" not in second.said
    assert ("allocation.slice_ready" in second.said) == (kind == "real")
    assert second.end(signal.SIGINT) == 130
    assert traces(second.layout) == []


@pytest.mark.parametrize("verb", ["up", "down"])
@pytest.mark.parametrize("module", ["argparse", "httpx", "rich"])
def test_an_interrupt_while_it_imports_ends_it_with_one_line(tmp_path: Path, verb: str, module: str) -> None:
    state = tmp_path / "state"
    up_or_down = (sys.executable, "-m", "deploy.embedded", verb, "--state", state)
    ended = interrupted(tmp_path, module, *up_or_down)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "\nInterrupted.\n")
    assert not state.exists()


@pytest.mark.parametrize("kind", ["simulated", REAL])
@pytest.mark.parametrize("words", ["starting the control plane", "slot lab-a/0", "allocation.placed"])
def test_an_interrupt_at_any_moment_leaves_nothing_behind(state: Path, kind: str, words: str) -> None:
    up = Up(state, *options(kind))
    up.until_said(words)
    assert up.end(signal.SIGINT) == 130, up.said
    assert traces(up.layout) == []


@pytest.mark.slow
def test_once_releases_the_slice_of_an_interrupted_once_and_names_the_others(state: Path) -> None:
    first = Up(state, "--simulated")
    first.until_said("Ctrl-C stops everything")
    [kept] = active(first.layout)
    assert first.end(signal.SIGINT) == 130
    second = Up(state, "--once", "--simulated")
    second.until_said("slot.claimed")
    assert second.end(signal.SIGINT) == 130
    assert "stopping ..." in second.said
    third = Up(state, "--once", "--simulated")
    assert third.wait() == 0, third.said
    assert "is left over from an interrupted --once" in third.said
    assert f"another slice is active here: {kept[0]}" in third.said


@pytest.mark.slow
def test_once_without_a_free_slot_names_the_holders_and_what_to_do(state: Path) -> None:
    first = Up(state, "--simulated")
    first.until_said("Ctrl-C stops everything")
    body = {
        "sku": "lab.small",
        "ssh_authorized_keys": [(state / "ssh" / "id_ed25519.pub").read_text().strip()],
    }
    for _ in range(3):
        answer = ask(first.layout, "POST", "/allocations", body)
        assert answer.is_success, answer.text
    holders = [each["id"] for each in allocations(first.layout)]
    assert (first.end(signal.SIGINT), len(holders)) == (130, 4)
    second = Up(state, "--once", "--simulated")
    assert second.wait() == 1
    assert all(holder in second.said for holder in holders), second.said
    assert "./dev reset" in second.said
    assert "{" not in second.said


def test_reset_empties_the_state_folder_only_after_confirmation(state: Path) -> None:
    up = Up(state, "--simulated")
    up.until_said("starting the control plane")
    refused = reset(state, "--yes")
    assert (refused.returncode, "in use by process" in refused.stdout) == (1, True), refused.stdout
    assert up.end(signal.SIGINT) == 130
    kept = {each.name for each in state.iterdir()}
    declined = reset(state, answer="no\n")
    assert (declined.returncode, {each.name for each in state.iterdir()}) == (1, kept)
    done = reset(state, answer="yes\n")
    assert (done.returncode, list(state.iterdir())) == (0, []), done.stdout


def test_reset_and_up_refuse_a_folder_of_other_files(tmp_path: Path) -> None:
    precious = tmp_path / "thesis.txt"
    precious.write_text("42")
    for verb in (("reset", "--yes"), ("up", "--once", "--simulated")):
        assert down(tmp_path).returncode == 0
        command = [sys.executable, "-m", "deploy.embedded", verb[0], "--state", str(tmp_path), *verb[1:]]
        refused = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True)
        assert refused.returncode == 1
        assert "not a state folder" in refused.stdout
        assert [each.name for each in tmp_path.iterdir()] == [precious.name]


def test_down_removes_what_a_killed_up_left(state: Path) -> None:
    up = Up(state, "--simulated")
    up.until_said("Ctrl-C stops everything")
    kill_everything(up)
    until(lambda: not [each for each in traces(up.layout) if each.startswith("process")], "all is dead")
    assert traces(up.layout) == [f"folder {up.layout.run}"]
    assert down(state).returncode == 0
    assert traces(up.layout) == []


@pytest.mark.node
@pytest.mark.slow
def test_a_node_that_dies_is_started_again_and_its_slice_with_it(state: Path) -> None:
    up = Up(state)
    up.until_said("Ctrl-C stops everything")
    [before] = active(up.layout)
    os.kill(int((state / "nodes" / "lab-a" / "host.pid").read_text()), signal.SIGKILL)
    up.until_said("lab-a ended and is started again")
    until(lambda: states(up.layout) == ["starting"], "the interruption is known")
    until(lambda: active(up.layout) == [before], "the slice is active again", 60)
    assert up.end(signal.SIGINT) == 130
    assert traces(up.layout) == []


def test_a_second_up_on_the_same_state_is_refused_and_down_ends_the_first(state: Path) -> None:
    first = Up(state, "--simulated")
    first.until_said("Ctrl-C stops everything")
    second = Up(state, "--simulated")
    assert second.wait() == 1
    assert "in use by process" in second.said
    assert down(state).returncode == 0
    assert first.wait() == 130
    assert traces(first.layout) == []


def test_what_an_admin_says_of_a_nodes_public_addresses_outlives_the_run(state: Path) -> None:
    first = Up(state, "--simulated")
    first.until_said("Ctrl-C stops everything")
    given = public_addresses(first.layout)
    assert [each["use"] for each in given] == ["ports"]
    wanted = [*given, {"address": "203.0.113.77", "use": "whole"}]
    answer = ask(first.layout, "PUT", "/nodes/lab-a/public-addresses", {"addresses": wanted})
    assert answer.is_success, answer.text
    said = public_addresses(first.layout)
    assert [each["address"] for each in said] == [each["address"] for each in wanted]
    assert first.end(signal.SIGINT) == 130
    second = Up(state, "--simulated")
    second.until_said("Ctrl-C stops everything")
    assert public_addresses(second.layout) == said
    assert second.end(signal.SIGINT) == 130


def test_simulated_nodes_have_a_default_state_of_their_own_and_down_looks_at_both() -> None:
    ordinary, simulated = default_state(), default_state(simulated=True)
    assert simulated.parent == ordinary.parent
    asked = {
        ("up",): [ordinary],
        ("up", "--once", "--simulated"): [simulated],
        ("down",): [ordinary, simulated],
        ("up", "--simulated", "--state", "/elsewhere"): [Path("/elsewhere")],
        ("down", "--state", "/elsewhere"): [Path("/elsewhere")],
    }
    for words, folders in asked.items():
        assert [each.state for each in layouts(parsed(words))] == [folder.resolve() for folder in folders]


def test_the_line_that_it_prints_has_the_command_line_talk_to_this_one(state: Path) -> None:
    up = Up(state, "--simulated")
    up.until_said("Ctrl-C stops everything")
    [mine] = active(up.layout)
    up.until_said("try ")
    [told] = re.findall(r"export SLICEPLANE_CONFIG=(\S+)", up.said)
    assert told == str(up.layout.client_file)
    listed = sliceplane(up.layout, "allocations", "list")
    assert mine[0] in listed.stdout, listed.stderr
    assert up.end(signal.SIGINT) == 130


@pytest.mark.node
@pytest.mark.slow
def test_sliceplane_ssh_reaches_the_guest_by_its_ingress_and_from_its_node(state: Path) -> None:
    up = Up(state)
    up.until_said("Ctrl-C stops everything")
    [(allocation, _)] = active(up.layout)
    up.until_said(f"sliceplane ssh {allocation}")
    for options in ((), ("--via", "node")):
        done = sliceplane(up.layout, "ssh", allocation, *options, "--", "hostname; cat; exit 7")
        assert (done.returncode, done.stdout) == (7, f"{allocation}\nfrom here\n"), done.stderr
    assert up.end(signal.SIGINT) == 130
    assert traces(up.layout) == []


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_lines_of_the_readme_list_sizes_and_request_a_slice(state: Path) -> None:
    readme = (REPOSITORY / "README.md").read_text()
    [block] = [each for each in readme.split("```") if each.startswith("\ncd ") and "curl" in each]
    folder, *lines = block.strip().splitlines()
    assert (folder, len(lines)) == (f"cd {SYSTEM_STATE}", 4)
    up = Up(state, "--simulated")
    up.until_said("Ctrl-C stops everything")
    typed = "\n".join((f"cd {shlex.quote(str(state))}", *lines))
    done = subprocess.run(["bash", "-c", typed], check=True, capture_output=True, text=True, timeout=60)
    sizes, made = (json.loads(line) for line in done.stdout.splitlines())
    assert "lab.small" in [each["name"] for each in sizes["items"]]
    until(
        lambda: made["id"] in [each["id"] for each in allocations(up.layout)], f"it is listed: {done.stderr}"
    )
    assert up.end(signal.SIGINT) == 130


def sliceplane(layout: Layout, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line, on the configuration that `up` wrote, with a line on its standard input."""
    return subprocess.run(
        [sys.executable, "-m", "control_plane.cli", *words],
        cwd=REPOSITORY,
        env={**os.environ, "SLICEPLANE_CONFIG": str(layout.client_file)},
        input="from here\n",
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def down(state: Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "deploy.embedded", "down", "--state", str(state)]
    return subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True)


def reset(state: Path, *options: str, answer: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.embedded", "reset", "--state", str(state), *options]
    return subprocess.run(
        command,
        cwd=REPOSITORY,
        check=False,
        text=True,
        input=answer,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def states(layout: Layout) -> list[str]:
    return [each["state"] for each in allocations(layout)]


def active(layout: Layout) -> list[tuple[str, str]]:
    """Active allocations and their slots."""
    return [
        (each["id"], each["slots"][0]["slot_id"]) for each in allocations(layout) if each["state"] == "active"
    ]


def allocations(layout: Layout) -> list[dict[str, Any]]:
    """What the API says."""
    found: list[dict[str, Any]] = ask(layout, "GET", "/allocations").json()["items"]
    return found


def public_addresses(layout: Layout) -> list[dict[str, Any]]:
    """Those of the first node."""
    found: list[dict[str, Any]] = ask(layout, "GET", "/nodes/lab-a").json()["public_addresses"]
    return found


def ask(layout: Layout, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
    """Ask the API as the admin whose key lies in the state folder."""
    client = json.loads(layout.client_file.read_text())
    headers = {"Authorization": f"Bearer {client['api_key']}", "Idempotency-Key": uuid.uuid4().hex}
    url, trusted = f"{client['url']}/v1{path}", trust(client["ca"])
    return httpx.request(method, url, json=body, headers=headers, timeout=20, verify=trusted)


def kill_everything(up: Up) -> None:
    """`kill -9` for `up` and all that it started, the lab's hosts included."""
    pids = [int(each.split()[1].rstrip(":")) for each in traces(up.layout) if each.startswith("process")]
    for pid in (up.process.pid, *pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    up.wait()
