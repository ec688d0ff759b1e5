//! The interface of the predictor. It records each response, and returns the resources that other
//! users needed with it.
//!
//! The predictor is a trait that the caller passes in, because its list is needed at once: promises
//! must leave before the current head. All sessions of a process share the predictor, so the core
//! cannot own it.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tandem_http::cache::CacheControl;
use tandem_http::message::content_length;
use tandem_http::{RequestHead, ResponseHead};
use tandem_predict::auto::url::Kind as ResourceKind;
use tandem_predict::{Candidate, Exchange};
use tandem_preload::{Kind, Need};

use super::candidates::{is_data, is_frame_document, known_for, need_of};
use super::named::{LEAST_SHARE, PossibleNeed, PossibleNeeds};
use crate::cookie_urls::{CookieNeeds, CookieSenders};
use crate::fetch_standard::{
    ScriptFields, has_null_origin, has_only_browser_fields, is_by_cors, is_foreign_to_referrer,
    is_framed, is_navigation, is_prefetch, is_through_worker, is_worker_script, wants_one_format,
};
use crate::image_accept::is_for_image;
use crate::next_pages::NextPage;
use crate::referrers::{NamedPart, SeenReferrers};
use crate::response_rules::{CopyLifetime, depends_on_user};
use crate::scripts::DataFields;
use crate::transfers::{KnownTransfers, LIKELY};
use crate::wire::{RequestHashes, url_hash_of};

/// A predictor of the resources that pages need. One value stands for one session.
pub trait Predictor {
    /// Records a response, and returns the resources that are worth a push with it. The fields
    /// `session`, `user` and `now` of the exchange are filled in by the implementation.
    fn sending(&mut self, exchange: &Exchange<'_>) -> Vec<Candidate>;

    /// Records the referrer with which a URL was requested.
    fn note_referrer(&mut self, url: &str, referrer: &str);

    /// Returns the referrer with which a URL is usually requested, if that belongs to the URL's own
    /// origin.
    fn own_referrer(&self, url: &str) -> Option<String>;

    /// Records the mode of a browser's request for a URL: whether it was made by CORS.
    fn note_mode(&mut self, _url: &str, _is_by_cors: bool) {}

    /// Returns whether the last request for a URL that showed its mode was made by CORS.
    fn is_by_cors(&self, _url: &str) -> bool {
        false
    }

    /// Records the part of its page's URL that a request for a URL names in `Referer`.
    fn note_named_part(&mut self, _url: &str, _part: NamedPart) {}

    /// Returns the parts of page URLs that requests for a URL have named in `Referer`; `None` if no
    /// request has come. A resource of another site is then left to the markup of its page.
    fn seen_referrers(&self, _url: &str) -> Option<SeenReferrers> {
        None
    }

    /// Records the length of a body if its head did not give it.
    fn body_sent(&mut self, url: &str, size: u64);

    /// Records that the client used a push that was made for `page`.
    fn used(&mut self, page: &str, url: &str);

    /// Records the `Content-Type` of a push's response.
    fn push_answered(&mut self, _url: &str, _content_type: &str) {}

    /// Records that a push that was made for `page` confirmed a copy of the browser.
    fn confirmed(&mut self, page: &str, url: &str);

    /// Records that the client refused a push.
    fn cancelled(&mut self, url: &str);

    /// Records the lifetime of copies of a URL in a browser's cache.
    fn note_lifetime(&mut self, url: &str, lifetime: CopyLifetime);

    /// Returns the recorded lifetime of copies of a URL.
    fn lifetime(&self, url: &str) -> Option<CopyLifetime>;

    /// Returns the resources that most visits to a page request, whatever this visit requests.
    fn resources(&self, page: &str) -> Vec<Candidate>;

    /// Returns the resources that visits to a page may request, with the share of the visits that
    /// do.
    fn possible(&self, _page: &str) -> Vec<Candidate> {
        Vec::new()
    }

    /// Records whether a browser's cache can keep the response of a URL whose copies have no known
    /// lifetime.
    fn note_kept(&mut self, _url: &str, _is_kept: bool) {}

    /// Returns whether no cache could keep the last response of a URL. Browsers then request it at
    /// each visit.
    fn is_unkept(&self, _url: &str) -> bool {
        false
    }

    /// Records a visit to a document without credentials, and the page of its origin whose link led
    /// to it.
    fn note_visit(&mut self, _document: &str, _from: Option<&str>) {}

    /// Returns the documents that other visitors of a page asked for next, most probable first, as
    /// far as they are worth a push.
    fn next_pages(&self, _page: &str) -> Vec<NextPage> {
        Vec::new()
    }

    /// Records whether a push that was made for `page` cost its origin a request for nothing. `url`
    /// is the [`url_hash`](crate::wire::url_hash) of the URL.
    fn note_push(&mut self, _page: &str, _url: u32, _is_useless: bool) {}

    /// Records that the origin answered the push of a URL with 404 or 410. `is_plain` tells that
    /// the request had no cookies.
    fn note_gone(&mut self, _url: &str, _is_plain: bool) {}

    /// Records that an origin has a resource at a URL.
    fn note_found(&mut self, _url: &str) {}

    /// Returns whether the resource at a URL has gone. See
    /// [`GoneTable`](crate::gone_urls::GoneTable).
    fn is_gone(&self, _url: &str) -> bool {
        false
    }

    /// Records whether a browser had no use for a push of `url` that was made for `page`. A request
    /// of the browser for `url` counts as a use. The resources that visits to the page usually
    /// request are never counted as waste: the browser may have had them in its cache.
    fn note_waste(&mut self, _page: &str, _url: &str, _is_wasted: bool) {}

    /// Returns the URL hashes of the resources of a page whose pushes were of no use of late.
    fn useless_pushes(&self, _page: &str) -> Vec<u32> {
        Vec::new()
    }

    /// Records that a browser's request for a URL carried cookies that its page's origin does not
    /// get. `page` is of this origin. See [`CookieUser`](crate::cookie_urls::CookieUser) for
    /// `is_new`.
    fn note_cookies(&mut self, _page: &str, _url: &str, _is_new: bool) {}

    /// Returns the browsers whose requests for a URL carry such cookies.
    fn cookie_senders(&self, _url: &str) -> CookieSenders {
        CookieSenders::default()
    }

    /// Returns the resources that the pages of an origin request with such cookies.
    fn cookie_needs(&self, _page: &str) -> CookieNeeds {
        CookieNeeds::default()
    }

    /// Records the status with which a host has answered the user.
    fn note_host(&mut self, _host: &str, _status: u16) {}

    /// Returns the hosts that answer different users with failures. See
    /// [`RefusingHosts`](crate::refusing_hosts::RefusingHosts).
    fn refusing_hosts(&self) -> Arc<HashSet<String>> {
        Arc::default()
    }

    /// Records the fields of a request for a URL with data.
    fn note_data_fields(&mut self, _url: &str, _request: &RequestHead) {}

    /// Records whether a request that the document at a URL has caused came from an opaque origin.
    fn note_sandbox(&mut self, _frame: &str, _is_sandboxed: bool) {}

    /// Returns the fields with which pages request a URL with data.
    fn data_fields(&self, _url: &str) -> DataFields {
        DataFields::Plain
    }

    /// Records the `Accept` of a browser's request for an image.
    fn note_image_accept(&mut self, _request: &RequestHead) {}

    /// Returns the `Accept` with which the browser of a request asks for images, as enough users
    /// have shown it.
    fn image_accept(&self, _request: &RequestHead) -> Option<Arc<[u8]>> {
        None
    }

    /// Returns whether pages request a URL with data from its origin, whatever a cache holds.
    fn is_validated(&self, _url: &str) -> bool {
        false
    }

    /// Returns whether all sessions belong to one user. Otherwise the hosts that pages request are
    /// not recorded.
    fn serves_one_user(&self) -> bool {
        false
    }

    /// Records that a page has requested a URL, or has used a push of it. If `is_asked` is false,
    /// it had no use for the push. `browser` is a number that a browser's requests share.
    fn note_asked_host(&mut self, _browser: u32, _page: &str, _url: &str, _is_asked: bool) {}

    /// Returns the other hosts from which a document is expected to request resources, if all
    /// sessions belong to one user. See [`AskedHosts`](crate::asked_hosts::AskedHosts).
    fn asked_hosts(&self, _browser: u32, _document: &str) -> HashSet<String> {
        HashSet::new()
    }

    /// Records a request for the target of a redirect to another origin. `is_known` tells whether
    /// the gateway would have made the same request. It is recorded if all sessions belong to one
    /// user.
    fn note_redirect(&mut self, _browser: u32, _redirect: &str, _target: &str, _is_known: bool) {}

    /// Returns whether the fetches of resources that nearly all visits transfer begin without a
    /// claim. See [`LikelyBudget`](crate::likely_budget::LikelyBudget).
    fn permits_likely(&self) -> bool {
        false
    }

    /// Records that a browser visits a page, and that its request shows no earlier visit, if all
    /// sessions belong to one user. Returns the number of the visit.
    fn begin_transfers(&mut self, _browser: u32, _page: &str) -> u32 {
        0
    }

    /// Records that such a visit has transferred a resource. `url` is the
    /// [`url_hash`](crate::wire::url_hash) of its URL.
    fn note_transfer(&mut self, _browser: u32, _page: &str, _visit: u32, _url: u32) {}

    /// Returns the resources that a visit to a page is likely and unlikely to transfer. See
    /// [`TransferTable`](crate::transfers::TransferTable).
    fn transfers(&self, _browser: u32, _page: &str) -> KnownTransfers {
        KnownTransfers::default()
    }

    /// Returns whether the browser's request for the target of a redirect is known. See
    /// [`KnownRedirects`](crate::known_redirects::KnownRedirects).
    fn leads_to(&self, _browser: u32, _redirect: &str, _target: &str) -> bool {
        false
    }
}

/// The resources that other users needed.
#[derive(Default)]
pub(super) struct Learned {
    pub(super) needs: Vec<Need>,
    /// The hashes of the URLs, and the times for which the predictor has known them.
    pub(super) known: Vec<(u32, Duration)>,
    /// The hashes of the URLs that nearly all visits transfer.
    pub(super) likely: Vec<u32>,
    /// The fields that scripts choose for their requests, by URL.
    pub(super) scripts: HashMap<String, Arc<ScriptFields>>,
    /// The URLs of data that pages request from its origin, whatever a cache holds.
    pub(super) validated: HashSet<String>,
    /// The referrers of earlier requests for the resources, by URL.
    pub(super) referrers: HashMap<String, SeenReferrers>,
    /// The resources that are needed if scripts name them.
    pub(super) possible: PossibleNeeds,
    /// The URL hashes of the resources whose pushes were of no use to other users.
    pub(super) useless: Vec<u32>,
    /// The resources of other origins whose requests carry cookies.
    pub(super) with_cookies: CookieNeeds,
    /// The hosts that answer different users with failures.
    pub(super) refusing: Arc<HashSet<String>>,
    /// The `Accept` for images of other users with the same browser.
    pub(super) image_accept: Option<Arc<[u8]>>,
    /// The other hosts that pages of the origin have requested in the user's browser.
    pub(super) hosts: HashSet<String>,
    /// The hashes of the URLs of the fonts that visits to the page requested, if any is known.
    pub(super) fonts: Option<HashSet<u32>>,
    /// The URLs of frames whose resources are requested by opaque origins.
    pub(super) sandboxed: HashSet<String>,
}

/// Returns whether the response to a request may be recorded. A login, a script's own fields and a
/// wish for one format make it useless or private for other users, unless the script's fields can
/// be learned. The script of a service worker is no part of a page.
pub(super) fn is_learnable(request: &RequestHead) -> bool {
    if is_worker_script(request) {
        return false;
    }
    let is_plain = has_only_browser_fields(&request.fields)
        && !request.fields.get("accept").is_some_and(wants_one_format);
    is_plain || ScriptFields::of(request).is_some()
}

/// Returns whether a response may be a page, or a resource of use for other users. A resource that
/// must not be stored, such as a counter's pixel, serves only a request that waits already. One
/// that depends on the user serves no other, so a push of it would only delay the browser's
/// request. An error in place of a resource is of no use either, and must not teach that the page
/// needs it.
pub(super) fn is_reusable(request: &RequestHead, head: &ResponseHead) -> bool {
    let content_type = head.fields.get("content-type").unwrap_or_default();
    if head.status >= 400 && !is_navigation(request) {
        return false;
    }
    let is_document = is_navigation(request) || content_type.starts_with(b"text/html");
    let forbids_storage =
        head.fields.contains("cache-control") && CacheControl::of(&head.fields).no_store;
    is_document || !(forbids_storage || depends_on_user(head))
}

/// The facts about a response that neither its request nor its head contains.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    /// The URL of the request.
    pub(super) url: &'a str,
    /// The page of the push that the referrer names, if it names one.
    pub(super) page: Option<&'a str>,
    /// True if the response is a frame of the page that was loaded last.
    pub(super) is_frame: bool,
    /// True if a click may have caused the request, since it came after the load of a page.
    pub(super) is_after_load: bool,
    /// The document whose scripts the response may have.
    pub(super) document: Option<Document>,
    /// The largest number of resources that are promised because scripts name them.
    pub(super) named_by_scripts: usize,
}

/// The document whose scripts a response may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Document {
    /// The response is the document.
    Itself,
    /// The response is a script of the document that the referrer names.
    Referrer,
}

/// Returns a value as text. Nearly all values are valid, and the check alone is several times as
/// fast as the search for bad bytes.
fn text_of(value: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(value) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => String::from_utf8_lossy(value),
    }
}

/// Records a response with the predictor, and returns the needs of other users.
pub(super) fn learn(
    predictor: &mut dyn Predictor,
    context: Context<'_>,
    request: &RequestHead,
    head: &ResponseHead,
) -> Learned {
    let candidates = record(predictor, context, request, head);
    let mut learned = Learned::default();
    let permits_likely = !candidates.is_empty() && predictor.permits_likely();
    for candidate in &candidates {
        let is_need = learned.add(predictor, candidate);
        if is_need && permits_likely && candidate.probability >= LIKELY {
            learned.likely.extend(url_hash_of(&candidate.url));
        }
    }
    let of_referrer = || {
        let referrer = request.fields.get("referer").map(text_of);
        context.page.map(Cow::Borrowed).or(referrer)
    };
    let document = context.document.and_then(|document| match document {
        Document::Itself => Some(Cow::Borrowed(context.url)),
        Document::Referrer => of_referrer(),
    });
    if let Some(document) = document {
        let possible = learned.possible(predictor, &document, *document == *context.url);
        learned.possible = PossibleNeeds::new(possible, context.named_by_scripts);
    }
    learned
}

/// Records a response with the predictor, and returns the candidates for a push.
pub(super) fn record(
    predictor: &mut dyn Predictor,
    context: Context<'_>,
    request: &RequestHead,
    head: &ResponseHead,
) -> Vec<Candidate> {
    let Context {
        url,
        page,
        is_frame,
        is_after_load,
        ..
    } = context;
    let field = |name: &str| request.fields.get(name).map(text_of);
    let referrer = field("referer");
    let accept = field("accept");
    let destination = destination_of(request);
    let content_type = head.fields.get("content-type");
    let media_kind = content_type.and_then(ResourceKind::of_media_type);
    let is_of_sandbox = has_null_origin(request)
        || (is_foreign_to_referrer(request)
            && referrer
                .as_deref()
                .is_some_and(|it| is_frame_document(it, |url| predictor.data_fields(url))));
    if is_of_sandbox {
        // No request of the page itself would have the cookies and the origin of this one.
        if let Some(referrer) = &referrer {
            predictor.note_sandbox(referrer, true);
        }
        return Vec::new();
    }
    if let Some(referrer) = &referrer {
        predictor.note_referrer(url, referrer);
        if request.fields.get("sec-fetch-site") == Some(b"same-origin") {
            predictor.note_sandbox(referrer, false);
        }
        // A link leads to a page of its own, which is no resource of the referrer.
        if predictor.serves_one_user() && !is_navigation(request) && !is_prefetch(request) {
            let browser = RequestHashes::of(&request.fields).browser();
            predictor.note_asked_host(browser, referrer, url, true);
        }
    }
    // Data has a mode of its own, and a prefetch that of no element.
    let is_of_element = destination.as_deref() != Some("empty") && !is_prefetch(request);
    if let Some(is_by_cors) = is_by_cors(request).filter(|_| is_of_element) {
        predictor.note_mode(url, is_by_cors);
    }
    if matches!(head.status, 200 | 204 | 304) {
        predictor.note_found(url);
    }
    if is_for_image(&request.fields) {
        predictor.note_image_accept(request);
    }
    // The user may follow links with any referrer. They concern no part of a page.
    if !is_navigation(request) || is_frame {
        predictor.note_named_part(url, NamedPart::of(referrer.as_deref(), url));
    }
    let is_scripted = ScriptFields::of(request).is_some();
    // The predictor counts a frame as data.
    let is_data =
        is_frame || is_framed(request) || is_data(url, destination.as_deref(), media_kind);
    // A link may lead to data, and to the document of a frame.
    let is_of_page = !is_navigation(request) || is_frame;
    if is_of_page && (is_scripted || is_data) {
        predictor.note_data_fields(url, request);
    }
    if is_after_load {
        // A click may have caused the request. It is no need of the page.
        return Vec::new();
    }
    let missing_destination = match is_frame {
        true => Some("iframe"),
        false => is_scripted.then_some("empty"),
    };
    predictor.sending(&Exchange {
        url,
        get: true,
        status: head.status,
        size: content_length(&head.fields).ok().flatten().unwrap_or(0),
        referer: page.or(referrer.as_deref()),
        agent: request.fields.get("user-agent"),
        content_type,
        media_kind: Some(media_kind),
        destination: destination.as_deref().or(missing_destination),
        accept: accept.as_deref(),
        ..Exchange::default()
    })
}

impl Learned {
    /// Returns the needs of a page that a browser is about to request. None counts as likely: the
    /// probabilities are those of requests, and a browser's cache may answer a request.
    pub(super) fn of_page(predictor: &dyn Predictor, browser: u32, page: &str) -> Self {
        let resources = predictor.resources(page);
        let mut learned = Self {
            hosts: predictor.asked_hosts(browser, page),
            with_cookies: predictor.cookie_needs(page),
            fonts: fonts_among(&resources, predictor, page),
            ..Self::default()
        };
        for candidate in &resources {
            learned.add(predictor, candidate);
        }
        learned
    }

    /// Adds the knowledge of visits to the page. It is better than the probabilities of the
    /// predictor, to which visits to other pages contribute.
    pub(super) fn note_transfers(&mut self, known: KnownTransfers, permits_likely: bool) {
        self.likely.retain(|hash| !known.unlikely.contains(hash));
        if permits_likely {
            self.likely.extend(known.likely);
        }
    }

    /// Adds the needs of the page to which a redirect leads.
    pub(super) fn append(&mut self, of_target: Self) {
        self.needs.extend(of_target.needs);
        self.known.extend(of_target.known);
        self.scripts.extend(of_target.scripts);
        self.validated.extend(of_target.validated);
        self.referrers.extend(of_target.referrers);
        self.with_cookies.extend(of_target.with_cookies);
        self.hosts.extend(of_target.hosts);
        self.fonts = of_target.fonts.or_else(|| self.fonts.take());
        self.sandboxed.extend(of_target.sandboxed);
    }

    /// Adds a candidate, and returns true, if it is a need.
    fn add(&mut self, predictor: &dyn Predictor, candidate: &Candidate) -> bool {
        let Some(need) = self.need(predictor, candidate) else {
            return false;
        };
        self.needs.push(need);
        self.known.extend(known_for(candidate));
        true
    }

    /// Returns a candidate as a need, and keeps the fields of its request.
    fn need(&mut self, predictor: &dyn Predictor, candidate: &Candidate) -> Option<Need> {
        let is_data = !candidate.kind.is_asset() || candidate.kind == ResourceKind::Data;
        let fields_of_data = match is_data {
            true => predictor.data_fields(&candidate.url),
            false => DataFields::Plain,
        };
        let need = known_need(predictor, candidate, &fields_of_data)?;
        if fields_of_data == (DataFields::Frame { is_sandboxed: true }) {
            self.sandboxed.insert(need.url.clone());
        }
        if let DataFields::Scripted(fields) = fields_of_data {
            self.scripts.insert(need.url.clone(), fields);
        }
        if is_data && predictor.is_validated(&candidate.url) {
            self.validated.insert(need.url.clone());
        }
        if let Some(seen) = predictor.seen_referrers(&need.url) {
            self.referrers.insert(need.url.clone(), seen);
        }
        let senders = predictor.cookie_senders(&need.url);
        self.with_cookies.add(&need.url, senders);
        Some(need)
    }

    /// Returns the resources that visits to a document may request. Rare ones count only for the
    /// document itself.
    fn possible(
        &mut self,
        predictor: &dyn Predictor,
        document: &str,
        is_itself: bool,
    ) -> Vec<PossibleNeed> {
        let mut possible = Vec::new();
        for candidate in predictor.possible(document) {
            let share = candidate.probability;
            if (is_itself || share >= LEAST_SHARE)
                && let Some(need) = self.need(predictor, &candidate)
            {
                possible.push(PossibleNeed { need, share });
            }
        }
        possible
    }
}

/// Returns the destination of a request. That of a navigation is lost if a worker passes it on.
fn destination_of(request: &RequestHead) -> Option<Cow<'_, str>> {
    let destination = request.fields.get("sec-fetch-dest").map(text_of);
    match destination.as_deref() {
        Some("empty") if is_through_worker(request) => Some(Cow::Borrowed("document")),
        _ => destination,
    }
}

/// Returns a candidate as a need with the referrer and the mode of earlier requests, unless its
/// resource has gone. For other origins, elements with `crossorigin` are taken for those without
/// credentials.
pub(super) fn known_need(
    predictor: &dyn Predictor,
    candidate: &Candidate,
    fields_of_data: &DataFields,
) -> Option<Need> {
    let url = &candidate.url;
    if predictor.is_gone(url) {
        return None;
    }
    let mut need = need_of(candidate, predictor.own_referrer(url), fields_of_data)?;
    if need.kind != Kind::Document && predictor.is_by_cors(url) {
        need.by_cors = true;
        need.anonymous = true;
    }
    Some(need)
}

/// Returns the hashes of the URLs of the fonts that visits to a page requested, if any is known.
pub(super) fn known_fonts(predictor: &dyn Predictor, page: &str) -> Option<HashSet<u32>> {
    fonts_among(&predictor.resources(page), predictor, page)
}

/// Returns the same for a page with these resources.
fn fonts_among(
    resources: &[Candidate],
    predictor: &dyn Predictor,
    page: &str,
) -> Option<HashSet<u32>> {
    let possible = predictor.possible(page);
    let is_font = |candidate: &&Candidate| candidate.kind == ResourceKind::Font;
    let fonts = resources.iter().chain(&possible).filter(is_font);
    let fonts: HashSet<u32> = fonts.filter_map(|it| url_hash_of(&it.url)).collect();
    (!fonts.is_empty()).then_some(fonts)
}

#[cfg(test)]
mod tests;
