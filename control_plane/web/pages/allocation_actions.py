"""Actions on allocations and on their ingress rules."""

from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from math import ceil
from typing import Any, Final

from control_plane.web.actions import (
    Action,
    Call,
    Field,
    Names,
    Resource,
    View,
    Words,
    invalid,
    plain,
    seconds,
    whole,
    words,
)
from control_plane.web.rendering import in_path, is_lease_over
from control_plane.web.visits import Form, Visit, problem

_HOUR: Final = 3600
_FAULT: Final = Field(
    "fault",
    "What is wrong with the hardware, in one line, which is recorded and shown to admins",
    example="FAULT",
)
_KINDS: Final = ("tcp port", "udp port", "whole address")


def _renew(form: Form) -> Call:
    return Call("POST", ("lease",), {"lease_seconds": seconds(form.text("hours"), "hours", _HOUR)})


def _hours_left(view: View) -> float:
    """Return the hours until the present end of the lease of an allocation; 0 if there is no lease or it is over."""
    lease = None if is_lease_over(view) else view["lease"]
    if lease is None:
        return 0
    return max(0, (datetime.fromisoformat(lease["expires_at"]) - datetime.now(UTC)).total_seconds() / _HOUR)


async def _remaining_lease(_visit: Visit, view: View) -> Mapping[str, Any]:
    hours = _hours_left(view)
    remaining = f"{hours:.2f} hours; a smaller number of hours changes nothing"
    return {"Remaining lease": remaining} if hours else {}


def _longer_lease(view: View) -> Names:
    """Return the initial value of the form: whole hours after which the lease ends, at least an hour later than
    planned at present.
    """
    return {"hours": str(ceil(_hours_left(view)) + 1)}


def _fault(form: Form) -> Call:
    return Call("POST", ("fault",), {"fault": form.text("fault")})


def _open(form: Form) -> Call:
    """Return the request that opens the ingress of the form. Raises `Refusal`."""
    kind = form.text("kind")
    if kind not in _KINDS:
        raise invalid(f"unknown kind {kind[:32]!r}; choose one of {', '.join(_KINDS)}")
    body: dict[str, Any] = {"slot": whole(form.text("slot"), "an index of a slot")}
    if sources := form.text("sources").split():
        body["sources"] = sources
    if kind == _KINDS[-1]:
        return Call("POST", ("ingress",), {"kind": "address", **body})
    body |= {"protocol": kind.split()[0], "port": whole(form.text("port"), "a port")}
    if form.text("public_port"):
        body["public_port"] = whole(form.text("public_port"), "a public port")
    return Call("POST", ("ingress",), {"kind": "port", **body})


def _open_words(name: Words, form: Form) -> Words:
    protocol, port, public = form.text("kind").split()[0], form.text("port"), form.text("public_port")
    rule = "address" if protocol == "whole" else f"{protocol}/{f'{public}:' if public else ''}{port}"
    slot = form.text("slot")
    sources = tuple(word for each in form.text("sources").split() for word in ("--source", each))
    index = ("--slot", slot) if slot != "0" else ()
    return ("allocations", "ingress", "add", *name, rule, *index, *sources)


ACTIONS: Final = {
    "stop": Action(
        "Stop", "stop",
        "The slices are stopped and become unreachable. Slots, disks, addresses and the lease are kept: the lease still"
        " ends at its time, and the slots are still metered.",
        plain("POST", "stop"), words("allocations", "stop"), dangerous=True, asks_name=True,
    ),
    "start": Action(
        "Start", "start", "The slices are started in the same slots, with their disks and addresses.", plain("POST", "start"), words("allocations", "start"),
    ),
    "renew": Action(
        "Renew lease", "renew_lease",
        "The lease ends this number of hours from now; they are not added to its present end. A lease that ends later"
        " already is not changed.",
        _renew, lambda name, form: ("allocations", "renew", *name, "--lease", f"{form.text('hours')}h"),
        fields=(Field("hours", "Hours from now until the lease ends", "number", value="1"),),
        preposition="of", facts=_remaining_lease, initial=_longer_lease,
    ),
    "open-ingress": Action(
        "Open ingress", "open_ingress",
        "A public address or port leads to a slice, from the networks that are entered or else from everywhere. It is"
        " reserved at once, and becomes an endpoint when its node has applied it.",
        _open, _open_words, preposition="for",
        fields=(
            Field("kind", "Kind", "choice", value=_KINDS[0], choices=_KINDS, example=_KINDS[0]),
            Field("port", "Port of the slice (not for a whole address)", "number", required=False, value="22", example="22"),
            Field("public_port", "Public port (empty: a free one)", "number", required=False),
            Field("slot", "Index of the slot within the allocation, counted from 0", "number", value="0", example="0"),
            Field("sources", "Networks that may connect, such as 203.0.113.0/24, one per line (empty: every address)", "lines",
                  required=False),
        ),
    ),
    "release": Action(
        "Release", "release",
        "The slices and all data on their disks are deleted, the addresses are given up, and the lease ends. This cannot"
        " be undone.",
        plain("DELETE"), words("allocations", "release"), dangerous=True, asks_name=True,
    ),
    "report-fault": Action(
        "Report a fault", "report_fault",
        "The allocation is released: the slices and all data on their disks are deleted, and the addresses are given up."
        " This cannot be undone. The allocation is not placed in other slots; create another allocation instead. No slice"
        " is placed in its slots until an admin has readmitted them.",
        _fault, lambda name, form: ("allocations", "release", *name, "--fault", form.text("fault")),
        fields=(_FAULT,), dangerous=True, asks_name=True, preposition="of",
    ),
}  # fmt: skip
INGRESS_ACTIONS: Final = {
    "close": Action(
        "Close ingress", "close",
        "Connections through the ingress end. Its public address or port can be reserved again once its node has proved"
        " that it was removed.",
        plain("DELETE"), words("allocations", "ingress", "remove"), dangerous=True, asks_name=True,
    ),
}  # fmt: skip


def _facts(view: View) -> Mapping[str, Any]:
    lease = view["lease"]
    return {
        "Project": view["project"],
        "Slots": ", ".join(f"{each['slot_id']} ({each['private_ip']})" for each in view["slots"]) or "none",
        "Labels": ", ".join(f"{name}={value}" for name, value in view["labels"].items()),
        "Lease ends": None if lease is None or is_lease_over(view) else lease["expires_at"],
    }


ALLOCATION: Final = Resource(
    "allocation", ACTIONS,
    path=lambda names: ("allocations", names["allocation"]),
    page=lambda names: f"/allocations/{in_path(names['allocation'])}",
    facts=_facts,
    label=lambda names: names["allocation"],
    words=lambda names: (names["allocation"],),
)  # fmt: skip


async def _ingress(visit: Visit, names: Names) -> View:
    allocation = await visit.get("allocations", names["allocation"])
    found = next((each for each in allocation["ingress"] if each["id"] == names["ingress"]), None)
    if found is None:
        message = f"allocation {names['allocation']} has no ingress {names['ingress'][:64]!r}"
        raise problem(HTTPStatus.NOT_FOUND, "unknown_ingress", message, "Open the page of the allocation.")
    return {**found, "allocation": allocation["id"]}


def _ingress_facts(view: View) -> Mapping[str, Any]:
    port = f":{view['public_port']}" if view["public_port"] else ""
    guest = f" port {view['port']}" if view["port"] else ""
    return {
        "Allocation": view["allocation"],
        "Address": f"{view['protocol'] or 'all'} {view['public_address']}{port}",
        "Leads to": f"{view['slot_id']}{guest}",
        "Sources": ", ".join(view["sources"]) or "all",
    }


INGRESS: Final = Resource(
    "ingress", INGRESS_ACTIONS,
    path=lambda names: ("allocations", names["allocation"], "ingress", names["ingress"]),
    page=lambda names: f"/allocations/{in_path(names['allocation'])}",
    facts=_ingress_facts,
    label=lambda names: names["ingress"],
    words=lambda names: (names["allocation"], names["ingress"]),
    load=_ingress,
)  # fmt: skip
