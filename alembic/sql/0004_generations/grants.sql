revoke all on function ledger.begin_swap, ledger.end_swap, ledger.lead from public;
grant execute on function ledger.begin_swap, ledger.end_swap, ledger.lead to sliceplane_app;
