//! The decision whether a pushed response may serve a request.
//!
//! A cache relies on `Vary` (RFC 9111 section 4.1). Many servers choose the content coding, the
//! language or the layout without it. A pushed response was chosen for the request that the gateway
//! made. So each field of a request has a `FieldRule`. A request with any other field is refused,
//! because its response may depend on that field.

use tandem_http::cache::{RequestPolicy, accepts_content_encoding, vary};
use tandem_http::{Fields, Method, RequestHead, ResponseHead};

use crate::browser_fields::{REQUESTED_WITH, is_hint};
use crate::cookies::{cookies_of, pairs};
use crate::fetch_standard::{Metadata, target_origin, wants_one_format};
use crate::response_rules::is_for_everyone;
use crate::wire::{OPENED_FIELD, RequestHashes};

/// The demand that a field of a request makes of a pushed response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldRule {
    /// The gateway's request must have had the same value: see
    /// [`INHERITED_FIELDS`](crate::fetch_standard::INHERITED_FIELDS) and
    /// [`RequestHashes::has_same_inherited`].
    Inherited,
    /// The gateway's request must have had the same value. The field is a client hint.
    Hint,
    /// The gateway's request must have had the same cookies, or the response is for everyone. Until
    /// the head tells, the request should have all cookies of the promise.
    Cookie,
    /// A request that wants one format, or a document, must have the gateway's value.
    Accept,
    /// Both requests must come from the same origin by CORS, or any origin may read the response.
    /// If the response depends on the field, both must have it or lack it.
    Origin,
    /// The page that caused the gateway's request must be of the same origin, and of the target's
    /// own origin for a request from there. A response to a request that names no page serves only
    /// requests that name none.
    Referrer,
    /// The destination must be of the use for which the gateway requested the response, if that is
    /// known (see [`Metadata::fits`]).
    FetchDestination,
    /// The site must fit that of the gateway's request. If it is unknown, `cross-site` and
    /// `same-site` do not fit a response that the target's own page caused.
    FetchSite,
    /// The mode must be one in which browsers fetch resources. If the gateway's mode is known, only
    /// a push of a navigation serves a navigation, and it serves no other request.
    FetchMode,
    /// The directives must permit a stored response.
    CacheControl,
    /// The whole response is right for a conditional request (RFC 9110 section 13.2.1).
    Condition,
    /// The response depends on the field only if `Vary` says so.
    ByVary,
}

/// The rule of each field that a browser sends without a script's help, of the mark of script
/// libraries, and of the client's list of opened hosts.
const FIELD_RULES: [(&str, FieldRule); 34] = [
    ("accept", FieldRule::Accept),
    ("accept-charset", FieldRule::ByVary),
    ("accept-encoding", FieldRule::Inherited),
    ("accept-language", FieldRule::Inherited),
    ("cache-control", FieldRule::CacheControl),
    ("cookie", FieldRule::Cookie),
    ("dnt", FieldRule::Inherited),
    ("if-modified-since", FieldRule::Condition),
    ("if-none-match", FieldRule::Condition),
    ("intervention", FieldRule::ByVary),
    ("origin", FieldRule::Origin),
    ("pragma", FieldRule::CacheControl),
    ("priority", FieldRule::ByVary),
    ("purpose", FieldRule::ByVary),
    ("referer", FieldRule::Referrer),
    ("save-data", FieldRule::Inherited),
    ("sec-ch-ua", FieldRule::Inherited),
    ("sec-ch-ua-mobile", FieldRule::Inherited),
    ("sec-ch-ua-platform", FieldRule::Inherited),
    ("sec-fetch-dest", FieldRule::FetchDestination),
    ("sec-fetch-mode", FieldRule::FetchMode),
    ("sec-fetch-site", FieldRule::FetchSite),
    ("sec-fetch-storage-access", FieldRule::ByVary),
    ("sec-fetch-user", FieldRule::ByVary),
    ("sec-gpc", FieldRule::Inherited),
    ("sec-purpose", FieldRule::ByVary),
    (OPENED_FIELD, FieldRule::ByVary),
    ("te", FieldRule::ByVary),
    ("upgrade-insecure-requests", FieldRule::ByVary),
    ("user-agent", FieldRule::Inherited),
    ("via", FieldRule::ByVary),
    ("x-moz", FieldRule::ByVary),
    ("x-purpose", FieldRule::ByVary),
    (REQUESTED_WITH, FieldRule::Inherited),
];

fn rule_of(name: &[u8]) -> Option<FieldRule> {
    let is = |(listed, _): &&(&str, FieldRule)| listed.as_bytes() == name;
    let listed = FIELD_RULES.iter().find(is).map(|(_, rule)| *rule);
    listed.or_else(|| is_hint(name).then_some(FieldRule::Hint))
}

/// The reason for which a pushed response may not serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The request is no GET.
    Method,
    /// The request is for another URL.
    Target,
    /// The request has a field on which the response may depend in an unknown way.
    UnknownField,
    /// The request has other values in the fields that all requests of a page share, or in client
    /// hints.
    Inherited,
    /// The request has other cookies, and the response is not for everyone.
    Cookie,
    /// The request accepts another format.
    Accept,
    /// The request comes from another origin.
    Origin,
    /// A page of another site caused the request.
    Page,
    /// The request's metadata (`Sec-Fetch-*`) do not fit.
    FetchMetadata,
    /// The request does not permit stored responses.
    CacheControl,
    /// The request does not accept the response's content coding.
    ContentEncoding,
    /// A field that the response's `Vary` lists differs.
    Vary,
}

/// The facts about a push that decide whether a request may take it.
#[derive(Clone, Copy, Debug)]
pub struct PushFacts<'a> {
    /// The promised request.
    pub request: &'a RequestHead,
    /// True if the promise carries the fields of the gateway's own request. Promises of SPDY do
    /// not: theirs are those of the exchange with which they came.
    pub has_own_fields: bool,
    /// The hashes of the gateway's request, once the head has brought them.
    pub hashes: Option<RequestHashes>,
    /// The metadata of the gateway's request, if the head has brought them.
    pub(crate) metadata: Option<Metadata>,
    /// The head of the response, once it is here.
    pub head: Option<&'a ResponseHead>,
    /// True if the cookies of both requests may differ.
    pub ignores_cookies: bool,
}

impl PushFacts<'_> {
    /// Decides whether the response may serve `asked`. As long as the head is missing, only the
    /// facts that are known count, and the decision must be repeated with the head.
    pub fn check(&self, asked: &RequestHead) -> Result<(), Mismatch> {
        check_request(asked)?;
        self.check_target(asked)?;
        if self.head.is_none() && !self.has_own_fields {
            return Ok(());
        }
        let ours = RequestHashes::of(&asked.fields);
        let theirs = self.hashes;
        // Another implementation of a gateway sends no hashes, so the fields of its promise decide.
        let theirs = theirs.unwrap_or_else(|| RequestHashes::of(&self.request.fields));
        self.check_cause(asked, ours, theirs)?;
        let Some(head) = self.head else {
            let fits = self.ignores_cookies || has_cookies_of(asked, self.request);
            return fits.then_some(()).ok_or(Mismatch::Cookie);
        };
        // An origin may refuse requests that name no page.
        if head.status >= 400 && ours.names_page() && !theirs.names_page() {
            return Err(Mismatch::Page);
        }
        let may_differ = self.ignores_cookies || is_for_everyone(head);
        if !may_differ && !ours.has_same_cookie(theirs) {
            return Err(Mismatch::Cookie);
        }
        if !accepts_content_encoding(&asked.fields, &head.fields) {
            return Err(Mismatch::ContentEncoding);
        }
        self.check_vary(head, &asked.fields, ours, theirs)
    }

    fn check_target(&self, asked: &RequestHead) -> Result<(), Mismatch> {
        let promised = self.request;
        if !matches!(promised.method, Method::Get | Method::Head) {
            return Err(Mismatch::Method);
        }
        let is_same = promised.scheme == asked.scheme
            && promised.authority.eq_ignore_ascii_case(&asked.authority)
            && promised.path == asked.path;
        is_same.then_some(()).ok_or(Mismatch::Target)
    }

    /// Compares the causes of both requests: the browser, its page, and the format.
    fn check_cause(
        &self,
        asked: &RequestHead,
        ours: RequestHashes,
        theirs: RequestHashes,
    ) -> Result<(), Mismatch> {
        let target = target_origin(self.request);
        if !ours.has_same_inherited(theirs) {
            return Err(Mismatch::Inherited);
        }
        let allows_all =
            |head: &ResponseHead| head.fields.get("access-control-allow-origin") == Some(b"*");
        // `*` permits only requests without credentials, so the cookies must be equal too.
        let is_open = ours.has_same_cookie(theirs) && self.head.is_some_and(allows_all);
        if !is_open && !theirs.has_same_origin(ours, &target) {
            return Err(Mismatch::Origin);
        }
        // Browsers differ in `Origin` of requests by CORS to the same origin.
        if !theirs.names_same_origin(ours) && self.head.is_some_and(depends_on_origin) {
            return Err(Mismatch::Origin);
        }
        // Another implementation of a gateway may leave the field out of its promise.
        let names_page = theirs.names_page() || self.hashes.is_some();
        if names_page && !theirs.fits_referrer(ours, &target) {
            return Err(Mismatch::Page);
        }
        let site = asked.fields.get("sec-fetch-site");
        let is_foreign = matches!(site, Some(b"cross-site" | b"same-site"));
        let fits_metadata = match self.metadata() {
            Some(metadata) => metadata.fits(&asked.fields),
            None => !(is_foreign && theirs.has_referrer_of(&target)),
        };
        if !fits_metadata {
            return Err(Mismatch::FetchMetadata);
        }
        let has_other_format = theirs.has_same_field(b"accept", ours) == Some(false);
        if wants_own_format(&asked.fields) && has_other_format {
            return Err(Mismatch::Accept);
        }
        // The gateway requests an image with the browser's own value for images. A document that
        // the browser requests with that value is no image of a page.
        let names_formats = asked.fields.contains("accept");
        if is_navigation(&asked.fields) && names_formats && !accepts_html(&asked.fields) {
            return Err(Mismatch::Accept);
        }
        Ok(())
    }

    /// Returns the metadata of the gateway's request, if they are known.
    fn metadata(&self) -> Option<Metadata> {
        let promised = self.has_own_fields.then_some(&self.request.fields);
        promised.and_then(Metadata::of).or(self.metadata)
    }

    fn check_vary(
        &self,
        head: &ResponseHead,
        asked: &Fields,
        ours: RequestHashes,
        theirs: RequestHashes,
    ) -> Result<(), Mismatch> {
        if vary::is_any(&head.fields) {
            return Err(Mismatch::Vary);
        }
        // Fields that a promise inherits from its exchange do not belong to its own request. Our
        // gateway sends no field that its hashes and its metadata do not cover.
        let has_fields = self.has_own_fields || self.hashes.is_none();
        let metadata = self.metadata();
        let is_equal = |name: &[u8]| {
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            let own = metadata.and_then(|metadata| metadata.value_of(&name));
            if let Some(own) = own {
                return own.map(str::as_bytes) == asked.get(&name);
            }
            // The rule for `Origin` was stricter already.
            name == "origin"
                || theirs.has_same_field(name.as_bytes(), ours).unwrap_or_else(
                    || match has_fields {
                        true => vary::is_equal(&name, &self.request.fields, asked),
                        false => !asked.contains(&name),
                    },
                )
        };
        let mut names = vary::names(&head.fields);
        names.all(is_equal).then_some(()).ok_or(Mismatch::Vary)
    }
}

/// Returns whether a response depends on the `Origin` of its request: `Vary` says so, or the
/// response names an origin that may read it.
fn depends_on_origin(head: &ResponseHead) -> bool {
    let allowed = head.fields.get("access-control-allow-origin");
    vary::depends_on(&head.fields, "origin") || allowed.is_some_and(|origin| origin != b"*")
}

/// Returns whether a request has all cookies of a promise. The gateway may hold the fetch of the
/// promise until a request claims it. The cookies of that fetch must then be those of the claiming
/// browser, and not those of another window, or of a session that the user has left. A script of
/// the page may have added others. The store knows the exceptions.
pub(super) fn has_cookies_of(asked: &RequestHead, promised: &RequestHead) -> bool {
    let ours = cookies_of(&asked.fields);
    let theirs = cookies_of(&promised.fields);
    theirs == ours || pairs(&theirs).all(|pair| pairs(&ours).any(|own| own == pair))
}

/// Checks the conditions that a request must meet before any push may serve it.
pub fn check_request(asked: &RequestHead) -> Result<(), Mismatch> {
    if asked.method != Method::Get || asked.protocol.is_some() {
        return Err(Mismatch::Method);
    }
    for field in asked.fields.iter() {
        match rule_of(field.name) {
            None => return Err(Mismatch::UnknownField),
            Some(FieldRule::FetchMode) => check_mode(field.value)?,
            Some(_) => {}
        }
    }
    let control = RequestPolicy::of(&asked.fields).control;
    // The gateway may have decoded the body of a push.
    let forbids_change = asked.fields.has_token("cache-control", "no-transform");
    if control.no_cache || control.no_store || forbids_change {
        return Err(Mismatch::CacheControl);
    }
    Ok(())
}

/// Checks the mode of a request (Fetch standard, section 2.2.5).
fn check_mode(mode: &[u8]) -> Result<(), Mismatch> {
    match mode {
        b"navigate" | b"no-cors" | b"cors" | b"same-origin" => Ok(()),
        _ => Err(Mismatch::FetchMetadata),
    }
}

/// Returns whether the `Accept` of a request must equal the gateway's. It must for data, and for
/// documents, because a server may wrap an image in a page.
fn wants_own_format(asked: &Fields) -> bool {
    let accept = asked.get("accept").unwrap_or_default();
    wants_one_format(accept) || accepts_html(asked) || is_navigation(asked)
}

fn accepts_html(asked: &Fields) -> bool {
    let accept = asked.get("accept").unwrap_or_default();
    accept.starts_with(b"text/html")
}

fn is_navigation(asked: &Fields) -> bool {
    asked.get("sec-fetch-mode") == Some(b"navigate")
}

#[cfg(test)]
mod tests;
