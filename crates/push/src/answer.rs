//! The answers that a gateway may push and a client may keep for a moment.

/// Returns whether an answer with this status may be pushed: a status that caches may store without
/// an explicit lifetime (RFC 9110 section 15.1), or a redirect.
pub const fn is_pushable_status(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 300..=303 | 307 | 308 | 404 | 410)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushable_status_is_cacheable_or_redirect() {
        for status in [200, 203, 204, 300, 301, 302, 303, 307, 308, 404, 410] {
            assert!(is_pushable_status(status), "{status}");
        }
        for status in [100, 201, 205, 206, 299, 304, 306, 309, 400, 401, 403, 500] {
            assert!(!is_pushable_status(status), "{status}");
        }
    }
}
