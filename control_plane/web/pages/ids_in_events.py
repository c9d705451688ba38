"""Events found by an id in them: that of the event, of the request that caused it, or of an ingress rule.

The ledger has no index of these ids. But each contains the time at which it was made (UUIDv7), and an event that has it
is recorded soon afterwards: the search begins there, and reads a bounded part of the ledger. The data of a
demonstration have other times than their ids; of an event or ingress rule, the newest events are therefore searched
too.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from control_plane.web.visits import Visit

REQUEST: Final = re.compile(r"req-[0-9a-f]{32}")
INGRESS: Final = re.compile(r"ing-[0-7][0-9a-hjkmnp-tv-z]{25}")
_CROCKFORD: Final = str.maketrans("0123456789abcdefghjkmnpqrstvwxyz", "0123456789abcdefghijklmnopqrstuv")
_EARLIER: Final = timedelta(seconds=5)
"""How much the clock of the process that makes ids can be ahead of that of the database."""
_LATER: Final = timedelta(minutes=10)
"""Longest time from the id of an event to its record."""
_READ: Final = 500
"""Number of events that are read at once: the most that the API returns."""

Event = Mapping[str, Any]


def _made_at(name: str) -> datetime | None:
    """Return the time in an id; None if it is in the future, so that the id is not one of this control plane.

    The time is the first 48 bits of a UUID, in milliseconds since 1970. After `ing-`, they are ten digits of base32.
    """
    begin, _, rest = name.partition("-")
    digits = rest if begin == "req" else name.replace("-", "")
    seconds = (int(rest[:10].translate(_CROCKFORD), 32) if begin == "ing" else int(digits[:12], 16)) / 1000
    now = datetime.now(UTC)
    return None if seconds > (now + _EARLIER).timestamp() else datetime.fromtimestamp(seconds, UTC)


async def _events(visit: Visit, begin: datetime | None, **query: Any) -> Sequence[Event]:
    """Return the first events that match since a time. None: the newest."""
    order = {"order": "desc"} if begin is None else {"from": _text(begin - _EARLIER)}
    listed = await visit.get("events", **{"limit": _READ, **query, **order})
    items: Sequence[Event] = listed["items"]
    return items


async def event_with_id(visit: Visit, name: str) -> Event | None:
    """Return the event with an id (UUID); None if there is none that the caller may read. Raises `Refusal`."""
    made = _made_at(name)
    last = None if made is None or made + _LATER >= datetime.now(UTC) else _text(made + _LATER)
    return await _first(visit, made, lambda _: True, id=name, limit=1, to=last)


async def reservation_of(visit: Visit, ingress: str) -> Event | None:
    """Return the event in which an ingress rule was reserved, by the id of the rule; None if there is none that the
    caller may read. Raises `Refusal`.
    """
    made = _made_at(ingress)
    return await _first(visit, made, lambda it: it["data"]["ingress_id"] == ingress, type="ingress.reserved")


async def _first(
    visit: Visit, made: datetime | None, matches: Callable[[Event], bool], **query: Any
) -> Event | None:
    """Return the first matching event since the time of an id, else among the newest events."""
    if made is None:
        return None
    found = [each for each in await _events(visit, made, **query) if matches(each)]
    if not found:
        found = [each for each in await _events(visit, None, **{**query, "to": None}) if matches(each)]
    return found[0] if found else None


async def events_of_request(visit: Visit, request: str) -> Sequence[Event]:
    """Return the events that a request caused, in ledger order, by the id of the request. Raises `Refusal`."""
    made = _made_at(request)
    found = () if made is None else await _events(visit, made)
    return [each for each in found if request in each["reason"].split()]


def claim_of(reservation: Event) -> str:
    """Return the value that an ingress rule claims, such as `tcp/203.0.113.1:29690`, by the event in which it was
    reserved. The history of the rule has this name.
    """
    rule = reservation["data"]["rule"]
    address, service = rule["public_address"], rule["service"]
    return f"{service['protocol']}/{address}:{service['public_port']}" if service else address


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%S.%fZ}"
