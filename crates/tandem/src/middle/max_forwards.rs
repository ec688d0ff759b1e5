//! `Max-Forwards` of TRACE and OPTIONS (RFC 9110 section 7.6.2): counts the proxies that a request
//! may still pass, and answers in place of the origin at zero.
//!
//! The stage runs in both proxies, so the pair counts as two.

use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use tandem_http::h1::{self, Form, Framing};
use tandem_http::{Method, RequestHead, ResponseHead};

use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Reply};
use crate::stage::Stage;

/// The name of the field.
pub(super) const FIELD: &str = "max-forwards";

/// The field of an answer with the version of the program. Only the two proxies see it.
pub const VERSION_FIELD: &str = "tandem-version";

/// The methods that are passed on.
const ALLOW: &str = "GET, HEAD, POST, PUT, DELETE, CONNECT, OPTIONS, TRACE, PATCH";

/// The stage that handles `Max-Forwards`.
pub struct MaxForwards {
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Stage for MaxForwards {
    fn call(&self, mut exchange: Exchange) -> Reply {
        let request = &exchange.request;
        if !matches!(request.method, Method::Trace | Method::Options) {
            return self.next.call(exchange);
        }
        match forwards_left(request) {
            Ok(None) => self.next.call(exchange),
            Ok(Some(0)) => answer(request),
            Ok(Some(left)) => {
                exchange
                    .request_mut()
                    .fields
                    .set(FIELD, (left - 1).to_string());
                self.next.call(exchange)
            }
            Err(error) => Reply::fail(error),
        }
    }
}

/// Returns true if no origin receives a request, because the first proxy answers it.
pub(super) fn ends_here(request: &RequestHead) -> bool {
    matches!(request.method, Method::Trace | Method::Options)
        && matches!(forwards_left(request), Ok(Some(0)))
}

/// Returns the number in the field. A number beyond `u32` counts as the largest one.
fn forwards_left(request: &RequestHead) -> Result<Option<u32>, Error> {
    let mut values = request.fields.get_all(FIELD);
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let digits = std::str::from_utf8(value)
        .ok()
        .filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits {
        Some(digits) if values.next().is_none() => Ok(Some(digits.parse().unwrap_or(u32::MAX))),
        _ => Err(Error::new(
            Kind::BadRequest,
            Side::Client,
            "max-forwards is not one decimal number",
        )),
    }
}

/// Answers as the final recipient (RFC 9110 sections 9.3.7 and 9.3.8).
fn answer(request: &RequestHead) -> Reply {
    let mut head = ResponseHead::new(200);
    let date = httpdate::fmt_http_date(std::time::SystemTime::now());
    head.fields.push("date", date);
    head.fields.push(VERSION_FIELD, env!("CARGO_PKG_VERSION"));
    let body = if request.method == Method::Trace {
        head.fields.push("content-type", "message/http");
        echo(request)
    } else {
        head.fields.push("allow", ALLOW);
        Bytes::new()
    };
    head.fields.push("content-length", body.len().to_string());
    Reply::ready(head, body)
}

/// Returns the request as it arrived, without the fields that may hold secrets.
fn echo(request: &RequestHead) -> Bytes {
    let mut request = request.clone();
    request.fields.retain(|field| {
        let secret =
            matches!(field.name, b"authorization" | b"cookie") || field.name.starts_with(b"proxy-");
        !secret && !field.sensitive
    });
    let mut text = BytesMut::new();
    h1::write_request(&mut text, &request, Form::Absolute, Framing::None, None);
    text.freeze()
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    fn asked(value: &str) -> Result<Option<u32>, Error> {
        let mut request = RequestHead::get(Scheme::Http, "site.example", "/");
        request.fields.push(FIELD, value);
        forwards_left(&request)
    }

    #[test]
    fn max_forwards_is_one_decimal_number() {
        assert_eq!(asked("0"), Ok(Some(0)));
        assert_eq!(asked("7"), Ok(Some(7)));
        assert_eq!(asked("99999999999999999999"), Ok(Some(u32::MAX)));
        for bad in ["", "-1", "+1", "1, 2", "x"] {
            assert!(asked(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn echo_leaves_secrets_out() {
        let mut request = RequestHead::get(Scheme::Http, "site.example", "/a");
        request.method = Method::Trace;
        request.fields.push("cookie", "id=secret");
        request.fields.push_sensitive("x-key", "secret");
        request.fields.push("via", "1.1 a");
        let text = String::from_utf8(echo(&request).to_vec()).expect("ASCII");
        assert!(
            text.starts_with("TRACE http://site.example/a HTTP/1.1\r\n"),
            "{text}"
        );
        assert!(
            text.contains("Via: 1.1 a") && !text.contains("secret"),
            "{text}"
        );
    }
}
