"""After each of random commands, nothing is granted twice or beyond a limit, and all figures equal a recomputation."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from deploy.embedded.postgres import PostgresServer
from tests.projections.random_commands import RandomCommands
from tests.torture import count

EXAMPLES, STEPS = 80, 25


@pytest.mark.timeout(600)  # Shrinking a failing history takes minutes.
def test_holders_limits_quotas_and_usage_after_each_of_random_commands_equal_a_recomputation(
    postgres_server: PostgresServer,
) -> None:
    RandomCommands.server = postgres_server
    run_state_machine_as_test(
        RandomCommands,
        settings=settings(
            max_examples=count(EXAMPLES, usual_share=20),
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
