//! The origin of a soak, in this process. It serves pages, bodies that their URLs determine,
//! uploads with a returned sum, answers that break off, and an echo for tunnels.

use std::io;
use std::net::SocketAddr;

use bytes::{Buf, BytesMut};
use tandem_http::h1::{self, Decoder, Framing, Limits};
use tandem_http::{Method, Scheme};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::pattern::{self, Choice};

/// Bytes of a body that are made at a time.
const PIECE: usize = 16 << 10;

/// Resources of a page.
pub const RESOURCES: u64 = 6;

/// The addresses at which the origin listens.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// HTTP.
    pub http: SocketAddr,
    /// The echo.
    pub echo: SocketAddr,
}

/// A running origin; it ends when dropped.
#[derive(Debug)]
pub struct SoakOrigin {
    addresses: Addresses,
    tasks: [AbortHandle; 2],
}

impl SoakOrigin {
    /// Begins to listen on loopback.
    pub async fn start() -> io::Result<Self> {
        let (http, echo) = (
            TcpListener::bind("127.0.0.1:0").await?,
            TcpListener::bind("127.0.0.1:0").await?,
        );
        let addresses = Addresses {
            http: http.local_addr()?,
            echo: echo.local_addr()?,
        };
        let accept_http = async move {
            while let Ok((stream, _)) = http.accept().await {
                tokio::spawn(serve(stream));
            }
        };
        let accept_echo = async move {
            while let Ok((mut stream, _)) = echo.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    tokio::io::copy(&mut read, &mut write).await
                });
            }
        };
        Ok(Self {
            addresses,
            tasks: [
                tokio::spawn(accept_http).abort_handle(),
                tokio::spawn(accept_echo).abort_handle(),
            ],
        })
    }

    /// The addresses at which it listens.
    pub const fn addresses(&self) -> Addresses {
        self.addresses
    }
}

impl Drop for SoakOrigin {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// The paths and seeds of a page's resources.
pub fn resources(page: u64) -> impl Iterator<Item = (String, u64, usize)> {
    let mut choice = Choice::new(page);
    (0..RESOURCES).map(move |number| {
        let (seed, length) = (choice.number() >> 16, 200 + choice.below(60_000) as usize);
        let ending = if number == 0 { "css" } else { "png" };
        (format!("/bytes/{seed}/{length}.{ending}"), seed, length)
    })
}

/// The HTML of a page.
pub fn page(number: u64) -> String {
    let mut text = String::from("<!doctype html><title>page</title>");
    for (path, ..) in resources(number) {
        text += &if path.ends_with("css") {
            format!("<link rel=stylesheet href=\"{path}\">")
        } else {
            format!("<img src=\"{path}\">")
        };
    }
    text
}

/// A sum of the bytes of an upload (FNV-1a).
pub fn sum(before: u64, data: &[u8]) -> u64 {
    data.iter().fold(before, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The sum of an empty body.
pub const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

async fn serve(mut stream: TcpStream) -> io::Result<()> {
    let mut buf = BytesMut::new();
    loop {
        let parsed = h1::parse_request(&buf, Scheme::Http, &Limits::default())
            .map_err(|bad| io::Error::other(bad.to_string()))?;
        let Some((request, used)) = parsed else {
            if stream.read_buf(&mut buf).await? == 0 {
                return Ok(());
            }
            continue;
        };
        buf.advance(used);
        let received = read_body(&mut stream, &mut buf, request.framing).await?;
        if !answer(
            &mut stream,
            &request.head.method,
            &request.head.path,
            received,
        )
        .await?
        {
            return Ok(());
        }
    }
}

/// Reads a request's body. Returns its length and sum.
async fn read_body(
    stream: &mut TcpStream,
    buf: &mut BytesMut,
    framing: Framing,
) -> io::Result<(u64, u64)> {
    let mut decoder = Decoder::new(framing);
    let (mut length, mut total) = (0, EMPTY);
    while !decoder.is_done() {
        if buf.is_empty() && stream.read_buf(buf).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let decoded = decoder
            .decode(buf)
            .map_err(|bad| io::Error::other(bad.to_string()))?;
        let piece = buf.split_to(decoded.consumed);
        let data = &piece[decoded.data];
        (length, total) = (length + data.len() as u64, sum(total, data));
    }
    Ok((length, total))
}

/// Answers one request. Returns whether the connection goes on.
async fn answer(
    stream: &mut TcpStream,
    method: &Method,
    path: &str,
    (length, total): (u64, u64),
) -> io::Result<bool> {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let number = |text: &str| {
        let digits = text.split('.').next().unwrap_or_default();
        digits.parse::<u64>().unwrap_or_default()
    };
    match (method, &parts[..]) {
        (Method::Post, ["sum"]) => plain(stream, "text/plain", format!("{length} {total}")).await,
        (_, ["page", page_number]) => plain(stream, "text/html", page(number(page_number))).await,
        (_, ["bytes", seed, size]) => {
            let kind = if size.ends_with("css") {
                "text/css"
            } else {
                "image/png"
            };
            let (seed, size) = (number(seed), number(size) as usize);
            body(stream, kind, seed, size, size).await
        }
        (_, ["break", seed, size]) => {
            let (seed, size) = (number(seed), number(size) as usize);
            body(stream, "image/png", seed, size, size / 2).await?;
            Ok(false)
        }
        _ => plain(stream, "text/plain", String::new()).await,
    }
}

async fn plain(stream: &mut TcpStream, kind: &str, text: String) -> io::Result<bool> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    );
    stream.write_all(head.as_bytes()).await?;
    Ok(true)
}

/// Sends the first `sent` of `size` bytes; odd seeds go in chunks.
async fn body(
    stream: &mut TcpStream,
    kind: &str,
    seed: u64,
    size: usize,
    sent: usize,
) -> io::Result<bool> {
    let chunked = seed % 2 == 1;
    let framing = if chunked {
        "Transfer-Encoding: chunked".to_owned()
    } else {
        format!("Content-Length: {size}")
    };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{framing}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut at = 0;
    while at < sent {
        let data = pattern::bytes(seed, at as u64, PIECE.min(sent - at));
        if chunked {
            let size = format!("{:x}\r\n", data.len());
            stream.write_all(size.as_bytes()).await?;
        }
        stream.write_all(&data).await?;
        if chunked {
            stream.write_all(b"\r\n").await?;
        }
        at += data.len();
    }
    if chunked && sent == size {
        stream.write_all(b"0\r\n\r\n").await?;
    }
    Ok(true)
}
