"""Runs commands in a nested lab host for the process that created it: `python -m node_agent.lab.nested.command_port
PORT`.

PORT is a virtio serial port. Each line that arrives is a `RunCommand`, and each is answered by one line, a
`CommandResult`. Commands run one after the other. End of file means that the creator of the host is gone.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

TIMED_OUT: Final = -1
"""Exit code in the result of a command that did not end in time and was killed."""


class RunCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command to run: its arguments, the text of its standard input, and the seconds after which it is killed."""

    argv: tuple[str, ...]
    stdin: str
    seconds: float


class CommandResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exit code and output of a command."""

    code: int
    stdout: str
    stderr: str


def main(port: Path) -> None:
    """Execute the commands that arrive at the port, until the creator of the host closes the port."""
    with port.open("r+b", buffering=0) as channel:
        received = b""
        while piece := channel.read(65536):
            *lines, received = (received + piece).split(b"\n")
            for line in lines:
                result = _run(msgspec.json.decode(line, type=RunCommand))
                left = msgspec.json.encode(result) + b"\n"
                while left:
                    left = left[channel.write(left) :]


def _run(command: RunCommand) -> CommandResult:
    try:
        done = subprocess.run(
            command.argv,
            check=False,
            input=command.stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=command.seconds,
        )
    except subprocess.TimeoutExpired:
        return CommandResult(TIMED_OUT, "", f"killed after {command.seconds} s")
    except OSError as error:
        return CommandResult(TIMED_OUT, "", str(error))
    return CommandResult(done.returncode, done.stdout, done.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
