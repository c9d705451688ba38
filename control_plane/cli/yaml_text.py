"""Conversion of JSON values to YAML 1.2 in block style. A string that needs quotes is written as JSON, which is a
subset of YAML.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

_PLAIN: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+-]*(?: [A-Za-z0-9_./@+-]+)*")
"""Strings that YAML reads unchanged without quotes."""
_WORDS: Final = re.compile(r"(?i:true|false|yes|no|on|off|y|n|null)")
"""Strings that YAML 1.1 or 1.2 reads as a boolean or null if they are not quoted."""
# Characters that end a line or are not printable in YAML; JSON leaves them as they are.
_ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")


def yaml_text(value: object) -> str:
    """Return a decoded JSON value as a YAML document that ends with a line feed."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: object) -> Iterator[str]:
    match value:
        case Mapping() if value:
            for name, item in value.items():
                yield from _below(f"{_scalar(str(name))}:", item, indent=isinstance(item, Mapping))
        case [*items] if items:
            for item in items:
                yield from _item(item)
        case _:
            yield _scalar(value)


def _below(name: str, value: object, *, indent: bool) -> Iterator[str]:
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str) and value:
        yield name
        yield from (f"{'  ' if indent else ''}{line}" for line in _lines(value))
    else:
        yield f"{name} {_scalar(value)}"


def _item(value: object) -> Iterator[str]:
    first, *rest = _lines(value)
    yield f"- {first}"
    yield from (f"  {line}" for line in rest)


def _scalar(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and not _WORDS.fullmatch(value):
        return value
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", msgspec.json.encode(value).decode())
