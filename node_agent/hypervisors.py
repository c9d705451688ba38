"""What the machine aspect needs of a hypervisor, and of the folders that its machines boot from."""

from pathlib import Path
from typing import Protocol
from uuid import UUID

from node_agent.guests import Guest, Hosting
from node_agent.machine_plans import FoundDomain, FoundProcess


class Hypervisor(Protocol):
    """What runs the domains, each call within a deadline. Reads raise `HostUnreadable`. Changes raise `HostRefused`
    when the answer was no, and `HostUnreadable` when there was none: the change may then have been made.
    """

    def domains(self) -> tuple[FoundDomain, ...]: ...

    def processes(self) -> tuple[FoundProcess, ...]: ...

    def process(self, domain: FoundDomain) -> FoundProcess | None:
        """Return the process of a running domain, with devices that the domain does not show; None once it is gone."""
        ...

    def continue_process(self, process: FoundProcess) -> None:
        """Continue the process; one that is gone or running counts as done."""
        ...

    def start(self, guest: Guest, hosting: Hosting) -> None:
        """Start a new domain; refused if there is one of that name or UUID, or if its tap, a PCI function of its
        place or a file is missing or another's."""
        ...

    def shut_down(self, domain: UUID) -> None:
        """Ask the guest to shut down, and return; one that is gone or does not run counts as asked."""
        ...

    def resume(self, domain: UUID) -> None:
        """Let it go on; `HostUnreadable` when it is not paused any more, since what was seen is past."""
        ...

    def pin(self, domain: UUID, pins: tuple[str, ...]) -> None:
        """Have each virtual CPU run on that one of the host's; `HostUnreadable` when it runs no more."""
        ...

    def destroy(self, domain: UUID) -> None:
        """Stop it at once and forget it; done already counts as done."""
        ...

    def end(self, process: FoundProcess) -> None: ...


class Disks(Protocol):
    """The folder of each slot. A name is relative to all of them: `slice0`, `slice0/console.log`."""

    def path(self, name: str) -> Path: ...

    def found(self, slot: str) -> tuple[str, ...]:
        """The slot's folder, or what else stands in its place, and everything in it; empty when nothing is there."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """All of it or nothing, readable for the hypervisor."""
        ...

    def wipe(self, slot: str) -> None: ...
