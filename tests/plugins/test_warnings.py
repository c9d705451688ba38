"""Tests of the warnings that fail a test."""

import gc
import socket
import warnings


class _Owner:
    """An object that only the garbage collector deletes, with a socket that nothing closes."""

    def __init__(self) -> None:
        self.itself = self
        self.socket = socket.socket()


def test_unclosed_socket_fails_no_test_in_which_it_is_collected() -> None:
    """Hypothesis makes warnings errors for a moment, in which the socket of an earlier test can be collected."""
    _Owner()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gc.collect()
