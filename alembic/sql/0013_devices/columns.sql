alter table read.slot
  add column devices jsonb not null default '[]',
  add column numa_node integer,
  add column granted jsonb not null default '[]';
alter table idle.slot
  add column devices jsonb not null default '[]',
  add column numa_node integer,
  add column granted jsonb not null default '[]';
