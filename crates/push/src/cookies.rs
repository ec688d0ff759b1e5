//! The cookies that a response changes, and the `Cookie` field of later requests (RFC 6265bis
//! section 5.8.3).
//!
//! A proxy sees the `Cookie` field of a request, but no cookie jar. The paths and domains of the
//! cookies in that field are unknown. They are taken to cover the whole origin, and a cookie that a
//! response sets replaces the one of its name. A wrong guess makes a promise that serves no
//! request.

mod known_paths;
mod set_cookie;

use std::borrow::Cow;

use tandem_http::{Fields, RequestHead, ResponseHead, Scheme};

use crate::browser_fields::is_by;
use crate::site::{host_of, site_of};
pub(crate) use known_paths::KnownPaths;
use set_cookie::{SetCookie, Setter};

/// The largest number of cookies of one response, and of its request. Browsers keep fewer than
/// twice as many for a site.
const MAX_COOKIES: usize = 128;

/// The cookies of requests that follow a response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Cookies {
    /// The response changes none.
    Unchanged,
    /// The response changes them.
    Changed(CookieChanges),
    /// The response sets cookies that browsers may treat in different ways.
    Unknown,
}

impl Cookies {
    /// Returns the changes, if there are any and all are known.
    pub(crate) fn into_changes(self) -> Option<CookieChanges> {
        match self {
            Self::Changed(changes) => Some(changes),
            Self::Unchanged | Self::Unknown => None,
        }
    }
}

/// The cookies that a response sets and removes, in the order of their creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CookieChanges {
    changes: Vec<Change>,
    /// True if the browser orders a cookie with a changed value as a new one.
    renews: bool,
}

/// A cookie that a response sets or removes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    name: Vec<u8>,
    /// `None` removes the cookie.
    value: Option<Vec<u8>>,
    scope: CookieScope,
}

/// The requests that carry a cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CookieScope {
    domain: Domain,
    path: String,
    /// True if only requests over TLS carry the cookie.
    is_secure: bool,
}

/// The hosts of a cookie, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Domain {
    /// This host alone.
    Host(String),
    /// This host and those below it.
    Below(String),
}

impl CookieChanges {
    /// Reads the `Set-Cookie` fields of the response to a navigation. Returns `None` if browsers
    /// differ in their treatment of one of them, or if the request has two cookies of a name that
    /// is set.
    pub fn of(request: &RequestHead, head: &ResponseHead, unix_time: u64) -> Option<Self> {
        let host = host_of(&request.authority).to_ascii_lowercase();
        let setter = Setter {
            scheme: request.scheme,
            host: &host,
            path: without_query(&request.path),
        };
        let mut changes = Self {
            changes: Vec::new(),
            // Chromium keeps the creation time of a cookie only if the value stays the same.
            renews: is_by(request, b"Chrome/"),
        };
        for field in head.fields.get_all("set-cookie") {
            match set_cookie::read(field, &setter, unix_time) {
                SetCookie::Change(change) => changes.add(change),
                SetCookie::Ignored => {}
                SetCookie::Unknown => return None,
            }
            if changes.changes.len() > MAX_COOKIES {
                return None;
            }
        }
        let field = cookies_of(&request.fields);
        changes.are_clear(&field).then_some(changes)
    }

    /// Returns true if each change clearly adds a cookie or replaces one. It does not if `before`
    /// has several cookies of its name, or one beside several changes of that name.
    fn are_clear(&self, before: &[u8]) -> bool {
        let before: Vec<_> = pairs(before).take(MAX_COOKIES + 1).collect();
        let is_clear = |change: &Change| {
            let old = before.iter().filter(|pair| name_of(pair) == change.name);
            let new = self.changes.iter().filter(|it| it.name == change.name);
            matches!((old.count(), new.count()), (0, _) | (1, 1))
        };
        before.len() <= MAX_COOKIES && self.changes.iter().all(is_clear)
    }

    /// Returns these changes with those of a later response. `before` is the `Cookie` field before
    /// all of them. Returns `None` if the cookies are unknown then.
    pub(crate) fn followed_by(&self, later: &Self, before: &[u8]) -> Option<Self> {
        let mut all = self.clone();
        for change in &later.changes {
            all.add(change.clone());
        }
        let is_known = all.changes.len() <= MAX_COOKIES && all.are_clear(before);
        is_known.then_some(all)
    }

    /// Returns whether the response only creates cookies of names that its request did not have.
    /// `before` is the `Cookie` field of the request.
    pub(crate) fn only_create(&self, before: &[u8]) -> bool {
        let is_new = |change: &Change| {
            let old = pairs(before).find(|pair| name_of(pair) == change.name);
            old.is_none() || old == change.pair().as_deref()
        };
        self.changes.iter().all(is_new)
    }

    /// Returns whether the request had a cookie of each name that the response sets or removes.
    /// `before` is the `Cookie` field of the request.
    pub(crate) fn only_replace(&self, before: &[u8]) -> bool {
        let is_known = |change: &Change| pairs(before).any(|pair| name_of(pair) == change.name);
        self.changes.iter().all(is_known)
    }

    /// Returns whether a request carries one of the cookies that are set or removed.
    pub(crate) fn concern(&self, request: &RequestHead) -> bool {
        let mut scopes = self.changes.iter().map(|change| &change.scope);
        scopes.any(|scope| scope.covers_request(request))
    }

    fn add(&mut self, change: Change) {
        let is_same = |old: &Change| {
            old.name == change.name
                && old.scope.domain == change.scope.domain
                && old.scope.path == change.scope.path
        };
        let Some(at) = self.changes.iter().position(is_same) else {
            return self.changes.push(change);
        };
        let old = &self.changes[at];
        let is_new = old.value.is_none() || (self.renews && old.value != change.value);
        if is_new {
            self.changes.remove(at);
            self.changes.push(change);
        } else {
            self.changes[at] = change;
        }
    }

    /// Returns whether requests after the response may have another `Cookie` field than `before`,
    /// that of the request.
    pub fn alter(&self, before: &[u8]) -> bool {
        self.altered(before).next().is_some()
    }

    /// Returns true if a cookie of the request, whose `Cookie` field was `before`, is deleted.
    pub(crate) fn delete_any(&self, before: &[u8]) -> bool {
        let is_deleted = |change: &Change| {
            let mut old = pairs(before).map(name_of);
            change.pair().is_none() && old.any(|name| name == change.name)
        };
        self.changes.iter().any(is_deleted)
    }

    /// Returns the requests whose `Cookie` field the response alters. `before` is the field of the
    /// request for it.
    pub(crate) fn altered(&self, before: &[u8]) -> impl Iterator<Item = &CookieScope> {
        let is_new = |change: &&Change| {
            let old = pairs(before).find(|pair| name_of(pair) == change.name);
            old != change.pair().as_deref()
        };
        self.changes.iter().filter(is_new).map(|it| &it.scope)
    }

    /// Returns the `Cookie` field of a request for `path` with a query, made after the response.
    /// `before` is the field that the request would have had without the response. An empty result
    /// stands for no field.
    pub fn after(&self, before: &[u8], scheme: &str, authority: &str, path: &str) -> Vec<u8> {
        let host = host_of(authority).to_ascii_lowercase();
        let path = without_query(path);
        let mut old: Vec<Vec<u8>> = pairs(before).map(<[u8]>::to_vec).collect();
        let mut new: Vec<(usize, Vec<u8>)> = Vec::new();
        for change in &self.changes {
            let covers = change.scope.covers(scheme == "https", &host, path);
            let pair = change.pair().filter(|_| covers);
            let at = old.iter().position(|pair| name_of(pair) == change.name);
            match (at, pair) {
                (Some(at), Some(pair)) if old[at] == pair || !self.renews => old[at] = pair,
                (at, pair) => {
                    if let Some(at) = at {
                        old.remove(at);
                    }
                    new.extend(pair.map(|pair| (change.scope.path.len(), pair)));
                }
            }
        }
        // Cookies with long paths come first, and older ones before newer ones. The others are
        // taken to have the shortest path.
        new.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
        let shortest = new.partition_point(|(length, _)| *length > 1);
        let new: Vec<_> = new.into_iter().map(|(_, pair)| pair).collect();
        let (first, last) = new.split_at(shortest);
        [first, &old, last].concat().join(&b"; "[..])
    }
}

impl Change {
    /// Returns the pair in a `Cookie` field; `None` for a removed cookie.
    fn pair(&self) -> Option<Vec<u8>> {
        let value = self.value.as_deref()?;
        Some([&self.name, &b"="[..], value].concat())
    }
}

impl CookieScope {
    /// Returns the requests to the site of an authority, which may carry an unknown cookie of it.
    pub(crate) fn of_site(authority: &str) -> Self {
        Self {
            domain: Domain::Below(site_of(authority)),
            path: "/".to_owned(),
            is_secure: false,
        }
    }

    /// Returns the requests to the site of the cookie.
    pub(crate) fn of_whole_site(&self) -> Self {
        let (Domain::Host(host) | Domain::Below(host)) = &self.domain;
        Self::of_site(host)
    }

    /// Returns whether a request carries the cookie, as far as it carries cookies.
    pub(crate) fn covers_request(&self, request: &RequestHead) -> bool {
        let host = host_of(&request.authority).to_ascii_lowercase();
        let is_tls = request.scheme == Scheme::Https;
        self.covers(is_tls, &host, without_query(&request.path))
    }

    fn covers(&self, is_tls: bool, host: &str, path: &str) -> bool {
        let is_own = match &self.domain {
            Domain::Host(own) => own == host,
            Domain::Below(domain) => is_in_domain(host, domain),
        };
        (is_tls || !self.is_secure) && is_own && is_below(path, &self.path)
    }
}

/// Returns whether a response sets a cookie that requests from other sites do not carry
/// (`SameSite=Strict`).
pub(crate) fn sets_strict_cookie(head: &ResponseHead) -> bool {
    head.fields.get_all("set-cookie").any(set_cookie::is_strict)
}

/// Returns whether a response sets a cookie that the requests of a frame of another site may carry.
/// Chromium holds back cookies that do not say so with `SameSite=None`.
pub(crate) fn sets_foreign_cookie(request: &RequestHead, head: &ResponseHead) -> bool {
    let is_chromium = is_by(request, b"Chrome/");
    let is_foreign = |field: &[u8]| !set_cookie::is_of_same_site(field).unwrap_or(is_chromium);
    head.fields.get_all("set-cookie").any(is_foreign)
}

/// Returns the `Cookie` field of a request; empty if it has none. Several fields are joined.
pub(crate) fn cookies_of(fields: &Fields) -> Cow<'_, [u8]> {
    let mut values = fields.get_all("cookie");
    let first = values.next().unwrap_or_default();
    let rest: Vec<&[u8]> = values.collect();
    match rest.is_empty() {
        true => first.into(),
        false => [&[first], &rest[..]].concat().join(&b"; "[..]).into(),
    }
}

/// Returns whether a host is `domain` or below it (RFC 6265bis section 5.1.3).
fn is_in_domain(host: &str, domain: &str) -> bool {
    let rest = host.strip_suffix(domain);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Returns whether a path is `above` or below it (RFC 6265bis section 5.1.4).
fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || above.ends_with('/'))
}

fn without_query(path: &str) -> &str {
    path.split(['?', '#']).next().unwrap_or_default()
}

/// Returns the cookies of a `Cookie` field.
pub(crate) fn pairs(field: &[u8]) -> impl Iterator<Item = &[u8]> {
    let pairs = field.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    pairs.filter(|pair| !pair.is_empty())
}

pub(crate) fn name_of(pair: &[u8]) -> &[u8] {
    let name = pair.split(|byte| *byte == b'=').next();
    name.unwrap_or_default().trim_ascii_end()
}

#[cfg(test)]
mod tests;
