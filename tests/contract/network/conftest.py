"""Fixtures of the network contract tests. Each test runs on a simulated host and, as root on Debian, also on a lab
node. After each test, the slots that it used are empty.
"""

from collections.abc import Iterator

import pytest

from node_agent.host.slices import Aspect
from node_agent.host.snapshots import host_snapshot
from tests.contract.network.hosts import Host, Simulated, aspects_of, gateway_of
from tests.contract.network.slices import NETWORK, network, run


@pytest.fixture(
    scope="module", params=["simulated", pytest.param("real", marks=pytest.mark.node)], name="node_host"
)
def _node_host(request: pytest.FixtureRequest) -> Iterator[Host]:
    if request.param == "simulated":
        yield Simulated(NETWORK)
        return
    # Imported here and not above: the packages of the host drivers are an extra, and the simulated host needs none of
    # them.
    from tests.contract.network.lab_host import real_host

    with real_host(request.getfixturevalue("lab").node("lab-a"), NETWORK) as host:
        yield host


@pytest.fixture
def host(node_host: Host) -> Iterator[Host]:
    run(gateway_of(node_host).to_apply())
    yield node_host
    clear(node_host)


def clear(host: Host) -> None:
    """Remove the network of every slot that a test may have used.

    The steps of an aspect are planned for all slots before they run, because each step invalidates the host snapshot.
    """
    with host_snapshot():
        for aspect in reversed(aspects_of(host)):
            run(tuple(step for index in range(4) for step in aspect.to_remove(network(index))))


@pytest.fixture
def aspects(host: Host) -> tuple[Aspect, ...]:
    return aspects_of(host)
