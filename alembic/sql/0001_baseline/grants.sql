-- Permissions of the application on the ledger: it may read the tables and call these functions (LED-6, promise P14). Its
-- permissions on the other schemas are in schemas.sql.

grant select on all tables in schema ledger to sliceplane_app;
grant select on all sequences in schema ledger to sliceplane_app;
revoke all on ledger.gap from sliceplane_app;  -- only `note_gaps` and `note_dead` read it

revoke all on all functions in schema ledger from public;
grant execute on function ledger.append, ledger.append_one, ledger.append_many, ledger.take_key, ledger.take_new_keys, ledger.free_keys to sliceplane_app;
grant execute on function ledger.current_epoch, ledger.drawn, ledger.fence to sliceplane_app;
grant execute on function ledger.note_gaps, ledger.note_dead to sliceplane_app;
grant execute on function ledger.begin_swap, ledger.end_swap, ledger.lead to sliceplane_app;

-- Permissions of the sealer: it may read what it seals, insert nodes and heads of the tree, and record positions as dead.
grant usage on schema ledger, work to sliceplane_sealer;
grant select on ledger.event, ledger.dead_position, ledger.epoch, ledger.command_key, work.node_session to sliceplane_sealer;
grant select on sequence ledger.position_seq to sliceplane_sealer;
grant select, insert, update, delete on work.head_sink to sliceplane_sealer;
grant select, insert on ledger.tree_node, ledger.tree_head to sliceplane_sealer;
grant execute on function ledger.current_epoch, ledger.drawn, ledger.fence to sliceplane_sealer;
grant execute on function ledger.note_gaps, ledger.note_dead, ledger.lead to sliceplane_sealer;
