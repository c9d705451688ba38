"""Commands about who a host is: enrol it, renew its session, revoke it, note that a copy of it was refused.

Enrolment and revocation are facts, with the session changed in the same transaction. A renewal is none: it happens
every few minutes, and only its refusal is worth telling.
"""

import hmac
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane import sessions
from control_plane.commands.living import locked_node
from control_plane.decisions.refusals import Objection, Unauthorised
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from control_plane.refused_before import Refusal, is_first
from control_plane.report_budget import Limits, take_for_session
from control_plane.sessions import Asked, Holder, Presented, Secrets, Superseded
from events.append import Change
from events.nodes import AgentSuperseded, NodeIdentified, NodeRevoked
from events.values import Ipv4Subnet, NodeId, stream_of_node
from read_models import nodes
from read_models.nodes import NodeRow
from tasks.agent_api import Enrolment, EnrolmentClaims, Renewal, RenewalClaims
from tasks.signing import BadSignature, public_key, verify


@dataclass(frozen=True, slots=True)
class Proven:
    """An enrolment whose sender holds the private half of the key that it shows."""

    claims: EnrolmentClaims
    token_sha256: str
    public_key: str
    thumbprint: str

    @property
    def holder(self) -> Holder:
        return Holder(self.claims.node_id, self.thumbprint)


def proven(enrolment: Enrolment) -> Proven:
    """Raises `Unauthorised` unless the proof is by the key, and for this token."""
    try:
        key = public_key(enrolment.public_key)
        pem = str(key.as_pem(private=False).decode("ascii"))
        proof = verify(enrolment.proof, "session+jws", {key.thumbprint(): key})
        claims = EnrolmentClaims.model_validate_json(proof)
    except (BadSignature, ValidationError) as error:
        raise _wrong_proof(error) from None
    token_sha256 = sha256(enrolment.token.encode()).hexdigest()
    if not hmac.compare_digest(claims.token_sha256, token_sha256):
        raise Unauthorised(Objection("wrong_proof", "the proof was made for another token"))
    return Proven(claims, token_sha256, pem, key.thumbprint())


def _wrong_proof(error: BadSignature | ValidationError) -> Unauthorised:
    why = error.why if isinstance(error, BadSignature) else "it does not say what it must"
    return Unauthorised(Objection("wrong_proof", f"the proof does not hold: {why}"))


def enrol_node(asked: Proven, origin: Origin, lifetime: timedelta) -> Command:
    """Trade the token for a session of the host's making. The same host asking again gets the same answer."""

    async def command(transaction: Transaction) -> Decision:
        claims = asked.claims
        node = await nodes.find(transaction.conn, claims.node_id, lock=True)
        if node is None or not hmac.compare_digest(node.token_sha256, asked.token_sha256):
            raise Unauthorised(Objection("wrong_token", "no node waits for this token"))
        wanted = _asked(claims, transaction.now + lifetime)
        if node.state != "expected":
            number = await _asked_again(transaction.conn, node, asked.holder, wanted)
            return Decision((), origin.at(transaction.now), granted(number, node.subnet))
        if node.token_expires_at <= transaction.now:
            raise Unauthorised(
                Objection("token_expired", f"the token ended at {node.token_expires_at.isoformat()}")
            )
        number = await sessions.begin(transaction.conn, asked.holder, wanted)
        fact = NodeIdentified(
            node_id=claims.node_id,
            public_key=asked.public_key,
            key_thumbprint=asked.thumbprint,
            session=number,
            agent_version=claims.agent_version,
        )
        changes = (Change(stream_of_node(node.node_id), node.version, (fact,)),)
        return Decision(changes, origin.at(transaction.now), granted(number, node.subnet))

    return command


async def _asked_again(conn: AsyncConnection, node: NodeRow, holder: Holder, asked: Asked) -> int:
    """Whoever asks again has the key and the secrets that are known; the holder of a copied token has not."""
    if node.state == "revoked":
        raise Unauthorised(
            Objection("revoked", f"the access of node {node.node_id} was revoked: {node.revoked}")
        )
    number = None
    if node.key_thumbprint == holder.key_thumbprint:
        number = await sessions.repeated(conn, holder, asked)
    if number is None:
        raise Unauthorised(Objection("token_used", f"the token of node {node.node_id} was used before"))
    return number


def _asked(claims: EnrolmentClaims | RenewalClaims, expires_at: datetime) -> Asked:
    secrets = Secrets(claims.credential_sha256, claims.queue_password_sha256)
    return Asked(secrets, claims.speaks, expires_at)


def granted(number: int, subnet: Ipv4Subnet) -> str:
    """The answer of an enrolment and a renewal, as a command keeps it."""
    return json.dumps({"number": number, "subnet": subnet})


def renew_session(renewal: Renewal, origin: Origin, lifetime: timedelta, limits: Limits) -> Command:
    """Go on from a session to the next. Raises `Unauthorised`, `Superseded` and `Throttled`; no fact comes of it."""

    async def command(transaction: Transaction) -> Decision:
        node = await nodes.find(transaction.conn, renewal.node_id)
        if node is None or node.public_key is None or node.key_thumbprint is None:
            # A revoked node has no key that its proof could be checked by, so whoever asks may be anybody: its reason
            # is for admins.
            raise Unauthorised(Objection("unknown_node", "no node is known by this key, or none any more"))
        claims = _renewal_claims(renewal, node.public_key)
        number = await sessions.renew(
            transaction.conn,
            Holder(node.node_id, node.key_thumbprint),
            Presented(claims.number, claims.presented_sha256),
            _asked(claims, transaction.now + lifetime),
        )
        # Only a successful renewal is charged: a copy of the node's disk must not spend the node's budget.
        await take_for_session(transaction.conn, node.node_id, limits, transaction.now)
        return Decision((), origin.at(transaction.now), granted(number, node.subnet))

    return command


def _renewal_claims(renewal: Renewal, pem: str) -> RenewalClaims:
    try:
        key = public_key(pem)
        claims = RenewalClaims.model_validate_json(
            verify(renewal.proof, "session+jws", {key.thumbprint(): key})
        )
    except (BadSignature, ValidationError) as error:
        raise _wrong_proof(error) from None
    if claims.node_id != renewal.node_id:
        raise Unauthorised(Objection("wrong_proof", "the proof was made by another node"))
    return claims


def note_superseded(superseded: Superseded, origin: Origin) -> Command:
    """Record, once for each session presented, that a copied or restored agent was refused, and turn it out.

    What it knows of the queue ends in the same transaction: the session before the newest. A session that the node
    never had is recorded once and for all, since there are as many as a stranger can think of. The answer is empty when
    it was recorded before.
    """

    async def command(transaction: Transaction) -> Decision:
        node = await nodes.find(transaction.conn, superseded.node_id, lock=True)
        was = superseded.presented < superseded.current
        about = f"session:{superseded.presented}" if was else "session:untrue"
        seen = Refusal(superseded.node_id, about, "superseded")
        if node is None or not await is_first(transaction.conn, seen, transaction.now):
            return Decision((), origin.at(transaction.now))
        await sessions.drop_prior(transaction.conn, node.node_id)
        fact = AgentSuperseded(superseded.node_id, superseded.presented, superseded.current, transaction.now)
        changes = (Change(stream_of_node(node.node_id), node.version, (fact,)),)
        return Decision(changes, origin.at(transaction.now), "recorded")

    return command


def revoke_node(node_id: NodeId, reason: str, origin: Origin) -> Command:
    """Take a host's access away, until an enrolment is opened for it and it enrols. Revoked twice is revoked."""

    async def command(transaction: Transaction) -> Decision:
        node = await locked_node(transaction.conn, node_id)
        if node.state == "revoked":
            return Decision((), origin.at(transaction.now))
        await sessions.end(transaction.conn, node_id, transaction.now)
        changes = (Change(stream_of_node(node_id), node.version, (NodeRevoked(node_id, reason),)),)
        return Decision(changes, origin.at(transaction.now))

    return command
