"""Configuration of the process that runs the agents of the demo fleet (`deploy.demo.agents`)."""

import msgspec

from deploy.demo.plan import DemoNode


class HostedNode(msgspec.Struct, frozen=True):
    """A node of the demo fleet. `token_file` contains the token with which it enrols, and `folder` its state."""

    node: DemoNode
    token_file: str
    folder: str


class Hosting(msgspec.Struct, frozen=True):
    """All nodes of the process."""

    api_url: str
    ca_file: str
    nodes: list[HostedNode]
