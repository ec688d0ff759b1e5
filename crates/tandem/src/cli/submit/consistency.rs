//! Checks that a gateway and an issuer give this client the same values as all others (RFC 9577
//! section 3.3, RFC 9458 section 6.1). A value of one client would link its submissions.

use tandem_tokens::challenge::TokenChallenge;
use tandem_tokens::directory::Directory;
use tandem_tokens::key::PublicKey;

use crate::cli::Failure;

/// The shortest time between the starts of two keys, in seconds. It is the shortest epoch.
const SHORTEST_EPOCH: u64 = 3600;

/// Checks the challenge that the tokens answer. Each part of it is in all of these tokens, so none
/// may be the choice of the gateway.
pub(super) fn check_challenge(
    challenge: &TokenChallenge,
    issuer: &str,
    origin: &str,
) -> Result<(), Failure> {
    let TokenChallenge {
        issuer_name,
        redemption_context,
        origin_info,
    } = challenge;
    if redemption_context.is_some() {
        return Err(
            "the gateway's challenge has a redemption context, which would link \
                    the tokens: do not use this gateway"
                .into(),
        );
    }
    if issuer_name != issuer {
        return Err(format!(
            "the gateway's challenge names the issuer {issuer_name:?} instead of {issuer:?}: give \
             --issuer the URL with the name in the gateway's --submit-issuers"
        )
        .into());
    }
    match origin_info == origin {
        true => Ok(()),
        false => Err(format!(
            "the gateway's challenge names the origin {origin_info:?} instead of {origin:?}: give \
             --gateway the URL with the origin in the gateway's --submit-issuers"
        )
        .into()),
    }
}

/// Checks that `key` is the only key of the present epoch in the issuer's directory. `now` is in
/// seconds since 1970.
pub(super) fn check_key(published: &Directory, key: &PublicKey, now: u64) -> Result<(), Failure> {
    // The directory is sorted by time.
    let mut pairs = published.keys.windows(2);
    if pairs.any(|pair| pair[1].not_before - pair[0].not_before < SHORTEST_EPOCH) {
        return Err(
            "the issuer publishes two keys of one epoch, by which it could \
                    recognise clients: do not use this issuer"
                .into(),
        );
    }
    match published.present(now) {
        Some(present) if present.key == *key => Ok(()),
        _ => Err(
            "the gateway's challenge does not have the key that the issuer uses at \
             present: check the clock of this machine; the gateway needs the present directory of \
             the issuer"
                .into(),
        ),
    }
}

/// The keys of an earlier enrolment.
pub(super) struct KeptKeys {
    /// The list of keys.
    pub(super) keys: Vec<u8>,
    /// False if a relay or the network could have chosen them.
    pub(super) is_trusted: bool,
}

/// Checks the gateway's keys of encapsulated requests: `fetched` in two isolated sessions, and
/// those that were `kept`. The user may accept new keys.
pub(super) fn check_oblivious_keys(
    fetched: [&[u8]; 2],
    kept: Option<&KeptKeys>,
    is_accepted: bool,
) -> Result<(), Failure> {
    if fetched[0] != fetched[1] {
        return Err(
            "the gateway gives several keys for encapsulated requests, by \
                    which it could recognise clients: do not use this gateway"
                .into(),
        );
    }
    match kept.filter(|kept| kept.keys != fetched[0] && !is_accepted) {
        Some(kept) if !kept.is_trusted => Err(
            "the key of the last enrolment is not the gateway's key for encapsulated requests. An \
             earlier version took it from the relay or the network, which may have read what was \
             sent with it: ask the operator of the gateway whether the key was ever in use, and \
             then give --accept-new-key"
                .into(),
        ),
        Some(_) => Err(
            "the gateway's key for encapsulated requests is not the one of the last enrolment: \
             ask its operator for the reason, and then give --accept-new-key"
                .into(),
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tandem_tokens::directory::DatedKey;
    use tandem_tokens::issuance::IssuerKey;

    use super::*;

    fn challenge() -> TokenChallenge {
        TokenChallenge {
            issuer_name: "issuer.example".into(),
            redemption_context: None,
            origin_info: "gw.example".into(),
        }
    }

    #[test]
    fn challenges_must_be_those_of_all_clients() {
        let check = |challenge: TokenChallenge| {
            let checked = check_challenge(&challenge, "issuer.example", "gw.example");
            checked.map_err(|error| error.to_string())
        };
        assert_eq!(check(challenge()), Ok(()));
        let bound = TokenChallenge {
            redemption_context: Some([7; 32]),
            ..challenge()
        };
        assert!(check(bound).is_err_and(|error| error.contains("redemption context")));
        for origin in ["", "client7.gw.example", "GW.example", "gw.example,x"] {
            let origin_info = origin.into();
            let marked = TokenChallenge {
                origin_info,
                ..challenge()
            };
            assert!(check(marked).is_err_and(|error| error.contains("names the origin")));
        }
        let issuer_name = "client7.issuer.example".into();
        let marked = TokenChallenge {
            issuer_name,
            ..challenge()
        };
        assert!(check(marked).is_err_and(|error| error.contains("names the issuer")));
    }

    #[test]
    fn only_the_present_key_of_the_epoch_is_accepted() {
        let made = [(); 3].map(|()| IssuerKey::generate().expect("a key").public().clone());
        let directory = |times: &[u64]| Directory {
            request_uri: "/token-request".into(),
            keys: std::iter::zip(&made, times)
                .map(|(key, time)| DatedKey {
                    key: key.clone(),
                    not_before: *time,
                })
                .collect(),
        };
        let day = 86_400;
        let regular = directory(&[day, 2 * day, 3 * day]);
        for (now, present) in [(day, 0), (2 * day - 1, 0), (2 * day, 1), (9 * day, 2)] {
            for (at, key) in made.iter().enumerate() {
                let is_accepted = check_key(&regular, key, now).is_ok();
                assert_eq!(is_accepted, at == present, "{at} {now}");
            }
        }
        assert!(check_key(&regular, &made[0], 0).is_err());
        for times in [[day, day, 2 * day], [day, 2 * day, 2 * day + 3599]] {
            for key in &made {
                let error = check_key(&directory(&times), key, 9 * day).expect_err("two keys");
                assert!(error.to_string().contains("two keys"), "{error}");
            }
        }
    }

    #[test]
    fn oblivious_keys_change_with_consent_only() {
        let check = |fetched, kept: Option<&[u8]>, is_accepted| {
            let kept = kept.map(|keys| KeptKeys {
                keys: keys.to_vec(),
                is_trusted: true,
            });
            check_oblivious_keys(fetched, kept.as_ref(), is_accepted)
        };
        assert!(check([b"one", b"one"], None, false).is_ok());
        assert!(check([b"one", b"one"], Some(b"one"), false).is_ok());
        assert!(check([b"one", b"one"], Some(b"old"), false).is_err());
        assert!(check([b"one", b"one"], Some(b"old"), true).is_ok());
        for kept in [None, Some(&b"one"[..])] {
            assert!(check([b"one", b"two"], kept, true).is_err());
        }
        let forged = KeptKeys {
            keys: b"of the relay".to_vec(),
            is_trusted: false,
        };
        let error = check_oblivious_keys([b"one"; 2], Some(&forged), false);
        let error = error.expect_err("another key").to_string();
        assert!(error.contains("may have read"), "{error}");
        assert!(check_oblivious_keys([b"one"; 2], Some(&forged), true).is_ok());
    }
}
