-- Read models. The migration runs this file twice, with the search path `read` and then `idle`: a swap exchanges whole tables, so
-- both sets have the same tables with the same index names. The columns are described in read_models/.

create table allocation (
  position bigint not null,
  allocation_id text not null,
  project text not null,
  primary key (position),
  unique (allocation_id)
);
create index allocation_by_project on allocation (project, position);

create table allocation_label (
  position bigint not null,
  label text not null,
  project text not null,
  primary key (position, label)
);
create index allocation_label_in_project on allocation_label (project, label, position);
create index allocation_label_in_all on allocation_label (label, position);

create table api_key (
  key_id text not null,
  version bigint not null,
  name text not null,
  key_sha256 text not null,
  role text,
  projects text[] not null,
  scopes text[] not null,
  expires_at timestamptz,
  replaces text,
  service_account text,
  successor text,
  revoked text,
  primary key (key_id),
  unique (key_sha256)
);

-- SKUs, images and app profiles, each with its newest version.
create table catalogue_entry (
  entry text not null,
  kind text not null,
  name text not null,
  version bigint not null,
  published integer not null,
  content jsonb not null,
  retired text,
  primary key (entry)
);
create unique index catalogue_entry_by_name on catalogue_entry (kind, name);

-- How far each projector has read the ledger, and the event that stopped it, for an administrator to see.
create table checkpoint (
  name text not null,
  position bigint not null,
  stopped_at bigint,
  stopped_since timestamptz,
  error text,
  primary key (name)
);

-- The history of claims: the holder of each claim from a position on. A row without a stream means that the claim is free.
create table holding (
  kind text not null,
  value text not null,
  position bigint not null,
  stream_id text,
  primary key (kind, value, position)
);

create table node (
  node_id text not null,
  version bigint not null,
  state text not null,
  subnet text not null,
  l2_domain text not null,
  bridge text,
  mac_pool jsonb,
  token_sha256 text not null,
  token_expires_at timestamptz not null,
  public_key text,
  key_thumbprint text,
  agent_version text,
  hostname text,
  simulated boolean,
  images text[],
  missing text[],
  unsupported_modes jsonb not null default '{}',
  superseded_session bigint,
  superseded_at timestamptz,
  revoked text,
  drift jsonb,
  blocked boolean not null default false,
  throttled_at timestamptz,
  public_addresses jsonb not null default '[]',
  failures jsonb,
  excluded jsonb,
  cordoned text,
  drain jsonb,
  drain_ended jsonb,
  primary key (node_id)
);
-- Few rows have drift, and some callers query all of them.
create index node_drifting on node (node_id) where drift is not null;
-- Few rows are excluded, and the refusal of a request for lack of capacity lists them.
create index node_excluded on node (node_id) where excluded is not null;

create table principal (
  actor text not null,
  version bigint not null,
  revoked_at timestamptz,
  limits jsonb,
  primary key (actor)
);

create table project (
  project text not null,
  version bigint not null,
  description text not null,
  project_network_id text,
  archived text,
  limits jsonb,
  reservations jsonb,
  primary key (project)
);
-- Each creation reads the reservations of all projects.
create index project_reserving on project (project) where reservations is not null;

-- Positions of the events of each project.
create table project_event (
  project text not null,
  position bigint not null,
  primary key (project, position)
);

-- How much of its quotas each holder, a project or a caller, uses: the sum of its rows. An allocation changes one of them, so that
-- allocations of one holder seldom wait for each other.
create table quota_use (
  holder text not null,
  shard integer not null,
  slots bigint not null,
  gpus bigint not null,
  vcpus bigint not null,
  memory_mib bigint not null,
  public_addresses bigint not null,
  public_ports bigint not null,
  waiting_requests bigint not null,
  price_per_hour numeric not null,
  primary key (holder, shard)
)
-- Room for new versions of a row on its page, so that an update changes no index.
with (fillfactor = 20);

-- Requests that wait, or waited, for capacity.
create table waiting (
  allocation_id text not null,
  version bigint not null,
  project text not null,
  priority integer not null,
  queued_at timestamptz not null,
  waits_until timestamptz not null,
  is_waiting boolean not null,
  primary key (allocation_id)
);
create index waiting_in_order on waiting (priority desc, queued_at, allocation_id) where is_waiting;

create table service_account (
  account text not null,
  version bigint not null,
  description text not null,
  role text not null,
  projects text[] not null,
  scopes text[] not null,
  disabled text,
  primary key (account)
);

create table session (
  session_id text not null,
  version bigint not null,
  actor text not null,
  credential text not null,
  secret_sha256 text not null,
  label text not null,
  started_at timestamptz not null,
  expires_at timestamptz not null,
  idle_seconds integer not null,
  token_issued_at timestamptz,
  role text,
  projects text[] not null,
  scopes text[] not null,
  ended text,
  primary key (session_id),
  unique (secret_sha256)
);
create index session_of_actor on session (actor, session_id);

create table slot (
  slot_id text not null,
  node_id text not null,
  slot_index integer not null,
  version bigint not null,
  state text not null,
  vcpus integer not null,
  memory_mib integer not null,
  network_device text not null,
  devices jsonb not null default '[]',
  numa_node integer,
  granted jsonb not null default '[]',
  approved_hardware jsonb,
  skus jsonb,
  offer text,
  class text generated always as
    (coalesce(skus::text, '') || ' ' || vcpus::text || ' ' || memory_mib::text || ' ' || coalesce(offer, '')) stored,
  l2_domain text,
  mac_address text,
  private_ip text,
  subnet text,
  gateway text,
  bridge text,
  allocation_id text,
  use jsonb,
  reason jsonb,
  drift jsonb,
  blocked boolean not null default false,
  device_check jsonb,
  failures jsonb,
  excluded jsonb,
  primary key (slot_id)
);
create index slot_by_node on slot (node_id, slot_index);
-- Placement searches for free slots here.
create index slot_free on slot (class, node_id, slot_index) where state = 'free' and not blocked;
create index slot_class on slot (class);
-- What a project uses of its reservations.
create index slot_used on slot ((use ->> 'project'), (use ->> 'sku')) where use is not null;
create index slot_drifting on slot (node_id, slot_index) where drift is not null;
create index slot_excluded on slot (node_id, slot_index) where excluded is not null;

-- Positions of the events with each correlation id, except events of allocations' own streams.
create table story (
  correlation_id uuid not null,
  position bigint not null,
  primary key (correlation_id, position)
);

-- Usage: the requests of allocations, the prices of their SKUs, and the changes of their leases.
create table usage_request (
  position bigint not null,
  allocation_id text not null,
  project text not null,
  sku text not null,
  slot_count integer not null,
  labels jsonb not null,
  primary key (position),
  unique (allocation_id)
);
create index usage_request_by_project on usage_request (project, position);

create table usage_price (
  position bigint not null,
  allocation_id text not null,
  sku_version integer not null,
  price_per_hour numeric not null,
  primary key (position),
  unique (allocation_id)
);

create table usage_lease (
  position bigint not null,
  allocation_id text not null,
  kind text not null,
  starts_at timestamptz,
  ends_at timestamptz not null,
  primary key (position)
);
create index usage_lease_of_allocation on usage_lease (allocation_id) include (position, kind, starts_at, ends_at);

-- The reservations of each project from a time on, and by how much the slots that it holds of a SKU change.
create table usage_reservation (
  position bigint not null,
  project text not null,
  reservations jsonb not null,
  set_at timestamptz not null,
  primary key (position)
);
create index usage_reservation_by_project on usage_reservation (project);

create table usage_slot (
  position bigint not null,
  project text not null,
  sku text not null,
  change integer not null,
  changed_at timestamptz not null,
  primary key (position)
);
create index usage_slot_by_project on usage_slot (project, sku);

-- Closed billing periods. Their usage is that of the events up to the position "through".
create table billing_period (
  name text not null,
  number bigint not null,
  starts_at timestamptz not null,
  ends_at timestamptz not null,
  through bigint not null,
  primary key (name),
  unique (number)
);

-- The status of each slot from a position on, and the numbers of slots of each SKU by status from a position on.
create table slot_status (
  slot_id text not null,
  position bigint not null,
  node_id text not null,
  state text not null,
  blocked boolean not null,
  excluded boolean not null,
  skus text[] not null,
  status text,
  primary key (slot_id, position)
);
create index slot_status_by_position on slot_status (position);
create index slot_status_of_node on slot_status (node_id, slot_id, position);

create table capacity (
  sku text not null,
  position bigint not null,
  free integer not null,
  claimed integer not null,
  quarantined integer not null,
  blocked integer not null,
  primary key (sku, position)
);
