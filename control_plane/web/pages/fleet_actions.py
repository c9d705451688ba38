"""Actions on nodes, on their slots and on their tasks, and the action that registers a node."""

from collections.abc import Awaitable, Callable, Mapping
from itertools import zip_longest
from typing import Any, Final

from markupsafe import Markup

from control_plane.web.actions import (
    REASON,
    Action,
    Call,
    Field,
    Names,
    Resource,
    View,
    Words,
    list_of,
    plain,
    whole,
    with_reason,
    without_repeated,
    words,
)
from control_plane.web.rendering import blocking, in_path, is_lease_over, linked, moment
from control_plane.web.visits import Form, Visit, both

_MOST_SLOTS: Final = 500
_MOST_DETAILED: Final = 20
"""Number of allocations that a form shows with their projects and leases: each is one request of the API."""
_ISSUED: Final = "enrolment_token"


def _drain(form: Form) -> Call:
    body: dict[str, Any] = {"reason": form.text("reason")}
    if form.text("minutes"):
        body["release_after_seconds"] = whole(form.text("minutes"), "a number of minutes") * 60
    return Call("POST", ("drain",), body)


def _drain_words(name: Words, form: Form) -> Words:
    minutes = form.text("minutes")
    after = ("--release-after", f"{minutes}m") if minutes else ()
    return ("nodes", "drain", *name, "--reason", form.text("reason"), *after)


def _approve(form: Form) -> Call:
    skus = form.text("skus").split()
    return Call("POST", ("approve",), {"skus": skus} if skus else {})


def _approve_words(name: Words, form: Form) -> Words:
    skus = tuple(word for each in form.text("skus").split() for word in ("--sku", each))
    return ("slots", "approve", *name, *skus)


async def _holders(visit: Visit, node: View) -> Mapping[str, Any]:
    """Return the number of slots of a node that allocations hold, and links to these allocations."""
    slots = (await visit.get("slots", node=node["id"], limit=_MOST_SLOTS))["items"]
    held = [each["allocation_id"] for each in slots if each["allocation_id"]]
    names = [*dict.fromkeys(held)]
    detailed = names[:_MOST_DETAILED] if visit.allows("allocations:read") else []
    views = await both(*(visit.try_get("allocations", each) for each in detailed))
    holders = [_holder(each, view) for each, view in zip_longest(names, views)]
    return {
        "Slots in use": f"{len(held)} of {len(slots)}",
        f"Allocations ({len(holders)})": Markup("<br>").join(holders),
    }


def _holder(name: str, view: View | None) -> Markup | str:
    """Return the link to an allocation; with its view, followed by its project and the end of its lease."""
    if view is None:
        return linked(name)
    if view["lease"] is None:
        lease: Markup | str = "no lease yet"
    elif is_lease_over(view):
        lease = "its lease ended"
    else:
        lease = Markup("its lease ends {}").format(moment(view["lease"]["expires_at"]))
    return Markup("{}: project {}, {}").format(linked(name), view["project"], lease)


async def time_of_newest(visit: Visit, stream: str, kind: str) -> str | None:
    """Return the time of the newest event of this type in a stream, at the time that the page shows; None if there is
    none or the caller may not read events.
    """
    if not visit.allows("events:read"):
        return None
    found = await visit.get("events", stream=stream, type=kind, order="desc", limit=1, to=visit.at)
    return found["items"][0]["recorded_at"] if found["items"] else None


def _exclusion_in(kind: str) -> Callable[[Visit, View], Awaitable[Mapping[str, Any]]]:
    """Return the function that returns why and since when a resource of this kind is excluded from placement."""

    async def facts(visit: Visit, view: View) -> Mapping[str, Any]:
        if view["excluded"] is None:
            return {}
        return {
            "Excluded because": view["excluded"]["message"],
            "Excluded since": await time_of_newest(visit, f"{kind}-{view['id']}", f"{kind}.excluded"),
        }

    return facts


def with_effective_actions(node: View) -> View:
    """Return the view of a node, changed so that a cordon of a cordoned node is not allowed."""
    return without_repeated(node, "node", {} if node["cordoned"] is None else {"cordon": "cordoned"})


async def _node(visit: Visit, names: Names) -> View:
    return with_effective_actions(await visit.get("nodes", names["node"]))


NODE_ACTIONS: Final = {
    "cordon": Action(
        "Cordon", "cordon", "No new slice is placed on the node. Slices that run there stay.",
        with_reason("cordon"), words("nodes", "cordon", reason=True), fields=(REASON,),
    ),
    "uncordon": Action(
        "Uncordon", "uncordon", "New slices can be placed on the node again. A running drain is cancelled.",
        with_reason("uncordon"), words("nodes", "uncordon", reason=True), fields=(REASON,),
    ),
    "drain": Action(
        "Drain", "drain",
        "The node is cordoned and emptied, and stays cordoned. Its allocations are released after the given time: their"
        " slices and all data on their disks are deleted, which cannot be undone. Without a time, the drain waits until"
        " they end by themselves. The time can be changed by draining the node again. Owners of the allocations see the"
        " reason and the time; uncordon the node to cancel the drain.",
        _drain, _drain_words, dangerous=True, asks_name=True, facts=_holders,
        fields=(
            REASON,
            Field("minutes", "Minutes after which its allocations are released (0: at once; empty: wait until they end)",
                  "number", required=False),
        ),
    ),
    "readmit": Action(
        "Readmit", "readmit",
        "The node is used for placements again, and its count of failed bring-ups is set to 0. Repair the cause first:"
        " otherwise bring-ups can fail again, and their allocations with them.",
        with_reason("readmit"), words("nodes", "readmit", reason=True), fields=(REASON,), facts=_exclusion_in("node"),
    ),
    "revoke": Action(
        "Revoke access", "revoke",
        "The access of the node ends at once: its key, its session and its queue. Its slices continue to run, but the"
        " control plane cannot change, observe or remove them. The node must enrol again to regain access.",
        with_reason("revoke"), words("nodes", "revoke", reason=True), fields=(REASON,), dangerous=True, asks_name=True,
        preposition="of", facts=_holders,
    ),
}  # fmt: skip
REGISTERING: Final = {
    "register-node": Action(
        "Register node", "register-node",
        "The node gets a subnet and a one-time token, with which the agent on its host enrols within an hour. The token is"
        " shown once; the control plane stores only a hash of it. If the node is registered already and has not enrolled, it"
        " keeps its subnet and gets a new token, and the earlier token no longer works.",
        lambda form: Call("POST", (), {"id": form.text("id")}),
        lambda _name, form: ("nodes", "register", form.text("id")),
        fields=(Field("id", "Name of the node, such as rack-1", example="NODE"),),
        made=lambda answer: f"/nodes/{in_path(answer['id'])}", secret=_ISSUED, template="enrolment.html",
    ),
}  # fmt: skip
SLOT_ACTIONS: Final = {
    "approve": Action(
        "Approve", "approve",
        "The slot can be used under its SKUs. A new or retired slot also gets MAC and IP addresses, and a slot without an"
        " allocation is bound to the hardware that its node describes now. An allocation in the slot is not affected.",
        _approve, _approve_words,
        fields=(Field("skus", "SKUs under which it is offered, separated by spaces (empty: those that it had, or else one chosen"
                      " by its size; a slot that is in use needs at least one)", required=False),),
    ),
    "retire": Action(
        "Retire", "retire", "No slice is placed in the slot until it is approved again. It gives up its PCI functions and keeps its addresses.",
        with_reason("retire"), words("slots", "retire", reason=True), fields=(REASON,),
    ),
    "reprovision": Action(
        "Reprovision", "reprovision",
        "The slot gives up its MAC and IP address and gets others, which the next slice in it uses.",
        with_reason("reprovision"), words("slots", "reprovision", reason=True), fields=(REASON,), dangerous=True,
    ),
    "readmit": Action(
        "Readmit", "readmit",
        "The slot is used for placements again, and its count of failed bring-ups is set to 0. Repair the cause first:"
        " otherwise bring-ups can fail again, and their allocations with them.",
        with_reason("readmit"), words("slots", "readmit", reason=True), fields=(REASON,), facts=_exclusion_in("slot"),
    ),
    "force-release": Action(
        "Force-release", "force_release",
        "The slot can be claimed again at once, although its node has not proved that it is empty. If a slice still runs"
        " there, two slices can have the same address and the same devices.",
        with_reason("force-release"), words("slots", "force-release", reason=True), fields=(REASON,), dangerous=True,
        asks_name=True,
    ),
}  # fmt: skip
TASK_ACTIONS: Final = {
    "retry": Action(
        "Retry", "retry", "The task runs again. If it removes a slice, the removal is requested again.", plain("POST", "retry"), words("tasks", "retry"),
    ),
    "cancel": Action(
        "Cancel", "cancel",
        "The task is cancelled before it begins, or between two of its steps. If it brings up a slice, its allocation"
        " fails, and its slices are removed.",
        plain("POST", "cancel"), words("tasks", "cancel"), dangerous=True, asks_name=True,
    ),
}  # fmt: skip
NODE: Final = Resource(
    "node", NODE_ACTIONS,
    path=lambda names: ("nodes", names["node"]),
    page=lambda names: f"/nodes/{in_path(names['node'])}",
    facts=lambda view: {
        "Host": view["hostname"],
        "Placement": f"blocked: {', '.join(found)}" if (found := blocking(view)) else "open",
        "Last heartbeat": view["seen_at"],
    },
    label=lambda names: names["node"],
    words=lambda names: (names["node"],),
    load=_node,
)  # fmt: skip
NEW_NODE: Final = list_of("nodes", REGISTERING, "fleet:write")
SLOT: Final = Resource(
    "slot", SLOT_ACTIONS,
    path=lambda names: ("nodes", names["node"], "slots", names["index"]),
    page=lambda names: f"/nodes/{in_path(names['node'])}/slots/{in_path(names['index'])}",
    facts=lambda view: {
        "SKUs": ", ".join(view["skus"]),
        "MAC address": view["mac_address"],
        "IP address": view["private_ip"],
        "Allocation": view["allocation_id"],
        "Reason": view["reason"] and view["reason"]["message"],
    },
    label=lambda names: f"{names['node']}/{names['index']}",
    words=lambda names: (f"{names['node']}/{names['index']}",),
)  # fmt: skip
TASK: Final = Resource(
    "task", TASK_ACTIONS,
    path=lambda names: ("tasks", names["task"]),
    page=lambda names: f"/tasks/{in_path(names['task'])}",
    facts=lambda view: {
        "Kind": view["kind"],
        "Node": view["slot_id"] or view["node_id"],
        "Allocation": view["allocation_id"],
        "Attempt": view["attempt"],
        "Reason": view["reason"] and view["reason"]["message"],
    },
    label=lambda names: names["task"],
    words=lambda names: (names["task"],),
)  # fmt: skip
