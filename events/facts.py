"""What every fact is: a frozen record in the past tense that holds only what JSON holds exactly.

Fields are strings, integers, booleans, nulls, tuples and further records: no floats (they have no canonical
form) and no times of day beyond what the envelope says, except instants that are part of the fact itself,
which are `datetime` with a zone. Fields are added with a default or by a new schema version; an upcaster in
`events.upcasts` reads the old one for ever.
"""

import msgspec


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a fact."""


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something that happened and will not unhappen. Its stored name stands in `events.catalog`."""


class Reason(Record, frozen=True):
    """Why something was refused or failed: `code` for programs (snake_case), `message` for people."""

    code: str
    message: str
