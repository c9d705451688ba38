"""Actions on several allocations, or on several nodes."""

from typing import Final

from control_plane.web.bulk import Bulk
from control_plane.web.pages.allocation_actions import ALLOCATION
from control_plane.web.pages.fleet_actions import NODE

ALLOCATIONS: Final = Bulk(
    ALLOCATION, ("stop", "start", "renew", "release"), lambda each: {"allocation": each}, "/allocations"
)
NODES: Final = Bulk(NODE, ("cordon", "uncordon"), lambda each: {"node": each}, "/nodes")
