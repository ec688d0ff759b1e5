//! Frames and header blocks in bytes per second, and whole requests per second through two sessions
//! in memory.

use std::hint::black_box;
use std::time::Instant;

use bytes::{Buf as _, BytesMut};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tandem_http::{
    ByteMux as _, Event, Fields, Mux as _, MuxConfig, Priority, RequestHead, ResponseHead, Role,
    Scheme, SendBuf,
};
use tandem_spdy::frame::{Data, Frame, FrameReader, Piece, WindowUpdate};
use tandem_spdy::header_block::{Block, Decoder, Encoder, HeaderCompression};
use tandem_spdy::{Config, Connection, Version};

/// A browser's request.
const FIELDS: [(&str, &str); 6] = [
    (
        "user-agent",
        "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    ),
    (
        "accept",
        "image/avif,image/webp,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5",
    ),
    ("accept-language", "en-US,en;q=0.5"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("referer", "https://www.example.org/articles/2026/11/"),
    (
        "cookie",
        "session=0123456789abcdef0123456789abcdef; theme=dark",
    ),
];

fn block(number: usize) -> (Block, usize) {
    let mut block = Block::new();
    let path = format!("/images/gallery/picture-{number}.webp");
    let heads = [
        (":method", "GET"),
        (":path", &*path),
        (":version", "HTTP/1.1"),
        (":host", "www.example.org"),
        (":scheme", "https"),
    ];
    let mut len = 4;
    for (name, value) in heads.iter().chain(&FIELDS) {
        block.push(name.as_bytes(), &[value.as_bytes()], 0, false);
        len += 8 + name.len() + value.len();
    }
    (block, len)
}

fn frames(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("frames");
    let payload = vec![7; 8192];
    let mut wire = BytesMut::new();
    for stream in 0..64 {
        Data {
            stream,
            fin: false,
            len: 8192,
        }
        .encode(&mut wire);
        wire.extend_from_slice(&payload);
    }
    group.throughput(Throughput::Bytes(wire.len() as u64));
    group.bench_function("read DATA of 8 KiB", |bencher| {
        bencher.iter(|| read_all(&wire))
    });
    let mut wire = BytesMut::new();
    (0..4096).for_each(|stream| WindowUpdate { stream, delta: 9 }.encode(&mut wire));
    group.throughput(Throughput::Bytes(wire.len() as u64));
    group.bench_function("read WINDOW_UPDATE", |bencher| {
        bencher.iter(|| read_all(&wire))
    });
    group.bench_function("write WINDOW_UPDATE", |bencher| {
        let mut out = BytesMut::with_capacity(wire.len());
        bencher.iter(|| {
            out.clear();
            (0..4096).for_each(|stream| WindowUpdate { stream, delta: 9 }.encode(&mut out));
            black_box(out.len())
        });
    });
    group.finish();
}

fn read_all(wire: &[u8]) -> usize {
    let mut reader = FrameReader::new(8192);
    let (mut input, mut pieces) = (wire, 0);
    while let Some(piece) = reader.next(&mut input) {
        if let Piece::Control(kind, head, payload) = &piece {
            let _ = black_box(Frame::load(*kind, head.flags, payload.as_ref()));
        }
        pieces += 1;
        black_box(&piece);
    }
    pieces
}

fn header_blocks(criterion: &mut Criterion) {
    let blocks: Vec<_> = (0..200).map(block).collect();
    let plain: usize = blocks.iter().map(|(_, len)| len).sum();
    let settings = [
        ("full", HeaderCompression::Full),
        ("safe", HeaderCompression::Safe),
        ("off", HeaderCompression::Off),
    ];
    let mut group = criterion.benchmark_group("header blocks, plain bytes");
    group.throughput(Throughput::Bytes(plain as u64));
    for (name, setting) in settings {
        let encode = || {
            let mut encoder = Encoder::new(setting);
            let compress = |(block, _): &(Block, usize)| {
                let mut out = Vec::new();
                encoder.encode(block, &mut out);
                out
            };
            blocks.iter().map(compress).collect::<Vec<_>>()
        };
        group.bench_function(format!("compress {name}"), |bencher| bencher.iter(encode));
        let wire = encode();
        group.bench_function(format!("inflate {name}"), |bencher| {
            bencher.iter(|| {
                let mut decoder = Decoder::new(64 << 10);
                wire.iter()
                    .filter(|block| matches!(decoder.decode(block), Ok(Ok(_))))
                    .count()
            });
        });
    }
    group.finish();
}

struct Pair {
    client: Connection,
    server: Connection,
    now: Instant,
}

impl Pair {
    fn new() -> Self {
        let session = |role| Connection::new(Config::new(MuxConfig::new(role), Version::V31));
        Self {
            client: session(Role::Client),
            server: session(Role::Server),
            now: Instant::now(),
        }
    }

    fn request(&mut self, head: &RequestHead, response: &ResponseHead, body: &bytes::Bytes) {
        self.client
            .open(head, true, Priority::default())
            .expect("room");
        flow(&mut self.client, &mut self.server, self.now);
        while let Some(event) = self.server.poll_event() {
            if let Event::Request { id, .. } = event {
                self.server.respond(id, response, false);
                self.server.send_data(id, body.clone(), true);
            }
        }
        flow(&mut self.server, &mut self.client, self.now);
        while let Some(event) = self.client.poll_event() {
            if let Event::Data { id, data, .. } = event {
                self.client.release(id, data.len());
            }
        }
    }
}

fn flow(from: &mut Connection, to: &mut Connection, now: Instant) {
    let mut out = SendBuf::new();
    while from.wants_output() {
        from.poll_output(&mut out, usize::MAX);
    }
    let bytes = out.copy_to_bytes(out.remaining());
    to.handle_input(now, &bytes).expect("legal");
}

fn sessions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sessions");
    let mut head = RequestHead::get(Scheme::Https, "www.example.org", "/images/picture.webp");
    head.fields = FIELDS.into_iter().collect::<Fields>();
    let mut response = ResponseHead::new(200);
    for (name, value) in [
        ("content-type", "image/webp"),
        ("content-length", "1024"),
        ("date", "Fri, 20 Nov 2026 12:00:00 GMT"),
        ("etag", "\"5f3c-61d2\""),
        ("cache-control", "max-age=31536000"),
    ] {
        response.fields.push(name, value);
    }
    for len in [1024, 1 << 20] {
        let body = bytes::Bytes::from(vec![1; len]);
        let mut pair = Pair::new();
        group.throughput(if len == 1024 {
            Throughput::Elements(1)
        } else {
            Throughput::Bytes(len as u64)
        });
        group.bench_function(
            format!("request, answer of {len} bytes, both ends"),
            |bencher| {
                bencher.iter(|| pair.request(&head, &response, &body));
            },
        );
    }
    group.finish();
}

criterion_group!(benches, frames, header_blocks, sessions);
criterion_main!(benches);
