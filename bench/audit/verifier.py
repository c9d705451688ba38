"""The verifying side of the audit benchmark: verifies one export on one core, and answers with the time it took."""

import os
import sys
import time
from pathlib import Path

import msgspec

from control_plane.audit.heads import trusted_keys
from control_plane.audit.verify import verify_export
from control_plane.identity.sealing import read_signer


class VerifierSettings(msgspec.Struct):
    """The first line of standard input: paths of the export, of the private sealing key, and of the kept heads."""

    export: str
    key: str
    heads: str


class Verified(msgspec.Struct):
    """The result: number of rows, seconds, and the first differences."""

    rows: int
    seconds: float
    differences: list[str]


def _run() -> None:
    settings = msgspec.json.decode(sys.stdin.readline(), type=VerifierSettings)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    keys = trusted_keys([read_signer(Path(settings.key)).public])
    kept = Path(settings.heads).read_text().splitlines()
    began = time.perf_counter()
    verdict = verify_export(Path(settings.export), keys, kept)
    answer = Verified(
        verdict.rows, time.perf_counter() - began, [each.what for each in verdict.differences[:10]]
    )
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _run()
