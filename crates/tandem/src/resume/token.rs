//! The token that holds the speed of a path. It is encrypted and authenticated, so that only the
//! gateway reads or makes one.
//!
//! ```text
//!  base64url( nonce (12) · ChaCha20-Poly1305( rate · round trip in µs · expiry in s ) )
//! ```
//!
//! Each of the three numbers has 8 bytes.
//!
//! The authenticated data is the network of the client's address: a token of another network does
//! not open. A key is derived from a secret of the process for each day, and opens tokens until the
//! end of the next day. A restart of the gateway thus ends all tokens.

use std::net::IpAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use tandem_resume::SavedSpeed;

/// The network of a client: the version of IP, and the first 24 bits in IPv4 or 48 bits in IPv6.
pub type ClientNetwork = [u8; 7];

/// The time for which a speed may be used, and after which the key changes.
pub const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// The bytes of the plain content.
const CONTENT: usize = 24;
/// The greatest rate in bytes per second and the longest round trip in µs that a token may hold.
const MOST: u64 = 1 << 40;

/// A speed that a client may use until a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedPath {
    /// The speed of the path.
    pub speed: SavedSpeed,
    /// The end of its use, since the start of [`Keys`].
    pub expires: Duration,
}

/// Makes and opens the tokens of one gateway.
#[derive(Debug)]
pub struct Keys {
    secret: hmac::Key,
}

impl Keys {
    /// Creates keys from a new secret.
    ///
    /// # Panics
    /// Panics if the system has no random numbers.
    pub fn random() -> Self {
        let mut secret = [0; 32];
        SystemRandom::new()
            .fill(&mut secret)
            .expect("the system has random numbers");
        Self::new(&secret)
    }

    /// Creates keys from a secret of 32 random bytes.
    pub fn new(secret: &[u8; 32]) -> Self {
        Self {
            secret: hmac::Key::new(hmac::HMAC_SHA256, secret),
        }
    }

    /// Returns the key of a day.
    fn key(&self, day: u64) -> LessSafeKey {
        let bytes = hmac::sign(&self.secret, &day.to_be_bytes());
        let key = UnboundKey::new(&CHACHA20_POLY1305, bytes.as_ref());
        LessSafeKey::new(key.expect("both have 32 bytes"))
    }

    /// Returns the token of a saved path for the client at `address`. Fails if the system has no
    /// random numbers.
    pub fn seal(&self, now: Duration, address: IpAddr, saved: &SavedPath) -> Option<String> {
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok()?;
        self.seal_with(nonce, now, address, saved)
    }

    fn seal_with(
        &self,
        nonce: [u8; NONCE_LEN],
        now: Duration,
        address: IpAddr,
        saved: &SavedPath,
    ) -> Option<String> {
        let mut sealed = write(saved);
        self.key(day(now))
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(network(address)),
                &mut sealed,
            )
            .ok()?;
        Some(URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat()))
    }

    /// Returns the content of a token that the client at `address` shows. Returns `None` if the
    /// token is not from this gateway, is of another network, or is too old.
    pub fn open(&self, now: Duration, address: IpAddr, token: &str) -> Option<SavedPath> {
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        if sealed.len() != CONTENT + CHACHA20_POLY1305.tag_len() {
            return None;
        }
        let today = day(now);
        let days = [Some(today), today.checked_sub(1)];
        let saved = days.into_iter().flatten().find_map(|day| {
            let mut sealed = sealed.to_vec();
            let nonce = Nonce::assume_unique_for_key(*nonce);
            let content =
                self.key(day)
                    .open_in_place(nonce, Aad::from(network(address)), &mut sealed);
            read(content.ok()?)
        })?;
        (now < saved.expires).then_some(saved)
    }
}

/// Writes the plain content.
pub(crate) fn write(saved: &SavedPath) -> Vec<u8> {
    let round_trip = u64::try_from(saved.speed.round_trip.as_micros()).unwrap_or(MOST);
    let numbers = [
        saved.speed.rate.min(MOST),
        round_trip.min(MOST),
        saved.expires.as_secs(),
    ];
    numbers.into_iter().flat_map(u64::to_be_bytes).collect()
}

/// Reads the plain content. Returns `None` for another length, or a number out of range.
pub(crate) fn read(content: &[u8]) -> Option<SavedPath> {
    if content.len() != CONTENT {
        return None;
    }
    let mut numbers = content.chunks_exact(8).map(|bytes| {
        let bytes = bytes.iter().copied();
        bytes.fold(0, |number: u64, byte| (number << 8) | u64::from(byte))
    });
    let (rate, round_trip) = (numbers.next()?, numbers.next()?);
    let expires = Duration::from_secs(numbers.next()?);
    (rate <= MOST && round_trip <= MOST).then_some(SavedPath {
        speed: SavedSpeed {
            rate,
            round_trip: Duration::from_micros(round_trip),
        },
        expires,
    })
}

fn day(now: Duration) -> u64 {
    now.as_secs() / LIFETIME.as_secs()
}

/// Returns the network of an address.
pub fn network(address: IpAddr) -> ClientNetwork {
    let mut network = [0; 7];
    match address.to_canonical() {
        IpAddr::V4(ip) => {
            network[0] = 4;
            network[1..4].copy_from_slice(&ip.octets()[..3]);
        }
        IpAddr::V6(ip) => {
            network[0] = 6;
            network[1..].copy_from_slice(&ip.octets()[..6]);
        }
    }
    network
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn keys() -> Keys {
        Keys::new(&[7; 32])
    }

    fn ip(address: &str) -> IpAddr {
        address.parse().expect("an address")
    }

    fn saved(expires: Duration) -> SavedPath {
        SavedPath {
            speed: SavedSpeed {
                rate: 2_500_000,
                round_trip: Duration::from_millis(600),
            },
            expires,
        }
    }

    #[test]
    fn token_opens_in_its_network_until_it_expires() {
        let (keys, home) = (keys(), ip("192.0.2.1"));
        let given = saved(30 * HOUR);
        let token = keys.seal(6 * HOUR, home, &given).expect("random numbers");
        let open = |now, from: &str| keys.open(now, ip(from), &token);
        assert_eq!(open(6 * HOUR, "192.0.2.1"), Some(given));
        assert_eq!(open(29 * HOUR, "192.0.2.200"), Some(given));
        assert_eq!(open(29 * HOUR, "::ffff:192.0.2.1"), Some(given));
        assert_eq!(open(30 * HOUR, "192.0.2.1"), None, "it has expired");
        assert_eq!(open(6 * HOUR, "192.0.3.1"), None);
        assert_eq!(open(6 * HOUR, "2001:db8::1"), None);
    }

    #[test]
    fn token_outlives_one_change_of_keys() {
        let (keys, home) = (keys(), ip("2001:db8::1"));
        let given = saved(1000 * HOUR);
        let token = keys.seal(HOUR, home, &given).expect("random numbers");
        let open = |now| keys.open(now, ip("2001:db8:0:ff::2"), &token);
        assert_eq!(open(47 * HOUR), Some(given));
        assert_eq!(open(48 * HOUR), None, "its key is gone");
    }

    #[test]
    fn foreign_and_changed_tokens_do_not_open() {
        let (keys, home) = (keys(), ip("192.0.2.1"));
        let token = keys.seal_with([1; NONCE_LEN], HOUR, home, &saved(30 * HOUR));
        let token = token.expect("a token");
        let others = Keys::new(&[8; 32]);
        assert_eq!(others.open(HOUR, home, &token), None);
        for at in 0..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            assert_eq!(keys.open(HOUR, home, &changed), None, "{changed}");
            assert_eq!(keys.open(HOUR, home, &token[..at]), None);
        }
        assert!(keys.open(HOUR, home, &token).is_some());
    }

    proptest! {
        #[test]
        fn any_text_is_no_token(text in "\\PC*") {
            prop_assert_eq!(keys().open(HOUR, ip("192.0.2.1"), &text), None);
        }

        #[test]
        fn tickets_survive_their_token(
            rate in 0..MOST,
            round_trip in 0..MOST,
            hours in 2..1000_u32,
        ) {
            let given = SavedPath {
                speed: SavedSpeed {
                    rate,
                    round_trip: Duration::from_micros(round_trip),
                },
                expires: HOUR * hours,
            };
            let (keys, home) = (keys(), ip("192.0.2.1"));
            let token = keys.seal(HOUR, home, &given).expect("random numbers");
            let opened = keys.open(HOUR, home, &token).expect("valid");
            prop_assert_eq!(opened, given);
        }
    }
}
