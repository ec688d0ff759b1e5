//! The cookies that a page sets: the requests of its resources carry them.
//!
//! The promises of a page have the cookies that its response has just set, as the browser's own
//! requests will have. If the browser has not returned a cookie that a host has set, it may refuse
//! cookies, and none are added until it returns one. Some cookies are unknown ([`CookieChanges`]).
//! A client without a gateway then requests nothing early, because each resource would be requested
//! twice. A gateway promises the resources without them, since responses for everyone still fit.

use std::time::Instant;

use tandem_http::{RequestHead, ResponseHead};

use super::session::Gateway;
use super::visitors::comes_from_site;
use crate::cookies::{CookieChanges, cookies_of};
use crate::fetch_standard::is_navigation;

/// The cookies of requests that follow a response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Cookies {
    /// The response changes none.
    Unchanged,
    /// The response changes them.
    Changed(CookieChanges),
    /// The response sets cookies that browsers may treat in different ways.
    Unknown,
}

impl Cookies {
    /// Returns the changes, if there are any and all are known.
    pub(super) fn into_changes(self) -> Option<CookieChanges> {
        match self {
            Self::Changed(changes) => Some(changes),
            Self::Unchanged | Self::Unknown => None,
        }
    }
}

impl Gateway {
    /// Returns the cookies of the requests that a page causes.
    pub(super) fn cookies_after(
        &mut self,
        now: Instant,
        request: &RequestHead,
        head: &ResponseHead,
    ) -> Cookies {
        match self.changes_of(now, request, head) {
            Cookies::Changed(_) if !self.cookie_hosts.set(request) => Cookies::Unchanged,
            Cookies::Unknown if !self.config.has_one_user => Cookies::Unchanged,
            cookies => cookies,
        }
    }

    /// Returns the changes that a response makes to the cookies of later requests.
    pub(super) fn changes_of(
        &self,
        now: Instant,
        request: &RequestHead,
        head: &ResponseHead,
    ) -> Cookies {
        if !head.fields.contains("set-cookie") {
            return Cookies::Unchanged;
        }
        // Browsers may refuse the cookies of a frame of another site.
        let is_foreign_frame = self.is_frame(now, request) && !comes_from_site(request);
        if !is_navigation(request) || is_foreign_frame {
            return Cookies::Unknown;
        }
        let before = cookies_of(&request.fields);
        match CookieChanges::of(request, head, self.clock.unix_time(now)) {
            None => Cookies::Unknown,
            Some(changes) if changes.alter(&before) => Cookies::Changed(changes),
            Some(_) => Cookies::Unchanged,
        }
    }
}
