import pytest

from node_agent.lab.lab import Lab, LabNode


@pytest.fixture
def node(lab: Lab) -> LabNode:
    return lab.node("lab-a")
