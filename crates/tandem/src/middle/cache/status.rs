//! The field `Cache-Status` (RFC 9211), by which a cache says how it handled a request.

use std::fmt::Write;

use tandem_cache::{Now, Reason, Stored};

/// The name of the field.
const FIELD: &str = "cache-status";

/// The value of the field for one response, after the name of the cache.
#[derive(Debug, Default)]
pub(super) struct CacheStatus(Option<String>);

impl CacheStatus {
    /// The status of a response from the store, which is stale for a negative lifetime.
    pub(super) fn hit(stored: &Stored, now: Now) -> Self {
        let (left, past) = (stored.remaining(now), stored.staleness(now));
        let seconds = left.as_secs() as i128 - past.as_secs() as i128;
        Self(Some(format!("; hit; ttl={seconds}")))
    }

    /// Adds to a hit that the response was on the disk.
    pub(super) fn note_disk(&mut self) {
        if let Some(value) = self.0.as_mut().filter(|value| value.contains("; hit;")) {
            value.push_str("; detail=disk");
        }
    }

    /// The status of a request that goes to the origin.
    pub(super) fn forwarded(reason: Reason) -> Self {
        let reason = match reason {
            Reason::UriMiss => "uri-miss",
            Reason::VaryMiss => "vary-miss",
            Reason::Stale => "stale",
            Reason::Request => "request",
        };
        Self(Some(format!("; fwd={reason}")))
    }

    /// The status of a request that waited for another one.
    pub(super) fn collapsed() -> Self {
        Self(Some("; fwd=uri-miss; collapsed".to_owned()))
    }

    /// The status of a request that no stored response may serve.
    pub(super) fn bypass(is_safe: bool) -> Self {
        let reason = if is_safe { "bypass" } else { "method" };
        Self(Some(format!("; fwd={reason}")))
    }

    /// The status of a request for stored responses only that found none.
    pub(super) fn only_if_cached() -> Self {
        Self(Some("; detail=only-if-cached".to_owned()))
    }

    /// Adds the status code of the origin, and that its response is stored.
    pub(super) fn received(&mut self, status: u16, is_stored: bool) {
        let Some(value) = &mut self.0 else {
            return;
        };
        let stored = if is_stored { "; stored" } else { "" };
        // Writing to a string never fails.
        let _ = write!(value, "; fwd-status={status}{stored}");
    }

    /// Adds the field to the first final head.
    pub(super) fn tell(&mut self, name: &str, fields: &mut tandem_http::Fields) {
        if let Some(value) = self.0.take() {
            // A later cache adds its member at the end (RFC 9211 section 2).
            fields.push(FIELD, format!("{name}{value}"));
        }
    }
}
