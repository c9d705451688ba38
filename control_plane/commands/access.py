"""Commands about API keys."""

from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.access import ApiKeyIssued
from events.ledger.append import Change
from events.values import StreamId, new_uuid


def issue_key(name: str, role: str, key_sha256: str) -> Command:
    """Record an API key by its SHA-256 (hex). The actor is the operator: keys are issued on the server."""

    async def command(transaction: Transaction) -> Decision:
        key_id = new_uuid().hex[-12:]
        fact = ApiKeyIssued(key_id=f"{name}-{key_id}", name=name, role=role, key_sha256=key_sha256)
        origin = Origin(actor="operator", reason="issue-key", correlation_id=new_uuid())
        change = Change(StreamId(f"key-{fact.key_id}"), 0, (fact,))
        return Decision((change,), origin.at(transaction.now))

    return command
