"""The flows and meters of a bridge. Flows are set as bundles by `ovs-ofctl` over stdin, and read back with the parser
of the `ovs` package. Bundles take no meters: each is set by itself.

That parser does not know all that a switch does. What it refuses is no flow of ours, and somebody else's is removed by
its cookie, so its line is as good as its parts; as an error it would end the agent whenever an operator adds one.
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

from node_agent.drivers.meters import meter_text, read_meters
from node_agent.drivers.programs import Asked, Command, ask, tell
from node_agent.flows import Flow
from node_agent.meters import Meter

# By their names it would ask for the features of all 254 tables first, a megabyte.
_OPTIONS: Final = ("-O", "OpenFlow14", "--no-names")
_DUMPS: Final = (("dump-flows", "--no-stats"), ("dump-meters",))
_NO_ANSWER: Final = re.compile(
    r"\((No such file or directory|Connection refused|Connection reset by peer|Broken pipe|End of file)\)\Z"
)
"""How `ovs-ofctl` ends when nobody listens, or stops talking; a bundle that is refused ends in (Protocol error)."""
_LOCAL: Final = "65534"
"""A bridge's own port where names are off (ovs-ofctl(8))."""
_COOKIE: Final = re.compile(r"\s*cookie=(0x[0-9a-f]+),")


@dataclass(frozen=True, slots=True)
class Tables:
    """What stands on a bridge: its flows by their cookie, its meters by their number."""

    flows: Mapping[int, frozenset[Flow]]
    meters: Mapping[int, Meter | None]


class OpenFlow:
    """`folder` holds the management sockets of the bridges, one `<bridge>.mgmt` each. Changes raise `HostRefused` when
    the answer was no, and `HostUnreadable` when there was none, also because there is no such bridge.
    """

    def __init__(self, folder: Path, deadline: float = 5.0) -> None:
        self._folder, self._deadline = folder, deadline

    def ask_tables(self, bridge: str) -> Asked[Tables]:
        """Raises `HostUnreadable`."""
        commands = [self._command(*dump, bridge=bridge) for dump in _DUMPS]
        return ask(f"flows and meters of {bridge}", commands, _tables, self._deadline)

    def set_flows(self, bridge: str, cookie: int, flows: Iterable[Flow]) -> None:
        lines = [
            f"delete cookie={cookie:#x}/-1",
            *(f"add cookie={cookie:#x},{_text(flow)}" for flow in flows),
        ]
        command = *self._command("--bundle", "add-flows", bridge=bridge), "-"
        self._tell(f"set flows of {bridge}", command, "\n".join(lines) + "\n")

    def reset_switching(self, bridge: str) -> None:
        self._tell(f"set fragments of {bridge}", (*self._command("set-frags", bridge=bridge), "normal"))
        for action in ("receive", "forward", "packet-in"):
            command = (*self._command("mod-port", bridge=bridge), _LOCAL, action)
            self._tell(f"have the own port of {bridge} {action}", command)

    def add_meter(self, bridge: str, number: int, meter: Meter) -> None:
        self._change_meter("add-meter", bridge, meter_text(number, meter))

    def change_meter(self, bridge: str, number: int, meter: Meter) -> None:
        self._change_meter("mod-meter", bridge, meter_text(number, meter))

    def delete_meter(self, bridge: str, number: int) -> None:
        self._change_meter("del-meters", bridge, f"meter={number}")

    def _change_meter(self, command: str, bridge: str, meter: str) -> None:
        self._tell(f"{command} of {bridge}, {meter}", (*self._command(command, bridge=bridge), meter))

    def _tell(self, what: str, command: Command, stdin: str = "") -> None:
        tell(what, command, stdin, self._deadline, lambda complaint: bool(_NO_ANSWER.search(complaint)))

    def _command(self, *words: str, bridge: str) -> Command:
        return "ovs-ofctl", *_OPTIONS, *words, f"unix:{self._folder / bridge}.mgmt"


def _text(flow: Flow) -> str:
    words = (f"{name}={value}" if value else name for name, value in sorted(flow.match))
    return f"priority={flow.priority},{','.join(words)},actions={flow.actions}"


def _tables(flows: str, meters: str) -> Tables:
    found: dict[int, set[Flow]] = {}
    for line in filter(lambda line: "actions=" in line, flows.splitlines()):
        cookie, flow = _read(line)
        found.setdefault(cookie, set()).add(flow)
    return Tables({cookie: frozenset(flows) for cookie, flows in found.items()}, read_meters(meters))


# A survey sees the same lines again and again; parsing them costs more than all the rest of it.
@lru_cache(maxsize=4096)
def _read(line: str) -> tuple[int, Flow]:
    # Without statistics, `ovs-ofctl` leaves out a cookie of 0.
    try:
        parsed = OFPFlow(line)
    except (ParseError, ValueError):
        cookie = _COOKIE.match(line)
        return int(cookie[1], 16) if cookie else 0, Flow(0, frozenset(), line.strip())
    return parsed.info.get("cookie", 0), _flow(parsed)


def _flow(parsed: OFPFlow) -> Flow:
    fields = {name: _word(value) for name, value in parsed.match.items() if name != "priority"}
    if table := parsed.info.get("table"):
        fields["table"] = str(table)
    # OpenFlow leaves a flow's default priority out of a dump.
    return Flow(parsed.match.get("priority", 32768), frozenset(fields.items()), _actions(parsed.actions))


def _word(value: Any) -> str:
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
