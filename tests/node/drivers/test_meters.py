"""Tests that the output of `ovs-ofctl dump-meters` is parsed completely or refused."""

import pytest

from node_agent.aspects.meters import Meter
from node_agent.drivers.network.meters import read_meters
from node_agent.host.slices import HostUnreadable

REPLY = "OFPST_METER_CONFIG reply (OF1.4) (xid=0x2):\n"
LIMIT = "meter=1 kbps burst bands=\ntype=drop rate=1000 burst_size=800\n"


def test_openflow_meters_of_a_meter_dump_are_parsed_by_their_numbers() -> None:
    other = "meter=128 kbps burst bands=\ntype=drop rate=9 burst_size=1\n"
    assert read_meters(REPLY) == {}
    assert read_meters(f"{REPLY}{LIMIT}\n{other}") == {1: Meter(1000, 800), 128: Meter(9, 1)}
    assert read_meters(f"{REPLY}{LIMIT}\n{REPLY}{other}") == {1: Meter(1000, 800), 128: Meter(9, 1)}


@pytest.mark.parametrize(
    "other",
    [
        "meter=1 pktps burst bands=\ntype=drop rate=1000 burst_size=800",
        "meter=1 kbps burst stats bands=\ntype=drop rate=1000 burst_size=800",
        "meter=1 kbps bands=\ntype=drop rate=1000",
        "meter=1 bands=\ntype=drop rate=1000",
        "meter=1 kbps burst bands=",
        f"{LIMIT}type=drop rate=2 burst_size=2",
        "meter=1 kbps burst bands=\ntype=dscp_remark rate=1000 burst_size=800 prec_level=1",
    ],
)
def test_openflow_meter_of_an_unsupported_kind_is_parsed_as_a_meter_without_a_limit(other: str) -> None:
    assert read_meters(f"{REPLY}{other}\n") == {1: None}


@pytest.mark.parametrize(
    "line", ["meter=one kbps burst bands=", "type=drop", "type=drop rate=1 burst_size=-1", "what?"]
)
def test_unexpected_line_makes_the_openflow_meter_dump_unreadable(line: str) -> None:
    with pytest.raises(HostUnreadable, match="ovs-ofctl printed an unexpected line"):
        read_meters(f"{REPLY}{LIMIT}{line}\n")


def test_band_line_without_a_meter_makes_the_openflow_meter_dump_unreadable() -> None:
    with pytest.raises(HostUnreadable):
        read_meters(f"{REPLY}type=drop rate=1000 burst_size=800\n")
