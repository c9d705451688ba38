"""Leak check of `up --once`: run the separate leak checker before and after, with one snapshot per node."""

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
    """Comparison of every node with its snapshot, by a separate program that does not rely on the agent."""

    layout: Layout
    nodes: Nodes
    redis_url: str
    screen: Screen

    def snapshot(self) -> None:
        """Save a snapshot of the objects on each node. Raises `CalledProcessError` if the leak checker fails."""
        write_private_text(self.layout.redis_url_file, self.redis_url)
        for name in NODES:
            target = self.nodes.leak_target(name)
            self._checker("snapshot", "--out", str(self._file(name)), *target).check_returncode()

    def compare(self) -> bool:
        """Compare each node with its snapshot, and print all differences. Return True if there is none."""
        clean = True
        for name in NODES:
            done = self._checker("compare", str(self._file(name)))
            self.screen.show(f"leak check of {name}:")
            for line in done.stdout.splitlines():
                self.screen.detail(line)
            if done.stderr:
                self.screen.detail(done.stderr.strip())
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
