alter table read.node add column failures jsonb, add column excluded jsonb;
alter table idle.node add column failures jsonb, add column excluded jsonb;
alter table read.slot add column failures jsonb, add column excluded jsonb;
alter table idle.slot add column failures jsonb, add column excluded jsonb;

-- Few are excluded, and a request that is refused for lack of room names them.
create index node_excluded on read.node (node_id) where excluded is not null;
create index node_excluded on idle.node (node_id) where excluded is not null;
create index slot_excluded on read.slot (node_id, slot_index) where excluded is not null;
create index slot_excluded on idle.slot (node_id, slot_index) where excluded is not null;
