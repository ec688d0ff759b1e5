"""A client and an origin for interop/h3.sh. The client is aioquic's HTTP/3, which accepts pushes."""

import asyncio
import http.server
import sys

PAGE = b"<!doctype html><link rel=stylesheet href=/style.css><img src=/image.png><p>page"
RESOURCES = {
    "/page": ("text/html", PAGE),
    "/style.css": ("text/css", b"p { color: red }" * 4000),
    "/image.png": ("image/png", b"image" * 20_000),
}


class Origin(http.server.BaseHTTPRequestHandler):
    """Serves a page with two resources, and sends back the bodies of POST requests."""

    protocol_version = "HTTP/1.1"

    def respond(self, kind, body):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        early = self.headers.get("early-data", "")
        if path == "/early":
            return self.respond("text/plain", early.encode())
        self.respond(*RESOURCES.get(path, ("text/plain", self.path.encode())))

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.respond("text/plain", body + self.headers.get("early-data", "").encode())

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    """Accepts many connections at once. The default of five makes clients wait for seconds."""

    request_queue_size = 256


def serve():
    server = Server(("127.0.0.1", 0), Origin)
    print(f"127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


def client_class():
    from aioquic.asyncio.protocol import QuicConnectionProtocol
    from aioquic.h3 import events
    from aioquic.h3.connection import H3Connection
    from aioquic.quic.events import ConnectionTerminated

    class Client(QuicConnectionProtocol):
        """Sends requests, and collects responses and pushes."""

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            # This also makes aioquic announce datagrams.
            self.http = H3Connection(self._quic, enable_webtransport=True)
            self.datagrams = []
            self.messages = {}
            # The promised paths by push, and the finished pushes with their bodies.
            self.promised = {}
            self.pushed = {}
            self.changed = asyncio.Event()
            self.ended = None

        def quic_event_received(self, event):
            if isinstance(event, ConnectionTerminated):
                self.ended = event
            for seen in self.http.handle_event(event):
                if isinstance(seen, events.PushPromiseReceived):
                    self.promised[seen.push_id] = dict(seen.headers)[b":path"].decode()
                    continue
                if isinstance(seen, events.DatagramReceived):
                    self.datagrams.append((seen.stream_id, seen.data))
                    continue
                push = getattr(seen, "push_id", None)
                key = ("push", push) if push is not None else seen.stream_id
                message = self.messages.setdefault(key, {"head": {}, "body": b"", "end": False})
                if isinstance(seen, events.HeadersReceived):
                    message["head"].update(dict(seen.headers))
                elif isinstance(seen, events.DataReceived):
                    message["body"] += seen.data
                message["end"] |= seen.stream_ended
                if push is not None and message["end"]:
                    self.pushed[push] = message["body"]
            self.changed.set()

        def request(self, method, authority, path, body=b""):
            stream = self._quic.get_next_available_stream_id()
            head = [
                (b":method", method.encode()),
                (b":scheme", b"https"),
                (b":authority", authority.encode()),
                (b":path", path.encode()),
                (b"accept", b"text/html"),
            ]
            if body:
                head.append((b"content-length", str(len(body)).encode()))
            self.http.send_headers(stream, head, end_stream=not body)
            if body:
                self.http.send_data(stream, body, end_stream=True)
            self.transmit()
            return stream

        def tunnel(self, authority, host, port):
            """Asks for a tunnel of UDP datagrams (RFC 9298)."""
            stream = self._quic.get_next_available_stream_id()
            head = [
                (b":method", b"CONNECT"),
                (b":protocol", b"connect-udp"),
                (b":scheme", b"https"),
                (b":authority", authority.encode()),
                (b":path", f"/.well-known/masque/udp/{host}/{port}/".encode()),
                (b"capsule-protocol", b"?1"),
            ]
            self.http.send_headers(stream, head)
            self.transmit()
            return stream

        async def until(self, done):
            while not done():
                if self.ended:
                    raise SystemExit(f"the connection ended: {self.ended}")
                self.changed.clear()
                await self.changed.wait()

        async def response(self, stream):
            await self.until(lambda: self.messages.get(stream, {}).get("end"))
            return self.messages[stream]

    return Client


def check(condition, problem):
    if not condition:
        raise SystemExit(problem)


async def get(client, authority):
    message = await client.response(client.request("GET", authority, "/plain?a=b"))
    check(message["head"][b":status"] == b"200", message["head"])
    check(message["body"] == b"/plain?a=b", message["body"])


async def post(client, authority):
    body = bytes(range(256)) * 8192
    message = await client.response(client.request("POST", authority, "/", body))
    check(message["body"] == body, f"{len(message['body'])} of {len(body)} bytes")


async def many(client, authority):
    asked = [client.request("GET", authority, f"/{number}") for number in range(100)]
    for number, stream in enumerate(asked):
        message = await client.response(stream)
        check(message["body"] == f"/{number}".encode(), message)


async def push(client, authority):
    message = await client.response(client.request("GET", authority, "/page"))
    check(message["body"] == PAGE, message)
    await client.until(lambda: len(client.pushed) >= 2)
    found = {client.promised[push]: body for push, body in client.pushed.items()}
    for path in ["/style.css", "/image.png"]:
        check(found.get(path) == RESOURCES[path][1], f"{path} was not pushed: {list(found)}")
    # The session goes on.
    await get(client, authority)


class Echo(asyncio.DatagramProtocol):
    """Sends back each datagram."""

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.transport.sendto(data, address)


async def datagrams(client, authority):
    loop = asyncio.get_running_loop()
    echo, _ = await loop.create_datagram_endpoint(Echo, local_addr=("127.0.0.1", 0))
    stream = client.tunnel(authority, *echo.get_extra_info("sockname"))
    await client.until(lambda: stream in client.messages)
    head = client.messages[stream]["head"]
    check(head[b":status"] == b"200", head)
    check(client.http.received_settings.get(0x33) == 1, client.http.received_settings)
    # The first byte is the context ID of UDP payloads.
    client.http.send_datagram(stream, b"\0hello")
    client.transmit()
    await client.until(lambda: client.datagrams)
    check(client.datagrams == [(stream, b"\0hello")], client.datagrams)
    # A capsule works too, and its answer comes as a datagram.
    client.http.send_data(stream, b"\0\x03\0hi", end_stream=False)
    client.transmit()
    await client.until(lambda: len(client.datagrams) == 2)
    check(client.datagrams[1] == (stream, b"\0hi"), client.datagrams)
    # The answer to a long datagram does not fit into a packet, and comes as a capsule.
    capsule = b"\0" + (0x4000 + 5001).to_bytes(2, "big") + b"\0" + b"x" * 5000
    client.http.send_data(stream, capsule, end_stream=False)
    client.transmit()
    await client.until(lambda: len(client.messages[stream]["body"]) >= len(capsule))
    check(client.messages[stream]["body"] == capsule, "another capsule")
    client.http.send_data(stream, b"", end_stream=True)
    client.transmit()
    await client.response(stream)


async def early(client, authority):
    message = await client.response(client.request("GET", authority, "/early"))
    check(client._quic.tls.early_data_accepted, "the early data was rejected")
    # aioquic sends its settings after the handshake, and the gateway waits for them.
    check(message["head"][b":status"] == b"200", message["head"])
    later = await client.response(client.request("GET", authority, "/early"))
    check(later["body"] == b"", later)


async def unsafe(client, authority):
    message = await client.response(client.request("POST", authority, "/early", b"x"))
    check(client._quic.tls.early_data_accepted, "the early data was rejected")
    check(message["body"] == b"x", message)


async def again(client, authority):
    message = await client.response(client.request("GET", authority, "/early"))
    check(not client._quic.tls.early_data_accepted, "a ticket was accepted twice")
    check(message["body"] == b"", message)


CASES = {"get": get, "post": post, "many": many, "push": push, "datagrams": datagrams}
# The clients of these cases return with a ticket, and send their first request early.
RETURNING = {"early": [early], "unsafe": [unsafe], "again": [early, again]}


async def run(address, ca, case):
    from aioquic.asyncio.client import connect
    from aioquic.quic.configuration import QuicConfiguration

    host, port = address.rsplit(":", 1)
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=["h3"], max_datagram_frame_size=65535
    )
    configuration.load_verify_locations(ca)
    tickets = []

    async def visit(act, early):
        connecting = connect(
            host,
            int(port),
            configuration=configuration,
            create_protocol=client_class(),
            session_ticket_handler=tickets.append,
            # The first packets then carry the request.
            wait_connected=not early,
        )
        async with connecting as client:
            await asyncio.wait_for(act(client, address), 60)

    if case in CASES:
        return await visit(CASES[case], False)
    await visit(get, False)
    check(tickets, "the gateway has issued no ticket")
    configuration.session_ticket = tickets[0]
    for act in RETURNING[case]:
        await visit(act, True)


if __name__ == "__main__":
    if sys.argv[1] == "origin":
        serve()
    else:
        asyncio.run(run(*sys.argv[1:4]))
