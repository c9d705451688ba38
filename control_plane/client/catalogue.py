"""The operations of `/v1/skus`, `/v1/images` and `/v1/app-profiles`, which are the same for the three kinds of entries.

client.run(catalogue.SKUS.create("h200.one", bodies.SkuContent(vcpus=24, memory_mib=245760)))
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from control_plane.client.bodies import Because, Body
from control_plane.client.catalogue_answers import AppProfile, Image, Sku
from control_plane.client.exchange import Call, ListCall
from control_plane.client.paths import entry_path

T = TypeVar("T")
Content = Body | Mapping[str, Any]
"""Content of a version: `SkuContent`, `ImageContent` or `AppProfileContent` of `bodies`, or its JSON object."""


@dataclass(frozen=True, slots=True)
class Entries(Generic[T]):
    """The calls of one kind of entries. `path` is the path of the list of these entries, and `answer` the type of an
    entry in responses.
    """

    path: str
    answer: type[T]

    def all(self, *, state: str | None = None, at: str | None = None) -> ListCall[T]:
        """List the entries by name, each with its newest version. `state`: only `offered` or `retired` ones."""
        return ListCall(self.path, self.answer, {"state": state, "at": at})

    def one(self, name: str, *, version: int | None = None, at: str | None = None) -> Call[T]:
        """Return an entry: its newest version, or the given one."""
        return Call("GET", entry_path(self.path, name), self.answer, {"version": version, "at": at})

    def versions(self, name: str) -> ListCall[T]:
        """List the versions of an entry, oldest first."""
        return ListCall(entry_path(self.path, name, "versions"), self.answer)

    def create(self, name: str, content: Content) -> Call[T]:
        """Create an entry, with this content as its version 1."""
        fields = msgspec.to_builtins(content)
        return Call("POST", self.path, self.answer, body={"name": name, **fields})

    def publish(self, name: str, content: Content) -> Call[T]:
        """Publish a further version of an entry, with exactly this content."""
        return Call("PUT", entry_path(self.path, name), self.answer, body=content)

    def retire(self, name: str, reason: str) -> Call[T]:
        """Retire an entry, so that no new allocation can use it."""
        return Call("POST", entry_path(self.path, name, "retire"), self.answer, body=Because(reason=reason))


SKUS: Final = Entries("/v1/skus", Sku)
IMAGES: Final = Entries("/v1/images", Image)
APP_PROFILES: Final = Entries("/v1/app-profiles", AppProfile)
