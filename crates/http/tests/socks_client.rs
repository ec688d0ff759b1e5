//! The client's half of SOCKS5: its output, and every kind of reply, cut anywhere.

use proptest::prelude::*;
use tandem_http::socks::{Client, Progress, Reply, SocksError};

fn client(credentials: bool) -> Client {
    Client::new("a.onion", 80, credentials.then_some((&b"u"[..], &b""[..]))).expect("fits")
}

/// Bytes used up to the end of the replies, or the error; the same for the whole and byte by byte.
fn answer(credentials: bool, bytes: &[u8]) -> Result<Option<usize>, SocksError> {
    let whole = client(credentials)
        .handle_input(bytes)
        .map(|progress| match progress {
            Progress::Pending => None,
            Progress::Done { consumed } => Some(consumed),
        });
    let mut bytewise = client(credentials);
    let mut result = Ok(None);
    for (at, byte) in bytes.chunks(1).enumerate() {
        match bytewise.handle_input(byte) {
            Ok(Progress::Pending) => continue,
            Ok(Progress::Done { consumed }) => result = Ok(Some(at + consumed)),
            Err(error) => result = Err(error),
        }
        break;
    }
    assert_eq!(whole, result, "{bytes:02x?}");
    whole
}

#[test]
fn everything_in_one_flight() {
    assert_eq!(
        client(false).first_flight(),
        b"\x05\x01\x00\x05\x01\x00\x03\x07a.onion\x00\x50"
    );
    assert_eq!(
        client(true).first_flight(),
        b"\x05\x01\x02\x01\x01u\x00\x05\x01\x00\x03\x07a.onion\x00\x50"
    );
    let flight = |host: &str| Client::new(host, 9980, None).map(|c| c.first_flight()[6..].to_vec());
    assert_eq!(
        flight("192.0.2.80").as_deref(),
        Ok(&b"\x01\xc0\x00\x02\x50\x26\xfc"[..])
    );
    assert_eq!(
        flight("[::1]").as_deref(),
        Ok(&b"\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x26\xfc"[..])
    );
    assert_eq!(flight("::1"), flight("[::1]"));
    assert_eq!(flight(&"a".repeat(256)), Err(SocksError::TooLong));
    assert_eq!(flight(""), Err(SocksError::TooLong));
    assert_eq!(
        Client::new("a", 1, Some((&[0; 256], b""))).map(|_| ()),
        Err(SocksError::TooLong)
    );
}

#[test]
fn the_three_address_types() {
    assert_eq!(
        answer(false, b"\x05\x00\x05\x00\x00\x01\0\0\0\0\0\0HTTP"),
        Ok(Some(12))
    );
    assert_eq!(
        answer(
            false,
            b"\x05\x00\x05\x00\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0HTTP"
        ),
        Ok(Some(24))
    );
    assert_eq!(
        answer(false, b"\x05\x00\x05\x00\x00\x03\x03abc\0\0HTTP"),
        Ok(Some(12))
    );
    assert_eq!(
        answer(false, b"\x05\x00\x05\x00\x00\x03\x00\0\0"),
        Ok(Some(9))
    );
    assert_eq!(
        answer(true, b"\x05\x02\x01\x00\x05\x00\x00\x01\0\0\0\0\0\0"),
        Ok(Some(14))
    );
    assert_eq!(
        answer(true, b"\x05\x02\x01\x00\x05\x00\x00\x01\0\0\0\0\0"),
        Ok(None)
    );
}

/// Tor 0.4.9 on greeting, credentials and request in one write.
#[test]
fn the_choice_of_method_may_be_lost() {
    assert_eq!(
        answer(true, b"\x01\x00\x05\x00\x00\x01\0\0\0\0\0\0HTTP"),
        Ok(Some(12))
    );
    assert_eq!(answer(true, b"\x01\x01"), Err(SocksError::AuthRefused));
    assert_eq!(
        answer(true, b"\x05\x02\x05\x00"),
        Err(SocksError::Malformed),
        "the answer to credentials may not"
    );
    assert_eq!(
        answer(false, b"\x01\x00"),
        Err(SocksError::Malformed),
        "nothing to answer"
    );
}

#[test]
fn errors_are_told_apart() {
    assert_eq!(answer(true, b"\x05\xff"), Err(SocksError::MethodRefused));
    assert_eq!(
        answer(true, b"\x05\x00\x05\x00\x00\x01\0\0\0\0\0\0HTTP"),
        Err(SocksError::MethodRefused),
        "a method that was not offered"
    );
    assert_eq!(answer(false, b"\x05\x02"), Err(SocksError::MethodRefused));
    assert_eq!(
        answer(true, b"\x05\x02\x01\x01"),
        Err(SocksError::AuthRefused)
    );
    assert_eq!(
        answer(false, b"HTTP/1.0 501"),
        Err(SocksError::Malformed),
        "tor's answer to HTTP on a SOCKS port"
    );
    assert_eq!(answer(false, b"\x05\x00\x04"), Err(SocksError::Malformed));
    assert_eq!(
        answer(false, b"\x05\x00\x05\x00\x00\x02"),
        Err(SocksError::Malformed)
    );
    assert_eq!(
        answer(false, b"\x05\x00\x05\x05\x00\x01"),
        Err(SocksError::Refused(Reply::ConnectionRefused))
    );
    let error = answer(false, b"\x05\x00\x05\xf0\x00\x01\0\0\0\0\0\0").expect_err("refused");
    assert_eq!(
        error.to_string(),
        "SOCKS: the onion service's descriptor was not found"
    );
}

#[test]
fn errors_and_success_stay() {
    let mut refused = client(false);
    assert!(refused.handle_input(b"\x05\xff").is_err());
    assert_eq!(
        refused.handle_input(b"\x05\x00"),
        Err(SocksError::MethodRefused)
    );
    let mut done = client(false);
    assert_eq!(
        done.handle_input(b"\x05\x00\x05\x00\x00\x01\0\0\0\0\0\0"),
        Ok(Progress::Done { consumed: 12 })
    );
    assert_eq!(
        done.handle_input(b"stream"),
        Ok(Progress::Done { consumed: 0 })
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(prop::sample::select(&b"\x00\x01\x02\x03\x04\x05\xff"[..]), 0..40)) {
        let _ = answer(false, &bytes);
        let _ = answer(true, &bytes);
    }
}
