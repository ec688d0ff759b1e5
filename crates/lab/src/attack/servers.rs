//! The servers that this process plays: an honest origin, and the frame of malicious ones.

use std::io::{self, BufRead};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::sync::oneshot;

/// The size of the origin's large answer, which slow readers ask for as `/large`.
pub const LARGE: usize = 4 << 20;
/// The number of connections that may wait until the honest origin accepts them. A gateway opens
/// 640 connections at once for ten sessions. With a short queue the kernel would drop some of them,
/// and an honest user would wait for the kernel's retries instead of the gateway.
const BACKLOG: u32 = 4096;
/// The send buffer of the origin's connections in bytes. Otherwise the kernel would take megabytes
/// for each unread answer, and an honest user would wait while the origin copies them.
const SEND_BUFFER: u32 = 64 << 10;
/// The largest number of threads of one malicious server at once.
const MAX_THREADS: usize = 512;

/// An HTTP/1.1 origin that answers `ok`, and [`LARGE`] bytes at `/large`, until it is dropped. It
/// serves any number of connections on one thread, so it limits no user.
#[derive(Debug)]
pub struct HonestOrigin {
    /// The address on which it listens.
    pub address: SocketAddr,
    _running: oneshot::Sender<()>,
}

impl HonestOrigin {
    /// Starts the origin.
    pub fn start() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()?;
        let listener = runtime.block_on(async {
            let socket = TcpSocket::new_v4()?;
            socket.set_send_buffer_size(SEND_BUFFER)?;
            socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
            socket.listen(BACKLOG)
        })?;
        let address = listener.local_addr()?;
        let (running, dropped) = oneshot::channel::<()>();
        thread::Builder::new()
            .name("origin".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        _ = dropped => {}
                        () = accept(listener) => {}
                    }
                });
            })?;
        Ok(Self {
            address,
            _running: running,
        })
    }
}

async fn accept(listener: tokio::net::TcpListener) {
    let large: Arc<[u8]> = vec![b'l'; LARGE].into();
    while let Ok((stream, _)) = listener.accept().await {
        // An error is the end of a connection, which is the gateway's right.
        tokio::spawn(serve(stream, Arc::clone(&large)));
    }
}

async fn serve(stream: tokio::net::TcpStream, large: Arc<[u8]>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = tokio::io::BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).await? == 0 {
                return Ok(());
            }
        }
        let body = if head.starts_with("GET /large ") {
            &large[..]
        } else {
            b"ok"
        };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body).await?;
    }
}

/// Accepts connections on a thread for each until it is dropped.
#[derive(Debug)]
pub struct AcceptingServer {
    /// The address on which it listens.
    pub address: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl AcceptingServer {
    /// Starts a server that handles each connection by `serve`.
    pub fn start(
        serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let ended = Arc::new(AtomicBool::new(false));
        let (serve, stop) = (Arc::new(serve), Arc::clone(&ended));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                if Arc::strong_count(&serve) <= MAX_THREADS {
                    let serve = Arc::clone(&serve);
                    // An error is the end of a connection, which is the victim's right.
                    thread::spawn(move || drop(serve(stream)));
                }
            }
        });
        Ok(Self { address, ended })
    }
}

impl Drop for AcceptingServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
    }
}

/// Reads a request's head. Returns `None` at the end of the connection.
pub fn read_head(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut head = String::new();
    loop {
        let before = head.len();
        if reader.read_line(&mut head)? == 0 {
            return Ok(None);
        }
        if &head[before..] == "\r\n" {
            return Ok(Some(head));
        }
    }
}
