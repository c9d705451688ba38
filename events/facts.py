"""What every fact is: a frozen record in the past tense that holds only what JSON holds exactly.

Fields are strings, integers, booleans, nulls, tuples and further records: no floats (they have no canonical
form) and no times of day beyond what the envelope says, except instants that are part of the fact itself,
which are `datetime` with a zone. Fields are added with a default or by a new schema version; an upcaster in
`events.upcasts` reads the old one for ever.
"""

import msgspec


# Frozen and made of values, facts form no rings; kept out of the collector's books, millions are read without its
# looking through them again and again (a rebuild takes half the time).
class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A part of a fact."""


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Something that happened and will not unhappen. Its stored name stands in `events.catalog`."""


class Reason(Record, frozen=True):
    """Why something was refused or failed."""

    code: str
    """For programs, in snake_case."""
    message: str
    """For people."""


class Unreadable(Fact, frozen=True):
    """Stands for a stored fact that this release cannot read, because a newer one wrote it or its row is damaged.

    It is never written. Who shows events shows it as it is stored; who decides by events must not go on over it.
    """

    type: str
    schema_version: int
    data: str
    error: str
