"""The flows and meters of an Open vSwitch bridge.

Flows are set as bundles through the stdin of `ovs-ofctl`, and read with the parser of the `ovs` package. Bundles cannot
contain meters, so each meter is set separately.

The parser does not support every action of a switch. A flow that the parser rejects was not written by the agent.
Foreign flows are removed by their cookie, so keeping the unparsed line is sufficient; an error would instead stop the
agent whenever an operator adds such a flow.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ovs.flow.decoders import EthMask, IPMask
from ovs.flow.kv import ParseError
from ovs.flow.ofp import OFPFlow

from node_agent.aspects.flows import Flow
from node_agent.aspects.meters import Meter
from node_agent.drivers.network.meters import meter_text, read_meters
from node_agent.drivers.programs import Command, PendingQuery, run_change, start_query

# With names, ovs-ofctl would first request the features of all 254 tables, which is a megabyte.
_OPTIONS: Final = ("-O", "OpenFlow14", "--no-names")
_DUMPS: Final = (("dump-flows", "--no-stats"), ("dump-meters",))
_NO_ANSWER: Final = re.compile(
    r"\((No such file or directory|Connection refused|Connection reset by peer|Broken pipe|End of file)\)\Z"
)
"""Error output of `ovs-ofctl` if the switch does not listen or closes the connection.

The error output of a refused bundle ends with "(Protocol error)".
"""
_LOCAL: Final = "65534"
"""OpenFlow port number of a bridge's own port. The port is named by its number, because `ovs-ofctl` runs with
`--no-names` (ovs-ofctl(8))."""
_COOKIE: Final = re.compile(r"\s*cookie=(0x[0-9a-f]+),")


@dataclass(frozen=True, slots=True)
class Tables:
    """OpenFlow state of a bridge: its flows by cookie, and its meters by number."""

    flows: Mapping[int, frozenset[Flow]]
    meters: Mapping[int, Meter | None]


class OpenFlow:
    """OpenFlow connections to bridges through `ovs-ofctl`.

    `folder` contains the management socket `<bridge>.mgmt` of each bridge. Changes raise `HostRefused` if the switch
    refuses them, and `HostUnreadable` if it does not answer or the bridge does not exist.
    """

    def __init__(self, folder: Path, deadline: float = 5.0) -> None:
        self._folder, self._deadline = folder, deadline

    def start_reading_tables(self, bridge: str) -> PendingQuery[Tables]:
        """Start reading the flows and meters of a bridge. Raises `HostUnreadable`."""
        commands = [self._command(*dump, bridge=bridge) for dump in _DUMPS]
        return start_query(f"read flows and meters of {bridge}", commands, _tables, self._deadline)

    def set_flows(self, bridge: str, cookie: int, flows: Iterable[Flow]) -> None:
        lines = [
            f"delete cookie={cookie:#x}/-1",
            *(f"add cookie={cookie:#x},{_text(flow)}" for flow in flows),
        ]
        command = *self._command("--bundle", "add-flows", bridge=bridge), "-"
        self._run(f"set flows of {bridge}", command, "\n".join(lines) + "\n")

    def reset_switching(self, bridge: str) -> None:
        command = (*self._command("set-frags", bridge=bridge), "normal")
        self._run(f"set fragment handling of {bridge}", command)
        for action in ("receive", "forward", "packet-in"):
            command = (*self._command("mod-port", bridge=bridge), _LOCAL, action)
            self._run(f"set {action} for the local port of {bridge}", command)

    def add_meter(self, bridge: str, number: int, meter: Meter) -> None:
        self._change_meter("add-meter", bridge, meter_text(number, meter))

    def change_meter(self, bridge: str, number: int, meter: Meter) -> None:
        self._change_meter("mod-meter", bridge, meter_text(number, meter))

    def delete_meter(self, bridge: str, number: int) -> None:
        self._change_meter("del-meters", bridge, f"meter={number}")

    def _change_meter(self, command: str, bridge: str, meter: str) -> None:
        self._run(f"run {command} for {meter} on {bridge}", (*self._command(command, bridge=bridge), meter))

    def _run(self, operation: str, command: Command, stdin: str = "") -> None:
        run_change(operation, command, stdin, self._deadline, lambda stderr: bool(_NO_ANSWER.search(stderr)))

    def _command(self, *arguments: str, bridge: str) -> Command:
        return "ovs-ofctl", *_OPTIONS, *arguments, f"unix:{self._folder / bridge}.mgmt"


def _text(flow: Flow) -> str:
    fields = (f"{name}={value}" if value else name for name, value in sorted(flow.match))
    return f"priority={flow.priority},{','.join(fields)},actions={flow.actions}"


def _tables(flows: str, meters: str) -> Tables:
    found: dict[int, set[Flow]] = {}
    for line in filter(lambda line: "actions=" in line, flows.splitlines()):
        cookie, flow = _read(line)
        found.setdefault(cookie, set()).add(flow)
    return Tables({cookie: frozenset(flows) for cookie, flows in found.items()}, read_meters(meters))


# Every survey reads the same lines, and parsing them would cost more than the rest of the survey.
@lru_cache(maxsize=4096)
def _read(line: str) -> tuple[int, Flow]:
    # Without statistics, `ovs-ofctl` omits a cookie of 0.
    try:
        parsed = OFPFlow(line)
    except (ParseError, ValueError):
        cookie = _COOKIE.match(line)
        return int(cookie[1], 16) if cookie else 0, Flow(0, frozenset(), line.strip())
    return parsed.info.get("cookie", 0), _flow(parsed)


def _flow(parsed: OFPFlow) -> Flow:
    fields = {name: _value_text(value) for name, value in parsed.match.items() if name != "priority"}
    if table := parsed.info.get("table"):
        fields["table"] = str(table)
    # A dump omits the default priority of a flow.
    return Flow(parsed.match.get("priority", 32768), frozenset(fields.items()), _actions(parsed.actions))


def _value_text(value: Any) -> str:
    match value:
        case True:
            return ""
        case EthMask(mask=None):
            return ":".join(f"{byte:02x}" for byte in value.eth.packed)
        case IPMask():
            return str(value).removesuffix("/32")
        case _:
            return str(value)


def _actions(actions: list[dict[str, Any]]) -> str:
    match actions:
        case [{"meter": number}, *limited]:
            return f"meter:{number},{_actions(limited)}"
        case [{"output": {"port": "LOCAL" | "NORMAL" as port}}]:
            return str(port)
        case [{"output": {"port": port}}]:
            return f"output:{port}"
        case [{"drop": True}]:
            return "drop"
        case _:
            return repr(actions)
