//! Inputs that crash or confuse the original library. Each ends in RST_STREAM or GOAWAY, and the
//! server goes on.

use std::io::{Read as _, Write as _};

use bytes::BytesMut;
use tandem_spdy::Version;
use tandem_spdy::frame::{Data, Frame, FrameReader, Headers, Piece, RstStream, SynStream};
use tandem_spdy::header_block::{Block, Encoder, HeaderCompression};

use crate::build::Server;
use crate::client::{Client, connect, get};
use crate::ended::{check, server};
use crate::served::file_server;

/// Control frames that end something, as the server sent them.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Reset(u32),
    GoAway(u32),
    Reply,
}

/// Sends bytes and our end, and reads everything up to the server's end.
fn tell(server: &Server, bytes: &[u8]) -> Vec<Seen> {
    let mut socket = connect(server.port);
    socket.write_all(bytes).expect("the server reads");
    let mut reader = FrameReader::new(1 << 20);
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let Ok(count @ 1..) = socket.read(&mut buffer) else {
            return seen;
        };
        let mut input = &buffer[..count];
        while let Some(piece) = reader.next(&mut input) {
            let Piece::Control(kind, head, payload) = piece else {
                continue;
            };
            match Frame::load(kind, head.flags, payload.as_ref()).expect("a legal frame") {
                Frame::RstStream(frame) => seen.push(Seen::Reset(frame.status)),
                Frame::GoAway(frame) => seen.push(Seen::GoAway(frame.status)),
                Frame::SynReply(_) => seen.push(Seen::Reply),
                _ => {}
            }
        }
        // A stream error leaves the session open: this is the client's end.
        if !seen.is_empty() && !matches!(seen.last(), Some(Seen::GoAway(_))) {
            let _ = socket.shutdown(std::net::Shutdown::Write);
        }
    }
}

fn request(encoder: &mut Encoder, stream: u32, fin: bool) -> Vec<u8> {
    let mut block = Block::new();
    for (name, value) in [
        (":method", "GET"),
        (":path", "/1000"),
        (":version", "HTTP/1.1"),
        (":host", "site.example"),
        (":scheme", "http"),
    ] {
        block.push(name.as_bytes(), &[value.as_bytes()], 0, false);
    }
    let mut compressed = Vec::new();
    encoder.encode(&block, &mut compressed);
    syn_stream(stream, fin, &compressed)
}

fn syn_stream(stream: u32, fin: bool, block: &[u8]) -> Vec<u8> {
    let mut wire = BytesMut::new();
    SynStream {
        stream,
        associated: 0,
        priority: 3,
        slot: 0,
        fin,
        unidirectional: false,
        block,
    }
    .encode(&mut wire);
    wire.to_vec()
}

/// A zlib stream in stored form of the names and values `plain`, whatever they are.
fn stored(plain: &[u8]) -> Vec<u8> {
    let mut encoder = Encoder::new(HeaderCompression::Off);
    let mut block = Vec::new();
    encoder.encode(&Block::new(), &mut block);
    // The head of the zlib stream with the number of the dictionary. A stored block follows: its
    // length, the complement, and the bytes.
    block.truncate(6);
    let length = plain.len() as u16;
    block.push(0);
    block.extend(length.to_le_bytes());
    block.extend((!length).to_le_bytes());
    block.extend(plain);
    block
}

#[test]
fn forged_lengths_in_headers_reset_the_stream() {
    let server = file_server("forged", &["raw"]);
    for plain in [
        &[0, 0, 0, 1, 0x7f, 0xff, 0xff, 0xff, b'a'][..],
        &[0xff, 0xff, 0xff, 0xff],
        &[0, 0, 0, 2, 0, 0, 0, 1, b'a', 0xff, 0xff, 0xff, 0xff],
        &[0, 0],
    ] {
        let seen = tell(&server, &syn_stream(1, true, &stored(plain)));
        assert_eq!(seen, [Seen::Reset(1)], "{plain:?}");
    }
    server.stop();
}

#[test]
fn headers_frame_of_a_client_is_inflated() {
    let server = file_server("headers", &["raw"]);
    let mut encoder = Encoder::new(HeaderCompression::Full);
    let mut wire = request(&mut encoder, 1, false);
    let mut block = Block::new();
    block.push(b"x-more", &[b"1"], 0, false);
    let mut compressed = Vec::new();
    encoder.encode(&block, &mut compressed);
    let mut frame = BytesMut::new();
    Headers {
        stream: 1,
        fin: true,
        block: &compressed,
    }
    .encode(&mut frame);
    wire.extend(&frame);
    // The original crashes here.
    wire.extend(request(&mut encoder, 3, true));
    let mut seen = tell(&server, &wire);
    seen.dedup();
    assert_eq!(seen, [Seen::Reply]);
    server.stop();
}

#[test]
fn broken_sessions_end_with_goaway() {
    let server = file_server("goaway", &["raw"]);
    let even = request(&mut Encoder::new(HeaderCompression::Full), 2, true);
    for bytes in [
        // SPDY/2.
        &[0x80, 2, 0, 1, 1, 0, 0, 10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0][..],
        // No zlib stream.
        &syn_stream(1, true, &[0xff; 40]),
        // A stream number of the server.
        &even,
    ] {
        let seen = tell(&server, bytes);
        assert!(matches!(seen.last(), Some(Seen::GoAway(1..))), "{seen:?}");
    }
    server.stop();
}

#[test]
fn data_of_unknown_streams_and_large_frames_pass() {
    let server = file_server("data", &["raw"]);
    for (stream, len) in [(1 << 24 | 1, 10), (1, 8193), (5, 60_000)] {
        let mut frame = BytesMut::new();
        Data {
            stream,
            fin: false,
            len,
        }
        .encode(&mut frame);
        let mut wire = frame.to_vec();
        wire.resize(wire.len() + len as usize, 0);
        assert_eq!(tell(&server, &wire), [Seen::Reset(2)], "{stream} {len}");
    }
    let mut client = Client::connect(server.port, Version::V3);
    assert_eq!(client.fetch(&get("/1000")).status, 200);
    server.stop();
}

#[test]
fn request_that_is_reset_at_once_is_not_reported() {
    let mut server = server("at-once", &[]);
    let mut socket = connect(server.port);
    let mut encoder = Encoder::new(HeaderCompression::Full);
    let reset = |stream| {
        let mut wire = BytesMut::new();
        RstStream { stream, status: 5 }.encode(&mut wire);
        wire
    };
    // Each write is one segment.
    let mut wire = request(&mut encoder, 1, true);
    wire.extend(reset(1));
    wire.extend(request(&mut encoder, 3, false));
    socket.write_all(&wire).expect("the server reads");
    assert_eq!(server.line(), "request /1000");
    let mut wire = BytesMut::new();
    Data {
        stream: 3,
        fin: true,
        len: 1,
    }
    .encode(&mut wire);
    wire.extend([b'x']);
    wire.extend(reset(3));
    wire.extend(request(&mut encoder, 5, true));
    socket.write_all(&wire).expect("the server reads");
    assert_eq!(server.line(), "request /1000");
    // The server holds the requests of streams 3 and 5 only.
    check(&mut Client::connect(server.port, Version::V3));
    assert_eq!(server.line(), "cls 1 headers 0 queue 0");
    assert_eq!(server.line(), "cls 1 headers 0 queue 1");
    drop(socket);
    assert_eq!(server.line(), "closed");
    server.stop();
}
