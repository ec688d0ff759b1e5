//! The frames of a page, and the cookies with which their resources are requested.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tandem_http::RequestHead;
use tandem_preload::{self as scan, Need};

use super::Page;
use crate::cookies::{CookieChanges, Cookies};
use crate::fetch_standard::is_own_origin;
use crate::site::is_same_site;
use crate::url;

/// The frames of a page, by URL.
#[derive(Default)]
pub(super) struct Frames {
    /// The frames whose documents may have an opaque origin, or no cookies of the page's site.
    sandboxed: HashSet<String>,
    /// The frames whose heads have arrived, with the changes of the cookies of their requests.
    heads: HashMap<Box<str>, Cookies>,
    /// The cookies that frames of other origins set, and that browsers may refuse.
    foreign: HashMap<Box<str>, CookieChanges>,
}

impl Page {
    /// Adds the frames that earlier visits have shown to be sandboxed.
    pub(super) fn expect_sandboxed(&mut self, frames: HashSet<String>) {
        self.nested.sandboxed.extend(frames);
    }

    /// Gives a learned need to its frame, if that has the page's origin and its head has arrived.
    pub(super) fn place_in_frame(&self, need: &mut Need) {
        let is_of_frame = |via: &mut Arc<str>| {
            url::is_same_origin(via, self.document_url()) && self.nested.heads.contains_key(&**via)
        };
        if let Some(frame) = need.via.take_if(is_of_frame) {
            need.frame = Some(frame);
        }
    }

    /// Notes the head of a frame, which changes the cookies of its later requests in this way.
    /// Browsers may refuse the cookies `foreign`.
    pub(in super::super) fn begin_frame(
        &mut self,
        url: &str,
        cookies: Cookies,
        foreign: Option<CookieChanges>,
    ) {
        let cookies = match cookies {
            Cookies::Changed(changes) => self
                .cookies_with(&changes)
                .map_or(Cookies::Unknown, Cookies::Changed),
            cookies => cookies,
        };
        let foreign = foreign.map(|foreign| (url.into(), foreign));
        self.nested.foreign.extend(foreign);
        self.nested.heads.insert(url.into(), cookies);
    }

    /// Returns whether a request for a need may carry a cookie that its frame sets, and that the
    /// browser may refuse.
    pub(super) fn is_of_foreign_cookie(&self, need: &Need, request: &RequestHead) -> bool {
        let frame = need.frame.as_deref();
        let changes = frame.and_then(|frame| self.nested.foreign.get(frame));
        changes.is_some_and(|changes| carries_cookies(need) && changes.concern(request))
    }

    /// Returns whether the resources of a frame are left to the browser.
    pub(in super::super) fn is_sandboxed(&self, url: &str) -> bool {
        self.nested.sandboxed.contains(url)
    }

    /// Notes a document that the page needs. Inside a frame of another site, a document of the
    /// page's own origin lacks the cookies that other sites do not cause, which `Cookie` does not
    /// tell apart.
    pub(in super::super) fn note_nested(&mut self, need: &Need) {
        let is_own = |url: &str| {
            scan::split(url)
                .is_some_and(|(scheme, host, _)| is_own_origin(&self.request, scheme, host))
        };
        let is_foreign = |outer: &str| !self.is_same_site(outer) || self.is_sandboxed(outer);
        if need.frame.as_deref().is_some_and(is_foreign) && is_own(&need.url) {
            self.nested.sandboxed.insert(need.url.clone());
        }
    }

    /// Returns whether the request for a need may carry cookies that are unknown: its frame has set
    /// some.
    pub(super) fn has_unknown_cookies(&self, need: &Need) -> bool {
        let frame = need.frame.as_deref();
        frame.is_some_and(|frame| {
            self.nested.heads.get(frame) == Some(&Cookies::Unknown)
                && carries_cookies(need)
                && is_same_site(url::authority(frame), url::authority(&need.url))
        })
    }

    /// Returns the changes of the page's cookies before the request for a need.
    pub(super) fn cookies_before(&self, need: &Need) -> Option<&CookieChanges> {
        let frame = need.frame.as_deref();
        match frame.and_then(|frame| self.nested.heads.get(frame)) {
            Some(Cookies::Changed(changes)) => Some(changes),
            _ => self.cookies.as_ref(),
        }
    }

    /// Returns whether a request to a frame has the page's cookies, and its response changes them.
    pub(in super::super) fn shares_cookies(&self, frame: &str, request: &RequestHead) -> bool {
        url::is_same_origin(frame, self.document_url())
            && is_own_origin(&self.request, request.scheme.as_str(), &request.authority)
    }
}

/// Returns whether the request for a need of a frame carries cookies, if the browser has any.
fn carries_cookies(need: &Need) -> bool {
    let is_own = |frame: &str| url::is_same_origin(frame, &need.url);
    !need.anonymous || need.frame.as_deref().is_some_and(is_own)
}
