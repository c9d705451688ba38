"""Tests that lab nodes behave like small hosts: their daemons use the usual paths, their links work, and nothing
remains after their end.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from node_agent.lab.lab import Lab, LabNode
from node_agent.lab.namespace_access import processes_in
from node_agent.lab.namespaces import CommandFailed, HostFailed
from node_agent.lab.networks import RunInUse, bridge_name, sweep
from tests.lab.awaiting import eventually
from tests.servers.lab import kept_folder
from tests.servers.lab import run_id as new_run

pytestmark = pytest.mark.node


def links_of_this_machine() -> set[str]:
    listing = json.loads(
        subprocess.run(["ip", "-j", "link"], check=True, capture_output=True, text=True).stdout
    )
    return {link["ifname"] for link in listing}


def mac_of(link: str, on: list[str]) -> str:
    """Return the MAC of a network link. `on` is the command prefix that enters the network namespace of the link."""
    command = [*on, "ip", "-json", "link", "show", link]
    (shown,) = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return str(shown["address"])


def reaches(node: LabNode, address: str, port: int) -> bool:
    probe = ["timeout", "1", "bash", "-c", f"exec 3<>/dev/tcp/{address}/{port}"]
    return node.run(probe, check=False).returncode == 0


def test_lab_node_has_a_working_open_vswitch(node: LabNode) -> None:
    node.run(["ovs-vsctl", "add-br", "br-test", "--", "set", "bridge", "br-test", "datapath_type=netdev"])
    shown = node.run(["ovs-ofctl", "-O", "OpenFlow13", "show", "br-test"]).stdout
    node.run(["ovs-vsctl", "del-br", "br-test"])
    assert "LOCAL(br-test)" in shown


def test_lab_node_has_a_working_libvirt(node: LabNode) -> None:
    capabilities = node.run(["virsh", "-c", "qemu:///system", "capabilities"]).stdout
    assert "<domain type='qemu'" in capabilities


def test_lab_node_has_its_hostname_and_addresses_and_forwards_packets(node: LabNode) -> None:
    assert node.run(["hostname"]).stdout.strip() == "lab-a"
    addresses = node.run(["ip", "-4", "-brief", "address"]).stdout
    assert f"{node.management_address}/24" in addresses
    assert f"{node.uplink_address}/24" in addresses
    assert node.run(["cat", "/proc/sys/net/ipv4/ip_forward"]).stdout == "1\n"


def test_ovs_bridge_of_one_lab_node_is_not_visible_on_another_lab_node(lab: Lab) -> None:
    first, second = lab.node("lab-a"), lab.node("lab-b")
    first.run(["ovs-vsctl", "add-br", "br-first", "--", "set", "bridge", "br-first", "datapath_type=netdev"])
    bridges = second.run(["ovs-vsctl", "list-br"]).stdout
    first.run(["ovs-vsctl", "del-br", "br-first"])
    assert "br-first" not in bridges


def test_lab_node_sees_only_its_own_processes(lab: Lab) -> None:
    listing = lab.node("lab-a").run(["bash", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout
    assert str(lab.node("lab-a").folder) in listing
    assert str(lab.node("lab-b").folder) not in listing


def test_lab_node_reaches_this_machine_over_its_management_link(lab: Lab, node: LabNode) -> None:
    with socket.create_server((lab.gateway_address, 0)) as server:
        assert reaches(node, lab.gateway_address, server.getsockname()[1])


def test_lab_nodes_do_not_reach_one_another_over_the_management_link(lab: Lab) -> None:
    first, second = lab.node("lab-a"), lab.node("lab-b")
    listener = [
        "python3",
        "-c",
        "import socket,time; s=socket.create_server(('0.0.0.0', 4000)); time.sleep(600)",
    ]
    second.start_daemon("listener", listener)
    try:
        # The listener answers on the upstream network, so no answer on the management link proves isolation.
        eventually(lambda: reaches(first, second.uplink_address, 4000))
        assert not reaches(first, second.management_address, 4000)
    finally:
        second.stop_daemon("listener")


def test_external_host_of_the_lab_echoes_tcp_and_udp_and_returns_the_source_address_over_http(
    lab: Lab, node: LabNode
) -> None:
    gateway = lab.upstream_address
    script = f"exec 3<>/dev/tcp/{gateway}/7; echo stream >&3; head -1 <&3"
    assert node.run(["bash", "-c", script]).stdout == "stream\n"
    script = f"exec 4<>/dev/udp/{gateway}/7; echo datagram >&4; timeout 10 head -1 <&4"
    assert node.run(["bash", "-c", script]).stdout == "datagram\n"
    request = f"exec 3<>/dev/tcp/{gateway}/80; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
    body = node.run(["bash", "-c", request]).stdout.splitlines()[-1]
    assert json.loads(body)["source"] == node.uplink_address


def test_capture_on_the_labs_external_network_contains_only_frames_that_left_the_node(
    lab: Lab, node: LabNode, tmp_path: Path
) -> None:
    with lab.capture("lab-a", tmp_path / "uplink.pcap") as capture:
        # The answer shows that the datagram has arrived.
        script = f"exec 4<>/dev/udp/{lab.upstream_address}/7; echo canary-7 >&4; timeout 10 head -1 <&4"
        node.run(["bash", "-c", script])
    carrying = [frame for frame in capture.frames() if b"canary-7" in frame]
    assert {frame[26:30] for frame in carrying} == {socket.inet_aton(node.uplink_address)}


def test_macs_of_the_labs_bridges_do_not_change_with_their_ports(lab: Lab) -> None:
    for on, bridge in ((lab.site.inside([]), "upstream"), ([], bridge_name(lab.run_id))):
        port, before = f"{bridge}-8", mac_of(bridge, on)
        # The kernel gives a bridge without a MAC of its own the lowest MAC of its ports.
        lowest = ["address", "00:00:00:00:00:01", "master", bridge, "type", "veth", "peer", f"{bridge}-9"]
        subprocess.run([*on, "ip", "link", "add", port, *lowest], check=True)
        try:
            assert mac_of(bridge, on) == before
        finally:
            subprocess.run([*on, "ip", "link", "delete", port], check=True)


@pytest.mark.parametrize("daemon", ["ovsdb-server", "ovs-vswitchd", "virtlogd", "libvirtd"])
def test_killed_daemon_of_a_lab_node_is_started_again(node: LabNode, daemon: str) -> None:
    killed = node.daemons()[daemon]
    node.kill(daemon)
    eventually(lambda: node.daemons().get(daemon, killed) != killed)
    # Open vSwitch works again once every bridge, also those of other tests, answers OpenFlow requests.
    bridges = "list=$(ovs-vsctl --timeout=1 list-br) || exit; for bridge in $list; do "
    shows = f"{bridges} ovs-ofctl --timeout=1 -O OpenFlow14 show $bridge || exit; done"
    eventually(lambda: node.run(["bash", "-c", shows], check=False).returncode == 0)
    eventually(lambda: node.run(["virsh", "-c", "qemu:///system", "version"], check=False).returncode == 0)


def test_daemon_of_a_lab_node_started_twice_under_one_name_is_replaced_and_ends_when_stopped(
    node: LabNode, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    script = f"echo $WORD >> {output}; exec sleep 600"
    node.start_daemon("sleeper", ["bash", "-c", script], {"WORD": "one"})
    eventually(lambda: output.exists() and output.read_text() == "one\n")
    node.start_daemon("sleeper", ["bash", "-c", script], {"WORD": "two"})
    eventually(lambda: output.read_text() == "one\ntwo\n")
    assert list(node.processes().values()).count(("sleep", "600")) == 1
    node.stop_daemon("sleeper")
    assert ("sleep", "600") not in node.processes().values()


def test_daemon_that_always_exits_is_started_again_after_growing_pauses(
    node: LabNode, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    node.start_daemon("exits", ["bash", "-c", f"date +%s%N >> {starts}"])
    eventually(lambda: starts.exists() and len(starts.read_text().splitlines()) >= 4)
    node.stop_daemon("exits")
    times = [int(line) / 1e9 for line in starts.read_text().splitlines()]
    for pause, (before, after) in zip((0.05, 0.1, 0.2), pairwise(times), strict=False):
        assert after - before >= pause


def test_daemon_of_a_lab_node_that_ignores_sigterm_is_killed_after_the_timeout(
    node: LabNode, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    node.start_daemon(
        "ignores-sigterm", ["bash", "-c", f"trap '' TERM; touch {ready}; while :; do sleep 1; done"]
    )
    eventually(ready.exists)
    node.stop_daemon("ignores-sigterm", seconds=0.2)
    assert "ignores-sigterm" not in node.daemons()


def test_orphaned_process_of_a_lab_node_is_reaped(node: LabNode) -> None:
    node.run(["bash", "-c", "(sleep 0.01 &) ; exit 0"])
    eventually(lambda: "Z" not in node.run(["bash", "-c", "cat /proc/[0-9]*/stat | cut -d' ' -f3"]).stdout)


def test_rebooted_lab_node_keeps_its_folder_and_loses_its_bridges(lab: Lab) -> None:
    node = lab.node("lab-b")
    node.run(["ovs-vsctl", "add-br", "br-old", "--", "set", "bridge", "br-old", "datapath_type=netdev"])
    (node.folder / "kept").touch()
    lab.reboot("lab-b")
    assert node.run(["ovs-vsctl", "list-br"]).stdout == ""
    assert (node.folder / "kept").exists()
    assert reaches(node, lab.upstream_address, 80)


def test_lab_node_is_rebooted_while_another_process_holds_its_network_namespace_open(lab: Lab) -> None:
    with Path(f"/proc/{lab.node('lab-b').pid}/ns/net").open():
        lab.reboot("lab-b")
    assert reaches(lab.node("lab-b"), lab.upstream_address, 80)


def test_lab_node_does_not_inherit_environment_variables(
    node: LabNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", "canary-7")
    assert "canary-7" not in node.run(["env"]).stdout


def test_failed_command_on_a_lab_node_raises_with_its_error_output(node: LabNode) -> None:
    with pytest.raises(CommandFailed, match="no bridge named br-none"):
        node.run(["ovs-vsctl", "list-ports", "br-none"])


def test_lab_node_leaves_no_process_mount_or_link_when_its_first_process_is_killed(tmp_path: Path) -> None:
    with Lab(new_run(), tmp_path, ["lab-k"], kept_folder() / "libvirt") as lab:
        node = lab.node("lab-k")
        inside = node.processes()
        os.kill(node.pid, signal.SIGKILL)
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside))
        # The kernel takes network namespaces down in the background.
        eventually(lambda: f"{bridge_name(lab.run_id)}-1" not in links_of_this_machine())
        # The parent of the first process ends a moment after it.
        eventually(lambda: not node.alive)
        with pytest.raises(HostFailed):
            node.run(["true"])
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert bridge_name(lab.run_id) not in links_of_this_machine()


OWNER_SCRIPT = """
import sys
from pathlib import Path
from node_agent.lab.lab import Lab
with Lab(sys.argv[1], Path(sys.argv[2]), ["lab-h"], Path(sys.argv[3])) as lab:
    print(lab.node("lab-h").pid, lab.site.pid, file=sys.stderr, flush=True)
    sys.stdin.read()
"""


def lab_owner(run_id: str, state: Path) -> "subprocess.Popen[str]":
    """Start a process that owns a lab, as `./dev up` does. The lab is ready once `pids_of` has returned."""
    command = [sys.executable, "-c", OWNER_SCRIPT, run_id, str(state), str(kept_folder() / "libvirt")]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def pids_of(owner: "subprocess.Popen[str]") -> list[int]:
    assert owner.stderr is not None
    return [int(word) for word in owner.stderr.readline().split()]


def test_lab_with_a_killed_owner_process_ends_and_is_cleaned_up_at_the_next_start(tmp_path: Path) -> None:
    run_id = new_run()
    with lab_owner(run_id, tmp_path) as owner:
        inside = [pid for first in pids_of(owner) for pid in processes_in(first)]
        owner.kill()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside))
    assert bridge_name(run_id) in links_of_this_machine()
    with lab_owner(run_id, tmp_path) as next_owner:
        assert pids_of(next_owner)
        next_owner.kill()
    sweep(run_id)


def test_interrupted_lab_leaves_no_process_or_link_on_the_machine(tmp_path: Path) -> None:
    run_id = new_run()
    with lab_owner(run_id, tmp_path) as owner:
        inside = [pid for first in pids_of(owner) for pid in processes_in(first)]
        owner.send_signal(signal.SIGINT)
    assert not any(Path(f"/proc/{pid}").exists() for pid in inside)
    assert not [link for link in links_of_this_machine() if link.startswith(bridge_name(run_id))]


def test_lab_node_that_cannot_start_raises_the_cause_and_leaves_no_link(tmp_path: Path) -> None:
    run_id = new_run()
    # The node cannot create its cache folder, because a file has its name.
    (tmp_path / "nodes" / "lab-f").mkdir(parents=True)
    (tmp_path / "nodes" / "lab-f" / "cache").write_text("not a folder")
    with pytest.raises(HostFailed, match="FileExistsError"):
        Lab(run_id, tmp_path, ["lab-f"]).start()
    assert bridge_name(run_id) not in links_of_this_machine()


def test_second_lab_with_the_same_run_id_is_refused_and_does_not_disturb_the_first(
    lab: Lab, node: LabNode, tmp_path: Path
) -> None:
    with pytest.raises(RunInUse):
        Lab(lab.run_id, tmp_path, ["lab-a"]).start()
    assert bridge_name(lab.run_id) in links_of_this_machine()


def test_lab_with_a_state_folder_below_slash_run_is_refused() -> None:
    with pytest.raises(ValueError, match="/run"):
        Lab("x", Path("/run/sliceplane"), ["lab-a"])
