//! The length of content, which all multiplexed session cores compare with `content-length`: RFC
//! 9110 sections 6.4.1 and 8.6, RFC 9113 section 8.1.1.

use crate::Method;

/// The request of a response, as far as it decides about the content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseTo {
    /// HEAD: no response has content.
    Head,
    /// CONNECT: a response with a status of 2xx begins a tunnel, and a length means nothing.
    Connect,
    /// Another method.
    #[default]
    Other,
}

impl ResponseTo {
    /// Returns the kind of a request with this method.
    pub const fn of(method: &Method) -> Self {
        match method {
            Method::Head => Self::Head,
            Method::Connect => Self::Connect,
            _ => Self::Other,
        }
    }

    /// Returns whether a final response with this status begins a tunnel. The length in its head
    /// means nothing (RFC 9110 section 9.3.6).
    pub const fn begins_tunnel(self, status: u16) -> bool {
        matches!((self, status), (Self::Connect, 200..300))
    }
}

/// The content that a message must still have. It is unknown if the head gives no length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected(Option<u64>);

/// More or less content than the head of the message announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub enum WrongLength {
    /// More content than the length.
    More,
    /// Less content than the length.
    Less,
}

impl WrongLength {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::More => "more content than its length",
            Self::Less => "less content than its length",
        }
    }
}

impl Expected {
    /// Returns the content of a request with this length. A tunnel has none.
    pub fn of_request(length: Option<u64>, is_connect: bool) -> Self {
        Self(length.filter(|_| !is_connect))
    }

    /// Returns the content of a final response with this status and length. Responses to HEAD, and
    /// those with status 204 or 304, have no content, whatever their length. A tunnel begins with
    /// any 2xx (RFC 9110 section 9.3.6).
    pub fn of_response(status: u16, length: Option<u64>, request: ResponseTo) -> Self {
        Self(match (request, status) {
            _ if request.begins_tunnel(status) => None,
            (ResponseTo::Head, _) | (_, 204 | 304) => Some(0),
            _ => length,
        })
    }

    /// Notes that content has arrived.
    ///
    /// # Errors
    /// Fails if it is more than the length.
    pub fn take(&mut self, count: usize) -> Result<(), WrongLength> {
        if let Some(left) = &mut self.0 {
            *left = left.checked_sub(count as u64).ok_or(WrongLength::More)?;
        }
        Ok(())
    }

    /// Checks that the message may end now.
    ///
    /// # Errors
    /// Fails if content is missing.
    pub const fn end(self) -> Result<(), WrongLength> {
        match self.0 {
            Some(1..) => Err(WrongLength::Less),
            Some(0) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(mut expected: Expected, content: usize) -> Result<(), WrongLength> {
        expected.take(content)?;
        expected.end()
    }

    #[test]
    fn length_is_that_of_the_content() {
        let four = Expected::of_response(200, Some(4), ResponseTo::Other);
        assert_eq!(takes(four, 3), Err(WrongLength::Less));
        assert_eq!(takes(four, 4), Ok(()));
        assert_eq!(takes(four, 5), Err(WrongLength::More));
        let unknown = Expected::of_response(200, None, ResponseTo::Other);
        assert_eq!([takes(unknown, 0), takes(unknown, 9)], [Ok(()), Ok(())]);
        let tunnel = Expected::of_request(Some(0), true);
        assert_eq!(takes(tunnel, 9), Ok(()));
    }

    #[test]
    fn some_responses_have_no_content() {
        for (request, status) in [
            (ResponseTo::Head, 200),
            (ResponseTo::Head, 404),
            (ResponseTo::Other, 204),
            (ResponseTo::Other, 304),
        ] {
            for length in [None, Some(0), Some(4)] {
                let expected = Expected::of_response(status, length, request);
                assert_eq!(takes(expected, 0), Ok(()), "{request:?} {status}");
                assert_eq!(
                    takes(expected, 4),
                    Err(WrongLength::More),
                    "{request:?} {status}"
                );
            }
        }
    }

    #[test]
    fn length_of_a_tunnel_means_nothing() {
        for status in [200, 204] {
            let tunnel = Expected::of_response(status, Some(4), ResponseTo::Connect);
            assert_eq!([takes(tunnel, 0), takes(tunnel, 9)], [Ok(()), Ok(())]);
        }
        let refusal = Expected::of_response(502, Some(4), ResponseTo::Connect);
        assert_eq!(takes(refusal, 4), Ok(()));
        assert_eq!(takes(refusal, 9), Err(WrongLength::More));
    }
}
