//! The client hints that origins ask for (RFC 8942; Client Hints Infrastructure, WICG).
//!
//! A document with `Accept-CH` asks the browser to describe itself in further fields. The browser
//! adds them to the requests of the document to its own origin, and later to requests for documents
//! of this origin. The response may depend on them, so a push must have the same. The gateway
//! repeats the fields of the browser's last request to the origin. Before one has come, the
//! resources wait for it.
//!
//! Only Chromium and its relatives send hints. Their requests to trustworthy origins have
//! `Sec-CH-UA`, whatever an origin asks for.

use std::collections::VecDeque;

use tandem_http::{Fields, RequestHead, ResponseHead, Scheme};
use tandem_preload::{Kind, Need};

use super::table::PageId;
use crate::browser_fields::is_hint;
use crate::fetch_standard::{is_navigation, is_prefetch, target_origin};
use crate::site::{host_of, is_loopback};
use crate::wire::{RequestHashes, url_hash};

/// The most origins of a session.
const MAX_ORIGINS: usize = 64;
/// The most hints of an origin.
const MAX_HINTS: usize = 48;
/// The most bytes of the hints of a request.
const MAX_BYTES: usize = 2048;
/// The most documents with elements that ask for hints.
const MAX_DOCUMENTS: usize = 64;
/// The most needs that wait for hints.
const MAX_WAITING: usize = 512;

/// The hints whose values change with the path during a visit.
const OF_PATH: [&str; 2] = ["downlink", "rtt"];
/// The hints whose values change with each image.
const OF_IMAGE: [&str; 2] = ["sec-ch-width", "width"];
/// The hints whose values belong to one document, and not to its frames.
const OF_DOCUMENT: [&str; 3] = [
    "sec-ch-viewport-height",
    "sec-ch-viewport-width",
    "viewport-width",
];

/// The hints of the origins that have asked for some, the most recent last.
#[derive(Default)]
pub(super) struct ClientHints {
    origins: VecDeque<OriginHints>,
    waiting: Vec<(PageId, Need)>,
    /// The hashes of the URLs of documents that ask for hints by an element.
    by_element: VecDeque<u32>,
}

struct OriginHints {
    /// The number of the browser, and the origin.
    browser: u32,
    origin: String,
    /// The names in the last `Accept-CH` of the origin, in order.
    asked: Vec<String>,
    /// The fields of the browser's last request to the origin, until the origin asks for others.
    fields: Option<Fields>,
}

/// The hints of a request.
pub(super) enum Hints {
    Known(Fields),
    /// A later request of the browser will show them.
    Awaited,
    /// They are different in each request.
    Varying,
}

impl OriginHints {
    fn is_of(&self, browser: u32, origin: &str) -> bool {
        self.browser == browser && self.origin == origin
    }

    fn has(&self, name: &str) -> bool {
        let is_field = |fields: &Fields| fields.contains(name);
        self.asked.iter().any(|asked| asked == name) || self.fields.as_ref().is_some_and(is_field)
    }
}

/// Returns whether a browser that sends hints makes a request to an origin that gets them.
pub(super) fn may_have_hints(request: &RequestHead) -> bool {
    let is_trustworthy =
        request.scheme == Scheme::Https || is_loopback(host_of(&request.authority));
    is_trustworthy && request.fields.contains("sec-ch-ua")
}

/// Returns the hints of a request, except those of an image.
fn hints_of(request: &RequestHead) -> Fields {
    let fields = request.fields.iter();
    let own = fields.filter(|field| {
        let is_of_image = OF_IMAGE.iter().any(|name| name.as_bytes() == field.name);
        is_hint(field.name) && !is_of_image
    });
    own.map(|field| (field.name, field.value)).collect()
}

/// Returns the names of the hints that a response asks for; `None` if it has no list of them.
/// Browsers send the inherited ones by default.
fn asked_for(head: &ResponseHead) -> Option<Vec<String>> {
    if !head.fields.contains("accept-ch") {
        return None;
    }
    let lists = ["accept-ch", "critical-ch"];
    let values = lists.into_iter().flat_map(|name| head.fields.get_all(name));
    let words = values.flat_map(|value| value.split(|&byte| byte == b','));
    let names = words.map(|word| String::from_utf8_lossy(word.trim_ascii()).to_ascii_lowercase());
    let mut names: Vec<_> = names.filter(|name| is_hint(name.as_bytes())).collect();
    names.sort();
    names.dedup();
    Some(names)
}

impl ClientHints {
    fn of(&self, browser: u32, origin: &str) -> Option<&OriginHints> {
        self.origins.iter().find(|it| it.is_of(browser, origin))
    }

    /// Returns the hints of an origin, as the most recent. They are new if the origin has none.
    fn entry(&mut self, browser: u32, origin: String) -> &mut OriginHints {
        let at = self
            .origins
            .iter()
            .position(|it| it.is_of(browser, &origin));
        let known = at.and_then(|at| self.origins.remove(at));
        if self.origins.len() >= MAX_ORIGINS {
            self.origins.pop_front();
        }
        let new = || OriginHints {
            browser,
            origin,
            asked: Vec::new(),
            fields: None,
        };
        self.origins.push_back(known.unwrap_or_else(new));
        self.origins.back_mut().expect("it was added")
    }

    /// Notes a request of the browser. Returns the needs that have waited for its hints.
    pub(super) fn note_request(&mut self, request: &RequestHead) -> Vec<(PageId, Need)> {
        let is_document = is_navigation(request);
        let may_count = is_document || !self.origins.is_empty();
        if !may_count || !may_have_hints(request) || is_prefetch(request) {
            return Vec::new();
        }
        let (browser, origin) = (browser(request), target_origin(request));
        let fields = hints_of(request);
        let is_known = self.of(browser, &origin).is_some();
        // A request of another site has no hints, and neither have some requests of workers.
        let is_part = || {
            let of_page = [&b"style"[..], b"script", b"image", b"font"];
            let destination = request.fields.get("sec-fetch-dest");
            request.fields.get("sec-fetch-site") == Some(b"same-origin")
                && destination.is_some_and(|it| of_page.contains(&it))
        };
        let is_of_use = match is_document {
            true => is_known || fields.iter().next().is_some(),
            false => is_known && is_part(),
        };
        let bytes = fields.iter().map(|it| it.name.len() + it.value.len());
        if !is_of_use || bytes.sum::<usize>() > MAX_BYTES {
            return Vec::new();
        }
        let entry = self.entry(browser, origin);
        if is_document {
            // The browser has forgotten the list, or another session has brought one.
            let is_asked = |name: &[u8]| entry.asked.iter().any(|it| it.as_bytes() == name);
            let knows = entry.fields.as_ref();
            let is_same = fields.iter().all(|it| is_asked(it.name))
                && knows.is_none_or(|knows| names(knows) == names(&fields));
            if !is_same {
                entry.asked.clear();
            }
        }
        let is_awaited = entry.fields.is_none() && !is_document;
        // A part of a frame differs from those of the page in the size of its document.
        let has_names = |known: &Fields| names(known) == names(&fields);
        if is_document || !entry.fields.as_ref().is_some_and(has_names) {
            entry.fields = Some(fields);
        }
        match is_awaited {
            true => std::mem::take(&mut self.waiting),
            false => Vec::new(),
        }
    }

    /// Notes the head of a document, which may ask for hints.
    pub(super) fn note_head(&mut self, request: &RequestHead, head: &ResponseHead) {
        if !is_navigation(request) || !may_have_hints(request) {
            return;
        }
        if self.by_element.contains(&url_hash(request)) {
            self.note_element(request);
        }
        let Some(asked) = asked_for(head).filter(|asked| asked.len() <= MAX_HINTS) else {
            return;
        };
        let origin = target_origin(request);
        let browser = browser(request);
        if asked.is_empty() && self.of(browser, &origin).is_none() {
            return;
        }
        let entry = self.entry(browser, origin);
        if entry.asked == asked {
            return;
        }
        let fields = entry.fields.take().unwrap_or_default();
        let is_sent = |name: &String| OF_IMAGE.contains(&name.as_str()) || fields.contains(name);
        let is_left = |name: &[u8]| asked.iter().any(|it| it.as_bytes() == name);
        if asked.iter().all(is_sent) {
            let left = fields.iter().filter(|it| is_left(it.name));
            entry.fields = Some(left.map(|it| (it.name, it.value)).collect());
        }
        entry.asked = asked;
    }

    /// Notes a document that asks for hints by an element. Its resources wait for a request that
    /// shows them.
    pub(super) fn note_element(&mut self, request: &RequestHead) {
        if !is_navigation(request) || !may_have_hints(request) {
            return;
        }
        let hash = url_hash(request);
        if !self.by_element.contains(&hash) {
            self.by_element.truncate(MAX_DOCUMENTS - 1);
            self.by_element.push_front(hash);
        }
        self.entry(browser(request), target_origin(request)).fields = None;
    }

    /// Returns the hints of a document's request for a need of its own origin.
    pub(super) fn for_need(
        &self,
        document: &RequestHead,
        request: &RequestHead,
        need: &Need,
    ) -> Hints {
        let known = self.of(browser(document), &target_origin(request));
        let Some(known) = known else {
            return Hints::Known(Fields::default());
        };
        let has_any = |names: &[&str]| names.iter().any(|name| known.has(name));
        let is_image = matches!(need.kind, Kind::Image | Kind::Other);
        let is_varying = has_any(&OF_PATH)
            || (is_image && has_any(&OF_IMAGE))
            || (need.frame.is_some() && has_any(&OF_DOCUMENT));
        if is_varying {
            return Hints::Varying;
        }
        match &known.fields {
            Some(fields) => Hints::Known(fields.clone()),
            None => Hints::Awaited,
        }
    }

    /// Lets a need wait for the hints of its origin.
    pub(super) fn wait(&mut self, page: PageId, need: Need) {
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push((page, need));
        }
    }

    /// Returns whether needs of a page wait.
    pub(super) fn need(&self, page: PageId) -> bool {
        self.waiting.iter().any(|(waiting, _)| *waiting == page)
    }

    /// Forgets the needs that wait. Returns their pages.
    pub(super) fn leave(&mut self) -> Vec<PageId> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let mut pages: Vec<_> = waiting.map(|(page, _)| page).collect();
        pages.dedup();
        pages
    }
}

/// Returns the number of the browser that makes a request.
fn browser(request: &RequestHead) -> u32 {
    RequestHashes::of(&request.fields).browser()
}

/// Returns the names of fields, in order.
fn names(fields: &Fields) -> Vec<&[u8]> {
    let mut names: Vec<_> = fields.iter().map(|field| field.name).collect();
    names.sort_unstable();
    names
}

/// The other origins to which a document delegates the hints that it gets (Permissions Policy).
#[derive(Debug, Default)]
pub(super) enum Delegation {
    #[default]
    Nowhere,
    To(Vec<String>),
    Anywhere,
}

impl Delegation {
    /// Reads the policies of a head.
    pub(super) fn of(head: &ResponseHead) -> Self {
        let mut origins = Vec::new();
        let values = head.fields.get_all("permissions-policy");
        for member in values.flat_map(|value| value.split(|&byte| byte == b',')) {
            let member = String::from_utf8_lossy(member.trim_ascii()).to_ascii_lowercase();
            if !member.starts_with("ch-") {
                continue;
            }
            if member.contains('*') {
                return Self::Anywhere;
            }
            let quoted = member.split('"').skip(1).step_by(2);
            origins.extend(quoted.map(|origin| origin.trim_end_matches('/').to_owned()));
        }
        match origins.is_empty() {
            true => Self::Nowhere,
            false => Self::To(origins),
        }
    }

    /// Returns whether the requests to an origin may have hints.
    pub(super) fn concerns(&self, origin: &str) -> bool {
        match self {
            Self::Nowhere => false,
            Self::To(origins) => origins.iter().any(|it| it.eq_ignore_ascii_case(origin)),
            Self::Anywhere => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(destination: &str, site: &str, hints: &[(&str, &str)]) -> RequestHead {
        let own = [
            ("sec-ch-ua", "x"),
            ("sec-fetch-dest", destination),
            ("sec-fetch-site", site),
        ];
        RequestHead {
            fields: own.iter().chain(hints).copied().collect(),
            ..RequestHead::get(Scheme::Https, "a.test", "/")
        }
    }

    fn document(hints: &[(&str, &str)]) -> RequestHead {
        request("document", "none", hints)
    }

    fn sheet() -> Need {
        Need {
            url: "https://a.test/s.css".to_owned(),
            kind: Kind::Style,
            urgency: 1,
            anonymous: false,
            by_cors: false,
            referrer: None,
            via: None,
            frame: None,
            has_nonce: false,
        }
    }

    /// Returns the hints of a request for a style sheet, as a text.
    fn of_sheet(hints: &ClientHints) -> Option<String> {
        let document = document(&[]);
        match hints.for_need(&document, &document, &sheet()) {
            Hints::Known(fields) => {
                let fields = fields.iter().map(|it| [it.name, it.value].concat());
                Some(
                    fields
                        .map(|it| String::from_utf8_lossy(&it).into_owned())
                        .collect(),
                )
            }
            Hints::Awaited | Hints::Varying => None,
        }
    }

    /// Returns the hints after a document with a hint, whose response asks for it.
    fn asked() -> ClientHints {
        let mut hints = ClientHints::default();
        let request = document(&[("viewport-width", "780")]);
        hints.note_request(&request);
        let mut head = ResponseHead::new(200);
        head.fields.push("accept-ch", "Viewport-Width");
        hints.note_head(&request, &head);
        hints
    }

    #[test]
    fn parts_show_new_names_and_no_new_values() {
        let part = |site, fields: &[(&str, &str)]| {
            let mut hints = asked();
            hints.note_request(&request("style", site, fields));
            of_sheet(&hints)
        };
        let known = of_sheet(&asked());
        assert!(known.is_some());
        let of_frame = [("viewport-width", "300")];
        assert_eq!(part("same-origin", &of_frame), known);
        assert_eq!(part("cross-site", &[]), known);
        assert_ne!(part("same-origin", &[("dpr", "1")]), known);
        assert_ne!(part("same-origin", &[]), known);
    }

    #[test]
    fn new_list_keeps_the_hints_that_it_names() {
        for (list, is_known) in [
            ("viewport-width, width", true),
            ("", true),
            ("dpr, viewport-width", false),
        ] {
            let mut hints = asked();
            let mut head = ResponseHead::new(200);
            head.fields.push("accept-ch", list);
            hints.note_head(&document(&[]), &head);
            assert_eq!(of_sheet(&hints).is_some(), is_known, "{list}");
        }
    }

    #[test]
    fn hints_of_a_session_are_bounded() {
        let mut hints = asked();
        let long = "x".repeat(MAX_BYTES);
        hints.note_request(&document(&[("dpr", &long)]));
        assert_eq!(of_sheet(&hints), of_sheet(&asked()));
        for number in 0..2 * MAX_ORIGINS {
            let request = RequestHead {
                authority: format!("{number}.test"),
                path: format!("/{number}"),
                ..document(&[("dpr", "1")])
            };
            hints.note_request(&request);
            hints.note_element(&request);
            for _ in 0..MAX_WAITING {
                hints.wait(PageId::from(0), sheet());
            }
        }
        assert_eq!(hints.origins.len(), MAX_ORIGINS);
        assert_eq!(hints.by_element.len(), MAX_DOCUMENTS);
        assert_eq!(hints.waiting.len(), MAX_WAITING);
        assert_eq!(hints.leave(), [PageId::from(0)]);
    }
}
