-- Operations stand beside wishes: some are about no slot, and none has a fence token of its own.
alter table work.task
  alter column slot_id drop not null,
  alter column allocation_id drop not null,
  alter column epoch drop not null,
  alter column position drop not null,
  add column task_id uuid,
  add column attempt integer,
  add column reason json,
  add column result text;
create index task_of_asked on work.task (task_id) where task_id is not null;
create index task_by_age on work.task (created_at, order_id);
-- What people look for, among very many that are done.
create index task_ended_badly on work.task (created_at, order_id)
  where state in ('refused', 'failed', 'poisoned', 'cancelled', 'expired', 'waiting');

-- What each node's agent said that it speaks (`kind/version`); null for nothing.
alter table work.node_session add column speaks text[];

-- Timers and parked streams are not only allocations'.
alter table work.timer rename column allocation_id to stream_id;
alter table work.parked rename column allocation_id to stream_id;
update work.timer set stream_id = 'allocation-' || stream_id;
update work.parked set stream_id = 'allocation-' || stream_id;

-- How far each order is on its node: the newest of what comes several times a second, and worth nothing once it is old.
create unlogged table work.progress (
  order_id uuid not null,
  step text not null,
  number integer not null,
  of integer,
  at timestamptz not null,
  primary key (order_id)
);
