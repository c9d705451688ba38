"""Conversion of the output of a guest into a text."""

from tasks.streams import text_of


def test_serial_output_bytes_that_json_or_the_api_refuse_are_replaced() -> None:
    assert text_of(b"a\x00b\xff\xc3\xa9\x1b[0m\r\n") == "a\ufffdb\ufffdé\x1b[0m\r\n"
