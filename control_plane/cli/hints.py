"""What to do next after a refusal: a hint for each reason code, or else for the HTTP status.

A hint for a code that callers get begins with what a caller may do; commands that require another scope follow.
"""

from http import HTTPStatus
from typing import Final

KEY: Final = "log in: sliceplane login; or specify a valid key: SLICEPLANE_API_KEY"
_WHOAMI: Final = "show the role, scopes and projects of your key: sliceplane whoami"
_HELP: Final = "correct the value; the help of the command describes each option: --help"
_STATE: Final = "show the current state of the resource, and repeat the command if it is still needed"
_LATER: Final = "repeat the command later"
_DOCTOR: Final = "find the cause: sliceplane doctor"
_MODE: Final = "use --network-mode private-nat"
_FLEET: Final = "; with the scope fleet:read, "
_ADDRESSES: Final = "show the public addresses of the node: sliceplane nodes addresses NODE"
_PROJECTIONS: Final = "show the state of each projection: sliceplane projections list"
_INGRESS: Final = "show the ingress rules: sliceplane allocations show ALLOCATION"
_KEYS: Final = "list the API keys: sliceplane keys list"
_ACCOUNTS: Final = "list the service accounts: sliceplane service-accounts list"
_SLOTS: Final = "list the slots and their states: sliceplane slots list"
_REQUEST: Final = "request a new token from the identity provider: sliceplane login --device"
_TASKS: Final = "list the tasks: sliceplane tasks list"
_LOGIN: Final = "log in again: sliceplane login"
_PERIODS: Final = "list the billing periods: sliceplane usage periods list"
_SESSIONS: Final = "list the sessions: sliceplane sessions list"

HINTS: Final = {
    "address_in_use": "remove its ingress rules first: sliceplane allocations ingress remove ALLOCATION INGRESS",
    "already_ending": "create another allocation: sliceplane allocations create --sku SKU",
    "already_failed": "show what failed: sliceplane allocations events ALLOCATION",
    "app_profile_exists": "publish a further version: sliceplane app-profiles publish NAME",
    "app_profile_retired": "choose another app profile: sliceplane app-profiles list --state offered",
    "cursor_expired": "start again without --after, or with --after and an existing position",
    "database_unavailable": _DOCTOR,
    "duplicate_address": _ADDRESSES,
    "fabric_only_refused": _MODE,
    "idempotency_key_in_use": _LATER,
    "idempotency_key_reused": "send the changed request with another idempotency key",
    "identity_provider_unavailable": _LATER,
    "image_exists": "publish a further version: sliceplane images publish NAME",
    "image_retired": "choose another image: sliceplane images list --state offered",
    "image_too_large": "choose a SKU with a larger root disk: sliceplane skus list",
    "in_the_future": "use a moment in the past, such as '10m ago'; check the clock: sliceplane doctor",
    "ingress_needs_public_nat": "create the allocation with --network-mode public-nat",
    "internal_error": "report the request id to the operator of the control plane, with its log",
    "invalid_project": "use a name of lower-case letters, digits and '-'",
    "invalid_target": "name a slot such as lab-a/0 for a task of one slot, and a node for a task of a host",
    "key_expired": "issue another key: sliceplane keys issue NAME --role ROLE",
    "key_not_active": _KEYS,
    "key_replaced": "rotate the newest key instead: sliceplane keys list",
    "key_revoked": KEY,
    "ledger_end_unknown": _LATER,
    "lease_too_long": "use a shorter --lease; the message names the SKU or the project that sets the limit",
    "lifetime_too_long": "use a shorter --lifetime",
    "limits_of_service_account": "omit --role, --project and --scope, or --service-account",
    "limited_to_projects": "use a key that is not limited to projects; " + _WHOAMI,
    "mac_taken": "contact the operator: other slots use every MAC address that is derived for this slot",
    "network_mode_not_allowed": "show the network modes of the SKU: sliceplane skus show NAME",
    "network_mode_not_offered": _MODE,
    "no_capacity": "request fewer slots or another SKU, or "
    + _LATER
    + _FLEET
    + "list the free slots: sliceplane slots list; and the drift that blocks placement: sliceplane nodes drift",
    "no_suitable_slot": "request fewer slots or another SKU: sliceplane skus list; or show what each node lacks: --explain"
    + _FLEET
    + "list the slots and their SKUs: sliceplane slots list",
    "no_healthy_slot": "show what each node lacks: --explain; or "
    + _LATER
    + _FLEET
    + "list the drift that blocks placement: sliceplane nodes drift",
    "sku_does_not_fit": "show the hardware of the slot: sliceplane slots show SLOT; and the SKUs: sliceplane skus list",
    "no_common_fabric": "choose a SKU with a fabric that the app profile accepts: sliceplane skus list",
    "no_credentials": KEY,
    "no_desired_state": "show which slots have an allocation: sliceplane slots list",
    "no_fitting_sku": "compare the hardware of the slot with the SKUs: sliceplane skus list",
    "no_grant": "ask the operator which groups and roles of the identity provider have access",
    "no_host_address": _ADDRESSES,
    "no_public_address": "omit the public port or the node, remove an ingress rule that is not needed, or "
    + _LATER
    + _FLEET
    + _ADDRESSES,
    "no_subnet": "remove a registered node that never enrolled: sliceplane nodes remove NODE",
    "node_blocked": "omit the node, or name another one"
    + _FLEET
    + "show why nothing is placed on the node: sliceplane nodes show NODE",
    "node_enrolled": "show the state of the node: sliceplane nodes list",
    "node_exists": "show the state of the node: sliceplane nodes list",
    "not_awaiting_approval": _SLOTS,
    "slot_not_free": _SLOTS,
    "not_awaiting_proof": _SLOTS,
    "not_awaiting_removal": _SLOTS,
    "not_cordoned": "show the node: sliceplane nodes show NODE",
    "not_excluded": "show the node: sliceplane nodes show NODE; and the slots: sliceplane slots list",
    "not_found": "check the URL, and compare the versions: sliceplane doctor",
    "method_not_allowed": "compare the versions of this client and of the control plane: sliceplane doctor",
    "not_retriable": "create another allocation: sliceplane allocations create --sku SKU",
    "not_stopped_at_position": "show where the projection stopped: sliceplane projections list",
    "only_simulated_nodes": "name a simulated node"
    + _FLEET
    + "list the nodes and their kinds: sliceplane nodes list",
    "pci_taken": _SLOTS,
    "port_taken": "omit the public port, so that a free one is chosen; " + _INGRESS,
    "position_not_reached": "show the newest events: sliceplane events list",
    "principal_revoked": _REQUEST,
    "price_too_high": "choose a cheaper SKU: sliceplane skus list; or raise --max-price-per-hour",
    "project_archived": "list the projects: sliceplane projects list",
    "project_exists": "list the projects: sliceplane projects list",
    "project_in_use": "list the allocations of the project: sliceplane --project PROJECT allocations list",
    "project_missing": "name a project: sliceplane --project PROJECT ...; or SLICEPLANE_PROJECT",
    "projection_not_stopped": _PROJECTIONS,
    "projection_stopped": _PROJECTIONS,
    "projects_missing": "name the projects of the caller: --project PROJECT",
    "public_taken": "list the nodes: sliceplane nodes list",
    "queues_unavailable": _DOCTOR,
    "quota_exceeded": "show the limits and their use: sliceplane projects limits show PROJECT; and release allocations"
    " that are not needed: sliceplane allocations list",
    "removal_not_cancellable": "wait until the slot is empty: sliceplane tasks watch TASK",
    "role_missing": _WHOAMI,
    "scope_not_held": "use a key with these scopes, or limit the new one with --scope; " + _WHOAMI,
    "scope_beyond_role": "omit the scope, or use a role that has it",
    "scope_missing": _WHOAMI,
    "secret_in_request": "revoke the secret that was sent, for example: sliceplane keys revoke KEY --reason TEXT",
    "serial_log_not_kept": "show what happened to the slice: sliceplane allocations events ALLOCATION",
    "service_account_disabled": "ask an admin: sliceplane service-accounts enable ACCOUNT; or use another key",
    "service_account_exists": _ACCOUNTS,
    "service_account_not_active": "enable it first: sliceplane service-accounts enable ACCOUNT",
    "session_ended": _LOGIN,
    "session_expired": _LOGIN,
    "session_idle": _LOGIN,
    "session_not_renewable": "use an API key, or log in at the identity provider: sliceplane login --device",
    "sku_exists": "publish a further version: sliceplane skus publish NAME",
    "sku_retired": "choose another SKU: sliceplane skus list --state offered",
    "slot_taken": _LATER,
    "stop_not_cancellable": "start the allocation again after the stop: sliceplane allocations start ALLOCATION",
    "task_finished": "show its result: sliceplane tasks show TASK",
    "task_in_progress": "wait until it ends: sliceplane tasks watch TASK",
    "task_succeeded": "show its result: sliceplane tasks show TASK",
    "task_superseded": _TASKS,
    "token_expired": _REQUEST,
    "token_malformed": _REQUEST,
    "token_not_yet_valid": "compare the clocks of the identity provider and of the control plane",
    "token_untrusted": _REQUEST,
    "token_wrong_audience": _REQUEST,
    "too_many_ingresses": _INGRESS,
    "unknown_allocation": "list the allocations: sliceplane allocations list",
    "unknown_app_profile": "list the app profiles: sliceplane app-profiles list",
    "unknown_image": "list the images: sliceplane images list",
    "unknown_ingress": _INGRESS,
    "unknown_issuer": "use the actor as events show it: sliceplane events list",
    "unknown_key": KEY,
    "unknown_key_id": _KEYS,
    "unknown_kind": "docs/tasks.md lists the kinds of tasks",
    "unknown_node": "check the name of the node" + _FLEET + "list the nodes: sliceplane nodes list",
    "unknown_parked": "list the parked streams: sliceplane tasks parked",
    "unknown_period": _PERIODS,
    "period_closed": _PERIODS,
    "period_not_adjacent": _PERIODS,
    "usage_incomplete": "wait for the projector, and repeat the command: sliceplane status",
    "unknown_project": "list the projects: sliceplane projects list",
    "unknown_projection": "list the projections: sliceplane projections list",
    "unknown_service_account": _ACCOUNTS,
    "unknown_session": _LOGIN,
    "unknown_session_id": _SESSIONS,
    "unknown_sku": "list the SKUs: sliceplane skus list",
    "unknown_slot": "list the slots: sliceplane slots list",
    "unknown_slot_index": _INGRESS,
    "unknown_task": _TASKS,
    "unknown_version": "list the versions, such as: sliceplane skus versions NAME",
    "unreadable_event": _PROJECTIONS,
    "unsupported_by_agent": "ask the operator to upgrade the agent"
    + _FLEET
    + "show the agent version of each node: sliceplane nodes list",
    "wrong_state": _STATE,
}
"""Hint for each reason code that has one of its own."""
_BY_STATUS: Final[dict[int, str]] = {
    HTTPStatus.UNAUTHORIZED: KEY,
    HTTPStatus.FORBIDDEN: _WHOAMI,
    HTTPStatus.NOT_FOUND: "check the name; a resource of another project is reported as unknown: sliceplane whoami",
    HTTPStatus.CONFLICT: _STATE,
    HTTPStatus.GONE: "start again without --after, or with --after and an existing position",
    HTTPStatus.PRECONDITION_FAILED: _STATE,
    HTTPStatus.TOO_MANY_REQUESTS: _LATER,
}


def hints(codes: tuple[str, ...], status: int, offered: str | None = None) -> tuple[str, ...]:
    """Return what to do next after a refusal with these reason codes: at least one hint. If no code has a hint in
    `HINTS`, return the hint `offered` by the control plane, or else that for the HTTP status.
    """
    own = tuple(dict.fromkeys(HINTS[code] for code in codes if code in HINTS))
    return own or (offered or _default(status),)


def _default(status: int) -> str:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _DOCTOR
    return _BY_STATUS.get(status, _HELP)
