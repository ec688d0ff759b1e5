//! The pages of new browsers, and the cookies that these get while a page loads.
//!
//! A page's request without cookies is likely to be that of a new browser. The hosts of the page's
//! resources may set cookies during the load. The later requests to them carry other cookies than
//! those that the page has set.

use std::collections::VecDeque;

use tandem_http::RequestHead;

use crate::cookies::{CookieChanges, cookies_of};
use crate::fetch_standard::is_navigation;
use crate::url::is_same_origin;

/// The largest number of pages that are remembered.
const MAX_PAGES: usize = 16;

/// The last pages of a session that were requested without cookies.
#[derive(Default)]
pub(super) struct NewPages(VecDeque<NewPage>);

/// A page that was requested without cookies.
struct NewPage {
    url: Box<str>,
    /// The cookies that the page sets.
    changes: Option<CookieChanges>,
}

impl NewPages {
    /// Notes the page at a URL, whose response makes these changes to cookies. A page with cookies
    /// takes the place of an earlier one.
    pub(super) fn note(
        &mut self,
        url: &str,
        request: &RequestHead,
        changes: Option<&CookieChanges>,
    ) {
        if !is_navigation(request) {
            return;
        }
        self.0.retain(|page| !is_same_origin(&page.url, url));
        if !request.fields.contains("cookie") {
            self.0.truncate(MAX_PAGES - 1);
            self.0.push_front(NewPage {
                url: url.into(),
                changes: changes.cloned(),
            });
        }
    }

    /// Returns whether a request for a resource of another origin has other cookies than its page
    /// has set, and its page was requested without cookies. The referrer may be the page's origin.
    pub(super) fn have_caused_others(&self, request: &RequestHead) -> bool {
        let referrer = request.fields.get("referer");
        let referrer = referrer.and_then(|referrer| std::str::from_utf8(referrer).ok());
        let is_source = |page: &&NewPage| referrer.is_some_and(|it| is_same_origin(&page.url, it));
        self.0.iter().find(is_source).is_some_and(|page| {
            let (scheme, host) = (request.scheme.as_str(), &request.authority);
            let changes = page.changes.as_ref();
            let own = changes.map(|changes| changes.after(b"", scheme, host, &request.path));
            own.unwrap_or_default() != *cookies_of(&request.fields)
        })
    }
}
