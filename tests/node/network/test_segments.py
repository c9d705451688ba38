"""Tests of TCP probe packets: another implementation parses the probes that the agent sends, and the agent parses the
answers to these probes.
"""

from typing import Final

import pytest
from scapy.layers.inet import IP, TCP

from events.values import Ipv4Address
from node_agent.drivers.network.segments import End, packet, parsed, reset, syn

OURS: Final[End] = Ipv4Address("192.0.2.254"), 40000
GUEST: Final[End] = Ipv4Address("203.0.113.7"), 20022
NUMBER: Final = 2**32 - 1


def test_reachability_probe_is_a_tcp_syn_with_correct_checksums() -> None:
    read = IP(packet(OURS, GUEST, syn(OURS, GUEST, NUMBER)))
    assert (read.src, read.sport, read.dst, read.dport) == (*OURS, *GUEST)
    assert (read[TCP].flags, read[TCP].seq) == ("S", NUMBER)
    again = read.copy()
    del again.chksum, again[TCP].chksum
    assert bytes(again) == bytes(IP(bytes(again))) == bytes(read)


def test_tcp_reset_that_the_agent_sends_after_a_probe_has_the_probes_sequence_number_plus_one() -> None:
    read = IP(packet(OURS, GUEST, reset(OURS, GUEST, NUMBER)))
    assert (read[TCP].flags, read[TCP].seq) == ("R", 0)


@pytest.mark.parametrize(
    ("flags", "acknowledged", "is_answer", "refuses"),
    [
        ("SA", 0, True, False),
        ("RA", 0, True, True),
        ("SA", 7, False, False),
        ("R", 0, False, True),
        ("A", 0, False, False),
        ("S", 0, False, False),
    ],
)
def test_answer_to_a_tcp_probe_is_recognized_if_it_acknowledges_the_probes_sequence_number(
    flags: str, acknowledged: int, is_answer: bool, refuses: bool
) -> None:
    answer = IP(src=GUEST[0], dst=OURS[0]) / TCP(
        sport=GUEST[1], dport=OURS[1], flags=flags, ack=acknowledged, options=[("MSS", 1460)]
    )
    read = parsed(bytes(answer))
    assert read is not None
    assert (read.source, read.destination) == (GUEST, OURS)
    assert (read.answers(NUMBER), read.refuses) == (is_answer, refuses)


@pytest.mark.parametrize("data", [b"", b"E", bytes(40), bytes(IP() / TCP())[:39]])
def test_data_that_is_not_a_tcp_segment_is_not_parsed(data: bytes) -> None:
    assert parsed(data) is None
