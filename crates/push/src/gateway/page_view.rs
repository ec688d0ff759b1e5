//! The page that the user of a session looks at, and the documents that are part of it.

use std::time::{Duration, Instant};

use tandem_preload::Referrer;

use super::cookie_hashes::CookieHashes;
use crate::wire::Treatment;

/// The time in which a document that names a page as its referrer counts as a part of it.
const FRAME_PERIOD: Duration = Duration::from_secs(4);

/// The time without an event of a load after which the user's actions cause the requests.
const QUIET_PERIOD: Duration = Duration::from_secs(5);

/// The largest number of frames that are remembered. Documents that other frames cause count as
/// pages.
const MAX_FRAMES: usize = 64;

/// The page that was loaded last.
pub(super) struct PageView {
    url: String,
    since: Instant,
    /// The time of the last event of a load.
    active: Instant,
    /// True if a quiet period has ended the load.
    is_quiet: bool,
    treatment: Treatment,
    frames: Vec<String>,
    /// The facts about the visit, if the requests of the page are remembered.
    visit: Option<OwnVisit>,
}

/// The visit to a page whose requests are remembered.
#[derive(Clone)]
pub(super) struct OwnVisit {
    /// The referrer policy that the head of the page names.
    pub(super) policy: Referrer,
    /// The cookies of the request, with those that the page has set.
    pub(super) cookies: CookieHashes,
    /// True if the page has changed cookies.
    pub(super) changes_cookies: bool,
}

impl PageView {
    pub(super) fn new(now: Instant, url: &str, treatment: Treatment) -> Self {
        Self {
            url: url.to_owned(),
            since: now,
            active: now,
            is_quiet: false,
            treatment,
            frames: Vec::new(),
            visit: None,
        }
    }

    /// Remembers the requests of the page from now on.
    pub(super) fn begin_visit(&mut self, visit: OwnVisit) {
        self.visit = Some(visit);
    }

    /// Remembers no more requests of the page.
    pub(super) fn end_visit(&mut self) {
        self.visit = None;
    }

    /// Notes an event of a load. A quiet period before it has ended the load, unless the page is
    /// still arriving.
    pub(super) fn note_load(&mut self, now: Instant, is_arriving: impl FnOnce() -> bool) {
        let is_late = now.saturating_duration_since(self.active) >= QUIET_PERIOD;
        self.is_quiet |= is_late && !is_arriving();
        self.active = now;
    }

    /// Returns whether a quiet period has ended the load.
    pub(super) const fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// Returns the visit, if the requests of the page are remembered and it began in the last
    /// `period`.
    pub(super) fn visit(&self, now: Instant, period: Duration) -> Option<&OwnVisit> {
        let is_young = now.saturating_duration_since(self.since) < period;
        self.visit.as_ref().filter(|_| is_young)
    }

    /// Returns the URL of the page.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) const fn treatment(&self) -> Treatment {
        self.treatment
    }

    /// Returns whether a document with this referrer is a part of the page: a frame, or a frame of
    /// one, soon after the page.
    pub(super) fn causes(&self, now: Instant, referrer: &[u8]) -> bool {
        let is = |url: &String| url.as_bytes() == referrer;
        now.saturating_duration_since(self.since) < FRAME_PERIOD
            && (is(&self.url) || self.frames.iter().any(is))
    }

    /// Adds a document that is a part of the page.
    pub(super) fn add_frame(&mut self, url: &str) {
        if self.frames.len() < MAX_FRAMES {
            self.frames.push(url.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_view_counts_early_documents_as_frames() {
        let now = Instant::now();
        let mut page = PageView::new(now, "http://a/", Treatment::HeldOut);
        assert_eq!(page.treatment(), Treatment::HeldOut);
        page.add_frame("http://b/f");
        let soon = now + FRAME_PERIOD - Duration::from_millis(1);
        for referrer in ["http://a/", "http://b/f"] {
            assert!(page.causes(soon, referrer.as_bytes()), "{referrer}");
            assert!(!page.causes(now + FRAME_PERIOD, referrer.as_bytes()));
        }
        assert!(!page.causes(soon, b"http://a/other"));
    }

    #[test]
    fn quiet_period_ends_the_load() {
        let now = Instant::now();
        let at = |millis| now + Duration::from_millis(millis);
        let mut page = PageView::new(now, "http://a/", Treatment::Pushed);
        for (millis, is_arriving, is_quiet) in [
            (9000, true, false),
            (13_999, false, false),
            (18_999, false, true),
            (19_000, true, true),
        ] {
            page.note_load(at(millis), || is_arriving);
            assert_eq!(page.is_quiet(), is_quiet, "{millis}");
        }
    }

    #[test]
    fn page_remembers_a_bounded_number_of_frames() {
        let now = Instant::now();
        let mut page = PageView::new(now, "http://a/", Treatment::Pushed);
        for frame in 0..=MAX_FRAMES {
            page.add_frame(&format!("http://a/{frame}"));
        }
        assert!(page.causes(now, b"http://a/63") && !page.causes(now, b"http://a/64"));
    }
}
