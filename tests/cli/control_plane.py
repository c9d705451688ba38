"""A scripted control plane: a real HTTP server on loopback that returns the replies a test defines.

Tests of the command line that do not need a scripted response use the real control plane. The scripted control plane
can close the connection after any byte of a response.
"""

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast


@dataclass(frozen=True)
class Reply:
    """Reply to one request. `lose` closes the connection without a response; `hold` keeps a stream open."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    lose: bool = False
    hold: bool = False


@dataclass(frozen=True)
class Request:
    """One request that the scripted control plane received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def route(self) -> str:
        return f"{self.method} {self.path.partition('?')[0]}"


class ScriptedPlane(ThreadingHTTPServer):
    """HTTP server that returns a route's replies in turn and repeats the last one; other routes return 404."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[Request] = []
        self.changed = threading.Condition()
        self.ended = threading.Event()
        self._replies: defaultdict[str, list[Reply]] = defaultdict(list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def script(self, route: str, *replies: Reply) -> None:
        self._replies[route].extend(replies)

    def next_reply(self, request: Request) -> Reply:
        with self.changed:
            self.received.append(request)
            self.changed.notify_all()
        replies = self._replies[request.route] or [
            problem(404, "no_such_route", "this route has no scripted reply")
        ]
        return replies.pop(0) if len(replies) > 1 else replies[0]

    def requests(self, route: str) -> list[Request]:
        return [request for request in self.received if request.route == route]

    def await_request(self, route: str, times: int = 1) -> None:
        with self.changed:
            arrived = self.changed.wait_for(lambda: len(self.requests(route)) >= times, timeout=20)
            assert arrived, f"{route} was requested fewer than {times} times"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        plane = cast("ScriptedPlane", self.server)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        reply = plane.next_reply(Request(self.command, self.path, dict(self.headers), body))
        self.close_connection = True
        if reply.lose:
            return
        self.send_response(reply.status)
        for name, value in {
            "Content-Type": "application/json",
            "Connection": "close",
            **reply.headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)
        self.wfile.flush()
        if reply.hold:
            plane.ended.wait(60)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815, http.server calls these names

    def log_message(self, *_: object) -> None:
        pass


def document(body: object, status: int = 200) -> Reply:
    return Reply(json.dumps(body).encode(), status)


def page(*items: object, next_cursor: str | None = None) -> Reply:
    return document({"items": items, "next_cursor": next_cursor})


def problem(
    status: int,
    code: str,
    message: str,
    *more: tuple[str, str, str],
    retry_after: int | None = None,
    hint: str | None = None,
) -> Reply:
    reasons = [{"code": code, "message": message, "field": None}]
    reasons += [{"code": code, "message": message, "field": field} for code, message, field in more]
    body = {
        "type": "about:blank",
        "title": "Request refused",
        "status": status,
        "detail": "",
        "reasons": reasons,
        **({} if hint is None else {"hint": hint}),
    }
    headers = {"Content-Type": "application/problem+json"}
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)
    return Reply(json.dumps({**body, "request_id": "req-1"}).encode(), status, headers)


def stream(*events: dict[str, object], hold: bool = False) -> Reply:
    """Return a reply with these server-sent events. Without `hold`, it closes the connection after the last event."""
    lines = [": welcome\n\n"]
    lines += [
        f"id: 1.{each['position']}\nevent: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events
    ]
    return Reply("".join(lines).encode(), headers={"Content-Type": "text/event-stream"}, hold=hold)


@contextmanager
def running_plane() -> Iterator[ScriptedPlane]:
    plane = ScriptedPlane()
    thread = threading.Thread(target=plane.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield plane
    finally:
        plane.ended.set()
        plane.shutdown()
        plane.server_close()
        thread.join()
