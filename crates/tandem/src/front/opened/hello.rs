//! The first message of a TLS client (RFC 8446 section 4.1.2), read from a tunnel.

use bytes::Bytes;
use rustls::server::{Accepted, Acceptor};

use crate::exchange::{Body, Chunk};

/// The largest number of bytes in which a whole ClientHello must arrive.
const MAX_BYTES: usize = 16 << 10;

/// A ClientHello, and the bytes behind it.
pub(super) struct Hello {
    /// The parsed message.
    pub(super) accepted: Accepted,
    /// The bytes that arrived with the end of the message.
    pub(super) rest: Bytes,
    /// True if the client offers HTTP/2 (ALPN, RFC 7301).
    pub(super) offers_h2: bool,
    /// True if the client offers HTTP/1.1 by its name.
    pub(super) offers_http1: bool,
}

impl Hello {
    /// Reads a ClientHello. Returns `None` for any other bytes, and for a message that is too long.
    pub(super) async fn read(mut body: Body) -> Option<Self> {
        let mut acceptor = Acceptor::default();
        let mut count = 0;
        while count < MAX_BYTES {
            let chunk = std::future::poll_fn(|cx| body.poll_chunk(cx)).await;
            let Some(Ok(Chunk::Data(data))) = chunk else {
                return None;
            };
            count += data.len();
            let mut unread = &data[..];
            while !unread.is_empty() {
                acceptor
                    .read_tls(&mut unread)
                    .ok()
                    .filter(|read| *read > 0)?;
                if let Some(accepted) = acceptor.accept().ok()? {
                    let rest = data.slice_ref(unread);
                    return Some(Self::of(accepted, rest));
                }
            }
        }
        None
    }

    fn of(accepted: Accepted, rest: Bytes) -> Self {
        let hello = accepted.client_hello();
        let offered: Vec<_> = hello.alpn().into_iter().flatten().collect();
        let (offers_h2, offers_http1) = (
            offered.contains(&&b"h2"[..]),
            offered.contains(&&b"http/1.1"[..]),
        );
        Self {
            accepted,
            rest,
            offers_h2,
            offers_http1,
        }
    }

    /// Returns whether the message names `host` (SNI, RFC 6066 section 3) and offers HTTP.
    pub(super) fn names(&self, host: &str) -> bool {
        let hello = self.accepted.client_hello();
        let is_named = hello
            .server_name()
            .is_some_and(|name| name.eq_ignore_ascii_case(host));
        is_named && (self.offers_h2 || self.offers_http1)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::task::{Context, Poll};

    use proptest::prelude::*;
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;
    use crate::error::Error;
    use crate::exchange::Chunks;

    struct Pieces(VecDeque<Bytes>);

    impl Chunks for Pieces {
        fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
            Poll::Ready(self.0.pop_front().map(|data| Ok(Chunk::Data(data))))
        }
    }

    /// Returns the first bytes of a TLS client.
    pub(in crate::front::opened) fn hello(name: &'static str, alpn: &[&[u8]]) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        let name = ServerName::try_from(name).expect("a name");
        let mut client = ClientConnection::new(Arc::new(config), name).expect("a client");
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).expect("a vector");
        bytes
    }

    fn read(bytes: &[u8], piece: usize) -> Option<Hello> {
        let pieces = bytes.chunks(piece).map(Bytes::copy_from_slice).collect();
        let body = Body::new(Pieces(pieces), None);
        let mut reading = std::pin::pin!(Hello::read(body));
        let waker = std::task::Waker::noop();
        match reading.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Ready(hello) => hello,
            Poll::Pending => panic!("all pieces are there"),
        }
    }

    #[test]
    fn hello_tells_name_and_protocols() {
        let hello_of = |alpn: &[&[u8]]| read(&hello("a.test", alpn), 9_000).expect("a hello");
        let both = hello_of(&[b"h2", b"http/1.1"]);
        assert!(both.names("a.test") && !both.names("b.test"));
        assert!(both.offers_h2 && both.offers_http1);
        let old = hello_of(&[b"http/1.1"]);
        assert!(old.names("a.test") && !old.offers_h2);
        assert!(!hello_of(&[]).names("a.test"), "no protocol is offered");
        assert!(!hello_of(&[b"imap"]).names("a.test"));
        let address = read(&hello("192.0.2.1", &[b"h2"]), 9_000).expect("a hello");
        assert!(!address.names("192.0.2.1"), "an address is no name");
    }

    #[test]
    fn hello_keeps_the_bytes_behind_it() {
        let mut bytes = hello("a.test", &[b"h2"]);
        let length = bytes.len();
        bytes.extend_from_slice(b"more");
        let read = read(&bytes, bytes.len()).expect("a hello");
        // The parser may have taken them over.
        assert!(read.rest.is_empty() || read.rest == bytes[length..]);
    }

    #[test]
    fn hello_without_an_end_is_none() {
        let mut bytes = vec![22, 3, 1, 0x3f, 0, 1, 0, 0xff, 0];
        bytes.resize(3 * MAX_BYTES, 0);
        assert!(read(&bytes, 1_000).is_none());
        assert!(read(&bytes[..200], 1_000).is_none(), "the tunnel ends");
        assert!(read(b"GET / HTTP/1.1\r\n\r\n", 1_000).is_none());
        assert!(read(b"SSH-2.0-x\r\n", 3).is_none());
    }

    proptest! {
        #[test]
        fn hello_is_read_in_any_pieces(piece in 1..600_usize) {
            let hello = read(&hello("a.test", &[b"h2"]), piece).expect("a hello");
            prop_assert!(hello.names("a.test"));
        }

        #[test]
        fn hello_survives_any_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..400),
            piece in 1..99_usize,
        ) {
            let _ = read(&bytes, piece);
        }
    }
}
