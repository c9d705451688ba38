"""Tests that agents with a copied, restored or revoked identity are refused, with real agents on a real control plane
(P9).
"""

import json
import shutil
import stat
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.embedded.children import Child, installed_program
from node_agent.transport.sessions import SessionFiles
from tasks.signing import payload_of
from tests.road.conftest import Site
from tests.waiting import until

Start = Callable[[Path], Child]


@pytest.fixture
def folder(site: Site) -> Path:
    """Folder that contains all files of the node."""
    return site.node.host_file.parent


@pytest.fixture
def start_copy(site: Site) -> Iterator[Start]:
    """Return a function that runs a second agent of the same node from a copy of the agent's state folder."""
    started: list[Child] = []

    def start(state: Path) -> Child:
        original = json.loads((site.node.host_file.parent / "agent.json").read_text())
        home = state.parent
        configuration = {
            **original,
            "state_folder": str(state),
            "run_folder": str(home / "run"),
            "simulated": {"boot_seconds": 0.3, "host_file": str(home / "host.json")},
        }
        (home / "agent.json").write_text(json.dumps(configuration))
        copy = Child(
            "copy", installed_program("sliceplane-agent", str(home / "agent.json")), home / "agent.log"
        )
        started.append(copy)
        copy.start()
        return copy

    yield start
    for copy in started:
        copy.stop()


def copied(folder: Path, to: Path) -> Path:
    to.mkdir()
    return shutil.copytree(folder / "agent", to / "agent")


def superseded(site: Site) -> list[tuple[int, int]]:
    query = "select data::jsonb ->> 'presented_session', data::jsonb ->> 'current_session' from ledger.event"
    found = site.plane.rows(f"{query} where type = 'node.agent_superseded' order by position")
    return [(int(presented), int(current)) for presented, current in found]


def log_of(child: Child) -> str:
    return child.log.read_text()


def test_agent_is_refused_and_its_node_shown_as_superseded_once_an_agent_on_a_copy_of_its_disk_runs(
    site: Site, folder: Path, tmp_path: Path, start_copy: Start
) -> None:
    slice_ = site.create()
    site.await_state(slice_, "active")
    copy = start_copy(copied(folder, tmp_path / "copy"))
    node = site.plane.client()
    until(
        lambda: node.get("/nodes/sim-a").json()["superseded_at"] is not None,
        "the node is shown as superseded",
        40,
    )
    assert len(superseded(site)) == 1
    refused, accepted = (site.node.agent, copy)
    until(
        lambda: "orders_stopped_because_control_plane_rejects_node" in log_of(refused),
        "the refused agent takes no orders",
    )
    assert "orders_stopped_because_control_plane_rejects_node" not in log_of(accepted)
    assert len(site.node.snapshot().kinds["domain"]) == 1, "the refused agent removed a slice"
    site.plane.client().delete(f"/allocations/{slice_}")
    site.await_state(slice_, "released", 60)
    assert superseded(site) == superseded(site)[:1]


def test_agent_on_a_disk_restored_from_an_older_copy_is_refused_and_changes_nothing_on_its_host(
    site: Site, folder: Path, tmp_path: Path, start_copy: Start
) -> None:
    older = copied(folder, tmp_path / "older")
    site.node.agent.stop()
    site.node.agent.start()
    until(lambda: log_of(site.node.agent).count("agent_started") == 2, "the agent has restarted")
    site.node.agent.stop()
    copy = start_copy(older)
    until(lambda: "agent_cannot_run" in log_of(copy), "the agent with the older disk is refused")
    assert "superseded" in site.plane.rows("select code from work.refusal")[0]
    assert not (tmp_path / "older" / "host.json").exists(), "the agent with the older disk changed its host"
    site.node.agent.start()
    until(lambda: log_of(site.node.agent).count("agent_started") == 3, "the agent has restarted again")
    site.await_placeable(2)
    slice_ = site.create()
    site.await_state(slice_, "active")


def test_revoked_agent_takes_no_orders_keeps_its_slices_and_enrols_again_with_a_new_token(
    site: Site, folder: Path
) -> None:
    slice_ = site.create()
    site.await_state(slice_, "active")
    admin = site.plane.client()
    assert admin.post("/nodes/sim-a/revoke", json={"reason": "test"}).status_code == 200
    until(
        lambda: "orders_stopped_because_control_plane_rejects_node" in log_of(site.node.agent),
        "the agent takes no orders",
    )
    assert admin.post("/allocations", json={"sku": "lab.small"}).is_error
    assert len(site.node.snapshot().kinds["domain"]) == 1
    token = admin.post("/nodes/sim-a/enrolment").json()["enrolment_token"]
    (folder / "token").write_text(token)
    until(lambda: admin.get("/nodes/sim-a").json()["state"] == "enrolled", "the node has enrolled again", 40)
    admin.delete(f"/allocations/{slice_}")
    site.await_state(slice_, "released", 60)


def test_agent_with_an_expired_session_renews_its_session_and_continues(site: Site) -> None:
    ended = "update work.node_session set expires_at = clock_timestamp() returning number"
    for _ in range(3):
        [(number,)] = site.plane.rows(ended)
        slice_ = site.create()
        site.await_state(slice_, "active")
        site.plane.client().delete(f"/allocations/{slice_}")
        site.await_state(slice_, "released")
        assert site.plane.rows("select number from work.node_session") == [(number + 1,)]
    assert superseded(site) == []


def test_agent_replaces_an_altered_fence_file_by_the_signed_order_of_the_control_plane(
    site: Site, folder: Path
) -> None:
    slice_ = site.create()
    site.await_state(slice_, "active")
    site.node.agent.stop()
    [path] = (folder / "agent" / "fence").glob("slot-*.json")
    path.write_text(with_order(path, lambda order: order.replace(b'"memory_mib":96', b'"memory_mib":960')))
    site.node.agent.start()
    until(lambda: log_of(site.node.agent).count("agent_started") == 2, "the agent has restarted")
    assert "fence_file_of_slot_unreadable" in log_of(site.node.agent)
    assert b'"memory_mib":96,' in payload_of(signed_order(path)), (
        "the fence file does not contain the order of the control plane"
    )
    until(lambda: site.show(slice_)["state"] == "active", "the slice is active")


def with_order(path: Path, change: Callable[[bytes], bytes]) -> str:
    """Return the text of an agent's fence file (the accepted order of a slot) with a changed order and the unchanged
    signature.
    """
    signed = signed_order(path)
    header, _, signature = signed.split(".")
    payload = urlsafe_b64encode(change(payload_of(signed))).rstrip(b"=").decode()
    return path.read_text().replace(signed, f"{header}.{payload}.{signature}")


def signed_order(path: Path) -> str:
    return str(json.loads(path.read_text())["signed"])


def test_secrets_of_an_enrolled_node_are_stored_only_in_its_private_session_file(
    site: Site, folder: Path
) -> None:
    state = folder / "agent"
    kept = SessionFiles(state).kept()
    assert kept is not None
    session = state / "session.json"
    assert ([*map(mode_of, (state, session))], session.owner()) == ([0o700, 0o600], folder.owner())
    key = "".join(kept.secrets.key.splitlines()[1:-1])
    for secret in (kept.secrets.credential, kept.secrets.queue_password, key):
        found = [path for path in folder.rglob("*") if path.is_file() and contains(path, secret)]
        assert found == [session]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def contains(path: Path, secret: str) -> bool:
    """Return whether the file contains the secret, regardless of line breaks."""
    return secret in path.read_text(errors="replace").replace("\\n", "").replace("\n", "")
