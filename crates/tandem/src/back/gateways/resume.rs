//! The speeds of paths to gateways, in the tokens of the gateways ([`crate::resume`]).
//!
//! A session over datagrams shows the token of an earlier session that had the same isolation key,
//! gateway and network, and gets new tokens while it is used. A token is shown once: a session that
//! has received anything from the gateway uses it up, and one that was never established does not.
//! Tokens are in memory only, and there are none for gateways behind a proxy or gateways that a
//! site announced.
//!
//! The network is this machine's address towards the gateway. A private address may be the same in
//! two networks, so tokens for private addresses are shown for some minutes only. The time counts
//! from the gateway's response on two clocks, since one may stop while the machine sleeps.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::{Gateways, SessionUsage};
use crate::back::policy::is_public;
use crate::back::ways::Network;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Isolation, Part, Reply};
use crate::resume::{request, token_in};
use crate::session::{Connected, Task};

/// The number of tokens that are kept.
const MAX_TOKENS: usize = 64;
/// The datagrams that a session receives before another token is worth a request.
const WORTH: u64 = 64;
/// The wait after a response before the request for a token. The responses of one page are
/// followed by one request.
const SETTLE: Duration = Duration::from_secs(1);
/// The age up to which a token for a private address is shown.
const PRIVATE_AGE: Duration = Duration::from_secs(600);

/// The path of a session: its isolation key, the index of its gateway, and the network.
type PathKey = (Isolation, usize, Network);

/// A token, with the time of the response that it came in.
struct KeptToken {
    text: String,
    got: (Instant, SystemTime),
}

impl KeptToken {
    fn new(text: String) -> Self {
        let got = (Instant::now(), SystemTime::now());
        Self { text, got }
    }

    fn age(&self) -> Duration {
        let (monotonic, system) = self.got;
        // A clock that was set back gives no age.
        monotonic
            .elapsed()
            .max(system.elapsed().unwrap_or_default())
    }
}

/// The tokens by the paths of their sessions, from the oldest to the newest one.
#[derive(Default)]
pub(super) struct Tokens(RefCell<VecDeque<(PathKey, KeptToken)>>);

impl Tokens {
    /// Takes the token of a path.
    fn take(&self, key: &PathKey) -> Option<KeptToken> {
        let mut all = self.0.borrow_mut();
        let at = all.iter().position(|(of, _)| of == key)?;
        let (_, token) = all.remove(at)?;
        let is_valid = key.2.is_some_and(is_public) || token.age() <= PRIVATE_AGE;
        is_valid.then_some(token)
    }

    /// Keeps the token of a path. The oldest token makes room.
    fn keep(&self, key: PathKey, token: KeptToken) {
        self.take(&key);
        let mut all = self.0.borrow_mut();
        if all.len() >= MAX_TOKENS {
            all.pop_front();
        }
        all.push_back((key, token));
    }

    /// Forgets the tokens of an isolation key.
    pub(super) fn forget(&self, isolation: &Isolation) {
        let mut all = self.0.borrow_mut();
        all.retain(|((of, ..), _)| of != isolation);
    }
}

impl Gateways {
    /// Begins to show and to collect the tokens of a session, if its transport can use them. The
    /// task ends with the session.
    pub(super) fn follow_speed(
        &self,
        (isolation, index): &(Isolation, usize),
        session: &Rc<dyn Connected>,
        usage: &Rc<SessionUsage>,
    ) -> Option<Task> {
        let way = &self.gateways[*index].way;
        if !way.is_datagrams || way.addresses.is_none() {
            return None;
        }
        let key = (isolation.clone(), *index, self.network(*index));
        let follower = Follower {
            pool: self.this.clone(),
            session: Rc::downgrade(session),
            usage: Rc::clone(usage),
            key,
        };
        Some(Task::spawn(follower.run()))
    }
}

/// Shows and collects the tokens of one session.
struct Follower {
    pool: Weak<Gateways>,
    session: Weak<dyn Connected>,
    usage: Rc<SessionUsage>,
    key: PathKey,
}

impl Follower {
    async fn run(self) {
        let mut asked_at = 0;
        if let Some(shown) = self.take() {
            // It tells after the request whether the gateway can have seen the token.
            let session = self.session.upgrade();
            let is_answered = self.ask(Some(&shown.text)).await.is_some();
            let was_established = session.is_none_or(|session| session.is_established());
            if !is_answered && !was_established {
                self.keep(shown);
            }
        }
        loop {
            self.usage.ended.notified().await;
            let received = self.received();
            if received < asked_at + WORTH {
                continue;
            }
            tokio::time::sleep(SETTLE).await;
            asked_at = self.received();
            if self.ask(None).await.is_none() {
                return;
            }
        }
    }

    /// Returns the number of datagrams that the session has received.
    fn received(&self) -> u64 {
        let session = self.session.upgrade();
        let facts = session.and_then(|session| session.facts());
        facts.and_then(|it| it.datagrams_received()).unwrap_or(0)
    }

    /// Takes the token of the session's path.
    fn take(&self) -> Option<KeptToken> {
        self.pool.upgrade()?.tokens.take(&self.key)
    }

    fn keep(&self, token: KeptToken) {
        if let Some(pool) = self.pool.upgrade() {
            pool.tokens.keep(self.key.clone(), token);
        }
    }

    /// Shows a token, and keeps the next one. A response without a token ends the present one.
    /// Returns `None` if the gateway does not answer, or knows no such request.
    async fn ask(&self, shown: Option<&str>) -> Option<()> {
        let session = self.session.upgrade()?;
        let mut exchange = Exchange::internal(request(shown));
        let asked =
            Reply::generate(
                move |mut sink| async move { session.run(&mut exchange, &mut sink).await },
            );
        match token_of(asked).await {
            Ok(token) => {
                match token {
                    Some(token) => self.keep(KeptToken::new(token)),
                    None => drop(self.take()),
                }
                Some(())
            }
            Err(error) => {
                tracing::debug!(%error, "no token for the speed of the path");
                None
            }
        }
    }
}

/// Returns the token in the response of a gateway, if it has one. Nothing is read after the head,
/// since a gateway might never end the response.
async fn token_of(mut reply: Reply) -> Result<Option<String>, Error> {
    while let Some(part) = reply.part().await {
        if let Part::Head(head) = part? {
            if head.status != 200 {
                let detail = "the gateway gives no tokens for speeds";
                return Err(Error::new(Kind::Protocol, Side::Peer, detail));
            }
            return Ok(token_in(&head.fields).map(str::to_owned));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
