"""The schema `work`: what is under way. Operational state, beside the ledger, that a rebuild does not restore.

A task is one order on its way to a node: `due` until it was put into the node's queue, `sent` until the node
told its end, then `done`, `refused` or `superseded`. Losing these rows loses no order: they are derived again
from the log. `due_at` is when the relay should next see to the task.
"""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, UUID

from events.tables import metadata

task = sa.Table(
    "task",
    metadata,
    sa.Column("order_id", UUID(as_uuid=True), primary_key=True),
    sa.Column("node_id", sa.Text, nullable=False),
    sa.Column("slot_id", sa.Text, nullable=False),
    sa.Column("allocation_id", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("position", sa.BigInteger, nullable=False),
    sa.Column("order", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("sent_at", sa.DateTime(timezone=True)),
    sa.Column("ended_at", sa.DateTime(timezone=True)),
    sa.Column("sends", sa.Integer, nullable=False, server_default="0"),
    sa.Index("task_due", "due_at", postgresql_where=sa.text("state in ('due', 'sent')")),
    sa.Index("task_by_slot", "slot_id", "epoch", "position"),
    sa.Index("task_by_node", "node_id", "slot_id"),
    schema="work",
)
timer = sa.Table(
    "timer",
    metadata,
    sa.Column("allocation_id", sa.Text, primary_key=True),
    sa.Column("due_at", sa.DateTime(timezone=True), nullable=False, index=True),
    schema="work",
)
parked = sa.Table(
    "parked",
    metadata,
    sa.Column("allocation_id", sa.Text, primary_key=True),
    sa.Column("since", sa.DateTime(timezone=True), nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    schema="work",
)
node_seen = sa.Table(
    "node_seen",
    metadata,
    sa.Column("node_id", sa.Text, primary_key=True),
    sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("agent_version", sa.Text, nullable=False),
    sa.Column("spooled_reports", sa.Integer, nullable=False),
    sa.Column("resynced", sa.Boolean, nullable=False),
    schema="work",
)
report_cursor = sa.Table(
    "report_cursor",
    metadata,
    sa.Column("node_id", sa.Text, primary_key=True),
    sa.Column("incarnation", UUID(as_uuid=True), primary_key=True),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    schema="work",
)
verification = sa.Table(
    "verification",
    metadata,
    sa.Column("verification_id", UUID(as_uuid=True), primary_key=True),
    sa.Column("asked_by", sa.Text, nullable=False),
    sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("position", sa.BigInteger),
    sa.Column("upto", sa.BigInteger),
    sa.Column("differences", JSONB(none_as_null=True)),
    sa.Column("ended_at", sa.DateTime(timezone=True)),
    schema="work",
)
