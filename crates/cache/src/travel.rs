//! A stored response on its way to another cache of the same operator, or to a disk and back. All
//! numbers are big endian.
//!
//! ```text
//! sent (8, seconds since 1970) · age (8, ms) · lifetime (8, ms) · started (8, ms before)
//! coding (1) · users (1) · tags (2 each) · status (2) · fields · request fields · body
//! fields: count (2), and for each: length of the name (2) · of the value (4) · name · value
//! ```
//!
//! Only a response of limited size travels that any user may get: without `Set-Cookie`, not a
//! response to credentials, and known to enough users. The program encrypts the bytes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tandem_http::cache::{Freshness, unix_seconds, vary};
use tandem_http::message::content_length;
use tandem_http::{Fields, ResponseHead};

use crate::Now;
use crate::asker::Asker;
use crate::names::Name;
use crate::stored::Stored;

/// The longest body that travels to another cache, in bytes.
pub const MAX_BODY: u64 = 64 << 10;

/// The longest body that goes to a disk, in bytes.
pub const MAX_BODY_ON_DISK: u64 = 1 << 20;

/// The most bytes of the fields of a response and of its request.
const MAX_HEADS: usize = 10 << 10;

/// The time that a response must stay fresh to be of use to another cache.
const LEAST_LIFE: Duration = Duration::from_secs(2);

/// The difference between the clocks of two caches that is tolerated, in seconds.
const CLOCK_SKEW: u64 = 5;

/// The most fields of a head.
const MAX_FIELDS: usize = 256;

/// A response that leaves.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The name of its target.
    pub name: Name,
    /// The time for which it stays fresh.
    pub remaining: Duration,
    pub(crate) stored: Arc<Stored>,
    pub(crate) tags: Vec<u16>,
}

/// A response from another cache.
#[derive(Clone, Debug)]
pub struct Incoming {
    /// The time at the sender, in seconds since 1970.
    sent: u64,
    age: Duration,
    lifetime: Duration,
    /// The time from the request to the origin until the response left the sender.
    started: Duration,
    accepts_coding: bool,
    pub(crate) tags: Vec<u16>,
    pub(crate) head: ResponseHead,
    pub(crate) request: Fields,
    pub(crate) body: Bytes,
}

impl Stored {
    /// Returns true if other caches of the operator may get the response, or a disk may keep it.
    /// `max_body` is the longest body.
    pub(crate) fn may_travel(&self, now: Now, max_body: u64) -> bool {
        let fields = &self.head.fields;
        let is_of_user = fields.contains("set-cookie")
            || fields.contains("set-cookie2")
            || !vary::names(fields).all(is_of_program);
        let head = fields.text_len() + self.request.text_len();
        self.is_anonymous
            && !is_of_user
            && !self.policy.control.private
            && !self.policy.control.no_store
            && !self.policy.control.no_cache
            && self.head.status < 400
            && self.extent.is_none()
            && self.trailers.is_none()
            && self.body.len() <= max_body
            && head <= MAX_HEADS
            && fields.len().max(self.request.len()) <= MAX_FIELDS
            && self.remaining(now) >= LEAST_LIFE
    }
}

impl Outgoing {
    /// Returns the bytes of the response, or `None` without a clock.
    pub fn write(&self, now: Now) -> Option<Vec<u8>> {
        let stored = &self.stored;
        let mut bytes = Vec::with_capacity(1024 + stored.body.len() as usize);
        bytes.extend_from_slice(&now.unix?.to_be_bytes());
        let lifetime = stored.freshness.lifetime?;
        let started = now.elapsed.saturating_sub(stored.started);
        for time in [stored.age(now), lifetime, started] {
            let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            bytes.extend_from_slice(&millis.to_be_bytes());
        }
        bytes.push(u8::from(stored.asker.accepts_coding()));
        bytes.push(u8::try_from(self.tags.len()).ok()?);
        for tag in &self.tags {
            bytes.extend_from_slice(&tag.to_be_bytes());
        }
        bytes.extend_from_slice(&stored.head.status.to_be_bytes());
        write_fields(&mut bytes, &stored.head.fields)?;
        write_fields(&mut bytes, &stored.request)?;
        for piece in stored.body.slice(0, stored.body.len()) {
            bytes.extend_from_slice(&piece);
        }
        Some(bytes)
    }
}

fn write_fields(bytes: &mut Vec<u8>, fields: &Fields) -> Option<()> {
    bytes.extend_from_slice(&u16::try_from(fields.len()).ok()?.to_be_bytes());
    for field in fields.iter() {
        bytes.extend_from_slice(&u16::try_from(field.name.len()).ok()?.to_be_bytes());
        bytes.extend_from_slice(&u32::try_from(field.value.len()).ok()?.to_be_bytes());
        bytes.extend_from_slice(field.name);
        bytes.extend_from_slice(field.value);
    }
    Some(())
}

impl Incoming {
    /// Parses the bytes of a response from another cache. The body shares them. Returns `None` for
    /// other bytes.
    pub fn read(bytes: &Bytes) -> Option<Self> {
        Self::read_within(bytes, MAX_BODY)
    }

    /// Parses the bytes of a response from a disk. The body shares them. Returns `None` for other
    /// bytes.
    pub fn read_from_disk(bytes: &Bytes) -> Option<Self> {
        Self::read_within(bytes, MAX_BODY_ON_DISK)
    }

    fn read_within(bytes: &Bytes, max_body: u64) -> Option<Self> {
        let mut rest = &bytes[..];
        let sent = u64::from_be_bytes(take(&mut rest)?);
        let mut millis = || Some(Duration::from_millis(u64::from_be_bytes(take(&mut rest)?)));
        let (age, lifetime, started) = (millis()?, millis()?, millis()?);
        let [coding, users] = take(&mut rest)?;
        let mut tags = Vec::new();
        for _ in 0..users {
            tags.push(u16::from_be_bytes(take(&mut rest)?));
        }
        let status = u16::from_be_bytes(take(&mut rest)?);
        let fields = read_fields(&mut rest)?;
        let request = read_fields(&mut rest)?;
        let body = bytes.slice_ref(rest);
        let length = content_length(&fields).ok()?;
        let is_whole = length.is_none_or(|length| length == body.len() as u64);
        let is_possible = coding <= 1
            && (200..400).contains(&status)
            && body.len() as u64 <= max_body
            && usize::from(users) <= tags.len();
        (is_whole && is_possible).then_some(Self {
            sent,
            age,
            lifetime,
            started,
            accepts_coding: coding == 1,
            tags,
            head: ResponseHead { status, fields },
            request,
            body,
        })
    }

    /// Returns the freshness of the response at present, and the time since the request to its
    /// origin. Returns `None` without a clock, or if a clock is wrong.
    pub(crate) fn times(&self, now: Now) -> Option<(Freshness, Duration)> {
        let unix = now.unix?;
        if self.sent > unix.saturating_add(CLOCK_SKEW) {
            return None;
        }
        // The seconds of both clocks are rounded down.
        let passed = Duration::from_secs(unix.saturating_sub(self.sent) + 1);
        // The clock of the sender may be ahead, so the age by the origin's clock counts too.
        let by_date = self.head.fields.get("date").and_then(unix_seconds);
        let by_date = by_date.map_or(0, |date| unix.saturating_sub(date));
        let age = self.age.saturating_add(passed);
        let age = age.max(Duration::from_secs(by_date));
        let freshness = Freshness::new(Some(self.lifetime), age);
        // The origin was asked before the date of its response, whatever the sender's clock says.
        let started = self.started.saturating_add(passed);
        Some((freshness, started.max(Duration::from_secs(by_date))))
    }

    #[cfg(test)]
    pub(crate) const fn send_later(&mut self, seconds: u64) {
        self.sent += seconds;
    }

    pub(crate) fn asker(&self) -> Asker {
        Asker::of_anyone(self.accepts_coding)
    }
}

/// Returns true for a request field whose value follows from the program of the user and from the
/// page. Any other field that `Vary` names, such as `Api-Key`, may belong to one user.
fn is_of_program(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    matches!(&name[..], b"accept" | b"accept-encoding" | b"origin")
        || name.starts_with(b"sec-fetch-")
}

fn take<const LENGTH: usize>(bytes: &mut &[u8]) -> Option<[u8; LENGTH]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

fn read_fields(bytes: &mut &[u8]) -> Option<Fields> {
    let count = usize::from(u16::from_be_bytes(take(bytes)?));
    if count > MAX_FIELDS {
        return None;
    }
    let mut fields = Fields::new();
    for _ in 0..count {
        let name = usize::from(u16::from_be_bytes(take(bytes)?));
        let value = usize::try_from(u32::from_be_bytes(take(bytes)?)).ok()?;
        let (name, rest) = bytes.split_at_checked(name)?;
        let (value, rest) = rest.split_at_checked(value)?;
        if !is_name(name) || value.iter().any(|byte| b"\r\n\0".contains(byte)) {
            return None;
        }
        fields.push(name, value);
        *bytes = rest;
    }
    Some(fields)
}

/// Returns true for a lower-case token (RFC 9110 section 5.6.2).
fn is_name(name: &[u8]) -> bool {
    let is_token = |byte: &u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(byte)
    };
    !name.is_empty() && name.iter().all(is_token)
}
