"""The leak check of `up --once`: the separate checker before and after, one snapshot for each node."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deploy.embedded.children import REPOSITORY, python_module
from deploy.embedded.layout import Layout, write_private_text
from deploy.embedded.node_files import NODES
from deploy.embedded.nodes import Nodes
from deploy.embedded.screen import Screen


@dataclass(frozen=True, slots=True)
class LeakCheck:
    """Compares every node with what it was at `snapshot`, by a program that asks the agent nothing."""

    layout: Layout
    nodes: Nodes
    redis_url: str
    screen: Screen

    def snapshot(self) -> None:
        """Write down what the nodes hold now. Raises `CalledProcessError`."""
        write_private_text(self.layout.redis_url_file, self.redis_url)
        for name in NODES:
            target = self.nodes.leak_target(name)
            self._checker("snapshot", "--out", str(self._file(name)), *target).check_returncode()

    def compare(self) -> bool:
        """Show what was compared and what differs; True if nothing does."""
        clean = True
        for name in NODES:
            done = self._checker("compare", str(self._file(name)))
            self.screen.say(f"leak check of {name}:")
            for line in done.stdout.splitlines():
                self.screen.note(line)
            if done.stderr:
                self.screen.note(done.stderr.strip())
            clean = clean and done.returncode == 0
        return clean

    def _file(self, name: str) -> Path:
        return self.layout.run / f"{name}.snapshot"

    def _checker(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            python_module("node_agent.lab.leaks", *words),
            cwd=REPOSITORY,
            env=dict(os.environ),
            capture_output=True,
            text=True,
            check=False,
        )
