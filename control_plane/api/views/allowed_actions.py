"""The actions that a caller may take on a resource, as a part of the API's view of the resource.

An action is allowed under the same conditions under which its route accepts a request: first the scope that the route
requires (`against_scope`), then the function `against_...` of `control_plane.decisions` from which the command raises
its refusal. These decisions use only the row of the resource, and of a project what it uses of its limits, and make no
query. Conditions that need other data are not checked here, so a request can still be refused because of them:
capacity, free addresses, the version of an agent, and the fields of the request. An action that was taken before and
would change nothing is allowed, because its route accepts the request.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from pydantic import BaseModel, Field

from control_plane.commands.access import issued_key_of
from control_plane.commands.nodes import registration_of
from control_plane.commands.slots import hardware_facts
from control_plane.decisions import allocation as life
from control_plane.decisions import projections, tasks
from control_plane.decisions.access import Principal, Role, Scope, against_granting, against_scope
from control_plane.decisions.allocation_states import Allocation, Requested
from control_plane.decisions.fleet.drain import against_uncordoning
from control_plane.decisions.fleet.exclusion import against_readmitting
from control_plane.decisions.fleet.registration import against_removing
from control_plane.decisions.fleet.slots import (
    against_approving,
    against_force_release,
    against_reprovisioning,
    against_retiring,
    keeps_skus,
)
from control_plane.decisions.ingress import IngressStates, against_opening_any
from control_plane.decisions.keys import against_rotating
from control_plane.decisions.projects import against_archiving, against_changing, against_erasing
from control_plane.decisions.refusals import Objection
from control_plane.decisions.task_states import OrderRow
from control_plane.decisions.task_states import against_cancelling as against_cancelling_order
from control_plane.decisions.task_states import against_retrying as against_retrying_order
from control_plane.work.tables import OPEN
from events.derived.quotas import QuotaUse
from events.entries import Entry
from events.values import AllocationId, Position, SlotId
from read_models.keys import KeyRow
from read_models.nodes import NodeRow
from read_models.projects import ProjectRow
from read_models.slots import SlotRow

_NONE: Sequence[Objection] = ()


def _is_absent(value: object) -> bool:
    return value is None


class ActionView(BaseModel):
    """Whether the caller may take an action now. If not, its route refuses it with `code` and `reason`."""

    allowed: bool
    code: str | None = Field(default=None, exclude_if=_is_absent)
    reason: str | None = Field(default=None, exclude_if=_is_absent)


AllowedActions = dict[str, ActionView]
"""The views of all actions on a resource, by the name of the action, such as `stop`."""


def _decided(
    principal: Principal, scope: Scope, against: Mapping[str, Sequence[Objection]]
) -> AllowedActions:
    """Return the view of each action. `against` has the objections to each action by its name, and `scope` is the scope
    that the routes of all these actions require.

    If the principal lacks the scope, no action is allowed, and this is the reason. Otherwise an action with objections
    is not allowed, and the first objection is the reason.
    """
    denied = against_scope(principal, scope)
    return {name: _action(denied or objections) for name, objections in against.items()}


def _action(objections: Sequence[Objection]) -> ActionView:
    if not objections:
        return ActionView(allowed=True)
    return ActionView(allowed=False, code=objections[0].code, reason=objections[0].message)


def actions_on_allocation(
    principal: Principal, state: Allocation, ingresses: IngressStates
) -> AllowedActions:
    """Return the actions on an allocation.

    These conditions are not checked here, but a request is refused if one of them does not hold: the agents of the
    nodes support a stop and ingress rules, a public address or port is free, the lease has not ended, its new length
    is within the limits, and the deployment offers terminals.
    """
    opening = _NONE if isinstance(state, Requested) else against_opening_any(state, ingresses)
    against = {
        "start": life.against_starting(state),
        "stop": life.against_stopping(state),
        "release": life.against_releasing(state),
        "report_fault": life.against_reporting_fault(state),
        "renew_lease": life.against_renewing(state),
        "open_ingress": opening,
        "open_terminal": life.against_opening_terminal(state),
    }
    return _decided(principal, Scope.ALLOCATIONS_WRITE, against)


def actions_on_ingress(principal: Principal) -> AllowedActions:
    """Return the actions on an ingress rule. A rule can be closed in every state; closing it again changes nothing."""
    return _decided(principal, Scope.ALLOCATIONS_WRITE, {"close": _NONE})


def actions_on_project(principal: Principal, row: ProjectRow, used: QuotaUse) -> AllowedActions:
    """Return which actions the caller may carry out on a project, and why not the others. `used` is what the project
    uses of its limits.
    """
    changing = against_changing(row.project, row.archived)
    against = {
        "describe": changing,
        "set_limits": changing,
        "archive": against_archiving(row.project, row.archived, used),
        "erase": against_erasing(row.project, used),
    }
    return _decided(principal, Scope.PROJECTS_WRITE, against)


def actions_on_entry(principal: Principal) -> AllowedActions:
    """Return the actions on an entry of the catalogue. They do not depend on the state of the entry."""
    return _decided(principal, Scope.CATALOGUE_WRITE, {"publish": _NONE, "retire": _NONE})


def actions_on_key(principal: Principal, row: KeyRow, now: datetime) -> AllowedActions:
    """Return the actions on an API key at the time `now` of the database."""
    granting = against_granting(principal, Role(row.role), row.scopes)
    against = {"rotate": [*against_rotating(issued_key_of(row), now), *granting], "revoke": _NONE}
    return _decided(principal, Scope.ACCESS_WRITE, against)


def actions_on_service_account(principal: Principal) -> AllowedActions:
    """Return the actions on a service account. They do not depend on the state of the account."""
    return _decided(principal, Scope.ACCESS_WRITE, {"disable": _NONE, "enable": _NONE})


def actions_on_session(principal: Principal, actor: str) -> AllowedActions:
    """Return the actions of a principal on a session that the caller `actor` started. The state of the session does not
    matter.

    A principal may end its own sessions; for a session of another caller, it needs the scope `access:write`.
    """
    if principal.actor == actor:
        return {"end": _action(_NONE)}
    return _decided(principal, Scope.ACCESS_WRITE, {"end": _NONE})


def actions_on_node(principal: Principal, row: NodeRow) -> AllowedActions:
    """Return the actions on a registered node.

    These conditions are not checked here: the public addresses that a request names must be valid and include those
    in use, and the bridge and the layer-2 domain of the node cannot change while its slots have addresses.
    """
    against = {
        "remove": against_removing(registration_of(row)),
        "reopen_enrolment": _NONE,
        "revoke": _NONE,
        "readmit": against_readmitting(f"node {row.node_id}", row.excluded),
        "cordon": _NONE,
        "uncordon": against_uncordoning(row.node_id, row.cordoned),
        "drain": _NONE,
        "set_public_addresses": _NONE,
        "configure": _NONE,
    }
    return _decided(principal, Scope.FLEET_WRITE, against)


def actions_on_slot(principal: Principal, row: SlotRow, skus: Sequence[Entry]) -> AllowedActions:
    """Return the actions on a slot. `skus` are the SKUs of the catalogue, including retired SKUs of the slot.

    The action `approve` is allowed if some request for an approval is accepted: an approved slot that awaits no
    approval can be approved only under SKUs that the request names. These conditions are not checked here: the SKUs
    that a request names fit the slot, and at least one MAC address derived for the slot is not in use.
    """
    slot = row.slot_id
    kept = row.skus if keeps_skus(row.state, hardware_facts(row)) else ()
    against = {
        "approve": against_approving(slot, kept, skus, row.hardware, row.offer),
        "retire": against_retiring(slot, row.state),
        "reprovision": against_reprovisioning(slot, row.state),
        "force_release": against_force_release(slot, row.state),
        "readmit": against_readmitting(f"slot {slot}", row.excluded),
    }
    return _decided(principal, Scope.FLEET_WRITE, against)


def actions_on_task(principal: Principal, row: sa.Row[Any]) -> AllowedActions:
    """Return the actions on the task in a row of `work.task`. Decisions about the task after the row was written, and
    the state of the allocation of an order, are not checked here.
    """
    if row.task_id is not None:
        return actions_on_operation(principal, _state_name(row))
    order = OrderRow(row.order_id, row.kind, row.state, SlotId(row.slot_id), AllocationId(row.allocation_id))
    against = {"retry": [*against_retrying_order(order)], "cancel": [*against_cancelling_order(order)]}
    return _decided(principal, Scope.TASKS_WRITE, against)


def _state_name(row: sa.Row[Any]) -> tasks.StateName:
    if row.state in (*OPEN, "waiting"):
        return "cancelling" if row.cancelling else "trying"
    name: tasks.StateName = row.state
    return name


def actions_on_operation(principal: Principal, name: tasks.StateName) -> AllowedActions:
    """Return the actions on a requested task in the state `name`."""
    against = {"retry": tasks.against_retrying(name), "cancel": tasks.against_cancelling(name)}
    return _decided(principal, Scope.TASKS_WRITE, against)


def actions_on_projection(principal: Principal, name: str, stopped_at: frozenset[Position]) -> AllowedActions:
    """Return the actions on the read model `name`. `stopped_at` are the positions of the events that stop its tables.

    The action `skip` skips one of these events.
    """
    against = {
        "rebuild": _NONE,
        "retry": projections.against_retrying(name, stopped_at),
        "skip": projections.against_skipping(name, None, stopped_at),
    }
    return _decided(principal, Scope.FLEET_WRITE, against)


def actions_on_parked(principal: Principal) -> AllowedActions:
    """Return the actions on a parked stream, the events of which the dispatcher could not process."""
    return _decided(principal, Scope.FLEET_WRITE, {"retry": _NONE})
