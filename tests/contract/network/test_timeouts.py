"""Tests of host changes that time out: the agent treats the host as unreadable instead of reporting a refusal, and
continues the plan later.
"""

import ctypes
import os
import resource
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Self

import pytest

from node_agent.aspects.flows import cookie_of, flows_of
from node_agent.aspects.links import Tap
from node_agent.aspects.meters import Meter
from node_agent.aspects.ports import PortAspect
from node_agent.host.slices import HostRefused, HostUnreadable
from node_agent.lab.lab import Lab, LabNode
from node_agent.packets.rules import Change
from node_agent.runtime.halt import Halt
from node_agent.slots.converge import retry_while_unreadable
from node_agent.slots.steps import run_steps
from tests.agent.eventually import eventually
from tests.contract.network.hosts import aspects_of, gateway_of
from tests.contract.network.slices import NETWORK, network, run, slice_on
from tests.waiting import last

if TYPE_CHECKING:
    from node_agent.drivers.network.ovs import OpenVSwitch
    from tests.contract.network.lab_host import Real

pytestmark = pytest.mark.node
SLOT = network(0, rate_mbit=100)
CLONE_FS, CLONE_NEWNS = 0x200, 0x20000


@pytest.fixture
def node(lab: Lab) -> LabNode:
    return lab.node("lab-b")


@pytest.fixture
def host(node: LabNode) -> Iterator["Real"]:
    from tests.contract.network.lab_host import real_host

    with real_host(node, NETWORK) as host:
        run(gateway_of(host).to_apply())
        yield host
        for aspect in reversed(aspects_of(host)):
            run(aspect.to_remove(SLOT))


def switch_with_short_deadline(folder: Path) -> "OpenVSwitch":
    from node_agent.drivers.network.ovs import OpenVSwitch

    return OpenVSwitch(folder, deadline=0.5)


@pytest.mark.parametrize("daemon", ["ovsdb-server", "ovs-vswitchd"])
def test_slice_network_is_completed_after_open_vswitch_hung_in_the_middle_of_its_plan(
    host: "Real", node: LabNode, daemon: str
) -> None:
    host.links.add_tap(Tap(SLOT.tap))
    switch, tries = switch_with_short_deadline(host.sockets), list[bool]()

    def attempt() -> None:
        steps = PortAspect(switch).to_apply(slice_on(SLOT))
        if not tries:
            node.kill(daemon, signal.SIGSTOP)
        tries.append(True)
        try:
            run_steps(steps, Halt())
        finally:
            node.kill(daemon, signal.SIGCONT)

    retry_while_unreadable(attempt, until=monotonic() + 30, halt=Halt())
    switch.close()
    assert len(tries) > 1
    assert PortAspect(host.switch).to_apply(slice_on(SLOT)) == ()


@pytest.mark.parametrize("left", ["nothing", "a socket"])
def test_open_vswitch_that_does_not_listen_makes_the_host_unreadable(
    host: "Real", tmp_path: Path, left: str
) -> None:
    (tmp_path / "db.sock").symlink_to(host.sockets / "db.sock")
    if left == "a socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.fspath(tmp_path / f"{NETWORK.bridge}.mgmt"))
    switch = switch_with_short_deadline(tmp_path)
    with pytest.raises(HostUnreadable, match=NETWORK.bridge):
        switch.set_flows(NETWORK.bridge, cookie_of(SLOT.index), flows_of(SLOT))
    with pytest.raises(HostUnreadable, match=NETWORK.bridge):
        switch.add_meter(NETWORK.bridge, 1, Meter(1, 1))


def test_ovs_database_that_does_not_listen_makes_the_host_unreadable(host: "Real", tmp_path: Path) -> None:
    with pytest.raises(HostUnreadable, match=SLOT.tap):
        switch_with_short_deadline(tmp_path).delete_port(SLOT.tap)


def test_connection_to_open_vswitch_is_closed_after_its_request_timed_out(
    host: "Real", tmp_path: Path
) -> None:
    from node_agent.drivers.network.ovsdb import Ovsdb

    with _Line(tmp_path / "db.sock", host.sockets / "db.sock") as line:
        database = Ovsdb(tmp_path / "db.sock", deadline=1.0)
        # The delayed request and the next, which takes as long, both end after the deadline. On a busy machine, already
        # the first one does.
        line.seconds = 0.6
        with pytest.raises(HostUnreadable, match="list bridges"):
            database.change("list bridges", ("list_br", {}))
        line.seconds = 0.0
        assert line.carried in (1, 2)
        eventually(lambda: line.open == 0)
        database.change("list bridges", ("list_br", {}))
        database.close()


def test_packet_filter_call_past_its_deadline_makes_the_host_unreadable(host: "Real") -> None:
    from node_agent.drivers.network.nat import Nftables

    nftables = Nftables(deadline=0.0)
    with pytest.raises(HostUnreadable, match="nft"):
        nftables.change(Change())
    with pytest.raises(HostUnreadable, match="connection tracking"):
        nftables.connections(SLOT.ip)
    with pytest.raises(HostUnreadable, match="connection tracking"):
        nftables.forget(SLOT.ip, lambda _: True)


def test_network_links_that_cannot_be_listed_make_the_host_unreadable(host: "Real") -> None:
    with no_new_files(), pytest.raises(HostUnreadable, match=r"links: .*Too many open files"):
        host.links.link(SLOT.tap)


def test_change_on_a_closed_netlink_socket_makes_the_host_unreadable_and_the_next_change_succeeds(
    host: "Real",
) -> None:
    from node_agent.drivers.network.links import NetlinkLinks

    host.links.add_tap(Tap(SLOT.tap))
    links = NetlinkLinks()
    links.set_tap(Tap(SLOT.tap))
    assert links._socket is not None
    links._socket.close()
    with pytest.raises(HostUnreadable, match=SLOT.tap):
        links.set_tap(Tap(SLOT.tap))
    links.set_tap(Tap(SLOT.tap))
    links.close()


def test_kernel_setting_that_cannot_be_read_makes_the_host_unreadable(host: "Real") -> None:
    with no_new_files(), pytest.raises(HostUnreadable, match="read the kernel setting /proc/sys"):
        host.links.set_forwarding(NETWORK.bridge)


def test_kernel_setting_that_cannot_be_written_raises_host_refused(host: "Real", node: LabNode) -> None:
    host.links.add_tap(Tap(SLOT.tap))
    host.stop_forwarding(NETWORK.bridge)
    with read_only_switches(node) as aside:
        with pytest.raises(HostRefused, match=r"write the kernel setting /proc/sys.*disable_ipv6"):
            aside.submit(host.links.set_tap, Tap(SLOT.tap)).result()
        with pytest.raises(HostRefused, match=r"write the kernel setting /proc/sys.*forwarding"):
            aside.submit(host.links.set_forwarding, NETWORK.bridge).result()
    host.links.set_forwarding(NETWORK.bridge)


@contextmanager
def no_new_files() -> Iterator[None]:
    """Reduce the limit of open files to zero while the context lasts, so that this process can open no file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def read_only_switches(node: LabNode) -> Iterator[ThreadPoolExecutor]:
    """Yield a thread in the node's network namespace that can read the kernel settings under /proc/sys and cannot write
    them.
    """

    def enter() -> None:
        from pyroute2 import netns

        netns.setns(f"/proc/{node.pid}/ns/net")
        # Its own mounts, and its own working folder, which threads otherwise share (unshare(2)).
        assert ctypes.CDLL(None).unshare(CLONE_NEWNS | CLONE_FS) == 0
        for words in ("--make-rprivate /", "--bind /proc/sys /proc/sys", "-o remount,bind,ro /proc/sys"):
            subprocess.run(["mount", *words.split()], check=True)

    with ThreadPoolExecutor(1, initializer=enter) as aside:
        yield aside


class _Line:
    """Proxy of a Unix socket: it listens on `path`, forwards each connection to `target`, and delays the first bytes of
    each connection by `seconds`.
    """

    def __init__(self, path: Path, target: Path) -> None:
        self.seconds, self.carried, self.open = 0.0, 0, 0
        self._target, self._turn = target, threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(os.fspath(path))
        self._listener.listen()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with self._turn:
            self.carried, self.open = self.carried + 1, self.open + 1
        with near, socket.socket(socket.AF_UNIX) as far, suppress(OSError):
            far.connect(os.fspath(self._target))
            last(self.seconds)
            _pump(near, far)
        with self._turn:
            self.open -= 1


def _pump(near: socket.socket, far: socket.socket) -> None:
    while True:
        for end in select.select([near, far], [], [])[0]:
            if not (passed := end.recv(1 << 16)):
                return
            (far if end is near else near).sendall(passed)
