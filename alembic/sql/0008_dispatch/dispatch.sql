-- Whose credit a task uses; until now there were orders alone.
alter table work.task add column lane text not null default 'orders';
alter table work.task alter column lane drop default;

-- A task that has to wait for its node's credit, or for a silent node, has no moment at which it is due: it stands in an
-- index of its own, so that however many wait, nobody who looks for what is due meets them.
alter table work.task alter column due_at drop not null;
drop index work.task_due;
create index task_due on work.task (due_at) where state in ('due', 'sent') and due_at is not null;
create index task_waiting on work.task (node_id, lane, state, created_at)
  where due_at is null and state in ('due', 'sent');
-- What uses a node's credit: at most as many rows a node and lane as the catalogue allows.
create index task_on_the_way on work.task (node_id, lane)
  where state = 'sent' or state = 'due' and due_at is not null;

-- One index where two were, with the node, which a slot's name begins with, in front.
create index task_of_slot on work.task (node_id, slot_id, epoch, position);
drop index work.task_by_node;
drop index work.task_by_slot;
