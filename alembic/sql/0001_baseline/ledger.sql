-- The tables of the ledger. Text that is compared has collation "C": its order is that of the bytes, permanently and on
-- every server, and the lock order of append depends on it.

create sequence ledger.position_seq as bigint minvalue 1 cache 1;

-- One row for each period between restores or failovers of this ledger. The highest epoch is the current one.
create table ledger.epoch (
  epoch    integer     not null primary key,
  began_at timestamptz not null,
  reason   text        not null
);
insert into ledger.epoch values (1, clock_timestamp(), 'the ledger was created');

-- The current epoch as a constant: the planner inlines it into append, where reading the table takes a tenth of the call.
-- `begin_epoch` replaces the function, which makes every session plan again.
create function ledger.current_epoch() returns integer language sql immutable parallel safe return 1;

-- The facts and their envelopes. `data` is the canonical JSON exactly as it was hashed (jsonb would rewrite numbers);
-- `leaf` is the RFC 6962 leaf hash over every other column, see append.sql.
-- There are no CHECK constraints: Postgres parses them from their stored text at every insert (docs/decisions/0002), and
-- only append writes to this table.
create table ledger.event (
  position       bigint      not null primary key,
  event_id       uuid        not null,
  stream_id      text collate "C" not null,
  version        bigint      not null,
  type           text collate "C" not null,
  schema_version smallint    not null,
  project        text collate "C",
  actor          text        not null,
  reason         text        not null,
  correlation_id uuid        not null,
  causation_id   uuid,
  trace_context  text,
  observed_at    timestamptz not null,
  recorded_at    timestamptz not null,
  epoch          integer     not null,
  data           text        not null,
  leaf           bytea       not null,
  unique (stream_id, version)
) with (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

-- Positions that were drawn and never written: the transaction rolled back or its backend died.
create table ledger.dead_position (
  position bigint      not null primary key,
  noted_at timestamptz not null,
  seen_by  text        not null,
  epoch    integer     not null,
  leaf     bytea       not null
);

-- Transactions that may still write a gap, which is a drawn position without an event. If a gap is registered early, the server
-- can later detect that it is dead although other transactions hold the fence by then: otherwise appenders that idle one after
-- the other would keep a gap open permanently (promise P29).
-- Unlogged: a crash ends every suspect and discards drawn positions, so these rows are no longer needed.
create unlogged table ledger.gap (
  position bigint not null primary key,
  suspects text[] not null  -- holders of the fence after it was drawn, as in pg_locks.virtualtransaction
);

-- The last version of each stream. Half-empty pages keep an updated row on its page (HOT).
create table ledger.head (
  stream_id text collate "C" not null primary key,
  version   bigint not null
) with (fillfactor = 50);

-- Claims: each has exactly one holder (LED-3). Written by append from `claims_of`, and derived again by a rebuild.
create table ledger.claim (
  kind      text collate "C" not null,
  value     text collate "C" not null,
  stream_id text collate "C" not null,
  primary key (kind, value)
) with (fillfactor = 90);

-- Idempotency keys with the stored responses of their commands (LED-10). `answer` is null inside the transaction that took the
-- key; if it is null after commit, the command had no response, and the key may be taken again.
create table ledger.command_key (
  principal      text collate "C" not null,
  route          text collate "C" not null,
  key            text collate "C" not null,
  body_hash      bytea       not null,
  answer         text,
  first_position bigint,
  last_position  bigint,
  taken_at       timestamptz not null,
  primary key (principal, route, key)
) with (fillfactor = 70);
-- The sealer reads the keys of recent commands. A BRIN index on a column that is never updated costs an append next to nothing,
-- and keeps the update of the row on its page.
create index command_key_taken_at on ledger.command_key using brin (taken_at) with (pages_per_range = 16);

-- The Merkle tree over the leaves (events/ledger/tree.py): the hashes of complete subtrees of 256 leaves and more. Only the
-- sealer inserts rows here and into tree_head, and no role updates or deletes them.
create table ledger.tree_node (
  level smallint not null,
  index bigint   not null,
  hash  bytea    not null,
  primary key (level, index)
);

-- Signed heads of the tree. `signed` is the head as a JWS (control_plane/audit/heads.py), from which the other columns are
-- copied. `leaves` are the leaves that this head adds to the previous one, 32 bytes each, in order.
create table ledger.tree_head (
  number    bigint      not null primary key,
  size      bigint      not null,
  epoch     integer     not null,
  sealed_at timestamptz not null,
  signed    text        not null,
  leaves    bytea       not null
);
create index tree_head_size on ledger.tree_head (size, number);
