//! The responses that a browser received and can still use, for the gateway of its next session.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tandem_http::{RequestHead, ResponseHead};

use super::lifetime::fresh_for;
use crate::wire::{Report, url_hash};

/// The largest number of responses that a digest remembers. The oldest are dropped.
pub const MAX_RESPONSES: usize = 1024;

/// The shortest lifetime that is worth a report, equal to the silence after which a companion ends.
const MIN_LIFETIME: Duration = Duration::from_secs(15);

/// The longest lifetime that a digest counts. A browser has probably dropped the copy by then.
pub const MAX_LIFETIME: Duration = Duration::from_secs(30 * 86_400);

/// The responses of one isolation key, by the hashes of their URLs.
#[derive(Debug, Default)]
pub struct Digest(VecDeque<(u32, Instant)>);

impl Digest {
    /// Remembers a response that the browser receives.
    pub fn note(&mut self, now: Instant, request: &RequestHead, head: &ResponseHead) {
        let lifetime = fresh_for(head).filter(|lifetime| *lifetime > MIN_LIFETIME);
        let Some(until) = lifetime.and_then(|it| now.checked_add(it.min(MAX_LIFETIME))) else {
            return;
        };
        self.restore(url_hash(request), until);
    }

    /// Adds a response that the browser can use until a time, by the hash of its URL. It takes the
    /// place of an earlier one.
    pub fn restore(&mut self, url: u32, until: Instant) {
        self.0.retain(|(known, _)| *known != url);
        if self.0.len() >= MAX_RESPONSES {
            self.0.pop_front();
        }
        self.0.push_back((url, until));
    }

    /// Returns the hashes of the URLs with fresh responses, and the remaining lifetime of each.
    pub fn fresh(&self, now: Instant) -> Vec<(u32, Duration)> {
        let rest = |(url, until): &(u32, Instant)| Some((*url, until.checked_duration_since(now)?));
        let fresh = self.0.iter().filter_map(rest);
        fresh.filter(|(_, rest)| !rest.is_zero()).collect()
    }

    /// Drops the stale responses, and appends a report for each of the others.
    pub fn encode(&mut self, now: Instant, out: &mut Vec<u8>) {
        self.0.retain(|(_, until)| *until > now);
        for (url, _) in &self.0 {
            Report::Holds(*url).encode(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;
    use crate::wire::ReportReader;

    fn reports(digest: &mut Digest, now: Instant) -> Vec<Report> {
        let (mut out, mut read) = (Vec::new(), Vec::new());
        digest.encode(now, &mut out);
        ReportReader::default().read(&out, |report| read.push(report));
        read
    }

    fn response(control: &str) -> ResponseHead {
        ResponseHead {
            fields: [("cache-control", control)].into_iter().collect(),
            ..ResponseHead::new(200)
        }
    }

    #[test]
    fn digest_lists_fresh_responses_only() {
        let (mut digest, start) = (Digest::default(), Instant::now());
        let get = |path: &str| RequestHead::get(Scheme::Http, "h", path);
        digest.note(start, &get("/a"), &response("max-age=60"));
        digest.note(start, &get("/b"), &response("max-age=15"));
        digest.note(start, &get("/c"), &response("no-store"));
        digest.note(start, &get("/d"), &response("max-age=120"));
        let (a, d) = (url_hash(&get("/a")), url_hash(&get("/d")));
        let now = start + Duration::from_secs(59);
        assert_eq!(
            reports(&mut digest, now),
            [Report::Holds(a), Report::Holds(d)]
        );
        let now = start + Duration::from_secs(60);
        assert_eq!(reports(&mut digest, now), [Report::Holds(d)]);
    }

    #[test]
    fn digest_lists_a_resource_once() {
        let (mut digest, now) = (Digest::default(), Instant::now());
        let get = |path: &str| RequestHead::get(Scheme::Http, "h", path);
        digest.note(now, &get("/a"), &response("max-age=60"));
        digest.note(now, &get("/b"), &response("max-age=60"));
        digest.note(now, &get("/a"), &response("max-age=90"));
        let (a, b) = (url_hash(&get("/a")), url_hash(&get("/b")));
        let later = now + Duration::from_secs(20);
        let left = [(b, 40), (a, 70)].map(|(url, rest)| (url, Duration::from_secs(rest)));
        assert_eq!(digest.fresh(later), left);
        assert_eq!(digest.fresh(now + Duration::from_secs(60)).len(), 1);
    }

    #[test]
    fn digest_keeps_the_latest_responses() {
        let (mut digest, now) = (Digest::default(), Instant::now());
        for i in 0..MAX_RESPONSES + 9 {
            let request = RequestHead::get(Scheme::Http, "h", format!("/{i}"));
            digest.note(now, &request, &response("max-age=60"));
        }
        let found = reports(&mut digest, now);
        let first = url_hash(&RequestHead::get(Scheme::Http, "h", "/9"));
        assert_eq!(
            (found.len(), found[0]),
            (MAX_RESPONSES, Report::Holds(first))
        );
    }
}
