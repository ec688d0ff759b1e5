//! Sending a cached body without a copy (see [`crate::body_memory`]).

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::body_memory::BodyTail;

/// Writes the slices, of which the last are `tail`. It may write a part, as `write` does.
pub(super) fn poll_write(
    stream: &TcpStream,
    cx: &mut Context<'_>,
    slices: &[IoSlice<'_>],
    tail: &BodyTail,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(stream.poll_write_ready(cx))?;
        match stream.try_io(Interest::WRITABLE, || write(stream, slices, tail)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return Poll::Ready(written),
        }
    }
}

fn write(stream: &TcpStream, slices: &[IoSlice<'_>], tail: &BodyTail) -> io::Result<usize> {
    let mut sent = 0;
    let before = &slices[..tail.first];
    let length: usize = before.iter().map(|slice| slice.len()).sum();
    if length > 0 {
        // The kernel waits for the body, so that both leave in one packet.
        let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
        sent = sendmsg(stream, before, &mut SendAncillaryBuffer::default(), flags)?;
    }
    if sent < length {
        return Ok(sent);
    }
    let mut offset = tail.offset;
    match rustix::fs::sendfile(stream, tail.file, Some(&mut offset), tail.length) {
        Ok(body) => Ok(sent + body),
        // The kernel reports the end of a connection once. Another write finds a broken pipe.
        Err(ended @ (Errno::CONNRESET | Errno::TIMEDOUT)) => Err(ended.into()),
        // The caller writes the rest, and meets the failure again.
        Err(_) if sent > 0 => Ok(sent),
        Err(Errno::AGAIN) => Err(io::ErrorKind::WouldBlock.into()),
        // A sandbox may forbid `sendfile`. A broken connection fails here as well.
        Err(_) => {
            let body = &slices[tail.first..];
            let mut control = SendAncillaryBuffer::default();
            Ok(sendmsg(stream, body, &mut control, SendFlags::NOSIGNAL)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::{Buf, Bytes};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::body_memory;
    use crate::transport::tcp::path;

    /// A body of 300 kB in the memory of cached bodies.
    fn body() -> (Vec<u8>, Vec<Bytes>) {
        body_memory::open(1 << 20);
        let text: Vec<u8> = (0..75_000u32).flat_map(u32::to_be_bytes).collect();
        let pieces = body_memory::keep(vec![Bytes::from(text.clone())]);
        (text, pieces)
    }

    #[tokio::test]
    async fn socket_sends_a_cached_body_after_its_head() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let mut far = TcpStream::connect(address).await.expect("connects");
        let mut near = path(listener.accept().await.expect("accepts").0);
        let (text, pieces) = body();
        let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let tail = body_memory::tail(&slices).expect("the body is there");
        assert_eq!(tail.length, text.len());
        let sending = async move {
            let mut rest = Bytes::from_static(b"head").chain(pieces[0].clone());
            near.write_all_buf(&mut rest).await.expect("sent");
            for mut piece in pieces.into_iter().skip(1) {
                near.write_all_buf(&mut piece).await.expect("sent");
            }
        };
        let reading = async move {
            // The socket is full before the first read.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            let mut read = Vec::new();
            far.read_to_end(&mut read).await.expect("an end");
            read
        };
        let ((), read) = tokio::join!(sending, reading);
        assert_eq!(read[..4], *b"head");
        assert!(read[4..] == text);
    }

    #[tokio::test]
    async fn write_of_a_cached_body_fails_without_a_reader() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let far = TcpStream::connect(address).await.expect("connects");
        let mut near = path(listener.accept().await.expect("accepts").0);
        let (_, pieces) = body();
        drop(far);
        let mut failure = None;
        for _ in 0..100 {
            let written = near.write_vectored(&[IoSlice::new(&pieces[0])]).await;
            failure = failure.or_else(|| written.err());
        }
        assert!(failure.is_some());
    }

    #[tokio::test]
    async fn read_reports_the_reset_that_a_cached_body_has_met() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let far = TcpStream::connect(address).await.expect("connects");
        let mut near = path(listener.accept().await.expect("accepts").0);
        let (_, pieces) = body();
        let broken = near.facts().broken().expect("can be watched");
        let lingers_not = socket2::SockRef::from(&far).set_linger(Some(Default::default()));
        lingers_not.expect("the option is there");
        drop(far);
        broken.await;
        let written = near.write_vectored(&[IoSlice::new(&pieces[0])]).await;
        assert!(written.is_err());
        assert!(near.read(&mut [0]).await.is_err());
    }

    #[tokio::test]
    async fn body_is_copied_if_the_kernel_refuses_sendfile() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let mut far = TcpStream::connect(address).await.expect("connects");
        let near = listener.accept().await.expect("accepts").0;
        // Nothing can be sent from a listener.
        let other: &'static std::net::TcpListener = Box::leak(Box::new(
            std::net::TcpListener::bind("127.0.0.1:0").expect("a port"),
        ));
        let slices = [IoSlice::new(b"head"), IoSlice::new(b"body")];
        for first in [1, 0] {
            let tail = BodyTail {
                first,
                file: std::os::fd::AsFd::as_fd(other),
                offset: 0,
                length: 4,
            };
            let written =
                std::future::poll_fn(|cx| poll_write(&near, cx, &slices[1 - first..], &tail)).await;
            assert_eq!(written.ok(), Some(4));
        }
        let mut read = [0; 8];
        far.read_exact(&mut read).await.expect("both");
        assert_eq!(read, *b"headbody");
    }
}
