"""The problem types of the API: each with its status, cause, fix and an example.

This table is the only source of the problem responses, of the OpenAPI document, and of the pages under `/problems`, to
which the field `type` of a problem refers.
"""

from typing import Final, NamedTuple

from control_plane.decisions.refusals import (
    BadRequest,
    Conflict,
    Forbidden,
    Gone,
    IdentityProviderUnavailable,
    Malformed,
    NotYetKnown,
    Objection,
    PreconditionFailed,
    Refused,
    Throttled,
    Unauthorised,
    UnknownName,
    UnsupportedMediaType,
)

PATH: Final = "/problems"
MOST_REASONS: Final = 20
"""Maximum number of reasons that a problem lists: a caller must not choose the size of a response or of a log line."""


class ProblemType(NamedTuple):
    """A problem type: the last part of its URL, its HTTP status, its title, why it occurs, what the caller can do, and
    a reason as an example.
    """

    name: str
    status: int
    title: str
    cause: str
    fix: str
    example: Objection

    @property
    def url(self) -> str:
        """The URL of the type, without scheme and host: it refers to the server that sent the problem."""
        return f"{PATH}/{self.name}"


KINDS: Final[dict[type[Refused], ProblemType]] = {
    BadRequest: ProblemType(
        "bad-request",
        400,
        "The body is not valid JSON",
        "The body of the request is not a JSON document in UTF-8, or it is nested too deeply.",
        "Send a valid JSON document in UTF-8. The message names the byte at which the body becomes invalid.",
        Objection("invalid_json", "the body is not valid JSON: Expecting value, at byte 9"),
    ),
    UnsupportedMediaType: ProblemType(
        "unsupported-media-type",
        415,
        "The media type of the body is not supported",
        "The header Content-Type is missing, or it names a media type other than JSON.",
        "Send the body as JSON, with the header 'Content-Type: application/json'.",
        Objection(
            "unsupported_media_type",
            "the media type of the body is 'text/plain'; send 'application/json' in the Content-Type header",
            parameter="Content-Type",
        ),
    ),
    Malformed: ProblemType(
        "malformed",
        422,
        "The request is malformed",
        "The request does not match the schema of its route, and cannot succeed in any state.",
        "Correct every field and parameter that the reasons name, and send the request again.",
        Objection("required", "the value is required, but missing", field="/sku"),
    ),
    UnknownName: ProblemType(
        "unknown-name",
        404,
        "The named resource does not exist",
        "The path or the body names a resource that does not exist, or is of a project that the caller may not read.",
        "Check the id. The list of the resources shows those that the credential may see.",
        Objection("unknown_allocation", "no allocation has the id 'alc-0000000000000000000000000a'"),
    ),
    Gone: ProblemType(
        "gone",
        410,
        "The cursor is no longer valid",
        "The ledger was restored from a backup and does not contain the event of the cursor.",
        "Begin again without a cursor, or with 'position:N' to begin after position N of the ledger.",
        Objection(
            "cursor_expired", "the ledger has no event at cursor 1.4711; begin again", parameter="after"
        ),
    ),
    PreconditionFailed: ProblemType(
        "precondition-failed",
        412,
        "The resource has changed",
        "The header If-Match names a version of the resource that is not the present one: another request or an"
        " event changed the resource since it was read. Nothing was changed.",
        "Read the resource again, decide on its present state, and repeat the request with the new ETag.",
        Objection(
            "version_changed", "allocation-alc-1 is at version 7, not 6; read it again", parameter="If-Match"
        ),
    ),
    Conflict: ProblemType(
        "conflict",
        409,
        "The request conflicts with the current state",
        "The request is valid, but the present state of the resource or of the fleet does not permit it.",
        "Change the request or the state that the reasons name, or repeat the request later.",
        Objection("no_capacity", "no schedulable node has a free slot of SKU lab.small", field="/slot_count"),
    ),
    NotYetKnown: ProblemType(
        "not-yet-known",
        503,
        "The answer is not available yet; retry",
        "The end of the ledger is not final yet, so that the answer could still change.",
        "Repeat the request after the time in the header Retry-After.",
        Objection("not_yet_final", "position 4711 is not final yet; retry"),
    ),
    Throttled: ProblemType(
        "throttled",
        429,
        "Too many requests",
        "The caller has spent its budget for requests of this kind.",
        "Wait for the time in the header Retry-After, then repeat the request.",
        Objection("rate_limited", "this caller may send 1200 requests in 60 s; retry in 3 s"),
    ),
    IdentityProviderUnavailable: ProblemType(
        "identity-provider-unavailable",
        503,
        "The identity provider does not respond",
        "The keys of the identity provider that issued the token cannot be fetched, and no usable keys are cached.",
        "Repeat the request after the time in the header Retry-After, or send an API key.",
        Objection(
            "identity_provider_unavailable",
            "the identity provider corp does not respond, so the token cannot be verified; retry",
        ),
    ),
    Unauthorised: ProblemType(
        "unauthorised",
        401,
        "Invalid or unknown credentials",
        "The request has no credentials, or its credentials are unknown, expired or revoked.",
        "Send valid credentials in the header Authorization: 'Bearer ' and an API key, a token or the secret of a session.",
        Objection(
            "no_credentials",
            "the request has no credentials; send 'Authorization: Bearer <API key, token or session>'",
        ),
    ),
    Forbidden: ProblemType(
        "forbidden",
        403,
        "The caller lacks the required permission",
        "The credentials are valid, but their role, scopes or projects do not include this route.",
        "Use credentials with the role or scope that the reason names; GET /v1/whoami returns those of the caller.",
        Objection(
            "scope_missing",
            "this request requires the scope fleet:write, which the credential does not have",
        ),
    ),
}
"""Problem type of each class of refusals. If a request has several refusals, the first of them in this table determines
the status.
"""

NOT_FOUND: Final = ProblemType(
    "not-found",
    404,
    "The path does not exist",
    "No route of this release has the path of the request.",
    "Check the path; the document /openapi.json and the page /docs list all routes.",
    Objection("not_found", "the request GET /v1/allocation was refused: Not Found"),
)
METHOD_NOT_ALLOWED: Final = ProblemType(
    "method-not-allowed",
    405,
    "The path does not support the method",
    "The path exists, but not with the method of the request.",
    "Use one of the methods in the header Allow.",
    Objection("method_not_allowed", "the request PUT /v1/allocations was refused: Method Not Allowed"),
)
CONTENT_TOO_LARGE: Final = ProblemType(
    "content-too-large",
    413,
    "The body is too large",
    "The body of the request is larger than its route permits: 256 KiB for the routes of callers; 8 MiB for the"
    " reports, the progress and the desired state of nodes; 64 KiB for the other routes of nodes.",
    "Send a smaller body; a list can be sent in several requests.",
    Objection(
        "content_too_large",
        "the request POST /v1/agent/reports was refused: the body has more than 8388608 bytes, the limit of this route",
    ),
)
PROTOCOL: Final = {each.status: each for each in (NOT_FOUND, METHOD_NOT_ALLOWED, CONTENT_TOO_LARGE)}
"""Problem types of requests that are refused before they reach a route, by HTTP status."""

BROKEN: Final = ProblemType(
    "internal-error",
    500,
    "Internal error in Sliceplane",
    "The control plane has a defect. The log of the server has the cause under the request id of the response.",
    "Repeat the request with the same Idempotency-Key; if it fails again, give the request id to an operator.",
    Objection(
        "internal_error",
        "the request failed; the control plane's log has the cause under the request id of this response",
    ),
)
DATABASE: Final = ProblemType(
    "database-unavailable",
    503,
    "The database does not respond",
    "Postgres timed out, closed the connection or has no connection available. The outcome of a change is unknown.",
    "Repeat the request with the same Idempotency-Key after the time in the header Retry-After.",
    Objection(
        "database_unavailable",
        "Postgres timed out, closed the connection or has no connection available, so the outcome of the request is"
        " unknown; retry with the same Idempotency-Key",
    ),
)
REDIS: Final = ProblemType(
    "queues-unavailable",
    503,
    "The task queues do not respond",
    "Redis, which stores the task queues of the nodes, does not respond.",
    "Repeat the request after the time in the header Retry-After.",
    Objection("queues_unavailable", "Redis, which stores the nodes' task queues, does not respond; retry"),
)
UNREADABLE: Final = ProblemType(
    "unreadable-event",
    503,
    "An event required for this answer cannot be read",
    "A newer release wrote the event, or its row in the ledger is damaged.",
    "An operator verifies the ledger (POST /v1/verifications) and completes the update of all programs.",
    Objection(
        "unreadable_event", "the event at position 4711 cannot be read: unknown type slot.claimed, version 9"
    ),
)
OTHERS: Final = (BROKEN, DATABASE, REDIS, UNREADABLE)
"""Problem types of failures of the service; all other types are refusals."""

ALL: Final = {each.name: each for each in (*KINDS.values(), *PROTOCOL.values(), *OTHERS)}
"""All problem types by name."""
