//! Measures the requests per second of a SPDY server over plain TCP.
//!
//! ```text
//! load PORT PATH CONNECTIONS STREAMS SECONDS      prints requests and megabytes per second
//! ```
//!
//! A single thread drives all connections, and each keeps STREAMS requests under way.

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::Buf as _;
use tandem_http::{
    ByteMux as _, Event, Mux as _, MuxConfig, Priority, RequestHead, Role, Scheme, SendBuf,
};
use tandem_spdy::{Config, Connection, Version};

/// A connection with its session.
struct Client {
    socket: TcpStream,
    session: Connection,
    out: SendBuf,
    done: u64,
    bytes: u64,
}

impl Client {
    fn connect(port: u16) -> Result<Self, Box<dyn Error>> {
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_nodelay(true)?;
        let config = Config::new(MuxConfig::new(Role::Client), Version::V3);
        Ok(Self {
            socket,
            session: Connection::new(config),
            out: SendBuf::new(),
            done: 0,
            bytes: 0,
        })
    }

    fn ask(&mut self, head: &RequestHead) -> Result<(), Box<dyn Error>> {
        self.session.open(head, true, Priority::default())?;
        Ok(())
    }

    /// Sends, waits for bytes once, and replaces each request that is complete.
    fn turn(&mut self, head: &RequestHead, buffer: &mut [u8]) -> Result<(), Box<dyn Error>> {
        self.session.poll_output(&mut self.out, usize::MAX);
        while self.out.has_remaining() {
            let count = self.socket.write(self.out.chunk())?;
            self.out.advance(count);
        }
        let count = self.socket.read(buffer)?;
        if count == 0 {
            return Err("the server closed the connection".into());
        }
        self.session
            .handle_input(Instant::now(), &buffer[..count])?;
        while let Some(event) = self.session.poll_event() {
            let ended = match event {
                Event::Response { end, .. } => end,
                Event::Data { id, data, end } => {
                    self.bytes += data.len() as u64;
                    self.session.release(id, data.len());
                    end
                }
                Event::Reset { reason, .. } => return Err(format!("reset: {reason:?}").into()),
                _ => false,
            };
            if ended {
                self.done += 1;
                self.ask(head)?;
            }
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, path, connections, streams, seconds] = &arguments[..] else {
        return Err("usage: load PORT PATH CONNECTIONS STREAMS SECONDS".into());
    };
    let head = RequestHead::get(Scheme::Http, "site.example", path.as_str());
    let time = Duration::from_secs_f64(seconds.parse()?);
    let mut clients = Vec::new();
    for _ in 0..connections.parse::<usize>()? {
        let mut client = Client::connect(port.parse()?)?;
        for _ in 0..streams.parse::<usize>()? {
            client.ask(&head)?;
        }
        clients.push(client);
    }
    let mut buffer = vec![0; 256 << 10];
    let start = Instant::now();
    while start.elapsed() < time {
        for client in &mut clients {
            client.turn(&head, &mut buffer)?;
        }
    }
    let taken = start.elapsed().as_secs_f64();
    let done: u64 = clients.iter().map(|client| client.done).sum();
    let bytes: u64 = clients.iter().map(|client| client.bytes).sum();
    let mut output = std::io::stdout();
    writeln!(
        output,
        "{:.0} requests/s, {:.1} MB/s",
        done as f64 / taken,
        bytes as f64 / taken / 1e6
    )?;
    Ok(())
}
