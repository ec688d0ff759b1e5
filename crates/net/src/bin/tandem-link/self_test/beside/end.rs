//! The end behind the other emulator: it sends and receives as the comparison tells it.

use super::super::{FULL, Failure, PROBE_PRIORITY};
use super::*;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};
use tandem_net::emulator::sys::{self};

/// The end inside.
pub(crate) fn run_end(arguments: &EndArguments) -> Result<ExitCode, Failure> {
    let host = host_around()?;
    let address = SocketAddr::new(host, arguments.port);
    let time = Duration::from_millis(arguments.time);
    if arguments.task == Task::Bulk {
        exchange(address, arguments.secret, time)?;
    } else {
        let sink = SocketAddr::new(host, arguments.sink);
        send_probes(
            address,
            (arguments.task == Task::ProbeBeside).then_some(sink),
            arguments.secret,
            time,
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn exchange(address: SocketAddr, secret: u64, time: Duration) -> io::Result<()> {
    let connect = |kind: u8| -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(address)?;
        let mut greeting = secret.to_be_bytes().to_vec();
        greeting.push(kind);
        stream.write_all(&greeting)?;
        Ok(stream)
    };
    send(&mut connect(b'u')?, time)?;
    receive(&mut connect(b'd')?)?;
    let mut stream = connect(b'c')?;
    stream.write_all(&processor_time()?.0.to_be_bytes())?;
    // The link ends with this process: not before all has come.
    stream.read_to_end(&mut Vec::new()).map(drop)
}

pub(super) fn send_probes(
    to: SocketAddr,
    beside: Option<SocketAddr>,
    secret: u64,
    time: Duration,
) -> Result<(), Failure> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let start = Instant::now();
    let bulk = beside.map(|sink| {
        let socket = socket.try_clone();
        thread::spawn(move || {
            at_intervals(start, count(time, BULK_GAP), BULK_GAP, || {
                socket
                    .as_ref()
                    .map_err(|error| error.kind())?
                    .send_to(&[0; FULL], sink)
                    .map(drop)
            })
        })
    });
    at_intervals(start, count(time, GAP), GAP, || {
        let mut datagram = [0; 100];
        datagram[..8].copy_from_slice(&secret.to_be_bytes());
        datagram[8..16].copy_from_slice(&stamp().to_be_bytes());
        socket.send_to(&datagram, to).map(drop)
    })?;
    bulk.map_or(Ok(Ok(())), thread::JoinHandle::join)
        .map_err(|_| "a thread panicked")??;
    // The packets in the link would be lost with it.
    thread::sleep(LAST);
    Ok(())
}

pub(super) fn at_intervals(
    start: Instant,
    count: u32,
    gap: Duration,
    mut send: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    let _ = sys::use_realtime(PROBE_PRIORITY);
    let _ = sys::use_exact_timers();
    for number in 0..count {
        let wait = (gap * number).saturating_sub(start.elapsed());
        if !wait.is_zero() {
            thread::sleep(wait);
        }
        send()?;
    }
    Ok(())
}
