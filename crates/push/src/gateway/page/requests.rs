//! The requests that a page's browser will make for its resources.

use tandem_http::RequestHead;
use tandem_preload::{self as scan, Kind, Need, Referrer};

use super::Page;
use crate::fetch_standard::{self, is_navigation, is_nested, is_own_origin, is_through_worker};
use crate::referrers::{NamedPart, SeenReferrers};
use crate::url;

impl Page {
    /// Returns the request for a need; `None` if the gateway must not make it. A resource of
    /// another origin is charged to the budget.
    pub(in super::super) fn request_for(
        &mut self,
        need: &Need,
        own_origin_only: bool,
    ) -> Option<RequestHead> {
        let (scheme, authority, _) = scan::split(&need.url)?;
        let own = is_own_origin(&self.request, scheme, authority);
        // The parts of a plain page that use TLS reach the gateway as tunnels only. The plain parts
        // of a page over TLS are mixed content, which browsers request over TLS or not at all.
        let is_other_scheme = scheme != self.request.scheme.as_str();
        // Responses behind a login are private, and some servers count the uses of a credential.
        let needs_login = own && self.request.fields.contains("authorization");
        if is_other_scheme || needs_login || (!own && own_origin_only) {
            return None;
        }
        let policy = need.referrer.or_else(|| self.policy_for(need))?;
        let redirected = self.redirected_to(need);
        if self.has_unknown_cookies(need) {
            return None;
        }
        let page = fetch_standard::FetchClient {
            request: &self.request,
            document: self.document_url(),
            is_part: self.initiator.is_some(),
            known_paths: self.known_paths.as_ref(),
            cookies: self.cookies_before(need),
            image_accept: self.image_accept.as_deref(),
            policy,
            is_credentialless: self.is_credentialless_for(need),
            redirected: redirected.and_then(|redirected| redirected.metadata),
            leads_on: self.leads_on,
        };
        let script = self.scripts.get(&need.url).map(|fields| &**fields);
        let mut request = fetch_standard::request_for(need, &page, script)?;
        if self.is_of_foreign_cookie(need, &request) {
            return None;
        }
        let repeats_demand = redirected.is_some_and(|redirected| redirected.is_validated);
        if repeats_demand || self.validated.contains(&need.url) {
            // Requests with the cache mode `no-cache` have this field, such as those of a reload
            // and some of scripts (Fetch standard, section 4.6). A stored copy of the gateway
            // serves none of them.
            request.fields.push("cache-control", "max-age=0");
        }
        if !own {
            self.budget.foreign = self.budget.foreign.checked_sub(1)?;
        }
        Some(request)
    }

    /// Returns the referrer policy of the page for a need that names none. If the page's own bytes
    /// are not sent again, requests for a resource of another origin show the policy, if any can.
    fn policy_for(&self, need: &Need) -> Option<Referrer> {
        match self.hides_policy_for(need) {
            true => self.policy_by_requests(need, self.referrers.get(&need.url).copied()),
            false => Some(self.policy),
        }
    }

    /// Returns whether the policy for a need is unknown.
    fn hides_policy_for(&self, need: &Need) -> bool {
        let is_own = scan::split(&need.url)
            .is_some_and(|(scheme, host, _)| is_own_origin(&self.request, scheme, host));
        // The request of a style sheet or module to its own origin does not name the page.
        let via = need.via.as_deref();
        let is_by_same_origin = via.is_some_and(|via| url::is_same_origin(via, &need.url));
        self.is_policy_unknown && !is_own && !is_by_same_origin
    }

    /// Returns the policy that earlier requests for a resource show, if they agree. It names no
    /// more than the policy in the head of the page. An origin may answer a request that names no
    /// page in another way, so a wrong guess is worse than none.
    fn policy_by_requests(&self, need: &Need, seen: Option<SeenReferrers>) -> Option<Referrer> {
        let SeenReferrers { least, .. } = seen.filter(|seen| seen.least == seen.last)?;
        let named = NamedPart::by_policy(self.policy, self.source_of(need), &need.url);
        Some(match least {
            _ if least >= named => self.policy,
            NamedPart::Nothing => Referrer::None,
            NamedPart::Origin | NamedPart::Whole => Referrer::Origin,
        })
    }

    /// Returns the part of its source's URL that the request for a need names; `None` if the
    /// policy is unknown.
    pub(in super::super) fn named_part(&self, need: &Need) -> Option<NamedPart> {
        let policy = need.referrer.or_else(|| self.policy_for(need))?;
        let source = self.source_of(need);
        Some(NamedPart::by_policy(policy, source, &need.url))
    }

    /// Returns the document, style sheet or module that makes the request for a need.
    fn source_of<'a>(&'a self, need: &'a Need) -> &'a str {
        let via = need.via.as_deref().or(need.frame.as_deref());
        via.unwrap_or_else(|| self.document_url())
    }

    /// Limits the `Referer` of a learned need to that of earlier requests. `seen` holds these, if
    /// any has come. If the resource has the origin of its source, the last request counts: the
    /// origin learns nothing new. Otherwise the request that named the least counts.
    ///
    /// Returns false in these cases, which leave the need to the page's own bytes:
    ///
    /// - No request for the resource was seen, and the resource is of another site.
    /// - The policy of the page is unknown, and earlier requests do not show it.
    /// - Some earlier request to another origin named less than the page permits, and the last one
    ///   named more than that request.
    /// - The request would name the page's origin in `Origin`, and nothing in `Referer`. Its mode
    ///   may then be one that only other pages use.
    pub(in super::super) fn limit_referrer(
        &self,
        need: &mut Need,
        seen: Option<SeenReferrers>,
    ) -> bool {
        let is_own = url::is_same_origin(self.source_of(need), &need.url);
        if need.referrer.is_none() && self.hides_policy_for(need) {
            need.referrer = self.policy_by_requests(need, seen);
        }
        let Some(named) = self.named_part(need) else {
            return false;
        };
        let Some(SeenReferrers { least, last }) = seen else {
            return self.is_same_site(&need.url) && !Self::names_origin_only(need, named, is_own);
        };
        let limit = if is_own { last } else { least };
        if limit < named {
            need.referrer = Some(match limit {
                NamedPart::Nothing => Referrer::None,
                NamedPart::Origin | NamedPart::Whole => Referrer::Origin,
            });
            if last != limit {
                return false;
            }
        }
        !Self::names_origin_only(need, named.min(limit), is_own)
    }

    /// Returns whether the request for a need names the origin of the page in `Origin` only. Fonts
    /// and data always have the mode `cors`.
    fn names_origin_only(need: &Need, named: NamedPart, is_own: bool) -> bool {
        let may_have_other_mode = !matches!(need.kind, Kind::Font | Kind::Fetch);
        need.by_cors && may_have_other_mode && !is_own && named == NamedPart::Nothing
    }
}

/// Returns the document that caused a request for a part of it: the URL in `Referer`, or at least
/// the origin in `Origin`. A document, also one in a frame, causes requests of its own.
pub(super) fn initiator(request: &RequestHead) -> Option<String> {
    if is_navigation(request) || is_nested(request) || is_through_worker(request) {
        return None;
    }
    ["referer", "origin"]
        .into_iter()
        .filter_map(|name| request.fields.get(name))
        .find_map(|url| scan::resolve(std::str::from_utf8(url).ok()?, ""))
}
