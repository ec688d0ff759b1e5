//! Benchmarks of the HTTP/2 core: small requests, large bodies, and header compression alone.

#[path = "../tests/h2/support.rs"]
mod h2_support;

use bytes::Buf;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use h2_support::{
    END_HEADERS, END_STREAM, HEADERS, PREFACE, Raw, SETTINGS, WINDOW_UPDATE, client_config,
    response, server_config,
};
use std::hint::black_box;
use std::time::Instant;
use tandem_http::fields::Field;
use tandem_http::h2::Connection;
use tandem_http::hpack::{Decoder, Encoder};
use tandem_http::{ByteMux, Bytes, Event, Mux, Priority, RequestHead, ResponseHead, SendBuf};

const LIMIT: usize = 16_384;

const REQUEST: [(&str, &str); 12] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "www.example.org"),
    (":path", "/assets/app/style.css?v=31"),
    (
        "user-agent",
        "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    ),
    ("accept", "text/css,*/*;q=0.1"),
    ("accept-language", "en-GB,en;q=0.5"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("referer", "https://www.example.org/index.html"),
    (
        "cookie",
        "session=0123456789abcdef0123456789abcdef; theme=dark",
    ),
    ("sec-fetch-dest", "style"),
    ("te", "trailers"),
];

fn request() -> RequestHead {
    let head = h2_support::get("/assets/app/style.css?v=31");
    h2_support::with_fields(head, &REQUEST[4..])
}

fn answer(size: usize) -> ResponseHead {
    let length = size.to_string();
    response(
        200,
        &[
            ("server", "origin/1.2"),
            ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
            ("content-type", "text/css; charset=utf-8"),
            ("content-length", &length),
            ("cache-control", "max-age=3600, public"),
            ("etag", "\"5f3759df-400\""),
            ("vary", "accept-encoding"),
        ],
    )
}

/// Two cores without any copying between them but the bytes themselves.
struct Link {
    client: Connection,
    server: Connection,
    now: Instant,
    up: SendBuf,
    down: SendBuf,
}

impl Link {
    fn new() -> Self {
        Self {
            client: Connection::new(client_config()),
            server: Connection::new(server_config()),
            now: Instant::now(),
            up: SendBuf::new(),
            down: SendBuf::new(),
        }
    }

    fn pass(core: &mut Connection, wire: &mut SendBuf, now: Instant) {
        while wire.has_remaining() {
            let len = wire.chunk().len();
            core.handle_input(now, wire.chunk()).expect("own bytes");
            wire.advance(len);
        }
    }

    /// Runs one exchange and returns the length of the body in bytes.
    fn exchange(&mut self, request: &RequestHead, answer: &ResponseHead, body: &Bytes) -> usize {
        self.client
            .open(request, true, Priority(3))
            .expect("a stream");
        self.client.poll_output(&mut self.up, LIMIT);
        Self::pass(&mut self.server, &mut self.up, self.now);
        while let Some(event) = self.server.poll_event() {
            if let Event::Request { id, .. } = event {
                self.server.respond(id, answer, false);
                self.server.send_data(id, body.clone(), true);
            }
        }
        let mut received = 0;
        while self.server.wants_output() {
            self.server.poll_output(&mut self.down, LIMIT);
            Self::pass(&mut self.client, &mut self.down, self.now);
            while let Some(event) = self.client.poll_event() {
                if let Event::Data { id, data, .. } = event {
                    received += data.len();
                    self.client.release(id, data.len());
                }
            }
            if self.client.wants_output() {
                self.client.poll_output(&mut self.up, LIMIT);
                Self::pass(&mut self.server, &mut self.up, self.now);
            }
        }
        received
    }
}

fn exchanges(c: &mut Criterion) {
    let request = request();
    let mut group = c.benchmark_group("pair");
    for (name, size) in [("get 1 kB", 1024), ("get 10 kB", 10_240)] {
        let (body, answer) = (h2_support::bytes(size), answer(size));
        let mut link = Link::new();
        group.throughput(Throughput::Elements(1));
        group.bench_function(name, |b| {
            b.iter(|| black_box(link.exchange(&request, &answer, &body)))
        });
    }
    let (body, answer) = (h2_support::bytes(1 << 20), answer(1 << 20));
    let mut link = Link::new();
    group.throughput(Throughput::Bytes(1 << 20));
    group.bench_function("body of 1 MB", |b| {
        b.iter(|| black_box(link.exchange(&request, &answer, &body)))
    });
    group.finish();
}

/// The server's half of a small exchange: the cost on the front of a gateway.
fn server_alone(c: &mut Criterion) {
    let mut peer = Raw::bare(client_config());
    let mut core = Connection::new(server_config());
    let now = Instant::now();
    core.handle_input(now, PREFACE).expect("the preface");
    core.handle_input(now, &h2_support::frame(SETTINGS, 0, 0, &[]))
        .expect("settings");
    let (mut out, answer, body, mut id) =
        (SendBuf::new(), answer(1024), h2_support::bytes(1024), 1u32);
    c.bench_function("server get 1 kB", |b| {
        b.iter_batched(
            || {
                let mut wire =
                    h2_support::frame(HEADERS, END_HEADERS | END_STREAM, id, &peer.block(&REQUEST));
                id += 2;
                if id % 64 == 1 {
                    wire.extend(h2_support::frame(
                        WINDOW_UPDATE,
                        0,
                        0,
                        &32_768u32.to_be_bytes(),
                    ));
                }
                wire
            },
            |wire| {
                core.handle_input(now, &wire).expect("a request");
                while let Some(event) = core.poll_event() {
                    if let Event::Request { id, .. } = event {
                        core.respond(id, &answer, false);
                        core.send_data(id, body.clone(), true);
                    }
                }
                core.poll_output(&mut out, LIMIT);
                out.advance(out.remaining());
            },
            BatchSize::SmallInput,
        );
    });
}

fn compression(c: &mut Criterion) {
    let size: usize = REQUEST.iter().map(|(n, v)| n.len() + v.len()).sum();
    let mut group = c.benchmark_group("hpack");
    group.throughput(Throughput::Bytes(size as u64));
    let encode = |encoder: &mut Encoder, out: &mut Vec<u8>| {
        out.clear();
        encoder.begin(out);
        for (name, value) in REQUEST {
            encoder.field(
                out,
                Field {
                    name: name.as_bytes(),
                    value: value.as_bytes(),
                    sensitive: false,
                },
            );
        }
    };
    let mut out = Vec::new();
    group.bench_function("encode, fresh table", |b| {
        b.iter_batched_ref(
            Encoder::new,
            |encoder| encode(encoder, &mut out),
            BatchSize::SmallInput,
        );
    });
    let fresh = out.clone();
    let mut encoder = Encoder::new();
    encode(&mut encoder, &mut out);
    encode(&mut encoder, &mut out);
    encode(&mut encoder, &mut out);
    group.bench_function("encode, known fields", |b| {
        b.iter(|| encode(&mut encoder, black_box(&mut out)))
    });
    group.bench_function("decode, fresh table", |b| {
        b.iter_batched_ref(
            Decoder::new,
            |decoder| {
                decoder
                    .decode(&fresh, |f| _ = black_box(f.value.len()))
                    .expect("own block")
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

criterion_group!(benches, exchanges, server_alone, compression);
criterion_main!(benches);
