"""OpenFlow meters in the text format of `ovs-ofctl`, which the `ovs` package cannot parse. Unknown lines are errors."""

import re
from typing import Final

from node_agent.aspects.meters import Meter
from node_agent.host.slices import HostUnreadable

_REPLY: Final = re.compile(r"OFPST_METER_CONFIG reply \(")
_METER: Final = re.compile(r"meter=(\d+) ([a-z ]*?) ?bands=")
_FLAGS: Final = {"kbps", "burst"}
_BAND: Final = re.compile(r"type=(\w+) rate=(\d+)(?: burst_size=(\d+))?(?: prec_level=\d+)?")


def meter_text(number: int, meter: Meter) -> str:
    """Return an OpenFlow meter as the text that `ovs-ofctl add-meter` and `mod-meter` expect."""
    return f"meter={number},kbps,burst,band=type=drop,rate={meter.rate_kbps},burst_size={meter.burst_kbit}"


def read_meters(dump: str) -> dict[int, Meter | None]:
    """Parse the output of `ovs-ofctl dump-meters`. Raises `HostUnreadable`.

    The value of a meter that is not a rate limit of this program's form is None.
    """
    found: dict[int, tuple[set[str], list[re.Match[str]]]] = {}
    bands: list[re.Match[str]] | None = None
    # Every part of a multipart reply repeats the first line; empty lines separate meters.
    for line in filter(None, dump.splitlines()):
        if head := _METER.fullmatch(line):
            bands = []
            found[int(head[1])] = set(head[2].split()), bands
        elif (band := _BAND.fullmatch(line)) and bands is not None:
            bands.append(band)
        elif not _REPLY.match(line):
            raise HostUnreadable(f"ovs-ofctl printed an unexpected line in its list of meters: {line}")
    return {number: _meter(flags, bands) for number, (flags, bands) in found.items()}


def _meter(flags: set[str], bands: list[re.Match[str]]) -> Meter | None:
    match [band.groups() for band in bands]:
        case [("drop", rate, str(burst))] if flags == _FLAGS:
            return Meter(int(rate), int(burst))
        case _:
            return None
