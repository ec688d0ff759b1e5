//! The datagrams of a UDP association (RFC 1928 section 7).
//!
//! ```text
//!  reserved (2)   fragment (1)   address type (1)   address   port (2)   payload
//! ```

use super::server::{address_len, host};

/// A datagram that a client sends through its SOCKS server.
#[derive(Clone, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// `host:port` of the destination; IPv6 addresses in brackets.
    pub target: String,
    /// The destination as the client wrote it, for [`Datagram::put_answer`].
    pub address: &'a [u8],
    /// The payload for the destination.
    pub payload: &'a [u8],
}

/// Hides the destination and the payload, which are private.
impl std::fmt::Debug for Datagram<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Datagram").finish_non_exhaustive()
    }
}

impl<'a> Datagram<'a> {
    /// Reads a datagram of a client. Returns `None` if it is malformed or a fragment, since a
    /// server without fragmentation drops fragments.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (&[_, _, fragment, kind], rest) = bytes.split_first_chunk()?;
        let len = address_len(kind, rest.first().copied()).ok()??;
        let (address, rest) = rest.split_at_checked(len)?;
        let (port, payload) = rest.split_first_chunk()?;
        let host = host(kind, address)?;
        let target = format!("{host}:{}", u16::from_be_bytes(*port));
        (fragment == 0).then_some(Self {
            target,
            address: &bytes[3..bytes.len() - payload.len()],
            payload,
        })
    }

    /// Appends a datagram to the client: `payload` came from the destination with this
    /// [`address`](Self::address).
    pub fn put_answer(out: &mut Vec<u8>, address: &[u8], payload: &[u8]) {
        out.extend([0; 3]);
        out.extend_from_slice(address);
        out.extend_from_slice(payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagram_parses_each_address_type() {
        for (bytes, target) in [
            (&b"\0\0\0\x01\xc0\0\x02\x01\0\x35hi"[..], "192.0.2.1:53"),
            (b"\0\0\0\x03\x06a.test\x01\xbbhi", "a.test:443"),
            (
                b"\0\0\0\x04\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\0\x35hi",
                "[2001:db8::1]:53",
            ),
        ] {
            let datagram = Datagram::parse(bytes).expect("whole");
            assert_eq!((&*datagram.target, datagram.payload), (target, &b"hi"[..]));
            let mut answer = Vec::new();
            Datagram::put_answer(&mut answer, datagram.address, b"hi");
            assert_eq!(answer, bytes);
        }
    }

    #[test]
    fn datagram_refuses_fragments_and_cut_heads() {
        let whole = b"\0\0\0\x03\x06a.test\x01\xbb";
        assert_eq!(Datagram::parse(whole).map(|it| it.payload), Some(&b""[..]));
        for len in 0..whole.len() {
            assert!(Datagram::parse(&whole[..len]).is_none(), "{len} bytes");
        }
        assert!(Datagram::parse(b"\0\0\x01\x03\x06a.test\x01\xbb").is_none());
        assert!(Datagram::parse(b"\0\0\0\x02\x06a.test\x01\xbb").is_none());
        assert!(Datagram::parse(b"\0\0\0\x03\x06a test\x01\xbb").is_none());
    }
}
