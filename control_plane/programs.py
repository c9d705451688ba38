"""The programs of the control plane: the commands of `sliceplane-server` that run until a signal stops them.

This is the only list of them. The path inventory, `./dev up`, the benchmarks and the tests iterate over `Program`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

SERVER: Final = "sliceplane-server"
"""Name of the installed executable; each `Program` is one of its commands."""


class Program(StrEnum):
    """A program of the control plane. Each process runs one, and may be killed at any moment."""

    API = "api"
    DISPATCHER = "dispatcher"
    PROJECTOR = "projector"
    SEALER = "sealer"
    SSH_GATEWAY = "ssh-gateway"


PURPOSES: Final[Mapping[str, str]] = {
    Program.API: "serve the REST API",
    Program.DISPATCHER: "send orders to nodes and run timers",
    Program.PROJECTOR: "fill the read models",
    Program.SEALER: "seal the ledger with signed heads",
    Program.SSH_GATEWAY: "connect callers to the SSH ports of their slices",
}
