-- One row per node that ever reported. `spent_until` is when the budget is full again; an episode of throttling lasts
-- from `throttled_at` until the dispatcher ends it.
create table work.report_budget (
  node_id text not null,
  spent_until timestamptz not null,
  throttled_at timestamptz,
  exceeded_at timestamptz,
  refused bigint not null default 0,
  merged bigint not null default 0,
  held text,
  held_at timestamptz,
  primary key (node_id)
);
create index report_budget_exceeded on work.report_budget (node_id) where throttled_at is not null;

-- The newest cursors of a node are kept, by when they last moved.
alter table work.report_cursor add column moved_at timestamptz not null default clock_timestamp();

alter table read.node add column throttled_at timestamptz;
alter table idle.node add column throttled_at timestamptz;
