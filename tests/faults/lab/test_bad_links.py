"""Promise P4 on real lab nodes: the link between a node and its control plane, which carries API and queue traffic,
fails for a limited time.

Packet filter rules in the node drop or reject packets on its management link. A fault lasts longer than the time after
which a worker counts as dead. `tests.faults.phases` checks the result. Guests do not use this link and are not
affected.

`test_bad_connections` covers a connection that is only slow: a proxy delays its data, because packets cannot be delayed
on every machine.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from node_agent.lab.host import MANAGEMENT
from node_agent.lab.namespaces import LabHost
from tests import matrix
from tests.faults.phases import PHASES, Case, Fault, run_case
from tests.faults.programs import Lab
from tests.waiting import last

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]

DROP: Final = "counter drop"
LOSE: Final = "numgen random mod 100 < 30 counter drop"
REFUSE: Final = "meta l4proto tcp counter reject with tcp reset"
PASS: Final = "accept"
LINKS: Final = {
    "cut": (DROP, DROP),
    "deaf": (DROP, PASS),
    "mute": (PASS, DROP),
    "lossy": (LOSE, LOSE),
    "reset": (REFUSE, REFUSE),
}
"""Faults of a management link: for each, the verdict for packets to the node, and the verdict for packets that the node
sends.
"""
BAD_SECONDS: Final = 22.0
"""Duration of a fault in seconds. It is longer than the worker timeout of the queue (15 s) and the time after which a
node counts as unreachable (20 s).
"""
_RULES: Final = """
table inet bad_link {{
  chain to_node {{ type filter hook input priority -400; iifname "{link}" {to_node}; }}
  chain from_node {{ type filter hook output priority -400; oifname "{link}" {from_node}; }}
}}
"""


EVERY: Final = [Case(link, phase) for link in LINKS for phase in PHASES]


def break_link(node: LabHost, link: str) -> None:
    to_node, from_node = LINKS[link]
    rules = _RULES.format(link=MANAGEMENT, to_node=to_node, from_node=from_node)
    node.run(["nft", "-f", "-"], stdin=rules)


def dropped_packets(node: LabHost) -> int:
    """Return the number of packets that the faulty management link dropped or refused."""
    listed = node.run(["nft", "list", "table", "inet", "bad_link"]).stdout
    return sum(map(int, re.findall(r"counter packets (\d+)", listed)))


def heal(node: LabHost) -> None:
    # Added first: deleting an absent table is an error.
    node.run(["nft", "-f", "-"], stdin="add table inet bad_link; delete table inet bad_link")


@contextmanager
def healed(node: LabHost) -> Iterator[None]:
    """Remove the fault of the management link when the context ends, in every case."""
    try:
        yield
    finally:
        heal(node)


@matrix.cases("P4", EVERY, few=1)
def test_system_converges_without_lost_tasks_after_the_management_link_of_a_node_was_faulty(
    lab: Lab, case: Case
) -> None:
    def over() -> None:
        last(BAD_SECONDS)
        assert dropped_packets(lab.node), "no packet was dropped: the fault shows nothing"
        heal(lab.node)

    with healed(lab.node):
        run_case(lab, case.phase, Fault(str(case), lambda: break_link(lab.node, case.of), over))
