-- The tables of the ledger. Text that is compared has collation "C": its order is that of the bytes, on every
-- server and for ever, and the lock order of append depends on it.

create sequence ledger.position_seq as bigint minvalue 1 cache 1;

-- One row for each period between restores or failovers of this ledger. The epoch in force is the highest.
create table ledger.epoch (
  epoch    integer     not null primary key,
  began_at timestamptz not null,
  reason   text        not null
);
insert into ledger.epoch values (1, clock_timestamp(), 'the ledger was made');

-- The epoch in force as a constant: planned into append, where reading the table costs a tenth of the call.
-- `begin_epoch` replaces it, which makes every session plan anew.
create function ledger.current_epoch() returns integer language sql immutable parallel safe return 1;

-- The facts and everything said about them. `data` is the canonical JSON exactly as it was hashed (jsonb would
-- rewrite numbers); `leaf` is the RFC 6962 leaf hash over every other column, see append.sql.
-- No CHECK constraints here: Postgres reads them from their stored text at every insert (docs/decisions/0002), and
-- append is the only one that writes.
create table ledger.event (
  position       bigint      not null primary key,
  event_id       uuid        not null,
  stream_id      text collate "C" not null,
  version        bigint      not null,
  type           text collate "C" not null,
  schema_version smallint    not null,
  project        text collate "C",
  actor          text        not null,
  why            text        not null,
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

-- A position that was drawn and never written: its transaction rolled back or its backend died.
create table ledger.dead_position (
  position bigint      not null primary key,
  noted_at timestamptz not null,
  seen_by  text        not null,
  epoch    integer     not null,
  leaf     bytea       not null
);

-- The last version of each stream. Half-empty pages keep its updates on the page (HOT).
create table ledger.head (
  stream_id text collate "C" not null primary key,
  version   bigint not null
) with (fillfactor = 50);

-- What has exactly one holder (LED-3). Written by append from `claims_of`, derived again by a rebuild.
create table ledger.claim (
  kind      text collate "C" not null,
  value     text collate "C" not null,
  stream_id text collate "C" not null,
  primary key (kind, value)
) with (fillfactor = 90);

-- Which commands were answered (LED-10). Inside the transaction that took the key `answer` is null; committed
-- with a null answer, the key was taken by a command that gave none, and may be taken again.
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
