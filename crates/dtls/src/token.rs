//! Address tokens: a client that returns shows one in place of a cookie, which saves the round trip
//! of the retry (as NEW_TOKEN does in RFC 9000, section 8.1.3).
//!
//! ```text
//!  tag = HMAC(key, period | IP address | salt)
//!
//!  token    | salt (4) | the first bytes of the tag (8) |
//!  secret   | the next bytes of the tag (16) |      sent inside DTLS only, with the token
//!  id       | the first bytes of HMAC(secret, nonce) (4) |
//! ```
//!
//! The token has the length of a cookie and takes its place, so a gateway that does not know it
//! sends a retry as for any other cookie. Both ends compute the id of the association from the
//! secret. The client can therefore ignore data of forgers: they see no secret and no retry.
//! The token does not depend on the port, which is another one for each association.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use subtle::ConstantTimeEq as _;

use crate::cookie::{ip_bytes, key};
use crate::envelope::{AssociationId, Cookie, Nonce};

/// The time after which tokens are of another period. A token is valid for up to twice as long: the
/// address of a client may belong to somebody else a day later.
const PERIOD: Duration = Duration::from_secs(12 * 3600);
/// The used tokens of each period that are known. Above them, no token of the period is accepted.
const MOST_USED: usize = 16_384;
const SALT: usize = 4;

/// The bytes of a token and its secret.
type Bytes = [u8; 28];

/// A token with its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct AddressToken(Bytes);

/// Shows neither token nor secret.
impl fmt::Debug for AddressToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AddressToken")
    }
}

impl AddressToken {
    /// Reads the content of a gateway's message. Further bytes have no meaning yet. Returns `None`
    /// if it is too short.
    pub fn decode(content: &[u8]) -> Option<Self> {
        content.first_chunk().copied().map(Self)
    }

    /// Returns the content of a message.
    pub const fn to_bytes(&self) -> Bytes {
        self.0
    }

    /// Returns the bytes to show in place of a cookie.
    pub fn shown(&self) -> Cookie {
        let mut shown = [0; 12];
        shown.copy_from_slice(&self.0[..12]);
        shown
    }

    /// Returns the id of the association that an attempt with this token begins.
    pub fn id(&self, nonce: &Nonce) -> AssociationId {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.0[12..]), nonce);
        let mut id = [0; 4];
        id.copy_from_slice(&tag.as_ref()[..4]);
        AssociationId::new(id).of_token()
    }
}

/// A valid token that a client has shown.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// The id of the association that it permits.
    pub id: AssociationId,
    token: Cookie,
    /// The period of the token, and the present one.
    period: u64,
    present: u64,
}

/// Makes and checks the tokens of one listener. All threads share it.
#[derive(Debug)]
pub struct Tokens {
    key: hmac::Key,
}

impl Tokens {
    /// Creates the tokens of a listener from the secret of its cookies. Their keys differ.
    pub fn new(secret: &[u8; 32]) -> Self {
        Self {
            key: key(secret, b"tandem dtls address token"),
        }
    }

    /// Returns a new token for an address. `now` is the time since the start of the listener.
    pub fn make(&self, now: Duration, address: IpAddr) -> AddressToken {
        let mut salt = [0; SALT];
        SystemRandom::new()
            .fill(&mut salt)
            .expect("the system has random numbers");
        self.of_period(now.as_secs() / PERIOD.as_secs(), address, salt)
    }

    fn of_period(&self, period: u64, address: IpAddr, salt: [u8; SALT]) -> AddressToken {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&period.to_be_bytes());
        context.update(&ip_bytes(address));
        context.update(&salt);
        let mut bytes = [0; 28];
        bytes[..SALT].copy_from_slice(&salt);
        bytes[SALT..].copy_from_slice(&context.sign().as_ref()[..28 - SALT]);
        AddressToken(bytes)
    }

    /// Returns the meaning of a token that an attempt shows, or `None` if it is not valid for the
    /// address, or is too old.
    pub fn check(
        &self,
        now: Duration,
        address: IpAddr,
        nonce: &Nonce,
        token: &Cookie,
    ) -> Option<Shown> {
        let present = now.as_secs() / PERIOD.as_secs();
        let mut salt = [0; SALT];
        salt.copy_from_slice(&token[..SALT]);
        let periods = [Some(present), present.checked_sub(1)];
        periods.into_iter().flatten().find_map(|period| {
            let own = self.of_period(period, address, salt);
            bool::from(own.shown().ct_eq(token)).then(|| Shown {
                id: own.id(nonce),
                token: *token,
                period,
                present,
            })
        })
    }
}

/// The tokens that were used. Each is accepted once (RFC 9000, section 8.1.4).
#[derive(Debug, Default)]
pub struct UsedTokens(HashMap<u64, HashSet<Cookie>>);

impl UsedTokens {
    /// Notes that a token is used. Returns false if it must not be: it was used before, or too many
    /// others were.
    pub fn spend(&mut self, shown: &Shown) -> bool {
        self.0.retain(|period, _| period + 1 >= shown.present);
        let used = self.0.entry(shown.period).or_default();
        used.len() < MOST_USED && used.insert(shown.token)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::cookie::Cookies;

    const HOUR: Duration = Duration::from_secs(3600);
    const NONCE: Nonce = [1; 8];

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn token_belongs_to_address_and_time() {
        let (tokens, home) = (Tokens::new(&[3; 32]), ip("192.0.2.1"));
        let start = 30 * HOUR;
        let token = tokens.make(start, home);
        let check = |after, address| tokens.check(start + after, address, &NONCE, &token.shown());
        for (after, address) in [
            (Duration::ZERO, home),
            (12 * HOUR, home),
            (17 * HOUR, home),
            (HOUR, ip("::ffff:192.0.2.1")),
        ] {
            let shown = check(after, address).expect("a valid token");
            assert_eq!(shown.id, token.id(&NONCE));
        }
        assert!(check(24 * HOUR, home).is_none());
        assert!(check(Duration::ZERO, ip("192.0.2.2")).is_none());
        assert!(check(Duration::ZERO, ip("2001:db8::1")).is_none());
        let others = Tokens::new(&[4; 32]);
        assert!(others.check(start, home, &NONCE, &token.shown()).is_none());
    }

    #[test]
    fn changed_token_is_not_valid() {
        let (tokens, home) = (Tokens::new(&[3; 32]), ip("192.0.2.1"));
        let token = tokens.make(HOUR, home).shown();
        for at in 0..token.len() {
            let mut changed = token;
            changed[at] ^= 1;
            assert!(tokens.check(HOUR, home, &NONCE, &changed).is_none());
        }
    }

    /// A forger who sees neither of them cannot guess the id.
    #[test]
    fn id_depends_on_token_and_nonce() {
        let (tokens, home) = (Tokens::new(&[3; 32]), ip("192.0.2.1"));
        let [first, second] = [(); 2].map(|()| tokens.make(HOUR, home));
        assert_ne!(first.shown(), second.shown());
        assert_ne!(first.id(&NONCE), second.id(&NONCE));
        assert_ne!(first.id(&NONCE), first.id(&[2; 8]));
        let cookies = Cookies::new(&[3; 32]);
        let address = std::net::SocketAddr::new(home, 1000);
        for nonce in (0..100_u64).map(u64::to_be_bytes) {
            let (of_cookie, _) = cookies.make(HOUR, address, &nonce);
            let bits = [of_cookie, first.id(&nonce)].map(|id| id.to_bytes()[0] >> 6);
            assert_eq!(bits, [2, 3], "no token leads to the id of a cookie");
        }
    }

    #[test]
    fn cookie_is_no_token_of_the_same_secret() {
        let secret = [3; 32];
        let (cookies, tokens) = (Cookies::new(&secret), Tokens::new(&secret));
        let address = std::net::SocketAddr::new(ip("192.0.2.1"), 1000);
        let (_, cookie) = cookies.make(HOUR, address, &NONCE);
        assert!(tokens.check(HOUR, address.ip(), &NONCE, &cookie).is_none());
        let token = tokens.make(HOUR, address.ip()).shown();
        assert!(cookies.check(HOUR, address, &NONCE, &token).is_none());
        // The keys differ, and so the tags of the same bytes would.
        let [one, other] = [&cookies.key, &tokens.key].map(|key| hmac::sign(key, b"same"));
        assert_ne!(one.as_ref(), other.as_ref());
    }

    #[test]
    fn token_is_used_once_in_each_period() {
        let (tokens, home) = (Tokens::new(&[3; 32]), ip("192.0.2.1"));
        let mut used = UsedTokens::default();
        let token = tokens.make(HOUR, home);
        let mut spend = |at, nonce: &Nonce| {
            let shown = tokens.check(at, home, nonce, &token.shown());
            shown.is_some_and(|shown| used.spend(&shown))
        };
        assert!(spend(HOUR, &NONCE));
        assert!(!spend(HOUR, &NONCE) && !spend(HOUR, &[2; 8]));
        assert!(!spend(13 * HOUR, &NONCE), "it is valid still");
        assert!(!spend(25 * HOUR, &NONCE));
    }

    #[test]
    fn used_tokens_are_bounded() {
        let (tokens, home) = (Tokens::new(&[3; 32]), ip("192.0.2.1"));
        let mut used = UsedTokens::default();
        let mut accept = |at| {
            let token = tokens.make(at, home);
            let shown = tokens.check(at, home, &NONCE, &token.shown());
            used.spend(&shown.expect("a valid token"))
        };
        let accepted = (0..MOST_USED + 50).filter(|_| accept(HOUR)).count();
        assert!(
            (MOST_USED - 50..=MOST_USED).contains(&accepted),
            "{accepted}"
        );
        // The next periods have room again, and forget this one.
        assert!(accept(13 * HOUR) && accept(25 * HOUR));
        assert_eq!(used.0.len(), 2);
    }

    proptest! {
        #[test]
        fn message_of_any_length_is_read(content in vec(any::<u8>(), 0..60)) {
            match AddressToken::decode(&content) {
                Some(token) => {
                    prop_assert_eq!(&token.to_bytes()[..], &content[..28]);
                    prop_assert_eq!(&token.shown()[..], &content[..12]);
                    token.id(&NONCE);
                }
                None => prop_assert!(content.len() < 28),
            }
        }

        #[test]
        fn forged_token_is_not_valid(token in any::<Cookie>(), last in any::<u8>()) {
            let tokens = Tokens::new(&[3; 32]);
            let address = IpAddr::from([192, 0, 2, last]);
            prop_assert!(tokens.check(20 * HOUR, address, &NONCE, &token).is_none());
        }
    }
}
