"""The leak checker: `snapshot` records the objects on a host, and `compare` lists the changes since a snapshot.

The program is independent of the agent: it reads the host with the host's own commands. It exits with code 0 if no
object differs, 1 if objects differ (each is listed), and 2 if some objects could not be read.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

import msgspec

from node_agent.lab.leaks.snapshot import Snapshot, differences, take
from node_agent.lab.leaks.target import HostTarget, SimulatedTarget, Target

CLEAN: Final = 0
LEAKS: Final = 1
UNREADABLE: Final = 2
_HOST_OPTIONS: Final = ("pid", "disks", "dhcp_hosts", "dhcp_leases", "redis_url_file", "namespace")


def main() -> int:
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.verb == "snapshot":
        missing = [name for name in _HOST_OPTIONS if getattr(arguments, name) is None]
        if missing and not arguments.simulated:
            # A check that omits a kind of object must not look like a check that found no difference.
            parser.error(
                f"missing options for a host: {', '.join('--' + name.replace('_', '-') for name in missing)}"
            )
        return _snapshot(_target(arguments), arguments.out)
    return _compare(arguments.file, arguments.pid)


def _snapshot(target: Target, out: Path) -> int:
    snapshot = take(target)
    out.write_bytes(msgspec.json.format(msgspec.json.encode(snapshot)))
    for kind, items in snapshot.kinds.items():
        print(f"{len(items):6} {kind}")
    return _print_unreadable(snapshot)


def _compare(file: Path, pid: int | None) -> int:
    before = msgspec.json.decode(file.read_bytes(), type=Snapshot)
    target = before.target
    if pid is not None and isinstance(target, HostTarget):
        target = msgspec.structs.replace(target, pid=pid)
    after = take(target)
    found = differences(before, after)
    print("numbers of objects in the snapshot and now, by kind:")
    for kind, items in after.kinds.items():
        if kind in before.kinds:
            print(f"{len(before.kinds[kind]):6} {len(items):6}  {kind}")
    for difference in found:
        print(f"{difference.change}: {difference.kind}: {difference.object}")
    unreadable = max(_print_unreadable(before), _print_unreadable(after))
    if not found and not unreadable:
        print("nothing differs")
    return unreadable or (LEAKS if found else CLEAN)


def _print_unreadable(snapshot: Snapshot) -> int:
    for kind, reason in snapshot.unreadable.items():
        print(f"could not read: {kind}: {reason}")
    return UNREADABLE if snapshot.unreadable else CLEAN


def _target(arguments: argparse.Namespace) -> Target:
    if arguments.simulated:
        return SimulatedTarget(state=str(arguments.simulated))
    return HostTarget(
        pid=arguments.pid,
        disks=arguments.disks,
        dhcp_hosts=arguments.dhcp_hosts,
        dhcp_leases=arguments.dhcp_leases,
        slices=arguments.slices,
        redis_url_file=arguments.redis_url_file,
        namespace=arguments.namespace,
        root_disks=arguments.root_disks,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m node_agent.lab.leaks", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    snapshot = verbs.add_parser("snapshot", help="record the objects on a host in a file")
    snapshot.add_argument("--out", type=Path, required=True)
    snapshot.add_argument("--simulated", type=Path, help="state file of a simulated host, instead of --pid")
    snapshot.add_argument("--pid", type=int, help="id of a process in the host's namespaces")
    snapshot.add_argument("--disks", help="folder with the disks of the slices' machines")
    snapshot.add_argument("--root-disks", help="folder with the root disks of the slices' machines")
    snapshot.add_argument("--dhcp-hosts", help="folder with dnsmasq's reservations")
    snapshot.add_argument("--dhcp-leases", help="dnsmasq's lease file")
    snapshot.add_argument(
        "--slices", default="10.100.0.0/16", help="subnet of the slices' addresses (default: %(default)s)"
    )
    snapshot.add_argument("--redis-url-file", help="file with the URL of a Redis user that may read all keys")
    snapshot.add_argument("--namespace", help="prefix of the node's Redis keys")
    compare = verbs.add_parser("compare", help="list the differences between a host and its snapshot")
    compare.add_argument("file", type=Path)
    compare.add_argument(
        "--pid",
        type=int,
        help="id of a process in the host's namespaces, if the host was restarted since the snapshot",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
