"""The leak checker: `snapshot` writes down what a host holds, `compare` says what has changed since.

A program apart from the agent, which it asks nothing: it reads the host with the host's own commands. Exit code
0: nothing differs. 1: something does, and every object is named. 2: something could not be looked at.
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
COULD_NOT_LOOK: Final = 2
_OF_A_HOST: Final = ("pid", "disks", "dhcp_hosts", "dhcp_leases", "redis_url_file", "namespace")


def main() -> int:
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.verb == "snapshot":
        missing = [name for name in _OF_A_HOST if getattr(arguments, name) is None]
        if missing and not arguments.simulated:
            # A check that leaves a kind out must not look like one that found nothing.
            parser.error(f"a host needs {', '.join('--' + name.replace('_', '-') for name in missing)}")
        return _snapshot(_target(arguments), arguments.out)
    return _compare(arguments.file, arguments.pid)


def _snapshot(target: Target, out: Path) -> int:
    taken = take(target)
    out.write_bytes(msgspec.json.format(msgspec.json.encode(taken)))
    for kind, items in taken.kinds.items():
        print(f"{len(items):6} {kind}")
    return _unseen(taken)


def _compare(file: Path, pid: int | None) -> int:
    before = msgspec.json.decode(file.read_bytes(), type=Snapshot)
    target = before.target
    if pid is not None and isinstance(target, HostTarget):
        target = msgspec.structs.replace(target, pid=pid)
    after = take(target)
    found = differences(before, after)
    print("compared with the snapshot (objects then, objects now):")
    for kind, items in after.kinds.items():
        if kind in before.kinds:
            print(f"{len(before.kinds[kind]):6} {len(items):6}  {kind}")
    for difference in found:
        print(f"{difference.change}: {difference.kind}: {difference.object}")
    blind = max(_unseen(before), _unseen(after))
    if not found and not blind:
        print("nothing differs")
    return blind or (LEAKS if found else CLEAN)


def _unseen(taken: Snapshot) -> int:
    for kind, reason in taken.unseen.items():
        print(f"could not look: {kind}: {reason}")
    return COULD_NOT_LOOK if taken.unseen else CLEAN


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
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m node_agent.lab.leaks", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    snapshot = verbs.add_parser("snapshot", help="write down what a host holds")
    snapshot.add_argument("--out", type=Path, required=True)
    snapshot.add_argument(
        "--simulated", type=Path, help="the state file of a simulated host, instead of --pid"
    )
    snapshot.add_argument("--pid", type=int, help="a process in the host's namespaces")
    snapshot.add_argument("--disks", help="folder of disks and seeds")
    snapshot.add_argument("--dhcp-hosts", help="dnsmasq's folder of reservations")
    snapshot.add_argument("--dhcp-leases", help="dnsmasq's lease file")
    snapshot.add_argument("--slices", default="10.100.0.0/16", help="range of the slices' addresses")
    snapshot.add_argument("--redis-url-file", help="file with the URL of a Redis user who may read all keys")
    snapshot.add_argument("--namespace", help="prefix of the node's keys")
    compare = verbs.add_parser("compare", help="say what differs from a snapshot")
    compare.add_argument("file", type=Path)
    compare.add_argument(
        "--pid", type=int, help="a process in the namespaces of a host that was restarted since"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
