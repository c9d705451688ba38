"""Every code with which the API refuses a request, its class and its meaning; docs/codes.md is made from this table.

A code belongs to one class. The class states what a program can do: change the request (impossible), use other
credentials (not permitted), repeat the request later or after another resource changed (not available now), or call an
operator (unhealthy).
"""

from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple


class RefusalClass(StrEnum):
    """Class of a refusal code: whether another state, another caller or a later time could make the request succeed."""

    IMPOSSIBLE = "impossible anywhere"
    NOT_PERMITTED = "not permitted for this caller"
    UNAVAILABLE = "not available now"
    UNHEALTHY = "unhealthy"


ADVICE: Final = MappingProxyType(
    {
        RefusalClass.IMPOSSIBLE: "The request cannot succeed as it is. Change it.",
        RefusalClass.NOT_PERMITTED: "The caller is not authenticated, lacks a permission or would exceed a limit. Use other credentials, request less, or ask an admin for the permission.",
        RefusalClass.UNAVAILABLE: "The present state does not permit the request. Repeat it later, or change the state first.",
        RefusalClass.UNHEALTHY: "The control plane cannot do its work. Repeat the request; if it fails again, inform an operator.",
    }
)
"""What a caller can do after a refusal, by the class of its code."""


class CodeMeaning(NamedTuple):
    """Class of a refusal code, and one sentence that describes the code."""

    refusal_class: RefusalClass
    meaning: str


_IMPOSSIBLE: Final = {
    "address_of_slices": "The public address lies in the networks of slices.",
    "answer_sealed": "The stored answer contains a secret, and another credential sent the first request with the key.",
    "duplicate_address": "The list of public addresses contains an address twice.",
    "too_many_ssh_keys": "The request has more SSH keys than an order can hold.",
    "duplicate_sku": "The request names a SKU more than once.",
    "fabric_only_refused": "The network mode gives a slice no management access, so that its readiness cannot be checked.",
    "idempotency_key_reused": "The idempotency key was used with a different request.",
    "in_the_future": "The time lies in the future.",
    "ingress_needs_public_nat": "The network mode of the request permits no ingress rules.",
    "invalid_cursor": "The cursor or position cannot be read.",
    "invalid_idempotency_key": "The idempotency key is too long or has characters that are not permitted.",
    "invalid_json": "The body is not valid JSON.",
    "invalid_project": "The project is not a valid name.",
    "invalid_target": "The task kind requires a slot and the request names a node, or the reverse.",
    "invalid_value": "The value does not have the required form.",
    "method_not_allowed": "The path does not support this method; the header Allow lists those it supports.",
    "network_mode_not_offered": "This installation does not offer the network mode.",
    "not_found": "The path does not exist.",
    "no_gateway_access": "The allocation was created without `gateway_access`, which terminals in the browser and SSH certificates need."
    " Logins with its SSH keys do not need it.",
    "no_host_address": "The address cannot be the public address of a host.",
    "no_ports": "The range of ports is empty.",
    "not_requestable": "Tasks of this kind are created by the control plane only.",
    "number_out_of_range": "The number does not fit into 64 bits.",
    "out_of_range": "The number is outside the permitted range.",
    "limits_of_service_account": "The key of a service account has the role and limits of the account; the request has others.",
    "lifetime_too_long": "The requested lifetime of the API key or session is longer than the operator allows.",
    "price_too_high": "The allocation would cost more per hour than the request permits.",
    "project_missing": "The caller has several projects, and the request names none of them.",
    "projects_missing": "The API key or service account of a caller must be limited to at least one project.",
    "range_and_period": "The request names a billing period and a range of time; name one of them.",
    "range_reversed": "The end of the requested range of positions lies before its beginning.",
    "required": "A required field or parameter is missing.",
    "scope_beyond_role": "The requested scope is not one of the role.",
    "content_too_large": "The body is larger than the route permits.",
    "secret_in_request": "A part of the request that is recorded or shown contains an API key, a token or a private key.",
    "too_long": "The text or list is too long.",
    "too_short": "The text or list is too short.",
    "no_suitable_slot": "No node has the slots that the request needs, whether free or not.",
    "image_too_large": "The root disk of the SKU is smaller than the image needs.",
    "network_mode_not_allowed": "The SKU does not allow the network mode.",
    "no_common_fabric": "The app profile does not accept the fabric of the SKU.",
    "unknown_console": "No console session has this id, or it has ended.",
    "unknown_stream": "The stream was not requested from this node, or is open already.",
    "unknown_address": "No slot has or had this address up to the requested position.",
    "unknown_allocation": "No allocation has this id.",
    "unknown_event": "No event that the caller may read has this position.",
    "unknown_app_profile": "No app profile has this name.",
    "unknown_check": "No health check has this name.",
    "unknown_code": "No reason has this code.",
    "unknown_device": "No slot has or had this device up to the requested position.",
    "unknown_field": "The request has a field that does not exist.",
    "unknown_image": "No image has this name.",
    "unknown_ingress": "The allocation has no ingress rule with this id.",
    "unknown_key_id": "No API key has this id.",
    "unknown_issuer": "No identity provider of this installation has this name.",
    "unknown_kind": "No task kind has this name.",
    "unknown_network_mode": "No network mode has this name.",
    "unknown_node": "No node has this name.",
    "unknown_parameter": "The route has no query parameter with this name.",
    "unknown_placement": "The allocation has no placement with this number.",
    "unknown_parked": "No stream with this name is parked.",
    "unknown_period": "No closed billing period has this name.",
    "unknown_problem": "No problem type has this name.",
    "unknown_project": "No project has this id, or it is not one of the caller.",
    "unknown_projection": "No read model has this name.",
    "unknown_session_id": "No session has this id, or it is not one of the caller.",
    "unknown_service_account": "No service account has this id.",
    "unknown_sku": "No SKU has this name.",
    "unknown_slot": "No slot has this id.",
    "console_not_shareable": "A session on a serial port cannot be shared.",
    "unknown_slot_index": "The allocation has no slot with this index.",
    "unknown_task": "No task has this id.",
    "unknown_value": "The value is not one of the permitted values.",
    "unknown_verification": "No verification has this id.",
    "unknown_version": "The entry of the catalogue has no version with this number.",
    "unstorable_character": "The text has a character that cannot be stored.",
    "unsupported_media_type": "The media type of the body is not JSON.",
    "wrong_type": "The value has the wrong JSON type.",
}
_NOT_PERMITTED: Final = {
    "ticket_used": "The ticket of the console session was used before.",
    "ticket_expired": "The ticket of the console session has expired.",
    "ticket_of_other_caller": "The ticket of the console session belongs to another caller.",
    "ticket_of_other_origin": "The ticket of the console session belongs to a page of another origin.",
    "ticket_wrong": "The ticket is not the one of the console session.",
    "credential_ended": "The credential with which the terminal was requested has ended or was changed.",
    "ticket_missing": "The first message on the WebSocket has no ticket.",
    "key_expired": "The API key, or that of the session, has expired.",
    "key_revoked": "The API key, or that of the session, was revoked.",
    "lease_too_long": "The lease is longer than the SKU or the project allows; the message names the limit.",
    "limited_to_projects": "The route concerns all projects, and the credential is limited to some.",
    "no_credentials": "The request has no credentials.",
    "no_grant": "The token is valid, but the operator grants no role to its claims.",
    "priority_not_permitted": "Only an admin may request a priority above 0.",
    "principal_revoked": "The caller was revoked, and its token was issued or its session started before.",
    "quota_exceeded": "The request would exceed a limit of its project or of the caller.",
    "revoked": "The access of the node was revoked: its key, session and queue no longer work until it enrols again.",
    "role_missing": "The API key does not have the required role.",
    "scope_missing": "The credential does not have the scope that the route requires.",
    "scope_not_held": "The API key or service account would have a scope that the credential of the caller does not have.",
    "service_account_disabled": "The service account of the API key or session is disabled.",
    "session_ended": "The session of the caller was ended.",
    "session_expired": "The session of the caller, or of the node, has expired.",
    "session_idle": "The session of the caller was not used for longer than the operator allows.",
    "session_not_renewable": "A session cannot start another session; this requires an API key or a token.",
    "superseded": "Another agent continues this session of the node.",
    "token_expired": "The enrolment token of the node, or the token of the caller, has expired.",
    "token_malformed": "The token of the caller is not a signed JWT of the required form.",
    "token_not_yet_valid": "The token of the caller is valid only from a later time on.",
    "token_untrusted": "The token of the caller was not issued by a trusted identity provider.",
    "token_used": "The enrolment token was already used.",
    "token_wrong_audience": "The token of the caller was issued for a different service.",
    "unknown_key": "The API key is unknown.",
    "unknown_session": "The secret of the session is unknown.",
    "wrong_proof": "The signature of the node cannot be verified.",
    "wrong_token": "No registered node has this enrolment token.",
}
_UNAVAILABLE: Final = {
    "slice_not_on_node": "The slot does not contain a slice of the allocation.",
    "serial_log_not_kept": "The node does not keep the serial log of the removed slice, or never had it.",
    "terminals_not_offered": "The deployment has no terminals.",
    "too_many_ssh_connections": "The allocation has the maximum number of open or requested SSH connections.",
    "host_unreadable": "The node cannot read the state of its host.",
    "node_not_responding": "The node did not answer in time.",
    "stream_failed": "The node could not open the stream.",
    "address_in_use": "The public address is in use by an ingress rule.",
    "app_profile_exists": "An app profile with this name exists already.",
    "app_profile_retired": "The app profile is retired; new allocations cannot use it.",
    "already_failed": "The allocation has failed; its slots are released automatically.",
    "no_slot_held": "The allocation holds no slot, so no fault can be reported for it. An admin can cordon the node of a former slot.",
    "already_ending": "The allocation is being released, or has ended.",
    "cursor_expired": "The cursor is permanently invalid, because the ledger was restored; begin again without it.",
    "idempotency_key_in_use": "Another request with this idempotency key is in progress.",
    "image_exists": "An image with this name exists already.",
    "image_retired": "The image is retired; new allocations cannot use it.",
    "ip_taken": "The address is claimed by another slot.",
    "key_not_active": "The API key was revoked or has expired, so that it cannot be rotated.",
    "key_replaced": "The API key was already replaced by a rotation.",
    "mac_taken": "Every MAC address that is derived for the slot is in use.",
    "no_capacity": "No schedulable node has enough free slots of the SKU.",
    "no_desired_state": "The slot has no order, so that there is nothing to inspect or repair.",
    "no_healthy_slot": "Nodes have suitable slots, but these are not fit for placement now.",
    "no_fitting_sku": "The hardware of the slot can carry none of the offered SKUs.",
    "no_public_address": "No public address or port is free for the ingress rule.",
    "no_subnet": "Every subnet of the slice network belongs to a node.",
    "node_blocked": "Nothing is placed on the requested node now; the message names the reason.",
    "node_enrolled": "The node has enrolled already.",
    "node_exists": "The node is registered already.",
    "project_archived": "The project is archived; it can be read, but not changed.",
    "project_exists": "A project with this id exists already.",
    "project_in_use": "Allocations of the project still hold slots.",
    "project_requests_waiting": "Requests of the project still wait for capacity.",
    "response_erased": "The stored response of the idempotency key was erased with the personal data of its project.",
    "mac_pool_exhausted": "Every MAC of the pool of the node is in use in its layer-2 domain; extend the pool.",
    "slots_approved": "Slots of the node have addresses, so its bridge and layer-2 domain cannot change.",
    "slot_not_free": "The slot is not free; the message names what has to be done first.",
    "not_awaiting_approval": "The slot is not waiting for approval.",
    "not_awaiting_proof": "The slot is not waiting for the proof that it is empty.",
    "not_awaiting_removal": "The slot is not waiting for the removal of a slice.",
    "not_cordoned": "The node is not cordoned.",
    "not_excluded": "The node or slot is not excluded from placement.",
    "ledger_end_unknown": "The end of the ledger is not known yet; repeat the request.",
    "not_sealed": "The position, or a tree of this size, is not sealed yet; repeat the request.",
    "not_retriable": "The task cannot be retried; the message names the alternative.",
    "not_stopped_at_position": "The read model is not stopped at this position.",
    "not_yet_final": "The end of the ledger is not final yet; repeat the request.",
    "not_yet_listed": "The newest events are not listed yet; repeat the request.",
    "only_simulated_nodes": "Only simulated nodes have capacity, and placement on them is not enabled.",
    "order_contradicts_task": "The task contradicts the order that the slot has.",
    "period_closed": "The billing period is closed with other times; it cannot be changed.",
    "period_not_adjacent": "The billing period does not begin where the last closed one ends.",
    "period_not_ended": "The billing period has not ended yet.",
    "pci_taken": "The PCI function is granted to another slot.",
    "port_taken": "The public port is claimed by another ingress rule.",
    "position_not_reached": "The ledger has not reached this position.",
    "projection_not_stopped": "The read model is not stopped.",
    "public_taken": "The public address belongs to another node.",
    "removal_not_cancellable": "A removal cannot be cancelled: the slot has to be emptied.",
    "rate_limited": "The principal, its project or its address sent too many requests.",
    "report_missing": "The report before this one is not recorded; send that one first.",
    "reports_throttled": "The node exceeded the budget of its reports.",
    "service_account_exists": "A service account with this id exists already.",
    "service_account_not_active": "The service account is disabled, so that no key can be issued for it.",
    "sessions_throttled": "The node requests new sessions too often.",
    "sku_exists": "A SKU with this name exists already.",
    "sku_retired": "The SKU is retired; new allocations cannot use it.",
    "sku_does_not_fit": "The hardware of the slot cannot carry the SKU.",
    "slots_reserved": "Enough slots are free, but they are reserved for other projects; the message has the numbers.",
    "slot_taken": "Another request claimed the slot at the same time.",
    "stop_not_cancellable": "A stop cannot be cancelled; start the allocation again when it has stopped.",
    "subnet_taken": "Another node claimed the subnet at the same time.",
    "task_finished": "The task has ended.",
    "task_in_progress": "The task is in progress.",
    "task_succeeded": "The task has succeeded.",
    "task_superseded": "The slot has a newer order.",
    "too_many_ingresses": "The slot has the maximum number of ingress rules.",
    "too_many_readers": "Too many requests for past states are in progress; repeat the request.",
    "unsupported_by_agent": "The agent on the node does not support the task type.",
    "usage_incomplete": "The usage lacks events from before the end of the billing period; repeat the request.",
    "version_changed": "The resource changed since the caller read the version in the header If-Match.",
    "lease_over": "The lease has ended, and the allocation is about to be released.",
    "placement_too_old": "Too many slots and nodes have changed since the placement to explain it.",
    "wrong_state": "The state of the resource does not permit the request.",
}
_UNHEALTHY: Final = {
    "database_unavailable": "The database does not respond.",
    "identity_provider_unavailable": "The identity provider does not respond, so that tokens cannot be verified.",
    "internal_error": "The control plane has a defect.",
    "projection_stopped": "A read model is stopped at an event that it cannot apply.",
    "queues_unavailable": "Redis does not respond.",
    "unreadable_event": "An event that the response needs cannot be read.",
}
_TABLES: Final = {
    RefusalClass.IMPOSSIBLE: _IMPOSSIBLE,
    RefusalClass.NOT_PERMITTED: _NOT_PERMITTED,
    RefusalClass.UNAVAILABLE: _UNAVAILABLE,
    RefusalClass.UNHEALTHY: _UNHEALTHY,
}
CODES: Final = MappingProxyType(
    {
        code: CodeMeaning(refusal_class, meaning)
        for refusal_class, table in _TABLES.items()
        for code, meaning in table.items()
    }
)
