"""Which images a request may name: those of its application.

A body is checked as a whole, so that every objection to it is told at once (ALC-5), and such a check cannot be handed
what its application was told. So that stands in a context variable while a request is answered.
"""

from contextvars import ContextVar
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from control_plane.decisions.requests import image_offered
from control_plane.decisions.skus import IMAGES, Images
from events.values import ImageName

_offered: Final[ContextVar[Images]] = ContextVar("offered", default=IMAGES)


class Offering:
    """Has every request of an application know these images."""

    def __init__(self, app: ASGIApp, images: Images) -> None:
        self._app, self._images = app, images

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        before = _offered.set(self._images)
        try:
            await self._app(scope, receive, send)
        finally:
            _offered.reset(before)


def image_offered_here(raw: str) -> ImageName:
    """Raises `UnknownName`."""
    return image_offered(raw, _offered.get())
