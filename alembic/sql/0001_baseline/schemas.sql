-- Schemas, and the application's permissions on their tables. The application may read `ledger` (see grants.sql), and read and
-- write the tables of the other schemas.

create schema if not exists ledger;  -- may exist already, with Alembic's version table
alter schema ledger owner to sliceplane_owner;
-- Read models: tables that can be derived from the ledger again at any time. `read` contains the live set of them, `idle` the
-- set that a rebuild fills. `aside` contains a table only while a swap exchanges the two sets.
create schema read authorization sliceplane_owner;
create schema idle authorization sliceplane_owner;
create schema aside authorization sliceplane_owner;
-- Operational state, which no rebuild restores.
create schema work authorization sliceplane_owner;
-- Keys of projects, with which personal data is encrypted. Destroying one erases the data, so this schema has backups of its own.
create schema keys authorization sliceplane_owner;
grant usage on schema ledger, read, idle, work, keys to sliceplane_app;

-- These permissions apply to every table that this or a later migration creates. A rebuild truncates the idle set, and the two
-- sets alternate, so the application may truncate both.
alter default privileges for role sliceplane_owner in schema read, idle
  grant select, insert, update, delete, truncate on tables to sliceplane_app;
alter default privileges for role sliceplane_owner in schema work
  grant select, insert, update, delete on tables to sliceplane_app;
alter default privileges for role sliceplane_owner in schema keys
  grant select, insert, update on tables to sliceplane_app;
alter default privileges for role sliceplane_owner in schema read, work
  grant usage, select on sequences to sliceplane_app;
-- The same for tables that a migration creates as the bootstrap superuser.
alter default privileges in schema read, work grant select, insert, update, delete on tables to sliceplane_app;
alter default privileges in schema read, work grant usage, select on sequences to sliceplane_app;
