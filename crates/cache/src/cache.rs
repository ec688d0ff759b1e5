//! The decisions of a cache: which stored response serves a request, which requests join another
//! one, and which responses are stored.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tandem_http::cache::{
    CacheRules, Receipt, RequestPolicy, ResponsePolicy, Reuse, invalidates, validation,
};
use tandem_http::message::content_length;
use tandem_http::{Fields, Method, RequestHead, ResponseHead};

use crate::response::is_answerable;
use crate::store::{Group, Store};
use crate::stored::{Body, Stored, selecting};
use crate::{Key, Now, Sharing};

/// The time for which requests for an uncacheable URL do not wait for each other.
const PASS_FOR: Duration = Duration::from_secs(120);

/// The maximum number of URLs in the lists of uncacheable and of invalidated URLs.
const MAX_MARKS: usize = 1 << 14;

/// The lifetime of an error response, whatever it says. An attacker may cause such a response by an
/// unusual request.
const ERROR_LIFETIME: Duration = Duration::from_secs(30);

/// The staleness above which a response does not serve while its origin is unreachable.
const MAX_DISCONNECTED: Duration = Duration::from_secs(24 * 3600);

/// The configuration of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The users that a stored response may serve.
    pub sharing: Sharing,
    /// The bytes of memory for stored responses.
    pub memory: u64,
    /// The number of users that must fetch a resource before it serves others, 1 to 4. The actual
    /// number is up to twice as large, and different for each key.
    pub min_users: u8,
}

impl Config {
    const fn rules(&self) -> CacheRules {
        match self.sharing {
            Sharing::Private => CacheRules::BROWSER,
            Sharing::Shared | Sharing::Origin => CacheRules::PROXY,
        }
    }

    /// The size in bytes above which a body is not stored.
    pub const fn max_body(&self) -> u64 {
        self.memory / 16
    }

    /// The bytes of memory for bodies that are not complete, besides the stored responses.
    pub const fn max_incomplete(&self) -> u64 {
        self.memory / 4
    }
}

/// The decision about a request.
#[derive(Debug)]
pub enum Lookup<F> {
    /// The stored response serves the request.
    Hit(Arc<Stored>),
    /// The stale response serves the request, while the fetch validates the response. `None` if
    /// another request validates it already.
    Stale(Arc<Stored>, Option<(Box<Fetch>, Option<F>)>),
    /// Another request for the same key is under way.
    Join(F),
    /// The request goes to the origin. With a token, other requests may join it.
    Fetch(Box<Fetch>, Option<F>),
    /// The client wants only stored responses, and no stored response serves it: the response is
    /// 504.
    NotCached,
}

/// A request to the origin.
#[derive(Debug)]
pub struct Fetch {
    key: Key,
    group: Group,
    user: u64,
    /// The request as the client sent it.
    asked: RequestHead,
    /// The stored response that the request validates.
    stored: Option<Arc<Stored>>,
    /// The stored response that may serve in place of an error.
    fallback: Option<Arc<Stored>>,
    started: Duration,
    /// The number of the flight that other requests may join.
    flight: Option<u64>,
}

impl Fetch {
    /// Returns the request to send: that of the client, or one with the conditions that validate the
    /// stored response.
    pub fn request(&self) -> RequestHead {
        let mut request = self.asked.clone();
        if let Some(stored) = &self.stored {
            validation::add_conditions(&mut request.fields, &stored.head);
        }
        request
    }
}

/// The decision about a response from the origin.
#[derive(Debug)]
pub enum Received {
    /// The stored response serves the request: it was validated, or the origin reported an error.
    Stored(Arc<Stored>),
    /// The response is to be stored, and passed on meanwhile.
    Store(Box<Pending>),
    /// The response is passed on and not stored.
    Pass,
    /// The 304 is about a response that the cache does not hold. The request is repeated without
    /// conditions.
    Again,
}

/// A response that is stored once its body is complete.
#[derive(Debug)]
pub struct Pending {
    key: Key,
    group: Group,
    user: u64,
    asked: Fields,
    /// The response without its body.
    entry: Arc<Stored>,
    started: Duration,
}

impl Pending {
    /// Returns the response without its body, for the requests that wait.
    pub fn entry(&self) -> &Arc<Stored> {
        &self.entry
    }
}

/// The requests under way for a key.
#[derive(Debug)]
struct Flight<F> {
    number: u64,
    user: u64,
    token: F,
}

/// A cache. `F` identifies a request under way for the caller.
#[derive(Debug)]
pub struct Cache<F> {
    config: Config,
    store: Store,
    flights: HashMap<Key, Flight<F>>,
    next_flight: u64,
    /// The keys with uncacheable responses, and the end of their marks.
    passes: HashMap<Key, Duration>,
    /// The keys that were invalidated, with the times.
    invalidated: HashMap<Key, Duration>,
    /// Responses to requests from before this time are not stored.
    floor: Option<Duration>,
    /// The secret that varies the number of users.
    secret: RandomState,
}

impl<F: Clone> Cache<F> {
    /// Creates an empty cache.
    pub fn new(config: Config) -> Self {
        let group = match config.sharing {
            Sharing::Private => config.memory / 8,
            Sharing::Shared => config.memory / 4,
            Sharing::Origin => config.memory,
        };
        Self {
            store: Store::new(config.memory, group),
            config,
            flights: HashMap::new(),
            next_flight: 0,
            passes: HashMap::new(),
            invalidated: HashMap::new(),
            floor: None,
            secret: RandomState::new(),
        }
    }

    /// The configuration.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// The store.
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Decides about a request. `token` makes the token of a new flight; without it, the request
    /// neither joins another one nor lets others join.
    pub fn lookup(
        &mut self,
        now: Now,
        key: &Key,
        group: Group,
        user: u64,
        request: &RequestHead,
        token: Option<&dyn Fn() -> F>,
    ) -> Lookup<F> {
        let asks = RequestPolicy::of(&request.fields);
        let stored = self.visible(key, user, request);
        let reuse = stored.as_ref().map(|stored| {
            let resident = stored.resident(now);
            let rules = self.config.rules();
            asks.reuse(rules, &stored.policy, &stored.freshness, resident)
        });
        match (stored, reuse) {
            (Some(stored), Some(Reuse::Fresh | Reuse::Stale)) => Lookup::Hit(stored),
            (Some(stored), _) if self.serves_while_revalidating(now, &asks, &stored) => {
                let lead = token.filter(|_| !self.flights.contains_key(key));
                let fetch = lead.map(|token| {
                    // The client's conditions and ranges are not those of the validation.
                    let mut plain = request.clone();
                    plain.method = Method::Get;
                    validation::remove_conditions(&mut plain.fields);
                    plain.fields.remove("range");
                    let fallback = Some(Arc::clone(&stored));
                    self.fetch(now, key, group, user, &plain, fallback, Some(token))
                });
                Lookup::Stale(stored, fetch)
            }
            _ if asks.control.only_if_cached => Lookup::NotCached,
            (stored, _) => {
                let leads = self.may_lead(now, key, request, stored.is_some());
                let token = token.filter(|_| leads);
                if let (Some(_), Some(flight)) = (token, self.flights.get(key))
                    && (self.needed(key) == 0 || flight.user == user)
                {
                    return Lookup::Join(flight.token.clone());
                }
                let (fetch, token) = self.fetch(now, key, group, user, request, stored, token);
                Lookup::Fetch(fetch, token)
            }
        }
    }

    /// Returns the stored response that the request and its user may see.
    fn visible(&self, key: &Key, user: u64, request: &RequestHead) -> Option<Arc<Stored>> {
        let resource = self.store.get(key)?;
        let needed = self.needed(key);
        if resource.crowd.count < needed && !resource.crowd.has(user) {
            return None;
        }
        let stored = resource.select(&request.fields)?;
        let may_use = !self.config.rules().shared
            || !request.fields.contains("authorization")
            || stored.policy.control.public;
        may_use.then(|| Arc::clone(stored))
    }

    /// The number of users that must have fetched the resource of a key.
    fn needed(&self, key: &Key) -> u8 {
        let least = self.config.min_users.clamp(1, 4);
        if self.config.sharing == Sharing::Private || least == 1 {
            return 0;
        }
        // The remainder is below 5.
        let more = self.secret.hash_one(key.bytes()) % (u64::from(least) + 1);
        least + more as u8
    }

    /// Returns true if the response to the request is likely to serve others, so that they may wait
    /// for it.
    fn may_lead(&mut self, now: Now, key: &Key, request: &RequestHead, is_stored: bool) -> bool {
        if let Entry::Occupied(pass) = self.passes.entry(key.clone()) {
            if *pass.get() > now.elapsed {
                return false;
            }
            pass.remove();
        }
        let fields = &request.fields;
        let has_credentials = fields.contains("authorization") || fields.contains("cookie");
        let is_personal = self.config.rules().shared && has_credentials;
        let is_plain = is_stored || !validation::is_conditional(fields);
        let is_whole = request.method == Method::Get && !fields.contains("range");
        is_whole && is_plain && !is_personal && !RequestPolicy::of(fields).control.no_store
    }

    fn serves_while_revalidating(&self, now: Now, asks: &RequestPolicy, stored: &Stored) -> bool {
        let (rules, staleness) = (self.config.rules(), stored.staleness(now));
        asks.accepts_revalidation_later()
            && stored
                .policy
                .permits_stale_while_revalidating(rules, staleness)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "all of them are fields of the fetch"
    )]
    fn fetch(
        &mut self,
        now: Now,
        key: &Key,
        group: Group,
        user: u64,
        request: &RequestHead,
        stored: Option<Arc<Stored>>,
        token: Option<&dyn Fn() -> F>,
    ) -> (Box<Fetch>, Option<F>) {
        let token = token.filter(|_| !self.flights.contains_key(key));
        let token = token.map(|token| token());
        let flight = token.clone().map(|token| {
            self.next_flight += 1;
            let number = self.next_flight;
            let flight = Flight {
                number,
                user,
                token,
            };
            self.flights.insert(key.clone(), flight);
            number
        });
        let can_validate = request.method == Method::Get
            && is_answerable(request)
            && !request.fields.contains("range");
        let validated = stored
            .clone()
            .filter(|stored| can_validate && stored.policy.has_validator);
        let fetch = Fetch {
            key: key.clone(),
            group,
            user,
            asked: request.clone(),
            stored: validated,
            fallback: stored,
            started: now.elapsed,
            flight,
        };
        (Box::new(fetch), token)
    }

    /// Ends the flight of a fetch: no other request joins it from now on.
    pub fn end_flight(&mut self, fetch: &Fetch) {
        if let Entry::Occupied(entry) = self.flights.entry(fetch.key.clone())
            && Some(entry.get().number) == fetch.flight
        {
            entry.remove();
        }
    }

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
        if fetch.asked.method != Method::Get || is_about_request(&fetch.asked, head.status) {
            return Received::Pass;
        }
        match self.admit(now, fetch, head) {
            Some(entry) => {
                self.passes.remove(&fetch.key);
                Received::Store(Box::new(Pending {
                    key: fetch.key.clone(),
                    group: fetch.group.clone(),
                    user: fetch.user,
                    asked: fetch.asked.fields.clone(),
                    entry: Arc::new(entry),
                    started: fetch.started,
                }))
            }
            None => {
                mark(&mut self.passes, &fetch.key, now.elapsed + PASS_FOR);
                Received::Pass
            }
        }
    }

    /// Returns the entry of a response that may be stored and can be of use.
    fn admit(&self, now: Now, fetch: &Fetch, head: &ResponseHead) -> Option<Stored> {
        let rules = self.config.rules();
        let policy = self.policy(head);
        if !policy.is_storable(&fetch.asked, rules) {
            return None;
        }
        let asked = &fetch.asked.fields;
        // Even for its own user, an old cookie from the store could replace a newer one.
        let sets_cookie = head.fields.contains("set-cookie") || head.fields.contains("set-cookie2");
        let has_credentials = asked.contains("authorization") || asked.contains("cookie");
        let is_personal = sets_cookie || (rules.shared && has_credentials);
        if is_personal && !policy.control.public {
            return None;
        }
        let length = content_length(&head.fields).ok()?;
        if length.is_some_and(|length| length > self.config.max_body()) {
            return None;
        }
        let entry = entry(now, rules, fetch, head.clone(), policy);
        let is_useful = entry.policy.has_validator || !entry.remaining(now).is_zero();
        is_useful.then_some(entry)
    }

    fn policy(&self, head: &ResponseHead) -> ResponsePolicy {
        match self.config.sharing {
            // The reverse gateway is a part of its origin's delivery (RFC 9213 section 1).
            Sharing::Origin => ResponsePolicy::of_targeted(head),
            Sharing::Private | Sharing::Shared => ResponsePolicy::of(head),
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
        if !validation::is_about(head, &stored.head) {
            self.store.remove(&fetch.key);
            return Received::Again;
        }
        let fresh = Arc::new(self.updated(now, fetch, stored, head));
        if self.is_current(&fetch.key, fetch.started) {
            self.store
                .update(&fetch.key, fetch.user, stored, Arc::clone(&fresh));
        }
        Received::Stored(fresh)
    }

    fn updated(&self, now: Now, fetch: &Fetch, stored: &Stored, head: &ResponseHead) -> Stored {
        let mut updated = stored.head.clone();
        validation::freshen(&mut updated, head);
        let policy = self.policy(&updated);
        let new = entry(now, self.config.rules(), fetch, updated, policy);
        Stored {
            body: stored.body.clone(),
            trailers: stored.trailers.clone(),
            request: stored.request.clone(),
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
        let is_same = length.is_none_or(|length| length == stored.body.len());
        if is_same && agrees("etag") && agrees("last-modified") {
            let fresh = Arc::new(self.updated(now, fetch, stored, head));
            if self.is_current(&fetch.key, fetch.started) {
                self.store.update(&fetch.key, fetch.user, stored, fresh);
            }
        } else {
            self.store.remove(&fetch.key);
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

    /// Stores a response whose body is complete, and returns it.
    pub fn finish(
        &mut self,
        pending: Pending,
        body: Vec<Bytes>,
        trailers: Option<Fields>,
    ) -> Option<Arc<Stored>> {
        let body = Body::new(body);
        let length = content_length(&pending.entry.head.fields).ok()?;
        if length.is_some_and(|length| length != body.len()) || body.len() > self.config.max_body()
        {
            return None;
        }
        let stored = Arc::new(Stored {
            body,
            trailers,
            ..Stored::clone(&pending.entry)
        });
        if self.is_current(&pending.key, pending.started) {
            self.store.insert(
                pending.key,
                pending.group,
                pending.user,
                &pending.asked,
                Arc::clone(&stored),
            );
        }
        Some(stored)
    }

    /// Removes the responses that the response to an unsafe method invalidates. They are those of the
    /// `target` and of the URLs of the same origin that the response names.
    pub fn invalidate(
        &mut self,
        now: Now,
        method: &Method,
        response: &ResponseHead,
        target: &Key,
        named: &[Key],
    ) {
        if !invalidates(method, response.status) {
            return;
        }
        for key in std::iter::once(target).chain(named) {
            self.store.remove(key);
            self.flights.remove(key);
            if self.invalidated.len() >= MAX_MARKS {
                self.invalidated.clear();
                self.floor = Some(now.elapsed);
            }
            self.invalidated.insert(key.clone(), now.elapsed);
        }
    }

    /// Returns true if no invalidation has come since a request of this time.
    fn is_current(&self, key: &Key, started: Duration) -> bool {
        let later = |time: Option<&Duration>| time.is_some_and(|time| *time >= started);
        !later(self.invalidated.get(key)) && !later(self.floor.as_ref())
    }

    /// Removes the responses of a group, such as those of a user whose session has ended.
    pub fn remove_group(&mut self, group: &Group) {
        self.store.remove_group(group);
    }

    /// Removes all responses.
    pub fn clear(&mut self, now: Now) {
        self.store.clear();
        self.passes.clear();
        self.flights.clear();
        self.floor = Some(now.elapsed);
    }

    /// Returns the number of resources that were evicted since the last call.
    pub fn take_evicted(&mut self) -> u64 {
        self.store.take_evicted()
    }
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

/// Returns the entry of a response without its body.
fn entry(
    now: Now,
    rules: CacheRules,
    fetch: &Fetch,
    head: ResponseHead,
    policy: ResponsePolicy,
) -> Stored {
    let receipt = Receipt {
        at: now.unix,
        delay: now.elapsed.saturating_sub(fetch.started),
    };
    let mut freshness = policy.freshness(rules, receipt);
    if head.status >= 400 {
        let limit = freshness.age(Duration::ZERO) + ERROR_LIFETIME;
        freshness.lifetime = freshness.lifetime.map(|lifetime| lifetime.min(limit));
    }
    Stored {
        request: selecting(&head.fields, &fetch.asked.fields),
        head,
        trailers: None,
        body: Body::default(),
        policy,
        freshness,
        since: now.elapsed,
    }
}

/// Adds a mark to a bounded list.
fn mark(marks: &mut HashMap<Key, Duration>, key: &Key, until: Duration) {
    if marks.len() >= MAX_MARKS {
        marks.clear();
    }
    marks.insert(key.clone(), until);
}

#[cfg(test)]
mod tests;
