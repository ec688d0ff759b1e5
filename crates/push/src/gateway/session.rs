//! The state of one session, and the operations that several events share.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use tandem_http::RequestHead;

use super::awaited_targets::KnownTargets;
use super::changed_cookies::NewCookies;
use super::client_cache::ClientCache;
use super::client_hints::ClientHints;
use super::companion::Companion;
use super::content_policies::ContentPolicies;
use super::deadlines::Deadlines;
use super::document::DocumentReader;
use super::fetch::{Fetch, PushStream};
use super::fetch_queue::FetchQueue;
use super::foreign_hosts::ForeignHosts;
use super::likely_pushes::LikelyPushes;
use super::load_end::LoadProgress;
use super::misses::Misses;
use super::named_referrers::NamedReferrers;
use super::output::{Clock, Config, Counts, Output, PromiseStream};
use super::page::{Page, Promise};
use super::page_copies::Copies;
use super::page_view::PageView;
use super::random::Random;
use super::refusals::Refusals;
use super::repeats::Repeats;
use super::session_cookies::SessionCookies;
use super::table::{FetchId, PageId, ResponseId, Table};
use super::validators::Validators;
use super::viewed_page::NextPages;
use super::visitors::Visitors;
use super::visits::Visits;
use super::workers::Workers;
use crate::image_accept::ImageAccept;
use crate::response_rules::{CopyLifetime, KeptCopy};
use crate::url;
use crate::wire::{OPENED_FIELD, OpenedList, RequestHashes, Treatment};

/// A response to a request of the client, on its way.
pub(super) struct Response {
    /// The hash of the request's URL.
    pub(super) hash: u32,
    /// True if the hash is among those of the requests that are under way.
    pub(super) is_requested: bool,
    /// The request, until the head shows that it is not needed.
    pub(super) request: Option<Arc<RequestHead>>,
    /// True if the client takes pushes.
    pub(super) takes_pushes: bool,
    /// The URL, if the head made it necessary.
    pub(super) url: Option<Arc<str>>,
    /// The page, once there is anything to push with the response.
    pub(super) page: Option<PageId>,
    /// True if the user of a tab visits a page with the request, as far as it shows.
    pub(super) is_visit: bool,
    /// The number of the last change of cookies before the request.
    pub(super) cookies_of: u64,
    /// The treatment of a page that was decided before its head.
    pub(super) treatment: Option<Treatment>,
    /// The reader of the body, if the body may name resources.
    pub(super) reader: Option<DocumentReader>,
    /// The bytes of the body so far, if its head did not give their number.
    pub(super) unsized_body: Option<u64>,
    /// True if a click may have caused the request, since it came after the load of a page.
    pub(super) is_after_load: bool,
    /// True if the response is an element of the load under way.
    pub(super) is_element: bool,
    /// True if the body has ended.
    pub(super) ended: bool,
}

/// The most user agents whose `Accept` for images a session keeps.
const MAX_AGENTS: usize = 8;

/// A promise that the client has not reported on.
pub(super) struct Unreported {
    pub(super) url: Arc<str>,
    /// The URL of the page that it was made for.
    pub(super) page_url: Arc<str>,
    pub(super) fetch: FetchId,
    pub(super) asked: RequestHashes,
    /// True if only the head was promised.
    pub(super) is_check: bool,
    /// True if the resource is a document that may follow the page.
    pub(super) is_next: bool,
    /// The response that carried the page.
    pub(super) response: ResponseId,
    /// The held fetch of the same resource that this promise replaced.
    pub(super) superseded: Option<FetchId>,
    /// The copy that a browser's cache keeps of a check's response, once its head has come.
    pub(super) copy: Option<KeptCopy>,
    /// True if the head has come, and the client uses it only for a request that waits already.
    pub(super) needs_waiting: bool,
    /// The lifetime of copies of the response, if its head has shown it.
    pub(super) lifetime: Option<CopyLifetime>,
    /// The time at which the promise was sent, as long as requests may be referred to the push.
    pub(super) promised: Option<Instant>,
    /// The new cookies of its response, as long as the browser does not have them.
    pub(super) sets: Option<Box<NewCookies>>,
    /// True if the request of the push was made.
    pub(super) begun: bool,
    /// True if the resource is no document. Browsers request most documents by themselves.
    pub(super) is_part: bool,
    /// True if it was requested by CORS.
    pub(super) is_by_cors: bool,
    /// True if its response is an error in place of a part of the page.
    pub(super) is_error: bool,
    /// True if the browser may have the resource in its cache.
    pub(super) may_have_copy: bool,
    /// True if the push did not wait for claims, because nearly all visits transfer its resource,
    /// and no head has shown that caches do not keep it.
    pub(super) is_likely: bool,
    /// True if an old copy of its response has expired, so that its use shows no empty cache.
    pub(super) has_expired: bool,
    /// The bytes of its body so far.
    pub(super) bytes: u64,
}

/// The gateway's half of one session.
pub struct Gateway {
    pub(super) config: Config,
    pub(super) clock: Clock,
    pub(super) responses: Table<ResponseId, Response>,
    pub(super) pages: Table<PageId, Page>,
    pub(super) fetches: Table<FetchId, Fetch>,
    pub(super) queue: FetchQueue,
    pub(super) cache: ClientCache,
    pub(super) visitors: Visitors,
    pub(super) validators: Validators,
    /// The visits of the user, if the session has only one.
    pub(super) visits: Option<Visits>,
    /// The policies of documents for their resources.
    pub(super) content_policies: ContentPolicies,
    pub(super) cookies: SessionCookies,
    pub(super) image_accept: ImageAccept<MAX_AGENTS>,
    /// The client hints of requests, once an origin has asked for some.
    pub(super) hints: Box<ClientHints>,
    pub(super) repeats: Repeats,
    /// The pushes that cost their origins requests for nothing.
    pub(super) misses: Misses,
    /// The referrers of the resources that pages have named.
    pub(super) named_referrers: NamedReferrers,
    pub(super) refusals: Refusals,
    /// The held fetches, until they are given up.
    pub(super) holds: Deadlines<FetchId>,
    /// The copies that the browser may have of the last pages' resources.
    pub(super) copies: Copies,
    /// The URL hashes of the requests that are under way.
    pub(super) requested: Vec<u32>,
    /// The documents that requests have joined, by URL hash. A request joins a push if it takes the
    /// response while that is still arriving.
    pub(super) joined: Vec<(u32, FetchId)>,
    /// The promises without a report, by URL hash.
    pub(super) unreported: HashMap<u32, Unreported>,
    pub(super) companion: Companion,
    pub(super) hosts: ForeignHosts,
    /// The targets of redirects to other origins, and the transfers of visits, once there are any.
    /// They stay `None` at a gateway with several users.
    pub(super) targets: Option<Box<KnownTargets>>,
    pub(super) likely: LikelyPushes,
    pub(super) workers: Workers,
    /// The list of hosts for which the client opens HTTPS; `None` before it has sent a list.
    opened: Option<OpenedList>,
    /// The page that the user looks at.
    pub(super) view: Option<Box<PageView>>,
    pub(super) load: LoadProgress,
    /// The documents that may follow that page.
    pub(super) next: NextPages,
    /// The last page for which needs were skipped, because the client was thought to have them.
    pub(super) skipping: Option<PageId>,
    pub(super) random: Random,
    pub(super) outputs: VecDeque<Output>,
    pub(super) counts: Counts,
    /// True if the client has shown a fact that matters for later events: it takes pushes, has a
    /// companion or opens HTTPS.
    pub(super) knows_client: bool,
    /// True if the session is over. Nothing is promised any more then.
    pub(super) closed: bool,
}

/// Shows numbers only: the URLs of a session are private.
impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway")
            .field("config", &self.config)
            .field("records", &self.records())
            .finish_non_exhaustive()
    }
}

impl Gateway {
    /// Creates the machine of a session that begins at the time that `clock` shows.
    pub fn new(config: Config, clock: Clock) -> Self {
        Self {
            clock,
            responses: Table::default(),
            pages: Table::default(),
            fetches: Table::default(),
            queue: FetchQueue::new(config.first_fetches, config.fetches),
            cache: ClientCache::default(),
            visitors: Visitors::default(),
            validators: Validators::default(),
            visits: config.audience.remembers_visits().then(Visits::default),
            content_policies: ContentPolicies::default(),
            cookies: SessionCookies::new(config.audience),
            image_accept: ImageAccept::default(),
            hints: Box::default(),
            repeats: Repeats::default(),
            misses: Misses::default(),
            named_referrers: NamedReferrers::default(),
            refusals: Refusals::default(),
            holds: Deadlines::default(),
            copies: Copies::default(),
            requested: Vec::new(),
            joined: Vec::new(),
            unreported: HashMap::new(),
            // A client in the same process is known. Its first page may be here before its
            // companion.
            companion: Companion::new(config.audience.is_in_one_process()),
            hosts: ForeignHosts::default(),
            targets: None,
            likely: LikelyPushes::default(),
            workers: Workers::default(),
            opened: None,
            view: None,
            load: LoadProgress::default(),
            next: NextPages::default(),
            skipping: None,
            random: Random::new(config.seed),
            outputs: VecDeque::new(),
            counts: Counts::default(),
            knows_client: false,
            closed: false,
            config,
        }
    }

    /// Takes over the list of hosts for which the client opens HTTPS, if a request carries one.
    pub(super) fn note_opened(&mut self, request: &RequestHead) {
        let Some(value) = request.fields.get(OPENED_FIELD) else {
            return;
        };
        self.knows_client = true;
        if !self.opened.as_ref().is_some_and(|list| list.is_of(value)) {
            self.opened = Some(OpenedList::parse(value));
        }
    }

    /// Returns whether the client opens HTTPS of a URL: its user has listed the host.
    pub(super) fn is_opened(&self, url: &str) -> bool {
        let list = self.opened.as_ref();
        list.is_some_and(|list| url.starts_with("https:") && list.covers(url::authority(url)))
    }

    /// Returns whether the browser would request a URL through a tunnel, as all HTTPS that the
    /// client does not open.
    pub(super) fn is_tunnelled(&self, url: &str) -> bool {
        self.opened.is_some() && url.starts_with("https:") && !self.is_opened(url)
    }

    /// Returns true if a new machine would handle all later events in the same way. That is so if
    /// no response is under way, and nothing is known of the client.
    pub fn is_dispensable(&self) -> bool {
        !self.knows_client && !self.closed && self.responses.len() == 0
    }

    /// Returns the next decision.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns the time at which [`Self::handle_timeout`] is to be called.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        let fetches = &self.fetches;
        let has_slot = |id| fetches.get(id).is_some_and(|it| it.phase.has_slot());
        let times = [
            self.queue.next_slow(has_slot),
            self.hosts.next_release(),
            self.next_hold_end(),
            self.repeats.next_timeout(),
            self.copies.next_check(),
            self.next.due(),
        ];
        times.into_iter().flatten().min()
    }

    /// Runs the work that is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(fetch) = self.queue.take_slow(now) {
            self.give_slot_away(now, fetch);
        }
        self.end_holds(now);
        self.repeats.expire(now);
        self.begin_checks(now);
        self.end_load(now);
        while let Some(released) = self.hosts.take_released(now) {
            for waiting in released {
                self.promise_one(waiting.page, waiting.need);
                self.collect_page(waiting.page);
            }
        }
    }

    /// Takes the next promise for a stream.
    pub fn take_promise(&mut self, stream: PromiseStream) -> Option<Promise> {
        loop {
            let promise = self.next_promise(stream)?;
            // A push that was given up meanwhile has no record.
            if let Some(fetch) = self.fetches.get_mut(promise.fetch) {
                fetch.stream = PushStream::Promised;
                return Some(promise);
            }
        }
    }

    fn next_promise(&mut self, stream: PromiseStream) -> Option<Promise> {
        match stream {
            PromiseStream::Companion => self.companion.take_promise(),
            PromiseStream::Response(response) => {
                let page = self.responses.get(response)?.page?;
                self.pages.get_mut(page)?.promises.as_mut()?.pop_front()
            }
        }
    }

    /// Ends the session: nothing is promised any more, and promises that no stream has taken are
    /// withdrawn. Pushes that the client has not reported on can serve no request any more.
    pub fn close(&mut self) {
        self.closed = true;
        // A held promise counts as withheld here, and no longer waits for a report.
        self.end_all_holds();
        for (_, push) in std::mem::take(&mut self.unreported) {
            self.count_end(&push);
        }
        self.next.leave();
        self.repeats.clear();
        self.copies.drop_checks();
        self.forget_copies();
        let mut waiting = self.hosts.close();
        waiting.extend(self.hints.leave());
        self.collect_pages(waiting);
        if let Some(page) = self.skipping.take() {
            self.collect_page(page);
        }
        for promise in self.companion.take_promises() {
            self.forget_fetch(promise.fetch);
        }
    }

    /// Returns the counts since the last call.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Returns the number of pushes that the client has not reported on.
    pub fn unreported(&self) -> usize {
        self.unreported.len()
    }

    /// Returns the number of responses, pages and fetches that the machine knows.
    pub fn records(&self) -> [usize; 3] {
        [self.responses.len(), self.pages.len(), self.fetches.len()]
    }

    /// Counts a push that serves no request, because its session has ended.
    fn count_end(&mut self, push: &Unreported) {
        match (push.is_next, push.begun) {
            (true, _) => {}
            (false, true) => self.counts.wasted += 1,
            (false, false) => self.counts.withheld += 1,
        }
        self.count_waste(push);
    }

    /// Counts the cost of a push that serves no request.
    pub(super) fn count_waste(&mut self, push: &Unreported) {
        if push.is_next {
            self.counts.next_wasted_bytes += push.bytes;
        } else {
            self.counts.wasted_bytes += push.bytes;
            if push.is_likely {
                self.counts.likely_wasted_bytes += push.bytes;
            }
            self.counts.extra_requests += u64::from(push.begun);
        }
        if let Some(fetch) = self.fetches.get_mut(push.fetch) {
            fetch.is_wasted = true;
        }
    }

    /// Records that the client requests or uses a resource of a host, whose `url` is given as a
    /// hash. Needs that wait for the host are released soon.
    pub(super) fn note_wanted(&mut self, now: Instant, host: &str, url: u32) {
        let no_longer_waiting = self.hosts.drop_requested(url);
        self.collect_pages(no_longer_waiting);
        self.hosts.note_wanted(now, host);
    }

    /// Removes those pages that nothing refers to.
    pub(super) fn collect_pages(&mut self, pages: Vec<PageId>) {
        for page in pages {
            self.collect_page(page);
        }
    }

    /// Removes a page that nothing refers to.
    pub(super) fn collect_page(&mut self, id: PageId) {
        let Some(page) = self.pages.get(id) else {
            return;
        };
        let is_used = page.promises.is_some()
            || page.fetches > 0
            || self.skipping == Some(id)
            || self.copies.need(id)
            || self.hints.need(id)
            || self.hosts.is_awaited(id);
        if !is_used {
            self.pages.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    #[test]
    fn machine_is_dispensable_until_it_knows_its_client() {
        let now = Instant::now();
        let machine = || {
            let clock = Clock {
                instant: now,
                unix_time: 0,
            };
            Gateway::new(Config::default(), clock)
        };
        let request = Arc::new(RequestHead::get(Scheme::Http, "a.test", "/"));
        for (takes_pushes, is_dispensable) in [(false, true), (true, false)] {
            let mut gateway = machine();
            let response = gateway.handle_request(now, &request, takes_pushes);
            assert!(!gateway.is_dispensable(), "a response is under way");
            gateway.release_response(now, response.expect("a response that teaches"));
            assert_eq!(gateway.is_dispensable(), is_dispensable);
        }
        let mut gateway = machine();
        gateway.close();
        assert!(!gateway.is_dispensable(), "it promises nothing more");
        let mut gateway = machine();
        assert!(gateway.open_companion(false));
        gateway.close_companion();
        assert!(!gateway.is_dispensable(), "its client reports");
        let mut gateway = machine();
        let mut listing = (*request).clone();
        listing.fields.push(OPENED_FIELD, "*.a.test");
        gateway.handle_request(now, &Arc::new(listing), false);
        assert!(!gateway.is_dispensable(), "its client opens HTTPS");
    }

    #[test]
    fn list_separates_opened_urls_from_tunnels() {
        let clock = Clock {
            instant: Instant::now(),
            unix_time: 0,
        };
        let mut gateway = Gateway::new(Config::default(), clock);
        let url = "https://www.a.test/x";
        assert!(!gateway.is_opened(url) && !gateway.is_tunnelled(url));
        let mut request = RequestHead::get(Scheme::Https, "www.a.test", "/");
        let list = "*.a.test !mail.a.test :443 :8443";
        request.fields.push(OPENED_FIELD, list);
        gateway.note_opened(&request);
        for (url, is_opened, is_tunnelled) in [
            (url, true, false),
            ("https://www.a.test:8443/x", true, false),
            ("https://www.a.test:9443/x", false, true),
            ("https://mail.a.test/x", false, true),
            ("https://b.test/x", false, true),
            ("http://www.a.test/x", false, false),
        ] {
            assert_eq!(gateway.is_opened(url), is_opened, "{url}");
            assert_eq!(gateway.is_tunnelled(url), is_tunnelled, "{url}");
        }
        request.fields.set(OPENED_FIELD, "b.test");
        gateway.note_opened(&request);
        assert!(gateway.is_tunnelled(url) && gateway.is_opened("https://b.test/x"));
    }

    /// A gateway keeps those of thousands of idle sessions.
    #[test]
    fn machine_of_a_session_is_small() {
        assert!(size_of::<Gateway>() <= 1648, "{}", size_of::<Gateway>());
    }
}
