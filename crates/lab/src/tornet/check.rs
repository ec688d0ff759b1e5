//! Fetching a page through the client's SOCKS socket, to know that the network carries traffic.

use std::io::{self, Read, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Most bytes read of a page.
const LONGEST: u64 = 1 << 16;

/// The result of a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Status line of the response.
    pub status: String,
    /// The time until SOCKS reported that the stream is open.
    pub connected: Duration,
    /// The time from the request to the first byte of the response.
    pub first_byte: Duration,
}

/// Opens a stream to `host`:`port` through a SOCKS5 server on a unix socket (RFC 1928).
pub fn connect(socks: &Path, host: &str, port: u16, timeout: Duration) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socks)?;
    stream.set_read_timeout(Some(timeout))?;
    let len = u8::try_from(host.len())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "host name too long"))?;
    let mut request = vec![5, 1, 0, 5, 1, 0, 3, len];
    request.extend_from_slice(host.as_bytes());
    request.extend(port.to_be_bytes());
    stream.write_all(&request)?;
    let mut head = [0; 6];
    stream.read_exact(&mut head)?;
    if head[..2] != [5, 0] || head[3] != 0 {
        return Err(io::Error::other(format!(
            "SOCKS refused {host}:{port} with code {}",
            head[3]
        )));
    }
    // Address types 1 and 4; answers on a unix socket have the second.
    let rest = if head[5] == 4 { 18 } else { 6 };
    stream.read_exact(&mut [0; 18][..rest])?;
    Ok(stream)
}

/// Fetches `/` of an HTTP/1.1 server.
pub fn fetch(socks: &Path, host: &str, timeout: Duration) -> io::Result<Fetched> {
    let start = Instant::now();
    let mut stream = connect(socks, host, 80, timeout)?;
    let connected = start.elapsed();
    let start = Instant::now();
    stream.write_all(
        format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut first = [0; 1];
    stream.read_exact(&mut first)?;
    let first_byte = start.elapsed();
    let mut rest = first.to_vec();
    stream.take(LONGEST).read_to_end(&mut rest)?;
    let text = String::from_utf8_lossy(&rest);
    let status = text.lines().next().unwrap_or_default().to_owned();
    if status.starts_with("HTTP/1.") {
        Ok(Fetched {
            status,
            connected,
            first_byte,
        })
    } else {
        Err(io::Error::other(format!("not HTTP: {status:?}")))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Runs a SOCKS server that gives `answers` in turn, one per read.
    fn against(answers: &'static [&'static [u8]], name: &str) -> io::Result<Fetched> {
        let path = std::env::temp_dir().join(format!("tandem-socks-{name}-{}", std::process::id()));
        let listener = UnixListener::bind(&path)?;
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("the test connects");
            for answer in answers {
                let read = stream.read(&mut [0; 1000]).expect("the test writes");
                assert!(read > 0);
                stream.write_all(answer).expect("the test reads");
            }
        });
        let result = fetch(&path, "site1.test", Duration::from_secs(10));
        server.join().expect("no assertion failed");
        std::fs::remove_file(&path)?;
        result
    }

    #[test]
    fn reads_both_forms_of_socks_replies() {
        const HTTP: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";
        let v4 = against(&[b"\x05\x00\x05\x00\x00\x01abcdef", HTTP], "v4").expect("served");
        let v6 =
            against(&[b"\x05\x00\x05\x00\x00\x04abcdefghijklmnopqr", HTTP], "v6").expect("served");
        assert_eq!(
            (v4.status, v6.status),
            (
                "HTTP/1.1 204 No Content".into(),
                "HTTP/1.1 204 No Content".into()
            )
        );
    }

    #[test]
    fn refusals_are_errors() {
        let error =
            against(&[b"\x05\x00\x05\x04\x00\x01abcdef"], "no").expect_err("host unreachable");
        assert!(error.to_string().contains("code 4"), "{error}");
    }
}
