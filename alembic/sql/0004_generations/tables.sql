-- What stopped a follower of the log, for people to see.
alter table read.checkpoint add column stopped_at bigint, add column stopped_since timestamptz, add column error text;

-- One follower brought up all read models until now; the others have checkpoints of their own from here on.
update read.checkpoint set name = 'allocations' where name = 'projector';

create table read.holding (
  kind text not null,
  value text not null,
  position bigint not null,
  stream_id text,
  primary key (kind, value, position)
);

-- The idle set: the same tables, names of indexes included, because a swap exchanges whole tables.
create table idle.allocation (
  position bigint not null,
  allocation_id text not null,
  project text not null,
  primary key (position),
  unique (allocation_id)
);

create table idle.api_key (
  key_id text not null,
  name text not null,
  role text not null,
  key_sha256 text not null,
  primary key (key_id),
  unique (key_sha256)
);

create table idle.checkpoint (
  name text not null,
  position bigint not null,
  stopped_at bigint,
  stopped_since timestamptz,
  error text,
  primary key (name)
);

create table idle.holding (
  kind text not null,
  value text not null,
  position bigint not null,
  stream_id text,
  primary key (kind, value, position)
);

create table idle.node (
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

create table idle.slot (
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
create index slot_by_node on idle.slot (node_id, slot_index);
create index slot_free on idle.slot (sku, node_id, slot_index) where state = 'free';

create table idle.story (
  correlation_id uuid not null,
  position bigint not null,
  primary key (correlation_id, position)
);

-- Comparisons of the live tables with a replay, as they were asked for and as they ended.
create table work.verification (
  verification_id uuid not null,
  asked_by text not null,
  asked_at timestamptz not null,
  state text not null,
  position bigint,
  upto bigint,
  differences jsonb,
  ended_at timestamptz,
  primary key (verification_id)
);
