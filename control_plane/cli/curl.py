"""Requests as commands of curl, without the secret: the shell takes the key from SLICEPLANE_API_KEY."""

import shlex

import httpx

from control_plane.client.exchange import Prepared


def curl(request: Prepared, url: str, ca: str | None) -> str:
    """Return the command line of curl that sends a request to the control plane at `url`.

    `ca` is the shell word that names the CA file; None: the system's CAs.
    """
    target = str(httpx.Request(request.method, f"{url}{request.path}", params=request.params).url)
    words = ["curl", "--silent", "--show-error", "--fail-with-body"]
    if request.headers.get("Accept") == "text/event-stream":
        words.append("--no-buffer")
    if request.method != "GET":
        words += ["--request", request.method]
    if ca is not None:
        words += ["--cacert", ca]
    words += ["--header", '"Authorization: Bearer $SLICEPLANE_API_KEY"']
    for name, value in request.headers.items():
        words += ["--header", shlex.quote(f"{name}: {value}")]
    if request.content is not None:
        words += ["--data-raw", shlex.quote(request.content.decode())]
    return " ".join([*words, shlex.quote(target)])
