//! The frames of pages, once their heads arrive.
//!
//! The resources of a frame carry the cookies that its document sets. If the frame has the origin
//! of its page, the gateway knows these cookies. They count for the resources that are named once
//! the head has arrived. Learned resources do not wait for it, since the browser may take the
//! frame from its cache.
//!
//! In a frame of another origin the browser may have other cookies, or refuse new ones. The
//! resources on the site of such a frame are left to the browser if the head of the frame sets a
//! cookie that their requests may carry.

use std::time::Instant;

use tandem_http::{RequestHead, ResponseHead};

use super::session::Gateway;
use super::table::PageId;
use crate::cookies::{CookieChanges, Cookies, cookies_of, sets_foreign_cookie};

impl Gateway {
    /// Handles the head of a frame that is pushed for a page. `request` is that of the frame, if it
    /// is known.
    pub(super) fn begin_frame(
        &mut self,
        now: Instant,
        id: PageId,
        url: &str,
        request: Option<&RequestHead>,
        head: &ResponseHead,
    ) {
        if !matches!(head.status, 200 | 304) {
            return;
        }
        let (cookies, foreign) = self.cookies_of_frame(now, id, url, request, head);
        if let Some(page) = self.pages.get_mut(id) {
            page.begin_frame(url, cookies, foreign);
        }
    }

    /// Returns the changes of a frame to the cookies of its requests, and those that the browser
    /// may refuse.
    fn cookies_of_frame(
        &self,
        now: Instant,
        id: PageId,
        url: &str,
        request: Option<&RequestHead>,
        head: &ResponseHead,
    ) -> (Cookies, Option<CookieChanges>) {
        if !head.fields.contains("set-cookie") {
            return (Cookies::Unchanged, None);
        }
        let (Some(page), Some(request)) = (self.pages.get(id), request) else {
            return (Cookies::Unknown, None);
        };
        let before = cookies_of(&request.fields);
        let is_own = page.shares_cookies(url, request);
        if !is_own && !page.is_same_site(url) && !sets_foreign_cookie(request, head) {
            return (Cookies::Unchanged, None);
        }
        match CookieChanges::of(request, head, self.clock.unix_time(now)) {
            Some(changes) if !is_own => (Cookies::Unchanged, Some(changes)),
            Some(changes) if !changes.alter(&before) => (Cookies::Unchanged, None),
            Some(changes) if page.adds_cookies() || !self.cookies.may_be_refused(request) => {
                (Cookies::Changed(changes), None)
            }
            _ => (Cookies::Unknown, None),
        }
    }
}
