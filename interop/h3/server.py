"""An origin over HTTP/3 from aioquic, which also pushes. It answers as bridge/peer.js does.

    python3 server.py CERT KEY [retry]      writes its address

With `retry` it validates the addresses of its clients before the handshake, by Retry packets.
"""

import asyncio
import sys

from aioquic.asyncio import serve
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import ErrorCode, H3Connection, HeadersState
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated, StreamReset

MIB = (b"tandem bridge " * (2**20 // 14 + 1))[: 2**20]


class Request:
    """The parts of a request that have arrived."""

    def __init__(self, headers):
        self.head = {name.decode(): value.decode() for name, value in headers}
        self.body = b""
        self.trailers = {}


class Origin(QuicConnectionProtocol):
    """Answers the requests of one connection."""

    # The requests of all connections that wait for each other.
    together = []

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = None
        self.requests = {}

    def quic_event_received(self, event):
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
        if isinstance(event, StreamReset):
            self.requests.pop(event.stream_id, None)
        if self.http is None:
            return
        for seen in self.http.handle_event(event):
            request = self.requests.get(seen.stream_id)
            if isinstance(seen, HeadersReceived) and request is None:
                request = self.requests[seen.stream_id] = Request(seen.headers)
            elif isinstance(seen, HeadersReceived):
                request.trailers = {name.decode(): value for name, value in seen.headers}
            elif isinstance(seen, DataReceived) and request is not None:
                request.body += seen.data
            if seen.stream_ended and self.requests.pop(seen.stream_id, None):
                self.answer(seen.stream_id, request)

    def answer(self, stream, request):
        method, path = request.head[":method"], request.head[":path"]
        if path == "/page":
            self.page(stream, request, method)
        elif path == "/large":
            self.respond(stream, 200, body=MIB)
        elif path == "/hints":
            self.head(stream, 103, [("link", "</style.css>; rel=preload; as=style")])
            # aioquic knows no interim responses, and would take the next head for trailers.
            self.http._get_or_create_stream(stream).headers_send_state = HeadersState.INITIAL
            self.respond(stream, 200, body=b"page")
        elif path == "/pushing":
            promise = [(name, request.head[name]) for name in (":scheme", ":authority")]
            promise += [(":method", "GET"), (":path", "/pushed")]
            promise = [(name.encode(), value.encode()) for name, value in promise]
            push = self.http.send_push_promise(stream, promise)
            self.respond(stream, 200, body=b"pushing")
            self.respond(push, 200, [("content-length", "6")], b"pushed")
        elif path == "/pushed":
            self.respond(stream, 200, body=b"requested")
        elif path == "/cut":
            self.head(stream, 200, [("content-length", "1000")])
            self.http.send_data(stream, b"half", end_stream=False)
            self._loop.call_later(0.1, self.cut, stream)
        elif path == "/together":
            self.together.append((self, stream))
            if len(self.together) == 100:
                for connection, waiting in self.together:
                    connection.respond(waiting, 200, body=b"together")
                    connection.transmit()
                self.together.clear()
        elif path == "/echo":
            self.head(stream, 200, [("trailer", "after, seen")])
            self.http.send_data(stream, request.body, end_stream=False)
            seen = request.trailers.get("sent", b"none")
            self.http.send_headers(stream, [(b"after", b"yes"), (b"seen", seen)], end_stream=True)
        else:
            self.respond(stream, 404)
        self.transmit()

    def page(self, stream, request, method):
        if request.head.get("if-none-match") == '"1"':
            return self.respond(stream, 304, [("etag", '"1"')])
        fields = [
            ("content-length", "4"),
            ("etag", '"1"'),
            ("seen-via", request.head.get("via", "none")),
            ("seen-test", request.head.get("test", "none")),
        ]
        self.respond(stream, 200, fields, b"" if method == "HEAD" else b"page")

    def respond(self, stream, status, fields=(), body=b""):
        self.head(stream, status, fields, end_stream=not body)
        if body:
            self.http.send_data(stream, body, end_stream=True)

    def head(self, stream, status, fields=(), end_stream=False):
        head = [(b":status", str(status).encode())]
        head += [(name.encode(), value.encode()) for name, value in fields]
        self.http.send_headers(stream, head, end_stream=end_stream)

    def cut(self, stream):
        self._quic.reset_stream(stream, ErrorCode.H3_INTERNAL_ERROR)
        self.transmit()


async def run(cert, key, retry=None):
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["h3"])
    configuration.load_cert_chain(cert, key)
    server = await serve(
        "127.0.0.1",
        0,
        configuration=configuration,
        create_protocol=Origin,
        retry=retry is not None,
    )
    address = server._transport.get_extra_info("sockname")
    print(f"{address[0]}:{address[1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
