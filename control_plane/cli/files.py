"""Files that commands write."""

from collections.abc import Iterable
from pathlib import Path

from control_plane.cli.failures import WrongUsage


def write_new_file(file: Path, pieces: Iterable[bytes]) -> None:
    """Write a file that does not exist yet. Raises `WrongUsage` if it exists or cannot be written.

    If the pieces end with an error, the incomplete file is removed.
    """
    try:
        with file.open("xb") as target:
            try:
                for piece in pieces:
                    target.write(piece)
            except BaseException:
                file.unlink(missing_ok=True)
                raise
    except FileExistsError:
        raise WrongUsage(f"{file} exists already", "choose another name") from None
    except OSError as error:
        raise WrongUsage(f"{file} cannot be written: {error.strerror}", "choose another name") from error
