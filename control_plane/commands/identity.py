"""Commands about node identity: enrol a node, renew its session, revoke its access, record a refused copy.

A copy is an agent that runs from a copied or restored disk of the node.

Enrolment and revocation are facts, recorded in the transaction that also changes the session. A renewal is not a fact:
it happens every few minutes, and only its refusal is worth recording.
"""

import hmac
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.loaded import locked_node
from control_plane.decisions.refusals import Objection, Unauthorised
from control_plane.handle import Command, Decision, Transaction
from control_plane.identity import sessions
from control_plane.identity.sessions import Holder, PresentedSession, Secrets, SessionRequest, Superseded
from control_plane.origin import Origin
from control_plane.work.refusal_counts import Refusal, is_first
from control_plane.work.report_budget import Limits, take_for_session
from events.ledger.append import Change
from events.nodes import AgentSuperseded, NodeEnrolled, NodeRevoked
from events.values import Ipv4Subnet, NodeId, stream_of_node
from read_models import nodes
from read_models.nodes import NodeRow
from tasks.agent_api import Enrolment, EnrolmentClaims, Renewal, RenewalClaims
from tasks.signing import BadSignature, public_key, verify


@dataclass(frozen=True, slots=True)
class VerifiedEnrolment:
    """Enrolment of a node with a verified proof that the node has the private key of the public key that it sent."""

    claims: EnrolmentClaims
    token_sha256: str
    public_key: str
    thumbprint: str

    @property
    def holder(self) -> Holder:
        """Node and key for which the enrolment begins a session."""
        return Holder(self.claims.node_id, self.thumbprint)


def verify_enrolment(enrolment: Enrolment) -> VerifiedEnrolment:
    """Verify a node's enrolment. Raises `Unauthorised` unless the proof in it is signed with the private key of its
    public key, and was made for its token.
    """
    try:
        key = public_key(enrolment.public_key)
        pem = str(key.as_pem(private=False).decode("ascii"))
        proof = verify(enrolment.proof, "session+jws", {key.thumbprint(): key})
        claims = EnrolmentClaims.model_validate_json(proof)
    except (BadSignature, ValidationError) as error:
        raise _wrong_proof(error) from None
    token_sha256 = sha256(enrolment.token.encode()).hexdigest()
    if not hmac.compare_digest(claims.token_sha256, token_sha256):
        raise Unauthorised(
            Objection("wrong_proof", "the node's signed proof was made for another enrolment token")
        )
    return VerifiedEnrolment(claims, token_sha256, pem, key.thumbprint())


def _wrong_proof(error: BadSignature | ValidationError) -> Unauthorised:
    reason = error.reason if isinstance(error, BadSignature) else "the fields of the signed proof are invalid"
    return Unauthorised(Objection("wrong_proof", f"the node's signed proof cannot be verified: {reason}"))


def enrol_node(asked: VerifiedEnrolment, origin: Origin, lifetime: timedelta) -> Command:
    """Exchange a node's one-time token for a session. A repeated enrolment returns the same answer."""

    async def command(transaction: Transaction) -> Decision:
        claims = asked.claims
        node = await nodes.find(transaction.conn, claims.node_id, lock=True)
        if node is None or not hmac.compare_digest(node.token_sha256, asked.token_sha256):
            raise Unauthorised(
                Objection("wrong_token", "no registered node has this one-time enrolment token")
            )
        session_request = _session_request(claims, transaction.now + lifetime)
        if node.state != "registered":
            number = await _repeated_enrolment(transaction.conn, node, asked.holder, session_request)
            return Decision((), origin.at(transaction.now), granted(number, node.subnet))
        if node.token_expires_at <= transaction.now:
            expired = f"the enrolment token expired at {node.token_expires_at.isoformat()}; reopen the enrolment for a new token"
            raise Unauthorised(Objection("token_expired", expired))
        number = await sessions.begin(transaction.conn, asked.holder, session_request)
        fact = NodeEnrolled(
            node_id=claims.node_id,
            public_key=asked.public_key,
            key_thumbprint=asked.thumbprint,
            session=number,
            agent_version=claims.agent_version,
        )
        changes = (Change(stream_of_node(node.node_id), node.version, (fact,)),)
        return Decision(changes, origin.at(transaction.now), granted(number, node.subnet))

    return command


async def _repeated_enrolment(
    conn: AsyncConnection, node: NodeRow, holder: Holder, asked: SessionRequest
) -> int:
    """Return the session number of a repeated enrolment. Raises `Unauthorised` if its key or its secrets changed."""
    if node.state == "revoked":
        raise Unauthorised(
            Objection("revoked", f"the access of node {node.node_id} was revoked: {node.revoked}")
        )
    number = None
    if node.key_thumbprint == holder.key_thumbprint:
        number = await sessions.repeated(conn, holder, asked)
    if number is None:
        message = f"the enrolment token of node {node.node_id} was already used; reopen the enrolment for a new token"
        raise Unauthorised(Objection("token_used", message))
    return number


def _session_request(claims: EnrolmentClaims | RenewalClaims, expires_at: datetime) -> SessionRequest:
    secrets = Secrets(claims.credential_sha256, claims.queue_password_sha256)
    return SessionRequest(secrets, claims.capabilities, expires_at)


def granted(number: int, subnet: Ipv4Subnet) -> str:
    """Return the JSON answer of an enrolment or a renewal: session number and subnet."""
    return json.dumps({"number": number, "subnet": subnet})


def renew_session(renewal: Renewal, origin: Origin, lifetime: timedelta, limits: Limits) -> Command:
    """Renew a node's session. Raises `Unauthorised`, `Superseded` and `Throttled`; a renewal adds no fact."""

    async def command(transaction: Transaction) -> Decision:
        node = await nodes.find(transaction.conn, renewal.node_id)
        if node is None or node.public_key is None or node.key_thumbprint is None:
            # A revoked node has no key to verify the proof with, so the caller may be anything: only administrators
            # can read the reason of the revocation.
            raise Unauthorised(Objection("unknown_node", "the node is unknown, not enrolled, or revoked"))
        claims = _renewal_claims(renewal, node.public_key)
        number = await sessions.renew(
            transaction.conn,
            Holder(node.node_id, node.key_thumbprint),
            PresentedSession(claims.number, claims.presented_sha256),
            _session_request(claims, transaction.now + lifetime),
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
        raise Unauthorised(
            Objection(
                "wrong_proof", "the signed proof names a different node than the request to renew the session"
            )
        )
    return claims


def record_superseded(superseded: Superseded, origin: Origin) -> Command:
    """Record, once per presented session, that a copied or restored agent was refused, and end its queue access.

    The queue password of the session before the newest, which the copy may know, is invalidated in the same
    transaction. Session numbers that the node never had are recorded only once per node, because an attacker can invent
    any number. The command's answer is empty if the refusal was recorded before.
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
    """Revoke a node's access until its enrolment is reopened and it enrols again. Revoking twice changes nothing."""

    async def command(transaction: Transaction) -> Decision:
        node = await locked_node(transaction.conn, node_id)
        if node.state == "revoked":
            return Decision((), origin.at(transaction.now))
        await sessions.end(transaction.conn, node_id, transaction.now)
        changes = (Change(stream_of_node(node_id), node.version, (NodeRevoked(node_id, reason),)),)
        return Decision(changes, origin.at(transaction.now))

    return command
