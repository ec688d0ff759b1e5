//! The pages that the browser has left for another page.
//!
//! A browser ends the requests of a page that it leaves. A session with one user likewise gives up
//! fetches of earlier pages, if they have not begun and no request waits for them. A page whose
//! document is still arriving is not left, since the browser would have closed its stream. If two
//! tabs load pages, the session gives up the fetches of the earlier page, and its tab makes the
//! requests.

use std::collections::HashSet;

use tandem_http::RequestHead;
use tandem_preload::Need;

use super::session::Gateway;
use super::table::{FetchId, PageId};
use crate::fetch_standard::is_navigation;

impl Gateway {
    /// Gives up the fetches of pages whose documents have arrived, because `request` is for another
    /// page. Fetches of `kept` resources stay for [`Self::adopt`].
    pub(super) fn leave_pages(&mut self, request: &RequestHead, kept: &[Need]) {
        if !self.config.audience.ends_left_pages() || !is_navigation(request) {
            return;
        }
        let kept: HashSet<&str> = kept.iter().map(|need| need.url.as_str()).collect();
        for id in self.pages.ids() {
            let page = self.pages.get(id);
            if page.is_some_and(|page| page.promises.is_none()) {
                self.give_up(id);
            }
        }
        for promise in self.companion.take_promises() {
            self.forget_fetch(promise.fetch);
        }
        for id in self.waiting_fetches() {
            let Some(fetch) = self.fetches.get(id) else {
                continue;
            };
            let page = self.pages.get(fetch.page);
            if page.is_some_and(|page| !page.abandoned) || kept.contains(&*fetch.target.url) {
                continue;
            }
            // The new page may promise the same resource at once.
            self.withdraw(id);
            self.cancel_fetch(id);
        }
    }

    /// Moves waiting fetches of these needs to a new page.
    pub(super) fn adopt(&mut self, page: PageId, needs: &[Need]) {
        let needs: HashSet<&str> = needs.iter().map(|need| need.url.as_str()).collect();
        for id in self.waiting_fetches() {
            let Some(fetch) = self.fetches.get_mut(id) else {
                continue;
            };
            if !needs.contains(&*fetch.target.url) {
                continue;
            }
            let earlier = std::mem::replace(&mut fetch.page, page);
            if let Some(earlier) = self.pages.get_mut(earlier) {
                earlier.fetches -= 1;
            }
            if let Some(page) = self.pages.get_mut(page) {
                page.fetches += 1;
            }
            self.collect_page(earlier);
        }
    }

    /// Returns the fetches that wait for their turn, and for which no request waits.
    pub(super) fn waiting_fetches(&self) -> Vec<FetchId> {
        let ids = self.fetches.ids().into_iter();
        ids.filter(|id| {
            self.fetches
                .get(*id)
                .is_some_and(|fetch| fetch.phase.begins_unclaimed() && !fetch.requested)
        })
        .collect()
    }
}
