"""Fleets for the benchmarks of placement and of allocations: rows of nodes and slots as projections would write them,
without events. The streams of the slots are at version 0, so that a command can append to them.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from events.offers import Offer, encoded
from events.values import ImageName, SkuName, allocation_of

SLOTS_PER_NODE: Final = 8
PLAIN, CONSTRAINED = SkuName("plain"), SkuName("h200.ib")
"""SKU without constraints, and SKU with a GPU model, InfiniBand and one NUMA node. Every slot is offered under both
or under the plain one."""
GPU_MODEL: Final = "NVIDIA H200 SXM 141GB"
IMAGE: Final = ImageName("lab-guest")
VCPUS, MEMORY_MIB = 24, 245_760
OFFERS: Final = (
    Offer(GPU_MODEL, 1, "ib", numa_nodes=1),
    Offer(GPU_MODEL, 1, "roce", numa_nodes=1),
    Offer(None, 0, "ethernet", numa_nodes=1),
)
"""Hardware that the slots of the nodes offer, in turn; only slots with the first offer are suitable for the SKU
`CONSTRAINED`.
"""
HOLDER: Final = allocation_of(UUID(int=0))
"""Holder of all slots that are in use. It has no events."""
_LATER: Final = timedelta(days=3650)
_NODES: Final = """
insert into read.node (node_id, version, state, subnet, l2_domain, token_sha256, token_expires_at, key_thumbprint,
                       images, missing, simulated)
select 'n' || lpad(number::text, 6, '0'), 1, 'enrolled', '10.0.0.0/24', 'default', '', now(), 'key',
       array[%(image)s], '{}', false
  from generate_series(1, %(nodes)s) number
"""
_SEEN: Final = """
insert into work.node_seen (node_id, agent_version, spooled_reports, resynced, seen_at)
select node_id, '1', 0, true, %(seen_at)s from read.node
"""
_SLOTS: Final = """
insert into read.slot (slot_id, node_id, slot_index, version, state, allocation_id, vcpus, memory_mib, network_device, offer, skus,
                       l2_domain, mac_address, private_ip, subnet, gateway, bridge)
select 'n' || lpad(number::text, 6, '0') || '/' || index, 'n' || lpad(number::text, 6, '0'), index, 0,
       state, case state when 'claimed' then %(holder)s end, %(vcpus)s, %(memory)s, 'slice' || index,
       (%(offers)s::text[])[1 + number %% %(kinds)s], %(skus)s,
       'default', '52:54:00:00:00:01', '10.0.0.10', '10.0.0.0/24', '10.0.0.1', 'br-slice'
  from (select number, index, case when random() < %(full)s then 'claimed' else 'free' end state
          from generate_series(1, %(nodes)s) number cross join generate_series(0, %(last)s) index) slot
"""
_COUNTS: Final = """
insert into work.slot_counts (node_id, class, slots, fit, idle, free, free_on_node)
select node_id, class, count(*), count(*), count(*) filter (where state = 'free'),
       count(*) filter (where state = 'free'), count(*) filter (where state = 'free')
  from read.slot group by node_id, class
"""


@dataclass(frozen=True)
class Fleet:
    """A fleet to be written: its number of nodes, and the share of its slots that are in use."""

    nodes: int
    full: float

    def write(self, dsn: str) -> None:
        """Write the rows of the fleet to an empty database, with the rights of its owner."""
        parameters = {
            "image": IMAGE,
            "nodes": self.nodes,
            "seen_at": datetime.now(UTC) + _LATER,
            "full": self.full,
            "holder": HOLDER,
            "vcpus": VCPUS,
            "memory": MEMORY_MIB,
            "offers": [encoded(each) for each in OFFERS],
            "kinds": len(OFFERS),
            "skus": Jsonb([CONSTRAINED, PLAIN]),
            "last": SLOTS_PER_NODE - 1,
        }
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("select setseed(0.5)")
            for query in (_NODES, _SEEN, _SLOTS, _COUNTS):
                conn.execute(query, parameters)
            conn.execute("vacuum analyze")
