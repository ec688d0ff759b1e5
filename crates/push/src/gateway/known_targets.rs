//! The redirects of documents to other origins, at a gateway with one user.
//!
//! The gateway compares the browser's request for a target with the one that it would have made.
//! Once both were equal at enough visits, it follows the redirect
//! ([`known_redirects`](crate::known_redirects)). The comparison covers the cookies, the referrer
//! and the fields that show the browser.

use std::sync::Arc;
use std::time::Instant;

use tandem_http::{RequestHead, ResponseHead};
use tandem_preload::{Need, split};

use super::awaited_targets::{AwaitedTarget, LookedUp};
use super::fetch::PushTarget;
use super::predictor::{Learned, Predictor};
use super::session::Gateway;
use super::table::{FetchId, PageId};
use crate::cookies::CookieChanges;
use crate::fetch_standard::{has_metadata, is_navigation, is_repeatable};
use crate::response_rules::{is_redirect, redirect_target};
use crate::url::is_same_origin;
use crate::wire::RequestHashes;

/// The largest number of requests that are awaited. The oldest makes way.
const MAX_AWAITED: usize = 16;

/// Returns the target of a redirect whose request the gateway may predict: it is of another origin,
/// and carries no cookie that the redirect sets.
fn predictable_target(
    url: &str,
    request: &RequestHead,
    head: &ResponseHead,
    unix_time: u64,
) -> Option<Need> {
    let is_plain =
        is_navigation(request) && is_repeatable(&request.fields) && !has_metadata(&request.fields);
    let target = redirect_target(url, head).filter(|_| is_plain)?;
    let (scheme, ..) = split(&target.url)?;
    let is_other = scheme == request.scheme.as_str() && !is_same_origin(url, &target.url);
    let gets_no_cookie = || gets_no_new_cookie(request, head, &target.url, unix_time);
    (is_other && gets_no_cookie()).then_some(target)
}

/// Returns whether the request for the target of a redirect carries none of the cookies that the
/// redirect sets.
fn gets_no_new_cookie(
    request: &RequestHead,
    head: &ResponseHead,
    target: &str,
    unix_time: u64,
) -> bool {
    let Some((_, authority, path)) = split(target) else {
        return false;
    };
    let target = RequestHead::get(request.scheme, authority, path);
    !head.fields.contains("set-cookie")
        || CookieChanges::of(request, head, unix_time)
            .is_some_and(|changes| !changes.concern(&target))
}

impl Gateway {
    /// Looks up the target of a redirect of a document. If earlier visits have shown the browser's
    /// request for it, the redirect is followed. The needs of the target are returned.
    pub(super) fn look_target_up(
        &mut self,
        now: Instant,
        url: &Arc<str>,
        request: &RequestHead,
        head: &ResponseHead,
        predictor: &dyn Predictor,
    ) -> Option<Learned> {
        if !predictor.serves_one_user() {
            return None;
        }
        let target = predictable_target(url, request, head, self.clock.unix_time(now))?;
        let browser = RequestHashes::of(&request.fields).browser();
        let is_known = predictor.leads_to(browser, url, &target.url);
        let learned = is_known.then(|| Learned::of_page(predictor, browser, &target.url));
        self.targets.get_or_insert_default().looked_up = Some(LookedUp {
            redirect: Arc::clone(url),
            target: target.url,
            is_known,
        });
        learned
    }

    /// Forgets the redirect that was looked up last. A page without pushes has not handled it, and
    /// another response at its URL may set other cookies.
    pub(super) fn forget_looked_up(&mut self) {
        if let Some(targets) = &mut self.targets {
            targets.looked_up = None;
        }
    }

    /// Returns whether the target of a redirect was looked up just now.
    pub(super) fn has_looked_up(&self, redirect: &str, target: &str) -> bool {
        let looked_up = self.targets.as_ref().and_then(|it| it.looked_up.as_ref());
        looked_up.is_some_and(|it| *it.redirect == *redirect && it.target == target)
    }

    /// Looks up the target of a push that is a redirect of its page, as [`Self::look_target_up`]
    /// does. Returns the page as well, which then knows the hosts of the target.
    pub(super) fn look_pushed_target_up(
        &mut self,
        now: Instant,
        id: FetchId,
        head: &ResponseHead,
        predictor: Option<&mut (dyn Predictor + '_)>,
    ) -> Option<(PageId, Learned)> {
        self.forget_looked_up();
        let fetch = self.fetches.get(id).filter(|_| is_redirect(head))?;
        let (page, url) = (fetch.page, Arc::clone(&fetch.target.url));
        let request = fetch.request.clone().filter(|_| self.is_redirected(id))?;
        if let (Some(page), Some(targets)) = (self.pages.get(page), &mut self.targets) {
            targets.visits.follow(page.url(), &url, head);
        }
        // The browser has no cookie of a push that it has not taken.
        let request = Some(request).filter(|_| !head.fields.contains("set-cookie"))?;
        let mut learned = self.look_target_up(now, &url, &request, head, &*predictor?)?;
        let record = self.pages.get_mut(page)?;
        record
            .asked_hosts
            .extend(std::mem::take(&mut learned.hosts));
        Some((page, learned))
    }

    /// Handles a redirect of a document to another origin. Its target is promised if earlier visits
    /// have shown the browser's request for it. `target` has the referrer of the request.
    pub(super) fn note_other_origin(&mut self, page: PageId, redirect: &str, target: Need) {
        let is_of = |it: &LookedUp| *it.redirect == *redirect && it.target == target.url;
        let targets = self.targets.as_mut();
        let looked_up = targets.and_then(|targets| targets.looked_up.take());
        let Some(looked_up) = looked_up.filter(is_of) else {
            return;
        };
        let own_origin_only = self.config.own_origin_only;
        let record = self.pages.get_mut(page);
        let Some(request) = record.and_then(|it| it.request_for(&target, own_origin_only)) else {
            return;
        };
        let awaited = &mut self.targets.get_or_insert_default().awaited;
        awaited.truncate(MAX_AWAITED - 1);
        awaited.push_front(AwaitedTarget {
            redirect: redirect.into(),
            target: PushTarget::of(target.url.as_str().into(), &request),
            is_followed: looked_up.is_known,
        });
        if looked_up.is_known {
            self.promise_one(page, target);
        }
    }

    /// Tells the predictor whether the browser's request for the target of a redirect is the one
    /// that the gateway has made or would have made.
    pub(super) fn compare_with_target(
        &mut self,
        hash: u32,
        request: &RequestHead,
        predictor: &mut dyn Predictor,
    ) {
        let Some(targets) = self.targets.as_mut().filter(|_| is_navigation(request)) else {
            return;
        };
        if let Some(awaited) = targets.take(|it| it.target.hash == hash) {
            let AwaitedTarget {
                redirect, target, ..
            } = awaited;
            let asked = RequestHashes::of(&request.fields);
            let is_known = target.asked == asked;
            predictor.note_redirect(asked.browser(), &redirect, &target.url, is_known);
        }
    }

    /// Handles a report on the push of a followed target. A browser that does not use the push
    /// requests no target either: it has the target in its cache, or goes to another scheme by
    /// itself.
    pub(super) fn note_target_fate(
        &mut self,
        hash: u32,
        is_asked: bool,
        predictor: &mut dyn Predictor,
    ) {
        let Some(targets) = self.targets.as_mut() else {
            return;
        };
        let is_of = |it: &AwaitedTarget| it.is_followed && it.target.hash == hash;
        if let Some(AwaitedTarget {
            redirect, target, ..
        }) = targets.take(is_of)
        {
            predictor.note_redirect(target.asked.browser(), &redirect, &target.url, is_asked);
        }
    }

    /// Notes that the browser has got the body of a resource of a visit.
    pub(super) fn note_transfer(
        &self,
        hash: u32,
        referrer: Option<&str>,
        predictor: &mut dyn Predictor,
    ) {
        if let Some(targets) = &self.targets {
            targets.visits.note(hash, referrer, predictor);
        }
    }
}
