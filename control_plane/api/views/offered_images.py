"""The guest images that a request may name: those in the settings of the API that receives it.

A body is validated as a whole, so that all objections are reported at once (ALC-5), and Pydantic cannot pass the
settings of the application to a validator. A context variable holds the images while a request is processed.
"""

from contextvars import ContextVar
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from control_plane.decisions.requests import image_offered
from control_plane.decisions.skus import IMAGES, Images
from events.values import ImageName

_offered: Final[ContextVar[Images]] = ContextVar("offered", default=IMAGES)


class Offering:
    """Middleware that makes the images of the settings available to the validators of each request."""

    def __init__(self, app: ASGIApp, images: Images) -> None:
        self._app, self._images = app, images

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        before = _offered.set(self._images)
        try:
            await self._app(scope, receive, send)
        finally:
            _offered.reset(before)


def image_offered_here(raw: str) -> ImageName:
    """Return the image name if the application offers this image. Raises `UnknownName`."""
    return image_offered(raw, _offered.get())
