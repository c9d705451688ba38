"""`sliceplane`, the command line: a client of the REST API that shares no code with the server."""

from control_plane.cli.program import program


def main() -> None:
    program(prog_name="sliceplane")


if __name__ == "__main__":
    main()
