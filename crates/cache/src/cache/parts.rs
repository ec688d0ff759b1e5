//! Parts of responses (RFC 9111 section 3.4): a response with status 206 is stored, serves requests
//! for ranges within it, and joins the parts beside it. Only a strong entity tag shows that two
//! parts belong to one body, so a part without one is not stored.
//!
//! A response has one part in the store, which has no gap. A part that covers the whole body
//! becomes a complete response. Bytes in two parts must be equal: an origin that gives one tag to
//! two bodies gets no mixture of them.
//!
//! A cache that counts users stores a part only if all users may know of its resource. Otherwise a
//! part of one user would save another one a request, which shows that the first one was there.

use std::sync::Arc;

use bytes::Bytes;
use tandem_http::cache::range::{Extent, extent};
use tandem_http::cache::{range, validation};
use tandem_http::{Fields, Method, RequestHead, ResponseHead};

use super::receiving::pending;
use super::{Cache, Fetch, Key, Now, Pending};
use crate::stored::{Body, Stored};

/// The fields of which parts with the same tag must have the same values.
const EQUAL: [&str; 4] = [
    "etag",
    "content-encoding",
    "content-language",
    "content-type",
];

/// The fields that are about the content of one response, and wrong for another part of the body.
pub(crate) const OF_CONTENT: [&str; 2] = ["content-digest", "content-md5"];

impl<F: Clone> Cache<F> {
    /// Returns the stored part with the range that a request wants.
    pub(super) fn visible_part(
        &self,
        key: &Key,
        user: u64,
        request: &RequestHead,
    ) -> Option<Arc<Stored>> {
        let fields = &request.fields;
        if request.method != Method::Get || !fields.contains("range") {
            return None;
        }
        if fields.contains("if-none-match") || fields.contains("if-modified-since") {
            return None;
        }
        let (resource, only) = self.resource(key, user)?;
        let part = resource.select_part(fields, only)?;
        let may_use = self.may_use(part, fields) && part.holds_range(fields);
        may_use.then(|| Arc::clone(part))
    }

    /// Decides about a response with status 206 to a request for a range.
    pub(super) fn receive_part(
        &self,
        now: Now,
        fetch: &Fetch,
        head: &ResponseHead,
    ) -> Option<Box<Pending>> {
        let is_plain = fetch.asked.fields.get_all("range").count() == 1
            && !validation::is_conditional(&fetch.asked.fields);
        let extent = extent(head).filter(|_| is_plain && has_strong_tag(&head.fields))?;
        let is_open = fetch.key.has_owner() || self.is_known(&fetch.key);
        if extent.total > self.config.max_body() || !is_open {
            return None;
        }
        // The part has the head of the whole response.
        let mut whole = head.clone();
        whole.status = 200;
        whole.fields.remove("content-range");
        for name in OF_CONTENT {
            whole.fields.remove(name);
        }
        whole.fields.set("content-length", extent.total.to_string());
        let mut plain = fetch.asked.clone();
        plain.fields.remove("range");
        let mut entry = self.admit(now, fetch, &plain, &whole)?;
        entry.extent = Some(extent);
        Some(pending(fetch, entry, fetch.started))
    }

    /// Joins a new part with the stored one. Returns `None` if the store has the complete response.
    pub(super) fn joined(
        &self,
        key: &Key,
        asked: &Fields,
        new: &Arc<Stored>,
    ) -> Option<Arc<Stored>> {
        let Some(extent) = new.extent else {
            return Some(Arc::clone(new));
        };
        let resource = self.store.peek(key);
        let is_same = |old: &&Arc<Stored>| {
            let (old, new) = (&old.head.fields, &new.head.fields);
            EQUAL.iter().all(|name| old.get(name) == new.get(name))
        };
        let whole = resource
            .and_then(|it| it.select(asked, None))
            .filter(is_same);
        if whole.is_some() {
            return None;
        }
        let old = resource
            .and_then(|it| it.select_part(asked, None))
            .filter(is_same);
        let joined = old.and_then(|old| self.join(old, new, extent));
        Some(joined.map_or_else(|| as_whole(new, extent), Arc::new))
    }

    /// Returns the response of two parts. The larger bytes in memory stay as they are, and those
    /// that a part adds are copied: a cut of a piece would keep all of it in memory.
    fn join(&self, old: &Stored, new: &Stored, extent: Extent) -> Option<Stored> {
        let old_extent = old.extent?;
        let joined = old_extent.joined(extent)?;
        let of_old =
            |start: u64, end: u64| old.body.slice(at(start, old_extent), at(end, old_extent));
        let of_new = |start: u64, end: u64| new.body.slice(at(start, extent), at(end, extent));
        let both = (
            extent.start.max(old_extent.start),
            extent.end.min(old_extent.end),
        );
        if !is_equal(of_old(both.0, both.1), of_new(both.0, both.1)) {
            return None;
        }
        let body = if joined == extent {
            new.body.clone()
        } else {
            let copied = |piece: Bytes| Bytes::copy_from_slice(&piece);
            let before = of_new(joined.start, old_extent.start).map(copied);
            let after = of_new(old_extent.end, joined.end).map(copied);
            Body::around(before, &old.body, after, &self.bodies)
        };
        // The length shows a mistake above before a wrong byte is served.
        (body.len() == joined.end - joined.start).then(|| Stored {
            body,
            extent: (!joined.is_whole()).then_some(joined),
            is_anonymous: old.is_anonymous && new.is_anonymous,
            had_no_credentials: old.had_no_credentials && new.had_no_credentials,
            ..new.clone()
        })
    }
}

/// Returns the place in a part of a position in the body, or the nearest place.
fn at(position: u64, extent: Extent) -> u64 {
    position.clamp(extent.start, extent.end) - extent.start
}

/// Returns whether two sequences of pieces have the same bytes.
fn is_equal(mut left: impl Iterator<Item = Bytes>, mut right: impl Iterator<Item = Bytes>) -> bool {
    let (mut one, mut other) = (Bytes::new(), Bytes::new());
    loop {
        if one.is_empty() {
            one = left.next().unwrap_or_default();
        }
        if other.is_empty() {
            other = right.next().unwrap_or_default();
        }
        let length = one.len().min(other.len());
        if length == 0 {
            return one.is_empty() && other.is_empty();
        }
        if one.split_to(length) != other.split_to(length) {
            return false;
        }
    }
}

/// Returns a part, as a complete response if the part covers the body.
fn as_whole(part: &Arc<Stored>, extent: Extent) -> Arc<Stored> {
    if !extent.is_whole() {
        return Arc::clone(part);
    }
    Arc::new(Stored {
        extent: None,
        ..Stored::clone(part)
    })
}

impl Stored {
    /// Returns whether a part has the range that these fields ask for.
    fn holds_range(&self, asked: &Fields) -> bool {
        let Some(extent) = self.extent else {
            return false;
        };
        match range::part(asked, &self.head, extent.total) {
            range::Part::Bytes { start, end } => extent.contains(start, end),
            _ => false,
        }
    }
}

/// Returns whether the fields of a response have a strong entity tag.
fn has_strong_tag(fields: &Fields) -> bool {
    fields.get("etag").is_some_and(|tag| tag.starts_with(b"\""))
}
