"""The schema `work`: operational state of work in progress, outside the ledger; a rebuild does not restore it.

A row of `work.task` is one order or operation on its way to a node; `control_plane.decisions.task_states` has a diagram
of its states. If the node has credit, the row is inserted with the state `sent` before the task is sent, so that the
first send need not update it. Until then the task is listed in `work.unsent` and counts as due. `due_at` is the time at
which the task sender next checks the task.

Rows commit with the dispatcher's checkpoint, so rows that a server crash loses are derived again from the ledger. Rows
that are deleted while the checkpoint stays are not derived again: the order of an active slot is derived when its slice
is placed and never after that. So `control_plane.dispatcher.pruning` keeps the newest order of each slot, and every
open task.

A task is an order of an allocation, with its fence token (`epoch`, `position`), or an operation: one attempt
(`attempt`) of a task that an administrator requested (`task_id`), or the cancellation of such an attempt.
"""

from datetime import timedelta
from typing import Final, get_args

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, UUID

from control_plane.decisions.task_states import OpenState
from events.ledger.tables import metadata

task = sa.Table(
    "task",
    metadata,
    sa.Column("order_id", UUID(as_uuid=True), primary_key=True),
    sa.Column("node_id", sa.Text, nullable=False),
    sa.Column("slot_id", sa.Text),
    sa.Column("allocation_id", sa.Text),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("epoch", sa.Integer),
    sa.Column("position", sa.BigInteger),
    sa.Column("order", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("due_at", sa.DateTime(timezone=True)),
    sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("sent_at", sa.DateTime(timezone=True)),
    sa.Column("ended_at", sa.DateTime(timezone=True)),
    sa.Column("sends", sa.Integer, nullable=False, server_default="0"),
    sa.Column("task_id", UUID(as_uuid=True)),
    sa.Column("attempt", sa.Integer),
    # Not jsonb, which cannot store the NUL character: a node's report may contain it.
    sa.Column("reason", sa.JSON(none_as_null=True)),
    sa.Column("result", sa.Text),
    sa.Column("lane", sa.Text, nullable=False),
    sa.Index(
        "task_due", "due_at", postgresql_where=sa.text("state in ('due', 'sent') and due_at is not null")
    ),
    sa.Index(
        *("task_waiting", "node_id", "lane", "state", "created_at"),
        postgresql_where=sa.text("due_at is null and state in ('due', 'sent')"),
    ),
    sa.Index(
        *("task_on_the_way", "node_id", "lane"),
        postgresql_where=sa.text("state = 'sent' or state = 'due' and due_at is not null"),
    ),
    sa.Index("task_of_slot", "node_id", "slot_id", "epoch", "position"),
    sa.Index("task_of_asked", "task_id", postgresql_where=sa.text("task_id is not null")),
    sa.Index("task_by_age", "created_at", "order_id"),
    sa.Index(
        "task_ended_badly",
        "created_at",
        "order_id",
        postgresql_where=sa.text(
            "state in ('refused', 'failed', 'poisoned', 'cancelled', 'expired', 'waiting')"
        ),
    ),
    schema="work",
)
OPEN: Final[tuple[OpenState, ...]] = get_args(OpenState)
RESEND: Final = timedelta(seconds=10)
"""Time after which a sent task is sent again, unless its node has reported its end."""
unsent = sa.Table(
    "unsent",
    metadata,
    sa.Column("place", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("order_id", UUID(as_uuid=True), nullable=False),
    schema="work",
)
progress = sa.Table(
    "progress",
    metadata,
    sa.Column("order_id", UUID(as_uuid=True), primary_key=True),
    sa.Column("step", sa.Text, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("of", sa.Integer),
    sa.Column("at", sa.DateTime(timezone=True), nullable=False),
    schema="work",
)
timer = sa.Table(
    "timer",
    metadata,
    sa.Column("stream_id", sa.Text, primary_key=True),
    sa.Column("due_at", sa.DateTime(timezone=True), nullable=False, index=True),
    sa.Column("lease_ends_at", sa.DateTime(timezone=True)),
    schema="work",
)
slot_counts = sa.Table(
    "slot_counts",
    metadata,
    sa.Column("node_id", sa.Text, primary_key=True),
    sa.Column("class", sa.Text, primary_key=True),
    sa.Column("slots", sa.Integer, nullable=False),
    sa.Column("fit", sa.Integer, nullable=False),
    sa.Column("idle", sa.Integer, nullable=False),
    sa.Column("free", sa.Integer, nullable=False),
    sa.Column("free_on_node", sa.Integer, nullable=False),
    sa.Index("slot_counts_pack", "class", "free_on_node", "node_id", postgresql_where=sa.text("free > 0")),
    sa.Index(
        "slot_counts_spread",
        "class",
        sa.text("free_on_node desc"),
        "node_id",
        postgresql_where=sa.text("free > 0"),
    ),
    schema="work",
)
waiting_attempt = sa.Table(
    "waiting_attempt",
    metadata,
    sa.Column("allocation_id", sa.Text, primary_key=True),
    sa.Column("code", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("kept_node", sa.Text),
    sa.Column("kept_classes", ARRAY(sa.Text)),
    sa.Column("kept_from", sa.DateTime(timezone=True)),
    schema="work",
)
label_lock = sa.Table(
    "label_lock",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("label", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, primary_key=True),
    schema="work",
)
head_sink = sa.Table(
    "head_sink",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger),
    sa.Column("stored_at", sa.DateTime(timezone=True)),
    sa.Column("failing_since", sa.DateTime(timezone=True)),
    sa.Column("error", sa.Text),
    schema="work",
)
quota_lock = sa.Table(
    "quota_lock",
    metadata,
    sa.Column("holder", sa.Text, primary_key=True),
    schema="work",
)
parked = sa.Table(
    "parked",
    metadata,
    sa.Column("stream_id", sa.Text, primary_key=True),
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
credential_use = sa.Table(
    "credential_use",
    metadata,
    sa.Column("credential", sa.Text, primary_key=True),
    sa.Column("used_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("source", sa.Text),
    schema="work",
)
report_cursor = sa.Table(
    "report_cursor",
    metadata,
    sa.Column("node_id", sa.Text, primary_key=True),
    sa.Column("incarnation", UUID(as_uuid=True), primary_key=True),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column(
        "moved_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()
    ),
    schema="work",
)
report_budget = sa.Table(
    "report_budget",
    metadata,
    sa.Column("node_id", sa.Text, primary_key=True),
    sa.Column("spent_until", sa.DateTime(timezone=True), nullable=False),
    sa.Column("throttled_at", sa.DateTime(timezone=True)),
    sa.Column("exceeded_at", sa.DateTime(timezone=True)),
    sa.Column("refused", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("merged", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("held", sa.Text),
    sa.Column("held_at", sa.DateTime(timezone=True)),
    sa.Index("report_budget_exceeded", "node_id", postgresql_where=sa.text("throttled_at is not null")),
    schema="work",
)
verification = sa.Table(
    "verification",
    metadata,
    sa.Column("verification_id", UUID(as_uuid=True), primary_key=True),
    sa.Column("requested_by", sa.Text, nullable=False),
    sa.Column("requested_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("position", sa.BigInteger),
    sa.Column("upto", sa.BigInteger),
    sa.Column("differences", JSONB(none_as_null=True)),
    sa.Column("ended_at", sa.DateTime(timezone=True)),
    schema="work",
)
node_session = sa.Table(
    "node_session",
    metadata,
    sa.Column("node_id", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("key_thumbprint", sa.Text, nullable=False),
    sa.Column("credential_sha256", sa.Text, nullable=False),
    sa.Column("queue_password_sha256", sa.Text, nullable=False),
    sa.Column("prior_queue_password_sha256", sa.Text),
    sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("queue_number", sa.BigInteger),
    sa.Column("capabilities", ARRAY(sa.Text)),
    schema="work",
)
refusal = sa.Table(
    "refusal",
    metadata,
    sa.Column("node_id", sa.Text, primary_key=True),
    sa.Column("about", sa.Text, primary_key=True),
    sa.Column("code", sa.Text, primary_key=True),
    sa.Column("first_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("times", sa.Integer, nullable=False),
    schema="work",
)
access = sa.Table(
    "access",
    metadata,
    sa.Column("request_id", sa.Text, primary_key=True),
    sa.Column("process", UUID(as_uuid=True), nullable=False),
    sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("method", sa.Text, nullable=False),
    sa.Column("route", sa.Text),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("principal", sa.Text),
    sa.Column("credential", sa.Text),
    sa.Column("source", sa.Text),
    sa.Column("status", sa.SmallInteger),
    sa.Column("outcome", sa.Text),
    sa.Column("reasons", ARRAY(sa.Text), nullable=False),
    sa.Column("duration_ms", sa.Integer),
    sa.Column("count", sa.Integer, nullable=False),
    sa.Column("position", sa.BigInteger),
    sa.Index("access_position", "position", unique=True, postgresql_where=sa.text("position is not null")),
    sa.Index(
        *("access_of_principal", "principal", "position"),
        postgresql_where=sa.text("position is not null"),
    ),
    sa.Index("access_open", "process", postgresql_where=sa.text("position is null")),
    schema="work",
)
access_head = sa.Table(
    "access_head", metadata, sa.Column("position", sa.BigInteger, nullable=False), schema="work"
)
console = sa.Table(
    "console",
    metadata,
    sa.Column("console_id", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("allocation_id", sa.Text, nullable=False),
    sa.Column("slot_id", sa.Text, nullable=False),
    sa.Column("node_id", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("shared", sa.Boolean, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("origin", sa.Text),
    sa.Column("ticket_sha256", sa.Text),
    sa.Column("ticket_expires_at", sa.DateTime(timezone=True)),
    sa.Column("stream_id", UUID(as_uuid=True), nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("cut_reason", sa.Text),
    sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("credential_streams", ARRAY(sa.Text)),
    sa.Column("credential_versions", sa.BigInteger),
    sa.Column("credential_expires_at", sa.DateTime(timezone=True)),
    schema="work",
)
