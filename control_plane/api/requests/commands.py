"""Execution of the commands of callers: idempotency keys, preconditions and dry runs, equally on every route.

A request with an `Idempotency-Key` that was used before does not run its command again, and its response has the header
`Idempotent-Replayed: true`. A route that creates something returns the stored answer of the first request. A route that
changes an existing resource returns the present state of the resource, which may be newer than that of the first
response: the caller continues from there.

An answer that contains a secret is stored encrypted, so that only the credential of the first request can read it.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Query, Request, Response
from fastapi.security.utils import get_authorization_scheme_param
from pydantic import BaseModel

from control_plane.api.requests.access import caller_of
from control_plane.api.requests.conditional import condition_of
from control_plane.api.requests.response_headers import set_header
from control_plane.api.requests.state import creations_of, key_of, plane_of
from control_plane.commands.creating_together import Creation
from control_plane.decisions.refusals import Conflict, Objection
from control_plane.handle import Command, Decision, Outcome, Transaction
from control_plane.identity.sealed_answers import CannotOpen, open_answer, seal_answer
from events.ledger.append import CommandKey
from events.values import StreamId

REPLAYED: Final = "Idempotent-Replayed"
DryRun = Annotated[
    bool,
    Query(
        description="Check the request as if it were carried out, and create nothing. The response is 200 with what"
        " would be created, under ids that are not used. The Idempotency-Key has no effect, but it must be valid.",
    ),
]


def dry(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of the response of a dry run. `model` is the type of its body."""
    return {HTTPStatus.OK: {"model": model, "description": "Result of a dry run: what would be created."}}


async def execute(request: Request, command: Command, about: StreamId | None = None) -> str:
    """Run a command of the caller and return its answer, or the answer stored for its idempotency key. Raises the
    refusal of the command.

    `about` is the stream of the resource that the command changes: its version must be one of `If-Match`.
    """
    key = await key_of(request, caller_of(request))
    outcome = await plane_of(request).handle.run(command, key, condition=condition_of(request, about))
    return _answer(request, outcome)


async def execute_creation(request: Request, creation: Creation) -> str:
    """Create an allocation like `execute`, in a transaction that it may share with other creations."""
    key = await key_of(request, caller_of(request))
    return _answer(request, await creations_of(request).run(creation, key))


def _answer(request: Request, outcome: Outcome) -> str:
    if outcome.replayed:
        set_header(request, REPLAYED, "true")
    return outcome.answer


async def try_out(request: Request, command: Command) -> Response:
    """Return the response of a dry run: the answer that a command would have. Raises the refusal of the command."""
    # A key of a wrong form is refused here too, so that a dry run accepts exactly what the command accepts.
    await key_of(request, caller_of(request))
    outcome = await plane_of(request).handle.run(command, dry_run=True)
    return Response(outcome.answer, media_type="application/json")


async def execute_with_secret(
    request: Request, command: Command, secret: Mapping[str, str], about: StreamId | None = None
) -> dict[str, Any]:
    """Run a command that answers with a JSON object; return the object with the fields of `secret` added.

    With an idempotency key the whole object is stored encrypted. Raises `Conflict` if an earlier request with the same
    key was made with another credential of the same principal.
    """
    key = await key_of(request, caller_of(request))
    _, bearer = get_authorization_scheme_param(request.headers.get("authorization"))

    async def with_secret(transaction: Transaction) -> Decision:
        decision = await command(transaction)
        answer = json.dumps({**json.loads(decision.answer), **secret})
        return replace(decision, answer=answer if key is None else seal_answer(answer, bearer, _name(key)))

    answer = await execute(request, with_secret, about)
    if key is not None:
        try:
            answer = open_answer(answer, bearer, _name(key))
        except CannotOpen:
            reason = (
                "the answer to the first request with this Idempotency-Key contains a secret, and can be opened only with"
                " the credential that sent it; use that credential, or a new key"
            )
            raise Conflict(Objection("answer_sealed", reason)) from None
    made: dict[str, Any] = json.loads(answer)
    return made


def _name(key: CommandKey) -> str:
    return json.dumps([key.principal, key.route, key.key])
