"""Complete `./dev up` for a test: real servers, the programs of the control plane as processes, real lab nodes, and
real guests.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.embedded.layout import Layout
from deploy.embedded.site import running_site
from tests.faults.programs import REPLICAS, Lab
from tests.servers.lab import kept_folder
from tests.servers.postgres import server_folder


@contextmanager
def running_lab() -> Iterator[Lab]:
    """Run a control plane with two replicas of every program, and two lab nodes with approved slots."""
    with server_folder() as state, running_site(state, kept_folder() / "images", replicas=REPLICAS) as site:
        yield Lab(site.layout, site.stack, site.key, nodes=site.nodes)


def traces(layout: Layout) -> list[str]:
    """Return everything that a run of `./dev up` with this state folder has left on this machine: processes, links,
    mounts, its run folder.
    """
    left = [f"process {pid}: {line}" for pid, line in _processes() if str(layout.state) in line]
    links = json.loads(
        subprocess.run(["ip", "-j", "link"], capture_output=True, check=True, text=True).stdout
    )
    left += [f"link {link['ifname']}" for link in links if link["ifname"].startswith(f"sl-{layout.run_id}")]
    left += [f"folder {layout.run}"] if layout.run.exists() else []
    mounts = Path("/proc/mounts").read_text().splitlines()
    return left + [f"mount {line}" for line in mounts if str(layout.state) in line]


def _processes() -> list[tuple[int, str]]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        found.append((int(entry.name), line))
    return found
