"""`./dev up` as a user runs it: it shows its progress, continues after a crash, and leaves nothing behind."""

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
    """A running `up` and its output so far."""

    def __init__(self, state: Path, *options: str) -> None:
        self.layout = Layout(state)
        self.output = ""
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
            self.output += line

    def wait_for_output(self, text: str, seconds: float = 90.0) -> None:
        until(lambda: text in self.output or self.process.poll() is not None, f"{text!r} is printed", seconds)
        assert text in self.output, self.output

    def end(self, number: signal.Signals) -> int:
        """Send the signal, wait until the process has ended, and return its exit code."""
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
        down(made)  # stop and remove what a failed test left behind


def options(kind: str) -> tuple[str, ...]:
    return ("--simulated",) if kind == "simulated" else ()


@pytest.mark.parametrize("kind", ["simulated", REAL])
def test_up_once_shows_a_slice_from_request_to_release_and_leaves_nothing(state: Path, kind: str) -> None:
    up = Up(state, "--once", *options(kind))
    assert up.wait() == 0, up.output
    for text in ("allocation.requested", "slot.claimed", "allocation.activated", "nothing differs"):
        assert text in up.output
    if kind == "real":
        assert "another key is refused" in up.output
        assert re.search(r"log in to the guest at 198\.51\.100\.\d+:2\d{4} from outside", up.output)
        assert re.search(r"guest: alc-[0-9a-z]{26}", up.output)
    assert traces(up.layout) == []


@pytest.mark.parametrize("kind", ["simulated", REAL])
def test_next_up_makes_the_slice_active_again_after_all_processes_were_killed(state: Path, kind: str) -> None:
    first = Up(state, *options(kind))
    first.wait_for_output("Ctrl-C stops everything")
    [before] = active(first.layout)
    kill_everything(first)
    until(
        lambda: not [each for each in traces(first.layout) if each.startswith("process")],
        "all processes are gone",
    )
    second = Up(state, *options(kind))
    second.wait_for_output("Ctrl-C stops everything")
    assert active(second.layout) == [before]
    assert f"slice {before[0]} is from an earlier run" in second.output
    assert "allocation.requested" in first.output
    assert "allocation.requested" not in second.output
    assert ("allocation.slice_ready" in second.output) == (kind == "real")
    assert second.end(signal.SIGINT) == 130
    assert traces(second.layout) == []


@pytest.mark.parametrize("verb", ["up", "down"])
@pytest.mark.parametrize("module", ["argparse", "httpx", "rich"])
def test_dev_up_and_dev_down_print_one_line_when_they_are_interrupted_during_imports(
    tmp_path: Path, verb: str, module: str
) -> None:
    state = tmp_path / "state"
    up_or_down = (sys.executable, "-m", "deploy.embedded", verb, "--state", state)
    ended = interrupted(tmp_path, module, *up_or_down)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "\nInterrupted.\n")
    assert not state.exists()


@pytest.mark.parametrize("kind", ["simulated", REAL])
@pytest.mark.parametrize("text", ["starting the control plane", "slot lab-a/0", "allocation.placed"])
def test_interrupted_up_leaves_nothing_behind_at_any_stage(state: Path, kind: str, text: str) -> None:
    up = Up(state, *options(kind))
    up.wait_for_output(text)
    assert up.end(signal.SIGINT) == 130, up.output
    assert traces(up.layout) == []


@pytest.mark.slow
def test_up_once_releases_the_slice_of_an_interrupted_run_and_lists_other_slices(state: Path) -> None:
    first = Up(state, "--simulated")
    first.wait_for_output("Ctrl-C stops everything")
    [kept] = active(first.layout)
    assert first.end(signal.SIGINT) == 130
    second = Up(state, "--once", "--simulated")
    second.wait_for_output("slot.claimed")
    assert second.end(signal.SIGINT) == 130
    assert "stopping ..." in second.output
    third = Up(state, "--once", "--simulated")
    assert third.wait() == 0, third.output
    assert "is left over from an interrupted --once" in third.output
    assert f"another slice is active here: {kept[0]}" in third.output


@pytest.mark.slow
def test_up_once_without_a_free_slot_names_the_slot_holders_and_the_next_step(state: Path) -> None:
    first = Up(state, "--simulated")
    first.wait_for_output("Ctrl-C stops everything")
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
    assert all(holder in second.output for holder in holders), second.output
    assert "./dev reset" in second.output
    assert "{" not in second.output


def test_dev_reset_empties_the_state_folder_only_after_confirmation(state: Path) -> None:
    up = Up(state, "--simulated")
    up.wait_for_output("starting the control plane")
    refused = reset(state, "--yes")
    assert (refused.returncode, "in use by process" in refused.stdout) == (1, True), refused.stdout
    assert up.end(signal.SIGINT) == 130
    kept = {each.name for each in state.iterdir()}
    declined = reset(state, answer="no\n")
    assert (declined.returncode, {each.name for each in state.iterdir()}) == (1, kept)
    done = reset(state, answer="yes\n")
    assert (done.returncode, list(state.iterdir())) == (0, []), done.stdout


def test_dev_reset_and_dev_up_refuse_a_state_folder_with_unrelated_files(tmp_path: Path) -> None:
    precious = tmp_path / "thesis.txt"
    precious.write_text("42")
    for verb in (("reset", "--yes"), ("up", "--once", "--simulated")):
        assert down(tmp_path).returncode == 0
        command = [sys.executable, "-m", "deploy.embedded", verb[0], "--state", str(tmp_path), *verb[1:]]
        refused = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True)
        assert refused.returncode == 1
        assert "not a state folder" in refused.stdout
        assert [each.name for each in tmp_path.iterdir()] == [precious.name]


def test_dev_down_removes_the_leftovers_of_a_killed_dev_up(state: Path) -> None:
    up = Up(state, "--simulated")
    up.wait_for_output("Ctrl-C stops everything")
    kill_everything(up)
    until(
        lambda: not [each for each in traces(up.layout) if each.startswith("process")],
        "all processes are gone",
    )
    assert traces(up.layout) == [f"folder {up.layout.run}"]
    assert down(state).returncode == 0
    assert traces(up.layout) == []


@pytest.mark.node
@pytest.mark.slow
def test_node_that_dies_is_restarted_together_with_its_slice(state: Path) -> None:
    up = Up(state)
    up.wait_for_output("Ctrl-C stops everything")
    [before] = active(up.layout)
    os.kill(int((state / "nodes" / "lab-a" / "host.pid").read_text()), signal.SIGKILL)
    up.wait_for_output("lab-a exited and is restarted")
    until(lambda: states(up.layout) == ["starting"], "the interruption is recorded")
    until(lambda: active(up.layout) == [before], "the slice is active again", 60)
    assert up.end(signal.SIGINT) == 130
    assert traces(up.layout) == []


def test_second_up_on_the_same_state_folder_is_refused_and_down_ends_the_first(state: Path) -> None:
    first = Up(state, "--simulated")
    first.wait_for_output("Ctrl-C stops everything")
    second = Up(state, "--simulated")
    assert second.wait() == 1
    assert "in use by process" in second.output
    assert down(state).returncode == 0
    assert first.wait() == 130
    assert traces(first.layout) == []


def test_public_addresses_set_by_an_admin_are_kept_by_the_next_up(state: Path) -> None:
    first = Up(state, "--simulated")
    first.wait_for_output("Ctrl-C stops everything")
    given = public_addresses(first.layout)
    assert [each["use"] for each in given] == ["ports"]
    desired = [*given, {"address": "203.0.113.77", "use": "whole"}]
    answer = ask(first.layout, "PUT", "/nodes/lab-a/public-addresses", {"addresses": desired})
    assert answer.is_success, answer.text
    stored = public_addresses(first.layout)
    assert [each["address"] for each in stored] == [each["address"] for each in desired]
    assert first.end(signal.SIGINT) == 130
    second = Up(state, "--simulated")
    second.wait_for_output("Ctrl-C stops everything")
    assert public_addresses(second.layout) == stored
    assert second.end(signal.SIGINT) == 130


def test_simulated_nodes_have_a_separate_default_state_folder_and_down_acts_on_both() -> None:
    ordinary, simulated = default_state(), default_state(simulated=True)
    assert simulated.parent == ordinary.parent
    expected = {
        ("up",): [ordinary],
        ("up", "--once", "--simulated"): [simulated],
        ("down",): [ordinary, simulated],
        ("up", "--simulated", "--state", "/elsewhere"): [Path("/elsewhere")],
        ("down", "--state", "/elsewhere"): [Path("/elsewhere")],
    }
    for arguments, folders in expected.items():
        assert [each.state for each in layouts(parsed(arguments))] == [folder.resolve() for folder in folders]


def test_printed_export_line_configures_the_command_line_for_the_running_up(state: Path) -> None:
    up = Up(state, "--simulated")
    up.wait_for_output("Ctrl-C stops everything")
    [running] = active(up.layout)
    up.wait_for_output("try ")
    [printed] = re.findall(r"export SLICEPLANE_CONFIG=(\S+)", up.output)
    assert printed == str(up.layout.client_file)
    listed = sliceplane(up.layout, "allocations", "list")
    assert running[0] in listed.stdout, listed.stderr
    assert up.end(signal.SIGINT) == 130


@pytest.mark.node
@pytest.mark.slow
def test_sliceplane_ssh_reaches_the_guest_through_its_ingress_and_from_its_node(state: Path) -> None:
    up = Up(state)
    up.wait_for_output("Ctrl-C stops everything")
    [(allocation, _)] = active(up.layout)
    up.wait_for_output(f"sliceplane ssh {allocation}")
    for options in ((), ("--via", "node")):
        done = sliceplane(up.layout, "ssh", allocation, *options, "--", "hostname; cat; exit 7")
        assert (done.returncode, done.stdout) == (7, f"{allocation}\nfrom here\n"), done.stderr
    assert up.end(signal.SIGINT) == 130
    assert traces(up.layout) == []


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_commands_in_the_readme_list_sizes_and_request_a_slice(state: Path) -> None:
    readme = (REPOSITORY / "README.md").read_text()
    [block] = [each for each in readme.split("```") if each.startswith("\ncd ") and "curl" in each]
    folder, *lines = block.strip().splitlines()
    assert (folder, len(lines)) == (f"cd {SYSTEM_STATE}", 4)
    up = Up(state, "--simulated")
    up.wait_for_output("Ctrl-C stops everything")
    typed = "\n".join((f"cd {shlex.quote(str(state))}", *lines))
    done = subprocess.run(["bash", "-c", typed], check=True, capture_output=True, text=True, timeout=60)
    sizes, made = (json.loads(line) for line in done.stdout.splitlines())
    assert "lab.small" in [each["name"] for each in sizes["items"]]
    until(
        lambda: made["id"] in [each["id"] for each in allocations(up.layout)],
        f"the new allocation is listed: {done.stderr}",
    )
    assert up.end(signal.SIGINT) == 130


def sliceplane(layout: Layout, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line with the configuration that `up` wrote, and one line on its standard input."""
    return subprocess.run(
        [sys.executable, "-m", "control_plane.cli", *arguments],
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
    """Return the ids of active allocations, each with its first slot."""
    return [
        (each["id"], each["slots"][0]["slot_id"]) for each in allocations(layout) if each["state"] == "active"
    ]


def allocations(layout: Layout) -> list[dict[str, Any]]:
    """Return the allocations that the API lists."""
    found: list[dict[str, Any]] = ask(layout, "GET", "/allocations").json()["items"]
    return found


def public_addresses(layout: Layout) -> list[dict[str, Any]]:
    """Return the public addresses of the first node."""
    found: list[dict[str, Any]] = ask(layout, "GET", "/nodes/lab-a").json()["public_addresses"]
    return found


def ask(layout: Layout, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
    """Send a request to the API with the admin key from the state folder."""
    client = json.loads(layout.client_file.read_text())
    headers = {"Authorization": f"Bearer {client['api_key']}", "Idempotency-Key": uuid.uuid4().hex}
    url, trusted = f"{client['url']}/v1{path}", trust(client["ca"])
    return httpx.request(method, url, json=body, headers=headers, timeout=20, verify=trusted)


def kill_everything(up: Up) -> None:
    """Kill `up` and all processes that it started, including the hosts of the lab."""
    pids = [int(each.split()[1].rstrip(":")) for each in traces(up.layout) if each.startswith("process")]
    for pid in (up.process.pid, *pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    up.wait()
