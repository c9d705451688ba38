"""Tests that the leak checker reports every kind of object that a slice can leave behind, and reports nothing on a
clean host.

Each test creates a leak with ordinary host commands on a real lab node, as an incomplete release would leave it.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import redis

from deploy.embedded.redis import RedisServer, running_redis
from node_agent.lab.guest import GuestImage
from node_agent.lab.lab import Lab, LabNode
from node_agent.lab.leaks.snapshot import SIMULATED_KINDS, Difference, Snapshot, differences, take
from node_agent.lab.leaks.target import HostTarget, SimulatedTarget
from tests.lab import plain_slice
from tests.lab.awaiting import eventually
from tests.servers.redis import server_folder

pytestmark = pytest.mark.node

BRIDGE = "br-leaks"
RULESET = """\
table ip leaks {
    set mapped { type ipv4_addr; }
    chain forward { type filter hook forward priority 0; policy accept; ct state established counter accept; }
}
"""


@dataclass(frozen=True)
class Site:
    """Lab node with the network that slices need, and without a slice. `image` is the guest image for libvirt
    domains.
    """

    node: LabNode
    folder: Path
    server: RedisServer
    target: HostTarget
    image: GuestImage


Plant = Callable[[Site], None]


@pytest.fixture(scope="module")
def site(lab: Lab, guest_image: GuestImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    node, folder = lab.node("lab-b"), tmp_path_factory.mktemp("leaks")
    for name in ("disks", "root-disks", "hosts"):
        (folder / name).mkdir()
    with ExitStack() as stack:
        server = stack.enter_context(running_redis(stack.enter_context(server_folder())))
        (folder / "redis-url").write_text(server.url)
        stack.enter_context(standing_network(node))
        target = HostTarget(
            pid=node.pid,
            disks=str(folder / "disks"),
            dhcp_hosts=str(folder / "hosts"),
            dhcp_leases=str(folder / "leases"),
            slices="10.98.0.0/16",
            redis_url_file=str(folder / "redis-url"),
            namespace=f"ctl:{node.name}",
            root_disks=str(folder / "root-disks"),
        )
        yield Site(node, folder, server, target, guest_image)


@contextmanager
def standing_network(node: LabNode) -> Iterator[None]:
    node.run(["ovs-vsctl", "add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev"])
    node.run(["ip", "address", "add", "10.98.0.1/24", "dev", BRIDGE])
    node.run(["ip", "link", "set", BRIDGE, "up"])
    node.run(["nft", "-f", "-"], stdin=RULESET)
    yield
    node.run(["nft", "delete", "table", "ip", "leaks"])
    node.run(["ovs-vsctl", "del-br", BRIDGE])


@pytest.fixture(scope="module")
def before(site: Site) -> Snapshot:
    return take(site.target)


def since(before: Snapshot, site: Site) -> list[Difference]:
    return differences(before, take(site.target))


def shell(plant: str, undo: str) -> tuple[Plant, Plant]:
    """Return a function that creates a leak with shell commands, and a function that removes it."""
    return (
        lambda site: _run_all(site.node, plant),
        lambda site: _run_all(site.node, undo),
    )


def _run_all(node: LabNode, script: str) -> None:
    node.run(["bash", "-ec", script])


def file(name: str, text: str) -> tuple[Plant, Plant]:
    return (
        lambda site: _write(site.folder / name, text),
        lambda site: (site.folder / name).unlink(),
    )


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def queue(act: Callable[["redis.Redis"], object]) -> Plant:
    def plant(site: Site) -> None:
        with redis.Redis.from_url(site.server.url) as client:
            act(client)

    return plant


_DOMAIN = (
    "<domain type='qemu'><name>left</name><memory unit='MiB'>64</memory><os><type>hvm</type></os></domain>"
)

LEAKS: dict[str, tuple[tuple[Plant, Plant], str]] = {
    "ovs port": (
        shell(
            f"ovs-vsctl add-port {BRIDGE} left0 -- set interface left0 type=internal",
            f"ovs-vsctl del-port {BRIDGE} left0",
        ),
        "left0",
    ),
    "ovs flow": (
        shell(
            f"ovs-ofctl add-flow {BRIDGE} 'priority=9,ip,nw_src=10.98.0.9,actions=drop'",
            f"ovs-ofctl --strict del-flows {BRIDGE} 'priority=9,ip,nw_src=10.98.0.9'",
        ),
        "nw_src=10.98.0.9",
    ),
    "ovs meter": (
        shell(
            f"ovs-ofctl -O OpenFlow13 add-meter {BRIDGE} meter=9,kbps,band=type=drop,rate=9000",
            f"ovs-ofctl -O OpenFlow13 del-meter {BRIDGE} meter=9",
        ),
        "meter=9",
    ),
    "ovs rate": (
        shell(
            f"ovs-vsctl set interface {BRIDGE} ingress_policing_rate=9000",
            f"ovs-vsctl set interface {BRIDGE} ingress_policing_rate=0",
        ),
        "9000",
    ),
    "nft object": (
        shell(
            "nft add rule ip leaks forward ip saddr 10.98.0.9 accept",
            "nft flush chain ip leaks forward; nft add rule ip leaks forward ct state established counter accept",
        ),
        "10.98.0.9",
    ),
    "link": (shell("ip link add left1 type bridge", "ip link del left1"), "left1"),
    "tap": (
        shell("ip tuntap add dev left2 mode tap", "ip tuntap del dev left2 mode tap"),
        "left2",
    ),
    "address": (
        shell(f"ip address add 10.98.7.7/32 dev {BRIDGE}", f"ip address del 10.98.7.7/32 dev {BRIDGE}"),
        "10.98.7.7/32",
    ),
    "route": (
        shell("ip route add 203.0.113.9 via 198.51.100.1", "ip route del 203.0.113.9"),
        "203.0.113.9",
    ),
    "queueing discipline": (
        shell(
            "tc qdisc add dev uplink0 root tbf rate 1mbit burst 10k latency 1s",
            "tc qdisc del dev uplink0 root",
        ),
        "tbf",
    ),
    "tracked connection": (
        shell(
            "conntrack -I -p tcp -s 10.98.0.9 -d 198.51.100.1 --sport 999 --dport 80 --state ESTABLISHED -t 600",
            "conntrack -D -s 10.98.0.9",
        ),
        "10.98.0.9:999",
    ),
    "dhcp reservation": (file("hosts/slot-9", "52:54:00:00:00:99,10.98.0.9\n"), "52:54:00:00:00:99"),
    "dhcp lease": (file("leases", "1790000000 52:54:00:00:00:99 10.98.0.9 left *\n"), "10.98.0.9 left"),
    "domain": (
        shell(
            f'echo "{_DOMAIN}" > /run/left.xml; virsh -q -c qemu:///system define /run/left.xml',
            "virsh -q -c qemu:///system undefine left; rm /run/left.xml",
        ),
        "left",
    ),
    "disk": (file("disks/left.img", "a tenant's data"), "left.img"),
    "root disk": (file("root-disks/left.qcow2", "a tenant's data"), "left.qcow2"),
    "redis key": (
        (
            queue(lambda client: client.hset("ctl:lab-b:slices.messages", "left-order", "x")),
            queue(lambda client: client.delete("ctl:lab-b:slices.messages")),
        ),
        "left-order",
    ),
}


@pytest.mark.parametrize("kind", LEAKS)
def test_leak_on_a_lab_node_is_reported_until_it_is_removed(kind: str, site: Site, before: Snapshot) -> None:
    (plant, undo), text = LEAKS[kind]
    plant(site)
    try:
        named = [found for found in since(before, site) if found.kind == kind]
    finally:
        undo(site)
    assert [(found.change, text in found.object) for found in named] == [("appeared", True)]
    assert since(before, site) == []


def test_guest_that_still_runs_is_reported_by_the_leak_checker_as_process_tap_port_and_domain(
    site: Site, before: Snapshot, tmp_path: Path
) -> None:
    node = site.node
    with plain_slice.network(node, tmp_path), plain_slice.guest(node, site.image, tmp_path, "left", []):
        found = {(difference.kind, difference.object) for difference in since(before, site)}
    assert found >= {
        ("process", f"qemu-system-x86_64 guest={plain_slice.DOMAIN}"),
        ("process", "dnsmasq"),
        ("domain", plain_slice.DOMAIN),
        ("tap", plain_slice.TAP),
        ("ovs port", f"{plain_slice.BRIDGE}/{plain_slice.TAP}"),
    }
    eventually(lambda: since(before, site) == [])


def test_disk_removed_after_the_snapshot_is_reported_by_the_leak_checker_as_disappeared(
    site: Site, tmp_path: Path
) -> None:
    kept = site.folder / "disks" / "kept.img"
    kept.touch()
    before = take(site.target)
    kept.unlink()
    assert since(before, site) == [Difference("disappeared", "disk", "kept.img")]


def test_second_identical_line_of_a_dhcp_lease_file_is_reported_by_the_leak_checker_as_a_new_lease(
    site: Site,
) -> None:
    leases = site.folder / "leases"
    line = "1790000000 52:54:00:00:00:99 10.98.0.9 left *\n"
    leases.write_text(line)
    before = take(site.target)
    leases.write_text(line * 2)
    found = since(before, site)
    leases.unlink()
    assert [difference.change for difference in found] == ["appeared"]


def test_traffic_that_changes_only_packet_counters_is_not_reported_by_the_leak_checker(
    site: Site, before: Snapshot
) -> None:
    site.node.run(["bash", "-c", "echo hello > /dev/udp/198.51.100.1/7"])
    assert since(before, site) == []


def test_every_kind_of_leak_that_a_snapshot_compares_has_a_test(before: Snapshot) -> None:
    assert set(before.kinds) == {*LEAKS, "process"}
    assert before.unreadable == {}


def checker(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "node_agent.lab.leaks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def snapshot(site: Site, out: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    options = {
        "pid": str(site.target.pid),
        "disks": site.target.disks,
        "root-disks": str(site.target.root_disks),
        "dhcp-hosts": site.target.dhcp_hosts,
        "dhcp-leases": site.target.dhcp_leases,
        "slices": site.target.slices,
        "redis-url-file": site.target.redis_url_file,
        "namespace": site.target.namespace,
    }
    words = [word for name, value in (options | changes).items() for word in (f"--{name}", value)]
    return checker("snapshot", "--out", str(out), *words)


def test_leak_checker_exits_with_0_on_a_clean_host_and_lists_the_compared_kinds(
    site: Site, tmp_path: Path
) -> None:
    assert snapshot(site, tmp_path / "before").returncode == 0
    compared = checker("compare", str(tmp_path / "before"))
    assert compared.returncode == 0, compared.stdout
    assert all(f"  {kind}\n" in compared.stdout for kind in (*LEAKS, "process"))


def test_leak_checker_exits_with_1_and_names_the_leak(site: Site, tmp_path: Path) -> None:
    snapshot(site, tmp_path / "before")
    left = site.folder / "disks" / "left.img"
    left.touch()
    compared = checker("compare", str(tmp_path / "before"))
    left.unlink()
    assert (compared.returncode, "appeared: disk: left.img" in compared.stdout) == (1, True)


def test_leak_checker_exits_with_2_and_names_the_unreadable_kind(site: Site, tmp_path: Path) -> None:
    taken = snapshot(site, tmp_path / "before", **{"redis-url-file": str(tmp_path / "nothing")})
    compared = checker("compare", str(tmp_path / "before"))
    assert (taken.returncode, compared.returncode) == (2, 2)
    assert "could not read: redis key: " in compared.stdout


def test_missing_folder_counts_in_the_leak_check_as_empty_if_its_parent_exists_else_as_unreadable(
    site: Site,
) -> None:
    never_made = msgspec.structs.replace(site.target, disks=str(site.folder / "later"))
    assert take(never_made).kinds["disk"] == []
    mistaken = msgspec.structs.replace(site.target, disks="/nowhere/disks", dhcp_hosts="/nowhere/hosts")
    assert set(take(mistaken).unreadable) == {"disk", "dhcp reservation"}


def test_snapshot_command_of_the_leak_checker_without_its_required_options_is_refused(tmp_path: Path) -> None:
    refused = checker("snapshot", "--out", str(tmp_path / "before"), "--pid", "1")
    assert (refused.returncode, "--dhcp-leases" in refused.stderr) == (2, True)


def test_snapshot_of_the_leak_checker_contains_no_redis_password(site: Site, tmp_path: Path) -> None:
    url = tmp_path / "url"
    url.write_text("redis://admin:canary-7@127.0.0.1:1")
    snapshot(site, tmp_path / "before", **{"redis-url-file": str(url)})
    assert "canary-7" not in (tmp_path / "before").read_text()


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ("ports", "ovs port"),
        ("flows", "ovs flow"),
        ("meters", "ovs meter"),
        ("nat", "nft object"),
        ("taps", "tap"),
        ("reservations", "dhcp reservation"),
        ("leases", "dhcp lease"),
        ("domains", "domain"),
        ("disks", "disk"),
        ("connections", "tracked connection"),
    ],
)
def test_leak_on_a_simulated_host_is_reported(part: str, kind: str, tmp_path: Path) -> None:
    parts = SIMULATED_KINDS.values()
    state = tmp_path / "host.json"
    state.write_text(msgspec.json.encode({name: [] for name in parts}).decode())
    before = take(SimulatedTarget(state=str(state)))
    state.write_text(
        msgspec.json.encode({name: [{"name": "left"}] if name == part else [] for name in parts}).decode()
    )
    found = differences(before, take(SimulatedTarget(state=str(state))))
    assert found == [Difference("appeared", kind, '{"name":"left"}')]


def test_simulated_host_file_with_missing_fields_is_reported_by_the_leak_checker_as_unreadable(
    tmp_path: Path,
) -> None:
    state = tmp_path / "host.json"
    state.write_text('{"ports": []}')
    assert "ovs port" in take(SimulatedTarget(state=str(state))).unreadable
