//! The decisions of a cache about responses: which of them are stored, and how responses update the
//! stored ones.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tandem_http::cache::{CacheControl, Receipt, RequestPolicy, ResponsePolicy, validation};
use tandem_http::message::content_length;
use tandem_http::{Fields, Method, RequestHead, ResponseHead};

use super::{Cache, Fetch, MAX_MARKS, Pending, Received};
use crate::asker::{Asker, Compared};
use crate::credentials::{has_credentials, has_login};
use crate::stored::{Body, Stored, selecting};
use crate::{Now, Sharing};

/// The time for which requests for an uncacheable URL do not wait for each other.
const PASS_FOR: Duration = Duration::from_secs(120);

/// The lifetime of an error response, whatever it says. An attacker may cause such a response by an
/// unusual request.
const ERROR_LIFETIME: Duration = Duration::from_secs(30);

/// The staleness above which a response does not serve while its origin is unreachable.
const MAX_DISCONNECTED: Duration = Duration::from_secs(24 * 3600);

impl<F: Clone> Cache<F> {
    /// Decides about the final head of a response.
    pub fn receive(&mut self, now: Now, fetch: &Fetch, head: &ResponseHead) -> Received {
        if head.status == 304 {
            return match &fetch.stored {
                Some(stored) => self.freshen(now, fetch, stored, head),
                None => Received::Pass,
            };
        }
        if let Some(stored) = &fetch.fallback
            && matches!(head.status, 500 | 502 | 503 | 504)
        {
            let (rules, staleness) = (self.config.rules(), stored.staleness(now));
            if stored.policy.permits_stale_if_error(rules, staleness) {
                return Received::Stored(Arc::clone(stored));
            }
        }
        if fetch.asked.method == Method::Head {
            self.update_by_head(now, fetch, head);
            return Received::Pass;
        }
        if fetch.asked.method != Method::Get {
            return Received::Pass;
        }
        if head.status == 206 {
            let part = self.receive_part(now, fetch, head);
            return part.map_or(Received::Pass, Received::Store);
        }
        let key = self.hash(fetch);
        match self.admit(now, fetch, &fetch.asked, head) {
            Some(entry) => {
                self.passes.remove(&key);
                Received::Store(pending(fetch, entry, fetch.started))
            }
            None => {
                // Requests that nobody can join tell nothing about the others.
                if fetch.flight.is_some() {
                    self.note_pass(now, key);
                }
                Received::Pass
            }
        }
    }

    /// Notes that requests for the URL with this hash do not wait for each other for some time.
    pub(super) fn note_pass(&mut self, now: Now, key: u64) {
        if self.passes.len() >= MAX_MARKS {
            self.passes.clear();
        }
        self.passes.insert(key, now.elapsed + PASS_FOR);
    }

    /// Decides about the final head of the response to a POST request, if the response has the
    /// request's URL in `Content-Location`. It is stored if it also names its lifetime (RFC 9110
    /// section 9.3.3). The caller then invalidates the target.
    pub fn receive_post(
        &mut self,
        now: Now,
        fetch: &Fetch,
        head: &ResponseHead,
    ) -> Option<Box<Pending>> {
        let names_lifetime = self.policy(head).names_lifetime(self.config.rules());
        // A change since the request may be newer than this one.
        let is_newest = self.is_current(&fetch.key, fetch.started);
        if head.status != 200 || !names_lifetime || !is_newest {
            return None;
        }
        let entry = self.admit(now, fetch, &fetch.asked, head)?;
        // The invalidation by this response does not apply to it, but later ones do.
        let started = now.elapsed + Duration::from_nanos(1);
        Some(pending(fetch, entry, started))
    }

    fn hash(&self, fetch: &Fetch) -> u64 {
        self.secret.hash_one(fetch.key.bytes())
    }

    /// Returns true if the cache may hold another body. Evicted bodies that slow clients still read
    /// count too.
    pub fn has_room(&self) -> bool {
        let bodies = self.bodies.load(Ordering::Relaxed);
        bodies <= self.config.memory + self.config.max_incomplete()
    }

    /// Returns true if a response is meant for its user only.
    fn is_personal(&self, asked: &Fields, head: &ResponseHead, control: &CacheControl) -> bool {
        // Even for its own user, an old cookie from the store could replace a newer one.
        let sets_cookie = head.fields.contains("set-cookie") || head.fields.contains("set-cookie2");
        let is_shared = self.config.rules().shared;
        let is_personal = sets_cookie || (is_shared && has_credentials(asked));
        is_personal && !control.public
    }

    /// Returns the entry of a response to `asked` that may be stored and can be of use.
    pub(super) fn admit(
        &self,
        now: Now,
        fetch: &Fetch,
        asked: &RequestHead,
        head: &ResponseHead,
    ) -> Option<Stored> {
        let rules = self.config.rules();
        let policy = self.policy(head);
        if !policy.is_storable(asked, rules) {
            return None;
        }
        let is_personal = self.is_personal(&asked.fields, head, &policy.control);
        if is_personal || is_about_request(asked, head.status) || !self.has_room() {
            return None;
        }
        let length = content_length(&head.fields).ok()?;
        if length.is_some_and(|length| length > self.config.max_body()) {
            return None;
        }
        let entry = self.entry(now, fetch, head.clone(), policy);
        let is_useful = entry.policy.has_validator || !entry.remaining(now).is_zero();
        is_useful.then_some(entry)
    }

    pub(super) fn policy(&self, head: &ResponseHead) -> ResponsePolicy {
        match self.config.sharing {
            // The reverse gateway is a part of its origin's delivery (RFC 9213 section 1).
            Sharing::Origin => ResponsePolicy::of_targeted(head),
            Sharing::Private | Sharing::Client | Sharing::Shared => ResponsePolicy::of(head),
        }
    }

    /// Updates a stored response by a 304 (RFC 9111 section 4.3.4).
    fn freshen(
        &mut self,
        now: Now,
        fetch: &Fetch,
        stored: &Arc<Stored>,
        head: &ResponseHead,
    ) -> Received {
        // nginx gives a body that it compresses a weak tag, and names the strong one in its 304.
        let mut head = head.clone();
        let tag = stored.head.fields.get("etag");
        if tag.is_some_and(|tag| tag.starts_with(b"W/")) {
            validation::confirm_weak_tag(&fetch.request().fields, &mut head.fields);
        }
        let head = &head;
        if !validation::is_about(head, &stored.head) {
            self.remove(&fetch.key);
            return Received::Again;
        }
        let fresh = Arc::new(self.updated(now, fetch, stored, head));
        match self.judge(fetch, head, &fresh.policy) {
            Update::Store => {
                if self.may_confirm(fetch) {
                    let (user, fresh) = (fetch.user, Arc::clone(&fresh));
                    let is_counted = self.store.update(&fetch.key, user, stored, fresh);
                    self.note_fetch(&fetch.key, user, is_counted);
                }
                Received::Stored(fresh)
            }
            Update::Ignore => Received::Own(fresh),
            Update::Remove => {
                self.remove(&fetch.key);
                Received::Own(fresh)
            }
        }
    }

    /// Returns true if the response to a fetch may make a stored response fresh.
    fn may_confirm(&self, fetch: &Fetch) -> bool {
        let (key, started) = (&fetch.key, fetch.started);
        self.is_current(key, started) && !self.is_overtaken(key, started)
    }

    /// Decides about a stored response whose head the head of another response updates. `merged` is
    /// the policy of the result.
    fn judge(&self, fetch: &Fetch, head: &ResponseHead, merged: &ResponsePolicy) -> Update {
        let asked = &fetch.asked.fields;
        let control = &self.policy(head).control;
        if self.is_personal(asked, head, control) || CacheControl::of(asked).no_store {
            return Update::Ignore;
        }
        let get = RequestHead {
            method: Method::Get,
            ..fetch.asked.clone()
        };
        match merged.is_storable(&get, self.config.rules()) {
            true => Update::Store,
            false => Update::Remove,
        }
    }

    /// Returns the entry of a response without its body.
    fn entry(&self, now: Now, fetch: &Fetch, head: ResponseHead, policy: ResponsePolicy) -> Stored {
        let rules = self.config.rules();
        let receipt = Receipt {
            at: now.unix,
            delay: now.elapsed.saturating_sub(fetch.started),
        };
        let mut freshness = policy.freshness(rules, receipt);
        if head.status >= 400 {
            let limit = freshness.age(Duration::ZERO) + ERROR_LIFETIME;
            freshness.lifetime = freshness.lifetime.map(|lifetime| lifetime.min(limit));
        }
        let is_open = policy.control.public || policy.control.s_maxage.is_some();
        let compared = if rules.shared && !fetch.key.has_owner() {
            Compared::None
        } else if is_open && !policy.control.private {
            Compared::Browser
        } else {
            // A response for one user's cookies is not for another one who shares the session.
            Compared::Person
        };
        let asked = &fetch.asked.fields;
        let has_open_cookies = !asked.contains("cookie") || policy.control.public;
        Stored {
            is_anonymous: !has_login(asked) && has_open_cookies,
            had_no_credentials: !has_credentials(asked),
            started: fetch.started,
            request: selecting(&head, &fetch.asked.fields),
            asker: Asker::new(&self.secret, &fetch.asked.fields, &head.fields, compared),
            user: Some(fetch.user),
            head,
            trailers: None,
            body: Body::default(),
            extent: None,
            policy,
            freshness,
            since: now.elapsed,
        }
    }

    fn updated(&self, now: Now, fetch: &Fetch, stored: &Stored, head: &ResponseHead) -> Stored {
        let mut updated = stored.head.clone();
        validation::freshen(&mut updated, head);
        let policy = self.policy(&updated);
        let new = self.entry(now, fetch, updated, policy);
        Stored {
            body: stored.body.clone(),
            extent: stored.extent,
            trailers: stored.trailers.clone(),
            request: stored.request.clone(),
            asker: stored.asker.clone(),
            is_anonymous: stored.is_anonymous && new.is_anonymous,
            had_no_credentials: stored.had_no_credentials && new.had_no_credentials,
            ..new
        }
    }

    /// Updates a stored response by the response to HEAD, or removes one that it contradicts (RFC
    /// 9111 section 4.3.5).
    fn update_by_head(&mut self, now: Now, fetch: &Fetch, head: &ResponseHead) {
        let Some(stored) = fetch.fallback.as_ref().filter(|_| head.status == 200) else {
            return;
        };
        let agrees = |name: &str| {
            let (new, old) = (head.fields.get(name), stored.head.fields.get(name));
            new.is_none() || old.is_none() || new == old
        };
        let length = content_length(&head.fields).unwrap_or(Some(u64::MAX));
        let is_same = length.is_none_or(|length| length == stored.body.len())
            && agrees("etag")
            && agrees("last-modified");
        let fresh = Arc::new(self.updated(now, fetch, stored, head));
        match self.judge(fetch, head, &fresh.policy) {
            Update::Ignore => {}
            Update::Store if is_same => {
                if self.may_confirm(fetch) {
                    self.store.update(&fetch.key, fetch.user, stored, fresh);
                    self.renew_on_disk(&fetch.key);
                }
            }
            Update::Store | Update::Remove => {
                self.remove(&fetch.key);
            }
        }
    }

    /// Decides about a request that failed before its response. Returns the stale response that may
    /// serve it, since the origin is not reachable (RFC 9111 section 4.2.4).
    pub fn fail(&self, now: Now, fetch: &Fetch) -> Option<Arc<Stored>> {
        let stored = fetch.fallback.as_ref()?;
        let asks = RequestPolicy::of(&fetch.asked.fields);
        let (rules, staleness) = (self.config.rules(), stored.staleness(now));
        let by_field = stored.policy.permits_stale_if_error(rules, staleness);
        let disconnected = !stored.policy.forbids_stale_use(rules)
            && staleness <= MAX_DISCONNECTED
            && asks.accepts_revalidation_later();
        (by_field || disconnected).then(|| Arc::clone(stored))
    }

    /// Returns true if a response is to be stored now: neither its target nor the store has a newer
    /// state.
    fn is_newest(&self, pending: &Pending) -> bool {
        let (key, started) = (&pending.key, pending.started);
        let visible = self.resource(key, pending.user);
        let stored = visible.and_then(|(it, only)| it.select(&pending.asked, only));
        self.is_current(key, started) && stored.is_none_or(|stored| stored.started <= started)
    }

    /// Stores a response whose body is complete, and returns it. One that a change has overtaken
    /// must be validated before each use.
    pub fn finish(
        &mut self,
        pending: Pending,
        body: Vec<Bytes>,
        trailers: Option<Fields>,
    ) -> Option<Arc<Stored>> {
        let body = Body::counted(body, &self.bodies);
        let length = content_length(&pending.entry.head.fields).ok()?;
        let extent = pending.entry.extent;
        let expected = extent.map_or(length, |extent| Some(extent.end - extent.start));
        let is_long = body.len() > self.config.max_body();
        if is_long || expected.is_some_and(|expected| expected != body.len()) {
            return None;
        }
        let is_overtaken = self.is_overtaken(&pending.key, pending.started);
        let mut policy = pending.entry.policy.clone();
        policy.control.no_cache |= is_overtaken;
        let is_useful = !is_overtaken || policy.has_validator;
        let stored = Arc::new(Stored {
            body,
            // The fields after a part are about the part.
            trailers: trailers.filter(|_| extent.is_none()),
            policy,
            ..Stored::clone(&pending.entry)
        });
        if is_useful
            && self.is_newest(&pending)
            && let Some(stored) = self.joined(&pending.key, &pending.asked, &stored)
        {
            let needed = self.needed(&pending.key, self.name(&pending.key));
            let is_counted = self.store.insert(
                pending.key.clone(),
                pending.group,
                (pending.user, needed),
                &pending.asked,
                stored,
            );
            self.note_fetch(&pending.key, pending.user, is_counted);
        }
        Some(stored)
    }
}

/// The change of a stored response by the head of another response.
enum Update {
    /// The updated response is stored.
    Store,
    /// The stored response stays as it was.
    Ignore,
    /// The stored response is removed.
    Remove,
}

/// Returns a response that is stored once its body is complete, unless its target is invalidated
/// after `started`.
pub(super) fn pending(fetch: &Fetch, entry: Stored, started: Duration) -> Box<Pending> {
    Box::new(Pending {
        key: fetch.key.clone(),
        group: fetch.group.clone(),
        user: fetch.user,
        asked: fetch.asked.fields.clone(),
        entry: Arc::new(entry),
        started,
    })
}

/// Returns true if a response depends on more of its request than the key and `Vary` cover: on its
/// size, conditions, ranges, credentials or rate. Stored, it would deny service to others.
fn is_about_request(request: &RequestHead, status: u16) -> bool {
    let is_special =
        validation::is_conditional(&request.fields) || request.fields.contains("range");
    let by_status = matches!(
        status,
        206 | 401 | 406 | 407 | 408 | 411..=413 | 415..=417 | 421 | 425 | 426 | 428 | 429 | 431
    );
    by_status || (is_special && status != 200)
}
