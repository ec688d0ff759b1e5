//! The hosts of other sites from which the browser requests resources.
//!
//! A page names resources of other sites that some browsers never request, because their users
//! block advertisers and trackers. A push would fetch them all the same: it would cost bytes, and
//! would tell the other site about the visit. Therefore these resources of another site are pushed
//! only:
//!
//! * style sheets and fonts, without which the page is not shown;
//! * all others once the client has requested a resource of that host, or has used a push of it.
//!   Until then they wait, even if other users needed them. At a gateway with one user, the hosts
//!   of earlier sessions do not wait ([`asked_hosts`](crate::asked_hosts)).

use std::collections::HashMap;
use std::time::Instant;

use tandem_preload::{Kind, Need};

use super::burst::Burst;
use super::deadlines::{Deadlines, GATHER_PERIOD};
use super::table::PageId;
use crate::url;
use crate::wire::url_hash_of;

/// The largest number of hosts that are remembered. A full set is cleared.
const MAX_HOSTS: usize = 1024;

/// The largest number of resources that wait.
const MAX_WAITING: usize = 1024;

/// A resource that waits for the first request to its host.
pub(super) struct WaitingNeed {
    pub(super) page: PageId,
    pub(super) need: Need,
}

/// The knowledge about a host.
#[derive(Clone, Copy, Default)]
struct KnownHost {
    /// True if the client has requested resources of the host, or used pushes.
    is_wanted: bool,
    /// True if a request of another host's page carried cookies, and `None` before such requests.
    sends_cookies: Option<bool>,
    /// True if the host has answered, other than with a failure.
    has_answered: bool,
    /// True if the host has answered with a failure.
    has_failed: bool,
    burst: Burst,
}

/// The hosts of a session, as authorities.
#[derive(Default)]
pub(super) struct ForeignHosts {
    known: HashMap<String, KnownHost>,
    waiting: Vec<WaitingNeed>,
    /// The hosts whose needs are released soon.
    releases: Deadlines<String>,
}

impl ForeignHosts {
    /// Returns whether a need of another site may be pushed now. Otherwise it waits. Style sheets
    /// and fonts wait only if `all_wait`.
    pub(super) fn admits(&mut self, page: PageId, need: &Need, all_wait: bool) -> bool {
        let host = url::authority(&need.url);
        if self.is_wanted(host) {
            return true;
        }
        let admitted = !all_wait && matches!(need.kind, Kind::Style | Kind::Font);
        if !admitted {
            self.wait(page, need);
        }
        admitted
    }

    /// Lets a need wait for a request to its host. A URL waits once for each page.
    pub(super) fn wait(&mut self, page: PageId, need: &Need) {
        let is_same = |it: &WaitingNeed| it.page == page && it.need.url == need.url;
        if self.waiting.len() < MAX_WAITING && !self.waiting.iter().any(is_same) {
            let need = need.clone();
            self.waiting.push(WaitingNeed { page, need });
        }
    }

    /// Notes whether a request of another host's page carries cookies. The first such request
    /// releases the needs that wait for the host, as [`Self::note_wanted`] does.
    pub(super) fn note_cookies(&mut self, now: Instant, host: &str, has_cookies: bool) {
        let sends = &mut self.host(host).sends_cookies;
        let is_first = sends.is_none();
        *sends = Some(has_cookies || *sends == Some(true));
        if is_first {
            self.release(now, host);
        }
    }

    /// Notes that a host has answered. The first answer releases the needs that wait for it, but
    /// none that wait for the first request to the host.
    pub(super) fn note_answer(&mut self, now: Instant, host: &str) {
        let known = self.host(host);
        let is_first = !std::mem::replace(&mut known.has_answered, true);
        if is_first && known.is_wanted {
            self.release(now, host);
        }
    }

    /// Notes that a host has answered with a failure.
    pub(super) fn note_failure(&mut self, host: &str) {
        self.host(host).has_failed = true;
    }

    /// Returns whether a host has answered, other than with a failure.
    pub(super) fn has_answered(&self, host: &str) -> bool {
        self.known.get(host).is_some_and(|known| known.has_answered)
    }

    /// Returns whether a host has answered with a failure.
    pub(super) fn has_failed(&self, host: &str) -> bool {
        self.known.get(host).is_some_and(|known| known.has_failed)
    }

    /// Notes that a request to a host begins.
    pub(super) fn note_begun(&mut self, now: Instant, host: &str) {
        self.host(host).burst.note(now);
    }

    /// Returns whether a host has lately got more requests than a browser makes at once.
    pub(super) fn has_burst(&self, host: &str) -> bool {
        let known = self.known.get(host);
        known.is_some_and(|known| !known.burst.is_small())
    }

    /// Notes that a response of a host sets a cookie. Later requests may carry it, so earlier ones
    /// without cookies no longer count.
    pub(super) fn note_set_cookie(&mut self, host: &str) {
        if let Some(known) = self.known.get_mut(host) {
            known.sends_cookies.take_if(|sends| !*sends);
        }
    }

    /// Returns whether the browser sends cookies to a host, if its requests have shown that.
    pub(super) fn sends_cookies(&self, host: &str) -> Option<bool> {
        self.known.get(host)?.sends_cookies
    }

    /// Returns the knowledge about a host. A full table starts again.
    fn host(&mut self, host: &str) -> &mut KnownHost {
        if self.known.len() >= MAX_HOSTS && !self.known.contains_key(host) {
            self.known.clear();
        }
        self.known.entry(host.to_owned()).or_default()
    }

    /// Returns whether the client wants resources of a host.
    pub(super) fn is_wanted(&self, host: &str) -> bool {
        self.known.get(host).is_some_and(|known| known.is_wanted)
    }

    /// Records that another page begins, and returns the pages with needs that no longer wait.
    pub(super) fn begin_page(&mut self) -> Vec<PageId> {
        self.waiting.drain(..).map(|waiting| waiting.page).collect()
    }

    /// Drops needs of the resource with this URL hash, which the client requests itself. Returns
    /// their pages.
    pub(super) fn drop_requested(&mut self, url: u32) -> Vec<PageId> {
        let is_requested = |waiting: &mut WaitingNeed| url_hash_of(&waiting.need.url) == Some(url);
        self.waiting
            .extract_if(.., is_requested)
            .map(|waiting| waiting.page)
            .collect()
    }

    /// Records that the client wants a resource of `host`. If the host is new, the needs that wait
    /// for it are released after [`GATHER_PERIOD`], so that no push is made for requests that
    /// follow at once.
    pub(super) fn note_wanted(&mut self, now: Instant, host: &str) {
        let is_new = !std::mem::replace(&mut self.host(host).is_wanted, true);
        if is_new {
            self.release(now, host);
        }
    }

    /// Releases the needs that wait for a host, after [`GATHER_PERIOD`].
    fn release(&mut self, now: Instant, host: &str) {
        if !self.waiting.is_empty() {
            self.releases.add(now + GATHER_PERIOD, host.to_owned());
        }
    }

    /// Returns the time of the next call of [`Self::take_released`].
    pub(super) fn next_release(&self) -> Option<Instant> {
        self.releases.next()
    }

    /// Takes the needs that waited for a host and are released by now.
    pub(super) fn take_released(&mut self, now: Instant) -> Option<Vec<WaitingNeed>> {
        let host = self.releases.take_due(now)?;
        let (released, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting| url::authority(&waiting.need.url) == host);
        self.waiting = waiting;
        Some(released)
    }

    /// Ends all waits without a release. Returns the pages with needs that no longer wait.
    pub(super) fn close(&mut self) -> Vec<PageId> {
        self.releases.clear();
        self.begin_page()
    }

    /// Returns whether a need of this page waits.
    pub(super) fn is_awaited(&self, page: PageId) -> bool {
        self.waiting.iter().any(|waiting| waiting.page == page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(url: &str, kind: Kind) -> Need {
        Need {
            url: url.to_owned(),
            kind,
            urgency: 4,
            anonymous: false,
            by_cors: false,
            referrer: None,
            via: None,
            frame: None,
            has_nonce: false,
        }
    }

    fn page() -> PageId {
        PageId::from(1)
    }

    /// Returns the needs that are released for the first host.
    fn released(hosts: &mut ForeignHosts) -> Vec<String> {
        let at = hosts.next_release().expect("a host is new");
        let released = hosts.take_released(at).into_iter().flatten();
        released.map(|waiting| waiting.need.url).collect()
    }

    #[test]
    fn style_and_font_are_admitted_at_once() {
        let mut hosts = ForeignHosts::default();
        for kind in [Kind::Style, Kind::Font] {
            assert!(hosts.admits(page(), &need("http://b/x", kind), false));
            assert!(!hosts.admits(page(), &need("http://c/x", kind), true));
        }
        for kind in [Kind::Script, Kind::Image, Kind::Document, Kind::Fetch] {
            assert!(!hosts.admits(page(), &need("http://b/y", kind), false));
        }
        assert!(hosts.is_awaited(page()) && !hosts.is_awaited(PageId::from(2)));
    }

    #[test]
    fn first_request_to_a_host_releases_its_needs() {
        let mut hosts = ForeignHosts::default();
        for url in ["http://b/1", "http://c/2", "http://b/3", "http://b/4"] {
            assert!(!hosts.admits(page(), &need(url, Kind::Image), false));
        }
        let requested = url_hash_of("http://b/3").unwrap();
        assert_eq!(hosts.drop_requested(requested), [page()]);
        assert!(hosts.drop_requested(requested).is_empty());
        let now = Instant::now();
        hosts.note_wanted(now, "b");
        assert!(hosts.take_released(now).is_none(), "requests may follow");
        assert_eq!(hosts.next_release(), Some(now + GATHER_PERIOD));
        assert_eq!(released(&mut hosts), ["http://b/1", "http://b/4"]);
        hosts.note_wanted(now, "b");
        assert_eq!(hosts.next_release(), None, "not for the first time");
        assert!(
            hosts.is_awaited(page()),
            "the other host's need still waits"
        );
        assert!(hosts.admits(page(), &need("http://b/5", Kind::Image), false));
        hosts.note_wanted(now, "c");
        assert_eq!(released(&mut hosts), ["http://c/2"]);
        assert!(hosts.is_wanted("b") && hosts.is_wanted("c") && !hosts.is_wanted("d"));
        hosts.note_wanted(now, "d");
        assert_eq!(hosts.next_release(), None, "nothing waits");
    }

    #[test]
    fn cookies_of_a_wanted_host_release_its_needs() {
        let (mut hosts, now) = (ForeignHosts::default(), Instant::now());
        hosts.note_wanted(now, "b");
        for _ in 0..2 {
            hosts.wait(page(), &need("http://b/1", Kind::Image));
        }
        hosts.note_wanted(now, "b");
        assert_eq!(hosts.next_release(), None, "the host is not new");
        hosts.note_cookies(now, "b", false);
        assert_eq!(released(&mut hosts), ["http://b/1"], "it waits once");
        hosts.wait(page(), &need("http://b/2", Kind::Image));
        hosts.note_cookies(now, "b", false);
        assert_eq!(hosts.next_release(), None, "nothing has changed");
        hosts.note_set_cookie("b");
        assert_eq!(hosts.sends_cookies("b"), None);
        hosts.note_cookies(now, "b", true);
        assert_eq!(released(&mut hosts), ["http://b/2"]);
        hosts.note_set_cookie("b");
        assert_eq!(hosts.sends_cookies("b"), Some(true));
    }

    #[test]
    fn closed_session_releases_nothing() {
        let (mut hosts, now) = (ForeignHosts::default(), Instant::now());
        assert!(!hosts.admits(page(), &need("http://b/1", Kind::Image), false));
        hosts.note_wanted(now, "b");
        assert_eq!(hosts.close(), [page()]);
        assert_eq!(hosts.next_release(), None);
        assert!(!hosts.is_awaited(page()));
    }

    #[test]
    fn needs_wait_until_the_next_page() {
        let mut hosts = ForeignHosts::default();
        for url in ["http://b/1", "http://c/2"] {
            assert!(!hosts.admits(page(), &need(url, Kind::Image), false));
        }
        assert_eq!(hosts.begin_page(), [page(), page()]);
        assert!(!hosts.is_awaited(page()));
        hosts.note_wanted(Instant::now(), "b");
        assert_eq!(hosts.next_release(), None, "nothing waits");
    }

    #[test]
    fn hosts_and_needs_are_bounded() {
        let mut hosts = ForeignHosts::default();
        for host in 0..3000 {
            let image = need(&format!("http://h{host}/"), Kind::Image);
            assert!(!hosts.admits(page(), &image, false));
            hosts.note_wanted(Instant::now(), &format!("w{host}"));
            assert!(hosts.known.len() <= MAX_HOSTS);
        }
        assert_eq!(hosts.waiting.len(), MAX_WAITING);
        assert_eq!(
            hosts.known.len(),
            3000 % MAX_HOSTS,
            "a full set starts again"
        );
        hosts.begin_page();
        assert!(hosts.waiting.is_empty());
    }
}
