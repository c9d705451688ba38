"""Tests that every configuration column of the installed Open vSwitch's database schema is compared by the agent or
excluded by name.
"""

import json
from pathlib import Path
from typing import Final

import pytest

from node_agent.drivers.network.switch_rows import (
    COMPARED_ELSEWHERE,
    DEFAULTS,
    NOT_CONFIGURATION,
    differing,
    map_of,
)

SCHEMA: Final = Path("/usr/share/openvswitch/vswitch.ovsschema")
pytestmark = pytest.mark.node


@pytest.mark.parametrize("table", DEFAULTS)
def test_every_persistent_column_of_the_ovs_database_schema_is_compared_or_excluded_by_name(
    table: str,
) -> None:
    columns = json.loads(SCHEMA.read_text())["tables"][table]["columns"]
    persistent = {name for name, column in columns.items() if not column.get("ephemeral", False)}
    assert persistent == {*DEFAULTS[table], *COMPARED_ELSEWHERE[table], *NOT_CONFIGURATION[table]}


def test_ovs_database_row_is_reported_only_by_the_columns_that_differ_from_their_defaults() -> None:
    row = {**DEFAULTS["Interface"], "type": "internal"}
    assert list(differing("Interface", row, {"type": "internal"})) == []
    row |= {"ingress_policing_rate": 8, "options": map_of({"peer": "x", "key": "1"})}
    found = list(differing("Interface", row, {"type": "internal"}))
    assert found == ["options=key:1,peer:x", "ingress_policing_rate=8"]
