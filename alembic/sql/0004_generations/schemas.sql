-- `idle` holds the set of read model tables that is not the live one; `aside` is where a swap puts a table for a
-- moment, and is empty otherwise.
create schema idle authorization sliceplane_owner;
create schema aside authorization sliceplane_owner;
grant usage on schema idle to sliceplane_app;

-- A rebuild empties the idle set. Both sets take turns, so both may be emptied.
alter default privileges for role sliceplane_owner in schema idle
  grant select, insert, update, delete, truncate on tables to sliceplane_app;
alter default privileges for role sliceplane_owner in schema read grant truncate on tables to sliceplane_app;
grant truncate on all tables in schema read to sliceplane_app;
