//! The transfer codings of a message. RFC 9112 sections 6.1 and 6.3.

use super::{BadHead, LOWER, trim_ows};
use crate::h1::Version;

/// The combined content of the `Transfer-Encoding` lines of a message.
#[derive(Default)]
pub(super) struct Codings {
    count: usize,
    chunked: usize,
    /// The number of codings that change nothing (RFC 2616 section 3.6).
    identity: usize,
    last_is_chunked: bool,
    malformed: bool,
}

impl Codings {
    pub(super) fn add(&mut self, value: &[u8]) {
        for coding in value.split(|&b| b == b',').map(trim_ows) {
            self.count += 1;
            self.malformed |=
                coding.is_empty() || coding.iter().any(|&b| LOWER[usize::from(b)] == 0);
            self.last_is_chunked = coding.eq_ignore_ascii_case(b"chunked");
            self.chunked += usize::from(self.last_is_chunked);
            self.identity += usize::from(coding.eq_ignore_ascii_case(b"identity"));
        }
    }

    /// Returns whether the body of a request is chunked. All other codings are refused.
    pub(super) fn of_request(&self, version: Version, has_length: bool) -> Result<bool, BadHead> {
        if version == Version::Http10 {
            return Err(BadHead::TransferEncoding);
        }
        if has_length {
            return Err(BadHead::BothLengths);
        }
        self.check()?;
        Ok(true)
    }

    /// Returns whether the body of a response is chunked, and whether all readers see it so.
    /// `identity` counts as no coding, and `chunked` counts once however often it is written, as
    /// in browsers. In HTTP/1.0, some browsers decode chunks and others do not.
    pub(super) fn of_response(&self, version: Version) -> Result<(bool, bool), BadHead> {
        if !self.malformed && self.identity == self.count {
            return Ok((false, false));
        }
        if version == Version::Http10 {
            return Err(BadHead::TransferEncoding);
        }
        let is_known = self.chunked + self.identity == self.count;
        if !self.malformed && is_known && self.last_is_chunked {
            return Ok((true, self.count == 1));
        }
        self.check()?;
        Ok((true, true))
    }

    fn check(&self) -> Result<(), BadHead> {
        match (self.count, self.chunked) {
            _ if self.malformed => Err(BadHead::TransferEncoding),
            (1, 1) => Ok(()),
            (_, 0) => Err(BadHead::UnknownCoding),
            (_, 1) if self.last_is_chunked => Err(BadHead::UnknownCoding),
            _ => Err(BadHead::TransferEncoding),
        }
    }
}
