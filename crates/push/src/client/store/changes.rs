//! The waiting pushes that an unsafe request or a newer response outdates (RFC 9111 sections 4 and
//! 4.4).
//!
//! A response to a request that left after the push had arrived is newer than the push. The push
//! ends if a validator of both shows another version. If they share no validator, it ends after a
//! reload. It also ends if the newer response is a redirect or says that there is nothing to use.
//! An error of the server (5xx) and a part of a body (206) change nothing.
//!
//! After a request with an unsafe method, a browser's cache drops the target of the request, and
//! uses other fresh responses as before. A push stays if such a cache would have kept it: a style
//! sheet, script, image or font with a lifetime. For each other URL of the origin, the push ends,
//! because it may show the state of the site. These are documents, data, and responses that must be
//! validated or name no lifetime. The same holds for the origin of the page that makes the request,
//! such as a page whose API has another host. A WebSocket counts as such a request while the
//! browser sends messages.
//!
//! A tunnel hides its requests and the pages that make them. Bytes of the browser in a tunnel end
//! the waiting data of all origins, if the data must be validated or name no lifetime. Documents
//! and the parts of pages stay.

use std::time::Instant;

use tandem_http::cache::RequestPolicy;
use tandem_http::{Fields, Method, RequestHead, ResponseHead, Scheme};
use tandem_preload::split;

use super::sharing::is_shareable;
use super::{ArrivedResponse, Change, KeptPush, Phase, PushStore, Target};
use crate::client::lifetime::Lifetime;
use crate::fetch_standard::Metadata;
use crate::response_rules::is_part_of_page;
use crate::wire::Fate;

impl PushStore {
    /// Handles a request with an unsafe method, or its response. Drops the waiting responses that
    /// it may have changed.
    pub fn note_unsafe_request(&mut self, request: &RequestHead) {
        if self.waiting.is_empty() {
            return;
        }
        let (of, page) = (Target::of(request), page_origin(request));
        let is_changed = |target: &Target| {
            target.has_origin_of(&of)
                || page.as_ref().is_some_and(|page| target.has_origin_of(page))
        };
        self.drop_waiting(|target, kept, _| {
            is_changed(target) && (*target == of || !kept.outlasts_change())
        });
        self.mark_without_head(Change::OfOrigin, is_changed);
    }

    /// Returns whether bytes of the browser in a tunnel may concern waiting responses.
    pub fn awaits_hidden_change(&self) -> bool {
        !self.waiting.is_empty() && self.hidden_change < self.next_id
    }

    /// Handles bytes in a tunnel, by which a page may have changed the state of any site. Drops the
    /// waiting data that must be validated or name no lifetime.
    pub fn note_hidden_change(&mut self) {
        if !self.awaits_hidden_change() {
            return;
        }
        // The next call concerns later promises only. Those so far are dropped, marked, or lasting.
        self.hidden_change = self.next_id;
        self.drop_waiting(|_, kept, _| {
            let response = kept.response.as_ref();
            response.is_some_and(|response| kept.is_momentary_data(response))
        });
        self.mark_without_head(Change::Hidden, |_| true);
    }

    /// Marks the waiting pushes without a head, which decides on its arrival.
    fn mark_without_head(&mut self, change: Change, is_changed: impl Fn(&Target) -> bool) {
        for (target, id) in &self.waiting {
            if let Some(pushed) = self.pushes.get_mut(id)
                && let Phase::Kept(kept) = &mut pushed.phase
                && kept.response.is_none()
                && is_changed(target)
            {
                kept.precedes = kept.precedes.max(Some(change));
            }
        }
    }

    /// Handles the response to a request of the browser that left at `sent`. Drops a push of the
    /// same URL that had arrived before, if the response is another version.
    pub fn note_newer_response(
        &mut self,
        sent: Instant,
        request: &RequestHead,
        head: &ResponseHead,
    ) {
        if self.waiting.is_empty() || request.method != Method::Get {
            return;
        }
        let Some(&id) = self.waiting.get(&Target::of(request)) else {
            return;
        };
        let Some(Phase::Kept(kept)) = self.pushes.get(&id).map(|pushed| &pushed.phase) else {
            return;
        };
        let older = kept.response.as_ref();
        let older = older.filter(|response| response.arrived <= sent);
        let is_reload = RequestPolicy::of(&request.fields).wants_validation();
        if older.is_some_and(|older| ends_older(&older.head.fields, head, is_reload)) {
            self.discard(id, Fate::Wasted);
            self.release(id);
        }
    }

    /// Drops all waiting responses of an origin, since its site has cleared them.
    pub fn clear_origin(&mut self, request: &RequestHead) {
        let of = Target::of(request);
        self.drop_waiting(|target, _, _| target.has_origin_of(&of));
    }
}

impl KeptPush {
    /// Returns whether a response is older than a change, and does not outlast it.
    pub(super) fn is_outdated(&self, response: &ArrivedResponse) -> bool {
        match self.precedes {
            None => false,
            Some(Change::Hidden) => self.is_momentary_data(response),
            Some(Change::OfOrigin) => {
                !(self.is_for_part(response.metadata) && is_lasting(response))
            }
        }
    }

    /// Returns whether the push outlasts an unsafe request to its origin, as far as it has arrived.
    fn outlasts_change(&self) -> bool {
        match &self.response {
            Some(response) => self.is_for_part(response.metadata) && is_lasting(response),
            None => self.is_for_part(None),
        }
    }

    /// Returns whether the gateway has requested a style sheet, script, image or font, as far as
    /// the metadata of its request show.
    fn is_for_part(&self, metadata: Option<Metadata>) -> bool {
        let is_part = self
            .destination(metadata)
            .is_none_or(|destination| matches!(destination, "style" | "script" | "image" | "font"));
        is_part && !self.is_check() && !self.is_document()
    }

    /// Returns whether a response shows the state of a moment to a script.
    fn is_momentary_data(&self, response: &ArrivedResponse) -> bool {
        let is_data = match self.destination(response.metadata) {
            Some(destination) => destination == "empty",
            None => !is_part_of_page(&response.head),
        };
        is_data
            && !self.is_document()
            && matches!(
                response.lifetime,
                Lifetime::Validated | Lifetime::Unspecified
            )
    }

    /// Returns the destination of the gateway's request, as far as its metadata show it.
    fn destination(&self, metadata: Option<Metadata>) -> Option<&'static str> {
        let own = self.has_own_fields.then_some(&self.request.fields);
        let metadata = own.and_then(Metadata::of).or(metadata);
        metadata?.value_of("sec-fetch-dest")?
    }
}

/// Returns the origin of the page that makes a request, as a target without a path. A request of a
/// page with an opaque origin may have a `Referer`.
fn page_origin(request: &RequestHead) -> Option<Target> {
    let of_field = |name| {
        let url = std::str::from_utf8(request.fields.get(name)?).ok()?;
        let scheme = match url.split_once("://")?.0 {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return None,
        };
        let root = format!("{url}/");
        let (_, authority, _) = split(&root)?;
        Some(Target::of(&RequestHead::get(scheme, authority, "/")))
    };
    of_field("origin").or_else(|| of_field("referer"))
}

/// Returns whether a browser's cache keeps a response fresh, and the response is part of a page.
fn is_lasting(response: &ArrivedResponse) -> bool {
    is_shareable(response) && is_part_of_page(&response.head)
}

/// Returns whether a newer response takes the place of an older one with these fields.
fn ends_older(older: &Fields, newer: &ResponseHead, is_reload: bool) -> bool {
    match newer.status {
        200 => is_other_version(older, &newer.fields, is_reload),
        // It confirms a copy of the browser, which may be another version.
        304 => is_other_version(older, &newer.fields, false),
        ..200 | 206 | 500.. => false,
        _ => true,
    }
}

/// Returns whether the fields of a newer response show another version than those of an older one.
/// Without a validator that both have, `assumed` decides. A proxy that decodes a body weakens its
/// tag.
fn is_other_version(older: &Fields, newer: &Fields, assumed: bool) -> bool {
    let of_both = |name| Some((older.get(name)?, newer.get(name)?));
    if let Some((before, after)) = of_both("etag") {
        return opaque_tag(before) != opaque_tag(after);
    }
    of_both("last-modified").map_or(assumed, |(before, after)| before != after)
}

/// Returns an entity tag without the mark of weak ones (RFC 9110 section 8.8.3.2).
fn opaque_tag(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}
