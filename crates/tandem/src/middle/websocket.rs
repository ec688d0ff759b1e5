//! WebSockets from a browser that speaks HTTP/2 or HTTP/3 to this proxy. Such a request is an
//! extended CONNECT without `Sec-WebSocket-Key` (RFC 8441 section 5.1).
//!
//! The origin speaks HTTP/1.1 and requires the key (RFC 6455 section 4.2.1). The stage adds a key,
//! and checks the origin's proof on the way back. A bridge from HTTP/1.1 to HTTP/2 needs the
//! opposite: it takes the key out and adds the proof.

use std::rc::Rc;
use std::task::{Context, Poll};

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use ring::rand::{SecureRandom as _, SystemRandom};
use tandem_http::ResponseHead;
use tandem_http::upgrade::WEBSOCKET;

use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Part, Parts, Reply, UPGRADE_DECLINED};
use crate::stage::Stage;

const KEY: &str = "sec-websocket-key";
const ACCEPT: &str = "sec-websocket-accept";

/// The text that the proof contains after the key (RFC 6455 section 1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The stage that adds the key.
pub struct WebSocketKey {
    /// The stage that receives the exchanges.
    pub next: Rc<dyn Stage>,
}

impl Stage for WebSocketKey {
    fn call(&self, mut exchange: Exchange) -> Reply {
        if !is_websocket(&exchange) || exchange.request.fields.contains(KEY) {
            return self.next.call(exchange);
        }
        let mut nonce = [0; 16];
        if SystemRandom::new().fill(&mut nonce).is_err() {
            let detail = "the system gave no random bytes";
            return Reply::fail(Error::new(Kind::Internal, Side::Local, detail));
        }
        let key = encode_base64(&nonce);
        let accept = proof(&key);
        exchange.request_mut().fields.push(KEY, key);
        Reply::new(Proven {
            reply: self.next.call(exchange),
            accept,
        })
    }
}

/// The stage before a session that carries WebSockets as extended CONNECT. A client over HTTP/1.1
/// requires the proof, which a server over HTTP/2 does not send (RFC 8441 section 5).
pub struct WebSocketProof {
    /// The stage that receives the exchanges.
    pub next: Rc<dyn Stage>,
}

impl Stage for WebSocketProof {
    fn call(&self, mut exchange: Exchange) -> Reply {
        let request = &exchange.request;
        let key = (request.fields.get(KEY)).filter(|_| is_websocket(&exchange));
        let Some(key) = key.map(|key| String::from_utf8_lossy(key).into_owned()) else {
            return self.next.call(exchange);
        };
        exchange.request_mut().fields.remove(KEY);
        Reply::new(Proving {
            reply: self.next.call(exchange),
            accept: proof(&key),
        })
    }
}

/// A reply whose agreement gets the proof.
struct Proving {
    reply: Reply,
    accept: String,
}

impl Parts for Proving {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let mut part = self.reply.poll_part(cx);
        if let Poll::Ready(Some(Ok(Part::Head(head)))) = &mut part
            && (200..300).contains(&head.status)
        {
            head.fields.set(ACCEPT, self.accept.as_str());
        }
        part
    }
}

fn is_websocket(exchange: &Exchange) -> bool {
    let protocol = exchange.request.protocol.as_deref();
    protocol.is_some_and(|protocol| protocol.eq_ignore_ascii_case(WEBSOCKET))
}

/// Returns the proof that a server has read `key`.
fn proof(key: &str) -> String {
    let text = format!("{key}{GUID}");
    encode_base64(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()).as_ref())
}

/// A reply whose agreement must contain the proof. The browser gets the agreement without it.
struct Proven {
    reply: Reply,
    accept: String,
}

impl Parts for Proven {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let mut part = self.reply.poll_part(cx);
        if let Poll::Ready(Some(Ok(Part::Head(head)))) = &mut part
            && let Err(error) = check(head, &self.accept)
        {
            return Poll::Ready(Some(Err(error)));
        }
        part
    }
}

/// Checks the head of a response. A success that is no agreement becomes a failure, because the
/// browser would take it for an agreement.
fn check(head: &mut ResponseHead, accept: &str) -> Result<(), Error> {
    let detail = if head.fields.contains(UPGRADE_DECLINED) {
        "the origin answered the WebSocket with an ordinary response"
    } else if !(200..300).contains(&head.status) {
        return Ok(());
    } else if head.fields.get(ACCEPT) != Some(accept.as_bytes()) {
        "the origin agreed to a WebSocket without the proof of RFC 6455"
    } else {
        head.fields.remove(ACCEPT);
        return Ok(());
    };
    Err(Error::new(Kind::Protocol, Side::Origin, detail))
}

/// Encodes Base64 with padding (RFC 4648 section 4).
fn encode_base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let mut bits = [0; 4];
        bits[1..=group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes(bits);
        for place in 0..4 {
            if place > group.len() {
                text.push('=');
            } else {
                let digit = (bits >> (18 - 6 * place)) & 63;
                text.push(char::from(DIGITS[digit as usize]));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_matches_the_vectors_of_rfc_4648() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode_base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn proof_matches_the_example_of_rfc_6455() {
        let accept = proof("dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn check_requires_the_proof() {
        let head = |status, name: &str, value: &str| {
            let mut head = ResponseHead::new(status);
            head.fields.push(name, value);
            head
        };
        let mut good = head(200, ACCEPT, "proof");
        assert!(check(&mut good, "proof").is_ok() && good.fields.is_empty());
        assert!(check(&mut head(403, "x", "y"), "proof").is_ok());
        for mut bad in [
            head(200, ACCEPT, "other"),
            head(200, "x", "y"),
            head(200, UPGRADE_DECLINED, "1"),
            head(501, UPGRADE_DECLINED, "200"),
        ] {
            assert!(check(&mut bad, "proof").is_err());
        }
    }
}
