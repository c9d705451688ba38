"""The control plane's side of the conversation, as the tests script it: a real HTTP server on loopback.

The road through the real control plane is tested elsewhere; this one can be told to break at any byte.
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
    """`lose` closes the connection without an answer; `hold` keeps a stream open until the test is over."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    lose: bool = False
    hold: bool = False


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def route(self) -> str:
        return f"{self.method} {self.path.partition('?')[0]}"


class ScriptedPlane(ThreadingHTTPServer):
    """Answers each route with its replies in turn, the last one for ever; 404 for what was not scripted."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[Seen] = []
        self.news = threading.Condition()
        self.over = threading.Event()
        self._replies: defaultdict[str, list[Reply]] = defaultdict(list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answers(self, route: str, *replies: Reply) -> None:
        self._replies[route].extend(replies)

    def taken(self, seen: Seen) -> Reply:
        with self.news:
            self.seen.append(seen)
            self.news.notify_all()
        replies = self._replies[seen.route] or [problem(404, "no_such_route", "not in the script")]
        return replies.pop(0) if len(replies) > 1 else replies[0]

    def of(self, route: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.route == route]

    def await_request(self, route: str, times: int = 1) -> None:
        with self.news:
            asked = self.news.wait_for(lambda: len(self.of(route)) >= times, timeout=20)
            assert asked, f"nobody asked {route}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        plane = cast("ScriptedPlane", self.server)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        reply = plane.taken(Seen(self.command, self.path, dict(self.headers), body))
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
            plane.over.wait(60)

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815, the names that http.server calls

    def log_message(self, *_: object) -> None:
        pass


def document(body: object, status: int = 200) -> Reply:
    return Reply(json.dumps(body).encode(), status)


def page(*items: object, next_cursor: str | None = None) -> Reply:
    return document({"items": items, "next_cursor": next_cursor})


def problem(
    status: int, code: str, message: str, *more: tuple[str, str, str], retry_after: int | None = None
) -> Reply:
    reasons = [{"code": code, "message": message, "field": None}]
    reasons += [{"code": code, "message": message, "field": field} for code, message, field in more]
    body = {
        "type": "about:blank",
        "title": "It was refused",
        "status": status,
        "detail": "",
        "reasons": reasons,
    }
    headers = {"Content-Type": "application/problem+json"}
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)
    return Reply(json.dumps({**body, "request_id": "req-1"}).encode(), status, headers)


def stream(*events: dict[str, object], hold: bool = False) -> Reply:
    """Server-sent events; without `hold` the connection ends behind them."""
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
        plane.over.set()
        plane.shutdown()
        plane.server_close()
        thread.join()
