-- Read models (schema `read`) and what is under way (schema `work`). The application reads and writes both.

create table read.allocation (
  position bigint not null,
  allocation_id text not null,
  project text not null,
  primary key (position),
  unique (allocation_id)
);

create table read.api_key (
  key_id text not null,
  name text not null,
  role text not null,
  key_sha256 text not null,
  primary key (key_id),
  unique (key_sha256)
);

create table read.checkpoint (
  name text not null,
  position bigint not null,
  primary key (name)
);

create table read.node (
  node_id text not null,
  version bigint not null,
  state text not null,
  subnet text not null,
  l2_domain text not null,
  token_sha256 text not null,
  token_expires_at timestamptz not null,
  credential_sha256 text,
  queue_password_sha256 text,
  agent_version text,
  hostname text,
  simulated boolean,
  images text[],
  missing text[],
  primary key (node_id)
);

create table read.slot (
  slot_id text not null,
  node_id text not null,
  slot_index integer not null,
  version bigint not null,
  state text not null,
  vcpus integer not null,
  memory_mib integer not null,
  network_device text not null,
  sku text,
  l2_domain text,
  mac_address text,
  private_ip text,
  subnet text,
  gateway text,
  bridge text,
  allocation_id text,
  reason jsonb,
  primary key (slot_id)
);
create index slot_by_node on read.slot (node_id, slot_index);
create index slot_free on read.slot (sku, node_id, slot_index) where state = 'free';

create table read.story (
  correlation_id uuid not null,
  position bigint not null,
  primary key (correlation_id, position)
);

create table work.node_seen (
  node_id text not null,
  seen_at timestamptz not null,
  agent_version text not null,
  spooled_reports integer not null,
  resynced boolean not null,
  primary key (node_id)
);

create table work.parked (
  allocation_id text not null,
  since timestamptz not null,
  error text not null,
  primary key (allocation_id)
);

create table work.report_cursor (
  node_id text not null,
  incarnation uuid not null,
  sequence bigint not null,
  primary key (node_id, incarnation)
);

create table work.task (
  order_id uuid not null,
  node_id text not null,
  slot_id text not null,
  allocation_id text not null,
  kind text not null,
  epoch integer not null,
  position bigint not null,
  "order" text not null,
  state text not null,
  due_at timestamptz not null,
  created_at timestamptz not null,
  sent_at timestamptz,
  ended_at timestamptz,
  sends integer default '0' not null,
  primary key (order_id)
);
create index task_by_node on work.task (node_id, slot_id);
create index task_by_slot on work.task (slot_id, epoch, position);
create index task_due on work.task (due_at) where state in ('due', 'sent');

create table work.timer (
  allocation_id text not null,
  due_at timestamptz not null,
  primary key (allocation_id)
);
create index ix_work_timer_due_at on work.timer (due_at);
