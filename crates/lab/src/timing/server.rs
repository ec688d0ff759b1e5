//! The timing server: it sends blocks as fast as the client takes them, counts received bytes, and
//! echoes stamps.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::TimingError;
use super::wire::{self, BLOCK, Blocks, Mode, PAIR, REPORT_EVERY, STAMP};

/// Connections at once; more wait.
const MAX_CONNECTIONS: usize = 1024;

/// Time for a request, and that a connection may stand still.
const IDLE: Duration = Duration::from_secs(120);

/// A server that listens.
#[derive(Debug)]
pub struct TimingServer {
    listener: TcpListener,
}

impl TimingServer {
    /// Listens.
    pub async fn bind(address: SocketAddr) -> Result<Self, TimingError> {
        let listening = TcpListener::bind(address).await;
        let listener = listening.map_err(|source| TimingError::Listen {
            address: address.to_string(),
            source,
        })?;
        Ok(Self { listener })
    }

    /// Returns the listening address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves for as long as it is polled.
    pub async fn run(self) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                    // How a connection ends is the client's affair.
                    Ok((stream, _)) => drop(connections.spawn(serve(stream))),
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }
}

async fn serve(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let line = patient(wire::read_line(&mut read)).await?;
    let mode = Mode::of_request(&line);
    patient(write.write_all(wire::reply(mode).as_bytes())).await?;
    match mode {
        Ok(Mode::Download) => download(write).await,
        Ok(Mode::Upload) => upload(read, write).await,
        Ok(Mode::Echo) => echo(read, write).await,
        Err(_) => {
            write.shutdown().await?;
            // Closed over unread bytes, the connection would be reset and the answer with it.
            let ignored = &mut read.take(BLOCK as u64);
            patient(tokio::io::copy(ignored, &mut tokio::io::sink()))
                .await
                .map(drop)
        }
    }
}

async fn patient<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(IDLE, work)
        .await
        .map_err(|_| io::ErrorKind::TimedOut)?
}

async fn download(mut write: OwnedWriteHalf) -> io::Result<()> {
    let mut block = wire::new_block();
    loop {
        block[..STAMP].copy_from_slice(&wire::now().to_be_bytes());
        patient(write.write_all(&block)).await?;
    }
}

async fn upload(mut read: BufReader<OwnedReadHalf>, mut write: OwnedWriteHalf) -> io::Result<()> {
    let (mut blocks, mut total, mut age) = (Blocks::default(), 0_u64, 0_u64);
    let mut ticks = tokio::time::interval(REPORT_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut buffer = vec![0; 256 << 10];
    let mut last = Instant::now();
    loop {
        tokio::select! {
            count = read.read(&mut buffer) => {
                let count = count?;
                if count == 0 {
                    return Ok(());
                }
                (total, last) = (total + count as u64, Instant::now());
                blocks.take(&buffer[..count], |stamp| age = wire::now().saturating_sub(stamp));
            }
            _ = ticks.tick() => {
                if last.elapsed() > IDLE {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                patient(write.write_all(&pair(total, age))).await?;
            }
        }
    }
}

async fn echo(mut read: BufReader<OwnedReadHalf>, mut write: OwnedWriteHalf) -> io::Result<()> {
    let mut stamp = [0; STAMP];
    loop {
        match patient(read.read_exact(&mut stamp)).await {
            Ok(_) => {
                patient(write.write_all(&pair(u64::from_be_bytes(stamp), wire::now()))).await?
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

fn pair(first: u64, second: u64) -> [u8; PAIR] {
    let mut bytes = [0; PAIR];
    bytes[..STAMP].copy_from_slice(&first.to_be_bytes());
    bytes[STAMP..].copy_from_slice(&second.to_be_bytes());
    bytes
}
