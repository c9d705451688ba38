"""Tests of `./dev up` as a user runs it: it shows its progress, continues after a crash, and leaves nothing behind."""

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from deploy.embedded.demonstration import ENDED, ssh_endpoints
from deploy.embedded.layout import SYSTEM_STATE, Layout, default_state
from deploy.embedded.program import layouts, parsed
from deploy.embedded.ssh_key import ensure_key_pair
from tasks.trust import trust
from tests import matrix
from tests.faults.embedded import traces
from tests.interrupting import interrupted
from tests.servers.lab import kept_folder
from tests.servers.postgres import server_folder
from tests.up import copying
from tests.waiting import until

REPOSITORY = Path(__file__).resolve().parents[2]
REAL = pytest.param("real", marks=[pytest.mark.node, pytest.mark.slow])
pytestmark = [pytest.mark.shared_system, pytest.mark.timeout(300)]
STARTED: Final = "Ctrl-C stops everything"
SLOTS: Final = 4
"""All slots of the two nodes of `./dev up`."""
WHOLE_LIFE: Final = ("allocation.requested", "slot.claimed", "allocation.activated", "nothing differs")
"""Texts that `./dev up --once` prints about one slice from its request to its release."""


class Up:
    """Running `./dev up` process and its output so far. `program` is the module that the process runs."""

    def __init__(self, state: Path, *options: str, program: str = copying.__name__) -> None:
        self.layout = Layout(state)
        self.output = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", program, "up", "--state", str(state), *options],
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
        """Send the signal to `./dev up`, wait until its process has ended, and return its exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(120)
        self._reader.join(10)
        return status


class Site:
    """State folder that tests share, and the runs of `./dev up` with it. A test may find slices of earlier tests
    there.
    """

    def __init__(self, state: Path, kind: str) -> None:
        self.layout = Layout(state)
        self.runs: list[Up] = []
        self.slices: list[tuple[str, str]] = []
        """Slices that were active when the last run had started, or that a test requested instead of such a run."""
        self._kind = kind

    def running(self) -> Up:
        """Return the running `./dev up` process. Start it if it does not run."""
        if not self.runs or self.runs[-1].process.poll() is not None:
            self.runs.append(Up(self.layout.state, *options(self._kind)))
            self.runs[-1].wait_for_output(STARTED)
            self.slices = active(self.layout)
        return self.runs[-1]

    def end(self) -> None:
        """End `./dev up` by `./dev down`, and check that it left nothing on the machine."""
        if self.runs and self.runs[-1].process.poll() is None:
            assert down(self.layout.state).returncode == 0
            assert self.runs[-1].wait() == 130, self.runs[-1].output
            assert traces(self.layout) == []

    def settled(self) -> list[tuple[str, str]]:
        """Wait until no slice is starting, and return the active slices."""
        until(lambda: {*states(self.layout)} == {"active"}, "all slices are active")
        return active(self.layout)


@contextlib.contextmanager
def state_folder() -> Iterator[Path]:
    with server_folder() as folder:
        made = folder / "state"
        made.mkdir()
        kept = kept_folder() / "images"
        kept.mkdir(parents=True, exist_ok=True)
        (made / "images").symlink_to(kept)
        # `up` must own the folder before it may contain more than images.
        Layout(made).claim()
        (made / "libvirt-cache").symlink_to(kept_folder() / "libvirt")
        yield made
        if traces(Layout(made)):  # a failed test left them behind
            down(made)


@pytest.fixture
def state() -> Iterator[Path]:
    with state_folder() as state:
        yield state


@pytest.fixture(scope="module")
def site_of() -> Iterator[Callable[[str], Site]]:
    """Return a function that returns the shared state folder for a kind of node. Tests share it because a start of
    `./dev up` takes seconds.
    """
    with contextlib.ExitStack() as ends:

        @cache
        def made(kind: str) -> Site:
            site = Site(ends.enter_context(state_folder()), kind)
            ends.callback(site.end)
            return site

        yield made


@pytest.fixture(scope="module")
def simulated(site_of: Callable[[str], Site]) -> Site:
    return site_of("simulated")


@pytest.fixture(scope="module")
def real(site_of: Callable[[str], Site]) -> Site:
    return site_of("real")


def options(kind: str) -> tuple[str, ...]:
    return ("--simulated",) if kind == "simulated" else ()


@pytest.mark.node
@pytest.mark.slow
def test_dev_up_once_shows_a_slice_from_request_to_release_and_leaves_nothing(real: Site) -> None:
    real.end()
    up = Up(real.layout.state, "--once", program="deploy.embedded")
    assert up.wait() == 0, up.output
    for text in WHOLE_LIFE:
        assert text in up.output
    assert "the guest refuses an SSH key that is not in the request" in up.output
    assert re.search(r"log in to the guest at 198\.51\.100\.\d+:2\d{4} from outside", up.output)
    assert re.search(r"guest: alc-[0-9a-z]{26}", up.output)
    assert traces(up.layout) == []


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


@dataclass(frozen=True)
class Interruption:
    """Case of a test that interrupts `./dev up`, with nodes of the kind `kind`, by Ctrl-C when it prints `text`."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.text}"


INTERRUPTIONS: Final = {
    kind: [
        pytest.param(Interruption(kind, text), marks=[pytest.mark.node, pytest.mark.slow])
        for text in ("starting the control plane", "slot lab-a/0", "allocation.placed")
    ]
    for kind in ("simulated", "real")
}


# The usual run interrupts a start with simulated nodes, which takes half of the processor time.
@matrix.cases("P16", [*chain(*INTERRUPTIONS.values())], few=1, among=INTERRUPTIONS["simulated"])
def test_dev_up_interrupted_at_any_stage_leaves_nothing_behind(state: Path, case: Interruption) -> None:
    up = Up(state, *options(case.kind))
    up.wait_for_output(case.text)
    assert up.end(signal.SIGINT) == 130, up.output
    assert "stopping ..." in up.output
    assert traces(up.layout) == []


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


def test_dev_up_with_simulated_nodes_has_its_own_default_state_folder_and_dev_down_uses_both_defaults() -> (
    None
):
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


@pytest.mark.slow
def test_dev_up_once_releases_the_slice_of_an_interrupted_run_and_lists_other_slices(simulated: Site) -> None:
    simulated.end()
    second = Up(simulated.layout.state, "--once", "--simulated")
    if not simulated.slices:
        second.wait_for_output("slot lab-a/0")
        until(lambda: placeable(second.layout) > 0, "a slice can be placed")
        request_slice(second.layout)
        # `up --once` first takes a snapshot of the nodes, so this slice is active before that of `up --once`.
        until(lambda: active(second.layout) != [], "the other slice is active")
        simulated.slices = active(second.layout)
    second.wait_for_output("slot.claimed")
    assert second.end(signal.SIGINT) == 130
    assert "stopping ..." in second.output
    third = Up(simulated.layout.state, "--once", "--simulated")
    assert third.wait() == 0, third.output
    assert "is left over from an interrupted `up --once`" in third.output
    for kept, _ in simulated.slices:
        assert f"another allocation is active: {kept}" in third.output
    for text in WHOLE_LIFE:
        assert text in third.output
    assert traces(third.layout) == []


def test_export_line_printed_by_dev_up_configures_the_command_line_for_this_run(simulated: Site) -> None:
    up = simulated.running()
    up.wait_for_output("try ")
    [printed] = re.findall(r"export SLICEPLANE_CONFIG=(\S+)", up.output)
    assert printed == str(up.layout.client_file)
    listed = sliceplane(up.layout, "allocations", "list")
    for allocation, _ in simulated.slices:
        assert allocation in listed.stdout, listed.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_commands_in_the_readme_list_sizes_and_request_a_slice(simulated: Site) -> None:
    readme = (REPOSITORY / "README.md").read_text()
    [block] = [each for each in readme.split("```") if each.startswith("\ncd ") and "curl" in each]
    folder, *lines = block.strip().splitlines()
    assert (folder, len(lines)) == (f"cd {SYSTEM_STATE}", 4)
    up = simulated.running()
    typed = "\n".join((f"cd {shlex.quote(str(up.layout.state))}", *lines))
    done = subprocess.run(["bash", "-c", typed], check=True, capture_output=True, text=True, timeout=60)
    sizes, made = (json.loads(line) for line in done.stdout.splitlines())
    assert "lab.small" in [each["name"] for each in sizes["items"]]
    until(
        lambda: made["id"] in [each["id"] for each in allocations(up.layout)],
        f"the new allocation is listed: {done.stderr}",
    )


def test_dev_up_logs_in_only_at_the_endpoints_of_a_slice_that_lead_to_its_ssh_port() -> None:
    def rule(port: int, public_port: int, protocol: str = "tcp") -> dict[str, Any]:
        return {
            "public_address": "198.51.100.11",
            "public_port": public_port,
            "protocol": protocol,
            "port": port,
        }

    def public(port: int) -> dict[str, Any]:
        return {"kind": "tcp", "via": "public", "address": "198.51.100.11", "port": port}

    private = {"kind": "ssh", "via": "node", "address": "10.100.1.10", "port": 22}
    allocation = {
        "endpoints": [private, public(20001), public(20002), {**public(20003), "kind": "udp"}],
        "ingress": [rule(22, 20001), rule(81, 20002), rule(22, 20003, "udp")],
    }
    assert ssh_endpoints(allocation) == [private, public(20001)]


def test_second_dev_up_and_dev_reset_on_the_state_folder_of_a_running_dev_up_are_refused(
    simulated: Site,
) -> None:
    first = simulated.running()
    second = Up(first.layout.state, "--simulated")
    assert second.wait() == 1
    assert "in use by process" in second.output
    refused = reset(first.layout.state, "--yes")
    assert (refused.returncode, "in use by process" in refused.stdout) == (1, True), refused.stdout
    assert first.process.poll() is None


@pytest.mark.node
@pytest.mark.slow
def test_sliceplane_ssh_reaches_the_guest_through_its_ingress_the_ssh_gateway_and_from_its_node(
    real: Site,
) -> None:
    up = real.running()
    [(allocation, _)] = real.slices
    up.wait_for_output(f"sliceplane ssh {allocation}")
    for options in ((), ("--via", "gateway"), ("--via", "node")):
        done = sliceplane(up.layout, "ssh", allocation, *options, "--", "hostname; cat; exit 7")
        assert (done.returncode, done.stdout) == (7, f"{allocation}\nfrom here\n"), done.stderr


@pytest.mark.node
@pytest.mark.slow
def test_ssh_with_the_gateway_as_jump_host_reaches_a_private_slice_until_it_is_released(
    real: Site, tmp_path: Path
) -> None:
    up = real.running()
    allocation = request_slice(up.layout)
    until(lambda: allocation in dict(active(up.layout)), "the slice is active", 60)
    shown = ask(up.layout, "GET", f"/allocations/{allocation}").json()
    assert (shown["network_mode"], shown["ingress"]) == ("private-nat", [])
    gateway = shown["ssh_gateway"]
    host, _, port = gateway["address"].rpartition(":")
    (tmp_path / "known_hosts").write_text(f"[{host}]:{port} {gateway['host_key']}\n")
    # `ssh -J` uses the file, but no options, for the connection to the gateway.
    config = tmp_path / "config"
    config.write_text(
        f"Host slice\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
        f"Host *\n  IdentityFile {up.layout.ssh_key.with_name('key_of_user')}\n  IdentitiesOnly yes\n  BatchMode yes\n"
        f"  StrictHostKeyChecking yes\n  UserKnownHostsFile {tmp_path / 'known_hosts'}\n"
    )
    jump = ["ssh", "-F", str(config), "-J", f"{allocation}@{gateway['address']}", "root@slice"]
    with subprocess.Popen(
        [*jump, "hostname; cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == f"{allocation}\n", client.communicate()[1]
        [session] = ask(up.layout, "GET", "/console-sessions").json()["items"]
        assert (session["kind"], session["allocation_id"], session["state"]) == (
            "ssh",
            allocation,
            "connected",
        )
        assert ask(up.layout, "DELETE", f"/allocations/{allocation}").is_success
        client.wait(5)
    refused = subprocess.run(jump, capture_output=True, text=True, timeout=20, check=False)
    assert "Permission denied (publickey)" in refused.stderr
    until(lambda: len(allocations(up.layout)) == 1, "the slice is released", 60)


@pytest.mark.node
@pytest.mark.slow
def test_lab_node_that_dies_is_restarted_together_with_its_slice_by_dev_up(real: Site) -> None:
    up = real.running()
    [before] = real.settled()
    os.kill(int((up.layout.state / "nodes" / "lab-a" / "host.pid").read_text()), signal.SIGKILL)
    up.wait_for_output("lab-a exited and is restarted")
    until(lambda: states(up.layout) == ["starting"], "the interruption is recorded")
    until(lambda: active(up.layout) == [before], "the slice is active again", 60)


@matrix.cases("P26", ["simulated", REAL], few=1)
def test_dev_up_after_all_processes_were_killed_makes_the_slice_active_again_and_keeps_public_addresses(
    site_of: Callable[[str], Site], case: str
) -> None:
    site = site_of(case)
    first = site.running()
    before = site.settled()
    given = public_addresses(first.layout)
    assert [each["use"] for each in given] == ["ports"]
    desired = [*given, {"address": "203.0.113.77", "use": "whole"}]
    answer = ask(first.layout, "PUT", "/nodes/lab-a/public-addresses", {"addresses": desired})
    assert answer.is_success, answer.text
    stored = public_addresses(first.layout)
    assert [each["address"] for each in stored] == [each["address"] for each in desired]
    kill_everything(first)
    second = site.running()
    assert active(second.layout) == before
    assert public_addresses(second.layout) == stored
    # `up` names only its own slice, and not those that a user requested.
    [resumed] = re.findall(r"slice (\S+) is from an earlier run", second.output)
    assert resumed in [allocation for allocation, _ in before]
    assert "allocation.requested" in site.runs[0].output
    assert "allocation.requested" not in second.output
    assert ("allocation.slice_ready" in second.output) == (case == "real")


@pytest.mark.slow
def test_dev_down_removes_leftovers_of_a_killed_run_dev_up_once_names_the_allocations_and_dev_reset_removes_them(
    simulated: Site,
) -> None:
    first = simulated.running()
    held = len(simulated.settled())
    until(lambda: placeable(first.layout) == SLOTS - held, "slices can be placed in all other slots")
    for _ in range(SLOTS - held):
        request_slice(first.layout)
    holders = [holder for holder, _ in simulated.settled()]
    kill_everything(first)
    assert traces(first.layout) == [f"folder {first.layout.run}"]
    assert down(first.layout.state).returncode == 0
    assert traces(first.layout) == []
    second = Up(first.layout.state, "--once", "--simulated")
    assert second.wait() == 1
    assert all(holder in second.output for holder in holders), second.output
    assert "./dev reset" in second.output
    assert "{" not in second.output
    assert_reset_empties_only_after_confirmation(first.layout)
    simulated.runs.clear()
    simulated.slices.clear()


def assert_reset_empties_only_after_confirmation(layout: Layout) -> None:
    state = layout.state
    kept = {each.name for each in state.iterdir()}
    declined = reset(state, answer="no\n")
    assert (declined.returncode, {each.name for each in state.iterdir()}) == (1, kept)
    done = reset(state, answer="yes\n")
    assert (done.returncode, list(state.iterdir())) == (0, []), done.stdout
    layout.claim()
    assert list(state.iterdir()) != []
    done = reset(state, "--yes")
    assert (done.returncode, list(state.iterdir())) == (0, []), done.stdout


def sliceplane(layout: Layout, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command `sliceplane` with the configuration that `./dev up` wrote, and with one line on its standard
    input.
    """
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
    """Return the id and the first slot's id of each active allocation."""
    return [
        (each["id"], each["slots"][0]["slot_id"]) for each in allocations(layout) if each["state"] == "active"
    ]


def allocations(layout: Layout) -> list[dict[str, Any]]:
    """Return the allocations that have not ended, as the API lists them."""
    found: list[dict[str, Any]] = ask(layout, "GET", "/allocations").json()["items"]
    return [each for each in found if each["state"] not in ENDED]


def request_slice(layout: Layout) -> str:
    """Request a slice as a user does, and return the id of its allocation."""
    public_key = ensure_key_pair(layout.ssh_key.with_name("key_of_user"))
    answer = ask(layout, "POST", "/allocations", {"sku": "lab.small", "ssh_authorized_keys": [public_key]})
    assert answer.is_success, answer.text
    return str(answer.json()["id"])


def placeable(layout: Layout) -> int:
    """Return the number of slots in which a slice can be placed now. After its start, a node first compares its slots
    with their orders.
    """
    shown = ask(layout, "GET", "/slots").json()["items"]
    return sum(each["state"] == "free" and each["blocked_by"] is None for each in shown)


def public_addresses(layout: Layout) -> list[dict[str, Any]]:
    """Return the public addresses of the node lab-a."""
    found: list[dict[str, Any]] = ask(layout, "GET", "/nodes/lab-a").json()["public_addresses"]
    return found


def ask(layout: Layout, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
    """Send a request to the API with the admin key that `./dev up` wrote to its state folder."""
    client = json.loads(layout.client_file.read_text())
    headers = {"Authorization": f"Bearer {client['api_key']}", "Idempotency-Key": uuid.uuid4().hex}
    url, trusted = f"{client['url']}/v1{path}", trust(client["ca"])
    return httpx.request(method, url, json=body, headers=headers, timeout=20, verify=trusted)


def kill_everything(up: Up) -> None:
    """Kill `./dev up` and all processes that it started, including the lab hosts, and wait until they are gone."""
    pids = [int(each.split()[1].rstrip(":")) for each in traces(up.layout) if each.startswith("process")]
    for pid in (up.process.pid, *pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    up.wait()
    until(
        lambda: not [each for each in traces(up.layout) if each.startswith("process")],
        "all processes are gone",
    )
