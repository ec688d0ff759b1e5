//! The decisions of a cache about requests: which stored response serves a request, and which
//! requests join another one. `receiving` decides about responses, `parts` about those with a
//! range, `fleet` about other caches of the operator, and `disk` about a second store on a disk.
//! `changes` holds the times of changes.

mod changes;
mod disk;
mod fleet;
pub(crate) mod parts;
mod receiving;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tandem_http::cache::{CacheRules, RequestPolicy, Reuse, invalidates, validation};
use tandem_http::{Fields, Method, RequestHead, ResponseHead};

use crate::names::Name;
use crate::response::is_answerable;
use crate::store::{Group, Resource, Store};
use crate::stored::Stored;
use crate::{Key, Now, Sharing};

use changes::Marks;
pub use disk::OnDisk;

/// The maximum number of entries in the lists of uncacheable URLs, of invalidated URLs and of
/// changed origins.
const MAX_MARKS: usize = 1 << 14;

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
            Sharing::Private | Sharing::Client => CacheRules::BROWSER,
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
    reason: Reason,
}

/// The reason for a request to the origin (RFC 9211 section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No response for the URL is stored that the user may know of.
    UriMiss,
    /// The stored responses for the URL were made for other requests.
    VaryMiss,
    /// The stored response is stale.
    Stale,
    /// The request asks for a response of the origin.
    Request,
}

impl Fetch {
    /// Returns the request to send: that of the client, or one with the conditions that validate
    /// the stored response.
    pub fn request(&self) -> RequestHead {
        let mut request = self.asked.clone();
        if let Some(stored) = &self.stored {
            validation::add_conditions(&mut request.fields, &stored.head);
        }
        request
    }

    /// Returns the stored response that the request validates or replaces, if its user may know
    /// its content before the origin has answered. An origin that checks the credentials of each
    /// request may refuse a response that another user got with credentials.
    pub fn stale(&self) -> Option<&Arc<Stored>> {
        let is_open = |stored: &&Arc<Stored>| self.key.has_owner() || stored.had_no_credentials;
        self.fallback.as_ref().filter(is_open)
    }

    /// The reason for the request.
    pub const fn reason(&self) -> Reason {
        self.reason
    }
}

/// The decision about a response from the origin.
#[derive(Debug)]
pub enum Received {
    /// The stored response serves the request: it was validated, or the origin reported an error.
    Stored(Arc<Stored>),
    /// The response serves this request only. The origin confirmed the stored response, with fields
    /// that no other user may get.
    Own(Arc<Stored>),
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
    started: Duration,
    token: F,
}

/// A cache. `F` identifies a request under way for the caller.
#[derive(Debug)]
pub struct Cache<F> {
    config: Config,
    store: Store,
    flights: HashMap<Key, Flight<F>>,
    next_flight: u64,
    /// The hashes of keys with uncacheable responses, and the end of their marks.
    passes: HashMap<u64, Duration>,
    /// The targets that were invalidated.
    invalidated: Marks,
    /// The owners and origins of unsafe requests.
    changes: HashMap<u64, Marks>,
    /// Responses to requests from before this time are not stored.
    floor: Option<Duration>,
    outbox: fleet::Outbox,
    /// The cache takes part in a fleet.
    is_in_fleet: bool,
    /// The store on a disk.
    disk: Option<disk::Disk>,
    /// The last time at which all invalidations of other caches were known.
    heard: Option<Duration>,
    /// The secret of the hashes, which also varies the number of users.
    secret: RandomState,
    /// The bytes of all complete bodies. They include evicted ones that readers still have.
    bodies: Arc<AtomicU64>,
}

impl<F: Clone> Cache<F> {
    /// Creates an empty cache.
    pub fn new(config: Config) -> Self {
        let group = match config.sharing {
            Sharing::Private => config.memory / 8,
            Sharing::Client => config.memory / 2,
            Sharing::Shared => config.memory / 4,
            Sharing::Origin => config.memory,
        };
        Self {
            store: Store::new(config.memory, group),
            config,
            flights: HashMap::new(),
            next_flight: 0,
            passes: HashMap::new(),
            invalidated: Marks::new(MAX_MARKS),
            changes: HashMap::new(),
            floor: None,
            outbox: fleet::Outbox::default(),
            is_in_fleet: false,
            disk: None,
            heard: None,
            secret: RandomState::new(),
            bodies: Arc::default(),
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
        let part = self.visible_part(key, user, request).filter(|part| {
            let (rules, resident) = (self.config.rules(), part.resident(now));
            asks.reuse(rules, &part.policy, &part.freshness, resident) == Reuse::Fresh
        });
        if let Some(part) = part {
            return Lookup::Hit(part);
        }
        let stored = self.visible(key, user, request);
        let reuse = stored.as_ref().map(|stored| {
            let resident = stored.resident(now);
            let rules = self.config.rules();
            asks.reuse(rules, &stored.policy, &stored.freshness, resident)
        });
        match (stored, reuse) {
            (Some(stored), Some(Reuse::Fresh | Reuse::Stale)) => Lookup::Hit(stored),
            (Some(stored), _) if self.serves_while_revalidating(now, &asks, &stored) => {
                // A response that several users share has one validation at a time. Otherwise each
                // change of its origin would cause a validation for each reader.
                let suffices = |flight: &Flight<F>| !key.has_owner() || self.is_open(key, flight);
                let lead = token.filter(|_| !self.flights.get(key).is_some_and(suffices));
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
                    && (self.is_known(key) || flight.user == user)
                    && self.is_open(key, flight)
                {
                    return Lookup::Join(flight.token.clone());
                }
                let (fetch, token) = self.fetch(now, key, group, user, request, stored, token);
                Lookup::Fetch(fetch, token)
            }
        }
    }

    /// Returns true if a fresh response serves the request of a user.
    pub fn holds_fresh(&self, now: Now, key: &Key, user: u64, request: &RequestHead) -> bool {
        let asks = RequestPolicy::of(&request.fields);
        self.visible(key, user, request).is_some_and(|stored| {
            let (rules, resident) = (self.config.rules(), stored.resident(now));
            asks.reuse(rules, &stored.policy, &stored.freshness, resident) == Reuse::Fresh
        })
    }

    /// Returns the stored response that the request and its user may see.
    fn visible(&self, key: &Key, user: u64, request: &RequestHead) -> Option<Arc<Stored>> {
        let (resource, only) = self.resource(key, user)?;
        let stored = resource.select(&request.fields, only)?;
        self.may_use(stored, &request.fields)
            .then(|| Arc::clone(stored))
    }

    /// Returns true if a response may serve a request with these credentials.
    fn may_use(&self, stored: &Stored, asked: &Fields) -> bool {
        let control = &stored.policy.control;
        let explicit = control.max_age.is_some()
            || control.s_maxage.is_some()
            || stored.policy.expires.is_some();
        // A guessed lifetime does not outweigh a cookie by which the origin may know its user.
        !self.config.rules().shared
            || control.public
            || (!asked.contains("authorization") && (explicit || !asked.contains("cookie")))
    }

    /// Returns the stored responses for a key, if the user may know of any. `Some(user)` beside
    /// them says that the user may know of the own ones only: the time of another user's response
    /// would show that somebody else was there.
    fn resource(&self, key: &Key, user: u64) -> Option<(&Resource, Option<u64>)> {
        let resource = self.store.get(key)?;
        if resource.crowd.count >= self.needed(key, resource.name) {
            return Some((resource, None));
        }
        resource.has_own(user).then_some((resource, Some(user)))
    }

    /// Returns true if all users may know of the resource of a key.
    fn is_known(&self, key: &Key) -> bool {
        let has_enough = |it: &Resource| it.crowd.count >= self.needed(key, it.name);
        !self.counts_users() || self.store.get(key).is_some_and(has_enough)
    }

    fn counts_users(&self) -> bool {
        !self.config.sharing.is_private() && self.config.min_users > 1
    }

    /// Returns the reason for a request to the origin.
    fn reason(&self, key: &Key, user: u64, asks: &RequestPolicy, is_stored: bool) -> Reason {
        let control = &asks.control;
        let is_asked = control.no_cache || control.max_age.is_some() || control.min_fresh.is_some();
        match self.resource(key, user) {
            None => Reason::UriMiss,
            Some(_) if !is_stored => Reason::VaryMiss,
            Some(_) if is_asked => Reason::Request,
            Some(_) => Reason::Stale,
        }
    }

    /// The number of users that must have fetched the resource of a key. For a target with a name,
    /// all caches of the operator require the same number.
    fn needed(&self, key: &Key, name: Option<Name>) -> u8 {
        if !self.counts_users() {
            return 0;
        }
        let least = self.config.min_users.clamp(2, 4);
        let number = match name {
            Some(name) => u64::from(name[0]),
            None => self.secret.hash_one(key.bytes()),
        };
        // The remainder is below 5.
        least + (number % (u64::from(least) + 1)) as u8
    }

    /// Returns true if the response to the request is likely to serve others, so that they may wait
    /// for it.
    fn may_lead(&mut self, now: Now, key: &Key, request: &RequestHead, is_stored: bool) -> bool {
        if let Entry::Occupied(pass) = self.passes.entry(self.secret.hash_one(key.bytes())) {
            if *pass.get() > now.elapsed {
                return false;
            }
            pass.remove();
        }
        let fields = &request.fields;
        let has_credentials = fields.contains("authorization") || fields.contains("cookie");
        let is_personal = self.config.rules().shared && has_credentials;
        // The stored response cannot answer the other conditions. The origin may answer them with
        // a response that serves no other request.
        let by_store = is_stored && is_answerable(request);
        let is_plain = by_store || !validation::is_conditional(fields);
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
        let reason = self.reason(
            key,
            user,
            &RequestPolicy::of(&request.fields),
            stored.is_some(),
        );
        let is_led = |flight: &Flight<F>| self.is_open(key, flight);
        let token = token.filter(|_| !self.flights.get(key).is_some_and(is_led));
        let token = token.map(|token| token());
        let flight = token.clone().map(|token| {
            self.next_flight += 1;
            let number = self.next_flight;
            let flight = Flight {
                number,
                user,
                started: now.elapsed,
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
            reason,
        };
        (Box::new(fetch), token)
    }

    /// Returns the fetch of a POST request whose response may serve later requests with GET (RFC
    /// 9110 section 9.3.3). Only the operator of an origin decides that its responses may: a cache
    /// of several origins returns `None`, as for any other method.
    pub fn post(
        &mut self,
        now: Now,
        key: &Key,
        group: Group,
        user: u64,
        request: &RequestHead,
    ) -> Option<Box<Fetch>> {
        if self.config.sharing != Sharing::Origin || request.method != Method::Post {
            return None;
        }
        let get = RequestHead {
            method: Method::Get,
            ..request.clone()
        };
        Some(self.fetch(now, key, group, user, &get, None, None).0)
    }

    /// Ends the flight of a fetch: no other request joins it from now on.
    pub fn end_flight(&mut self, fetch: &Fetch) {
        if let Entry::Occupied(entry) = self.flights.entry(fetch.key.clone())
            && Some(entry.get().number) == fetch.flight
        {
            entry.remove();
        }
    }

    /// Ends the flight for a key, if `is_same` confirms its token: a request has waited too long
    /// for it. For some time no request waits for another one for this key, so that the next leader
    /// cannot delay others either.
    pub fn give_up_flight(&mut self, now: Now, key: &Key, is_same: impl FnOnce(&F) -> bool) {
        if let Entry::Occupied(entry) = self.flights.entry(key.clone())
            && is_same(&entry.get().token)
        {
            entry.remove();
            self.note_pass(now, self.secret.hash_one(key.bytes()));
        }
    }

    /// Removes the responses that the response to an unsafe method invalidates: those of the
    /// `targets`, which are its URL and the URLs of the same origin that it names.
    pub fn invalidate(
        &mut self,
        now: Now,
        method: &Method,
        response: &ResponseHead,
        targets: &[Key],
    ) {
        if !invalidates(method, response.status) {
            return;
        }
        for key in targets {
            self.remove_target(key);
            self.invalidated.note(self.mark(key), now.elapsed);
            self.note_invalidation(key);
        }
    }

    /// Removes the responses of a target with any overrides, in memory and on the disk.
    fn remove_target(&mut self, key: &Key) {
        self.store.remove_target(key);
        if let Some(name) = self.name(key) {
            self.forget_on_disk(&name);
        }
    }

    /// Removes the responses for a key, in memory and on the disk.
    fn remove(&mut self, key: &Key) {
        self.store.remove(key);
        if let Some(name) = self.name(key).filter(|_| !key.has_overrides()) {
            self.forget_on_disk(&name);
        }
    }

    /// Returns true if the response to a request of this time may be stored: its target was not
    /// invalidated in the meantime, and the cache was not cleared.
    fn is_current(&self, key: &Key, started: Duration) -> bool {
        let is_cleared = self.floor.is_some_and(|floor| floor >= started);
        !is_cleared && !self.is_invalidated(key, started)
    }

    /// Returns true if the target was, or may have been, invalidated since this time.
    fn is_invalidated(&self, key: &Key, started: Duration) -> bool {
        self.invalidated.may_follow(self.mark(key), started)
    }

    /// Removes the responses of a group, such as those of a user whose session has ended.
    pub fn remove_group(&mut self, group: &Group) {
        self.store.remove_group(group);
    }

    /// Removes all responses.
    pub fn clear(&mut self, now: Now) {
        self.store.clear();
        if let Some(disk) = &mut self.disk {
            disk.clear();
        }
        self.passes.clear();
        self.flights.clear();
        self.floor = Some(now.elapsed);
    }

    /// Returns the number of resources that were evicted since the last call.
    pub fn take_evicted(&mut self) -> u64 {
        self.store.take_evicted()
    }
}

#[cfg(test)]
mod tests;
