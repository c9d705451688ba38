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
    without_repeated,
    words,
)
from control_plane.web.rendering import in_path, is_lease_over, span, span_in_words
from control_plane.web.visits import Form, Visit, both, nothing, problem

_HOUR: Final = 3600
_FAULT: Final = Field(
    "fault",
    "What is wrong with the hardware, in one line, which is recorded and shown to admins",
    example="FAULT",
)
_KINDS: Final = ("tcp port", "udp port", "whole address")
_DONE_IN: Final = {
    "stop": ("stopping", "stopped"),
    "start": ("starting", "active"),
    "release": ("releasing", "released"),
}
"""The states of an allocation in which an action has been carried out already, or is being carried out."""
_ENDING: Final = ("releasing", "failed", "released")
_NO_SLOT: Final = "no_slot_held"
_LATER: Final = "After that, an admin can retire the faulty slot on the page of the slot"
"""What can be done about a faulty slot after the allocation has released it."""


def _renew(form: Form) -> Call:
    return Call("POST", ("lease",), {"lease_seconds": seconds(form.text("hours"), "hours", _HOUR)})


def _hours_left(view: View) -> float:
    """Return the hours until the present end of the lease of an allocation; 0 if there is no lease or it is over."""
    lease = None if is_lease_over(view) else view["lease"]
    if lease is None:
        return 0
    return max(0, (datetime.fromisoformat(lease["expires_at"]) - datetime.now(UTC)).total_seconds() / _HOUR)


async def _with_longest_lease(visit: Visit, view: View) -> View:
    """Return the view of an allocation with `longest_lease`: the hours that a renewal may request at most, and what
    limits them. The API limits every lease, the SKU in the version that the allocation has recorded, and the project
    in its present state, if the caller may read it.
    """
    has_version = view["sku_version"] is not None and visit.allows("catalogue:read")
    api, sku, project = await both(
        visit.get(),
        visit.try_get("skus", view["sku"], version=view["sku_version"]) if has_version else nothing(),
        visit.try_get("projects", view["project"]) if visit.allows("projects:read") else nothing(),
    )
    limits = [
        (api["limits"]["lease_seconds"], "limit of every lease"),
        (sku and sku["max_lease_seconds"], f"limit of SKU {view['sku']}"),
        (project and project["limits"]["max_lease_seconds"], f"limit of project {view['project']}"),
    ]
    found = [(seconds / _HOUR, source) for seconds, source in limits if seconds is not None]
    return {**view, "longest_lease": min(found)}


async def _lease_facts(_visit: Visit, view: View) -> Mapping[str, Any]:
    left, (most, source) = _hours_left(view), view["longest_lease"]
    if not left:
        return {}
    effect = "" if left < most else "; no renewal can extend it now"
    longest = f"{span_in_words(most * _HOUR)} from now ({source})"
    return {"Remaining lease": f"{span(left * _HOUR)} left{effect}", "Longest lease": longest}


def _longer_lease(view: View) -> Names:
    """Return the initial value of the form: whole hours after which the lease ends, at least an hour later than
    planned at present, but at most the longest lease.
    """
    return {"hours": f"{min(ceil(_hours_left(view)) + 1, view['longest_lease'][0]):.10g}"}


def _release_in_state(view: View) -> Names:
    if view["state"] == "waiting":
        effect = "The wait for capacity ends, and the allocation is released. It has no slices and no lease."
        return {"title": "Cancel request", "effect": effect, "preposition": "of"}
    effect = (
        "The slices and all data on their disks are deleted, the addresses are released, and the lease ends. This"
        " cannot be undone."
    )
    return {"effect": effect}


def _fault_in_state(view: View) -> Names:
    """Return the effect of the report of a fault for an allocation that is ending: it is released without the report,
    but its slots can still be excluded from placement while it holds them.
    """
    if view["state"] not in _ENDING:
        return {}
    effect = (
        f"The allocation is {view['state']} already. While it still holds its slots, the fault can be recorded: no slice is"
        f" placed in them until an admin has readmitted them. {_LATER}."
    )
    return {"title": "Report fault", "effect": effect, "preposition": "of"}


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
        preposition="of", facts=_lease_facts, initial=_longer_lease, load=_with_longest_lease,
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
        "The slices and all data on their disks are deleted, the addresses are released, and the lease ends. This cannot"
        " be undone. If the allocation still waits for capacity, it has no slices, and only the wait ends.",
        plain("DELETE"), words("allocations", "release"), dangerous=True, asks_name=True, in_state=_release_in_state,
    ),
    "report-fault": Action(
        "Report fault and release", "report_fault",
        "The slices and all data on their disks are deleted, and the addresses are released. This cannot be undone. The"
        " allocation is not placed in other slots; create another allocation instead. No slice is placed in its slots"
        " until an admin has readmitted them.",
        _fault, lambda name, form: ("allocations", "release", *name, "--fault", form.text("fault")),
        fields=(_FAULT,), dangerous=True, asks_name=True, in_state=_fault_in_state,
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


def with_effective_actions(allocation: View) -> View:
    """Return the view of an allocation, changed so that an action without an effect is not allowed, such as the release
    of a released allocation. If no fault can be reported any more, the reason states what is possible instead.
    """
    state = allocation["state"]
    done = {name: state for name, states in _DONE_IN.items() if state in states}
    found = without_repeated(allocation, "allocation", done)
    actions = found["allowed_actions"] or {}
    if not found["slots"] or actions.get("report_fault", {}).get("code") != _NO_SLOT:
        return found
    reason = f"a fault can be reported only while the allocation still holds its slots. {_LATER}"
    return {
        **found,
        "allowed_actions": {**actions, "report_fault": {**actions["report_fault"], "reason": reason}},
    }


async def _allocation(visit: Visit, names: Names) -> View:
    return with_effective_actions(await visit.get("allocations", names["allocation"]))


ALLOCATION: Final = Resource(
    "allocation", ACTIONS,
    path=lambda names: ("allocations", names["allocation"]),
    page=lambda names: f"/allocations/{in_path(names['allocation'])}",
    facts=_facts,
    label=lambda names: names["allocation"],
    words=lambda names: (names["allocation"],),
    load=_allocation,
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
