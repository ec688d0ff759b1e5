//! The former versions of bodies, of which only the difference to the present version travels:
//! their keys, their names in requests, and the collection of their content.
//!
//! [`middle::compress`](crate::middle::compress) and
//! [`middle::decompress`](crate::middle::decompress) keep them, and the pool of sessions names
//! them. A name goes only to the session that brought the body, which is known when the pool sends
//! the request.

use std::rc::Rc;

use bytes::Bytes;
use ring::digest::{SHA256, digest};
use tandem_coding::dictionary::{MAX_DICTIONARY, may_keep};
use tandem_coding::{Dictionary, Name, wire};
use tandem_http::{Fields, RequestHead};
use tandem_push::site::first_party;

use crate::exchange::{Carrying, SessionMark};

/// The step in bytes by which the memory for a body grows.
const GROWTH: usize = 32 << 10;

/// Returns the key of a version at the client: the site of the page, and the URL. Otherwise a page
/// could learn from the time of a response which pages the user visits elsewhere. Returns `None` if
/// the request does not tell its page.
pub(crate) fn key(request: &RequestHead) -> Option<String> {
    first_party(request).map(|site| keyed(&site, request))
}

/// Returns the key of [`key`] for a request of a page of this site.
pub(crate) fn keyed(site: &str, request: &RequestHead) -> String {
    format!("{site} {}", request.url())
}

/// Names the version for `key` that `session` brought in a request to be sent on that session, or
/// removes the name if the session brought none.
pub(crate) fn name(
    fields: &mut Fields,
    key: &str,
    session: Option<Rc<SessionMark>>,
) -> Option<Carrying> {
    let carrying = session.map(|session| {
        let version = session.versions.get(key);
        Carrying { session, version }
    });
    let version = carrying.as_ref().and_then(|it| it.version.as_ref());
    wire::set_dictionary(fields, version.map(|version| version.name));
    carrying
}

/// A body that is collected while it passes, or `None` once it is too long.
pub(crate) struct CollectedBody(Option<Vec<u8>>);

impl CollectedBody {
    /// Begins with a body of `length` bytes, if that is known.
    pub(crate) fn of(length: Option<u64>) -> Self {
        let fits = |length| usize::try_from(length).is_ok_and(may_keep);
        Self(length.is_none_or(fits).then(Vec::new))
    }

    /// Adds data.
    pub(crate) fn add(&mut self, data: &[u8]) {
        let Some(body) = &mut self.0 else { return };
        let length = body.len() + data.len();
        if length > MAX_DICTIONARY {
            self.0 = None;
            return;
        }
        if length > body.capacity() {
            // The default growth would take twice the memory.
            body.reserve_exact(data.len().max(GROWTH));
        }
        body.extend_from_slice(data);
    }

    /// Returns the complete body as a dictionary, if it has a suitable length.
    pub(crate) fn finish(&mut self) -> Option<Dictionary> {
        let body = self.0.take().filter(|body| may_keep(body.len()))?;
        Some(Dictionary {
            name: Name::of_hash(digest(&SHA256, &body).as_ref())?,
            body: Bytes::from(body.into_boxed_slice()),
        })
    }
}

#[cfg(test)]
mod tests {
    use tandem_coding::dictionary::Memory;
    use tandem_http::Scheme;

    use super::*;

    fn request(fields: &[(&str, &str)]) -> RequestHead {
        RequestHead {
            fields: fields.iter().copied().collect(),
            ..RequestHead::get(Scheme::Http, "own.example", "/a")
        }
    }

    #[test]
    fn key_separates_the_sites_of_pages() {
        let from = |page: &str| key(&request(&[("referer", page)]));
        assert_eq!(key(&request(&[])), None);
        assert!(from("http://own.example/").is_some());
        assert_ne!(from("http://own.example/"), from("http://other.example/"));
    }

    #[test]
    fn body_too_long_for_a_dictionary_is_dropped() {
        for (length, steps, expected) in [
            (None, 1, true),
            (None, 8, true),
            (None, 9, false),
            (Some(511), 1, false),
            (Some(1 << 20), 1, false),
        ] {
            let mut body = CollectedBody::of(length);
            for _ in 0..steps {
                body.add(&[7; GROWTH]);
            }
            assert!(
                body.0
                    .as_ref()
                    .is_none_or(|it| it.capacity() <= MAX_DICTIONARY)
            );
            assert_eq!(body.finish().is_some(), expected, "{length:?} {steps}");
        }
    }

    #[test]
    fn version_is_named_on_its_session_only() {
        let sessions = [true, true].map(|it| Rc::new(SessionMark::new(it)));
        let mut body = CollectedBody::of(None);
        body.add(&[7; 600]);
        let version = body.finish().expect("long enough");
        let all = Memory::new(1 << 20);
        let versions = &sessions[0].versions;
        versions.insert("key".into(), version.clone(), &all);
        for (session, key, expected) in [
            (Some(&sessions[0]), "key", true),
            (Some(&sessions[0]), "other", false),
            (Some(&sessions[1]), "key", false),
            (None, "key", false),
        ] {
            let mut fields = Fields::new();
            wire::offer(&mut fields, false);
            wire::ask_dictionary(&mut fields);
            let carrying = name(&mut fields, key, session.cloned());
            assert_eq!(carrying.is_some(), session.is_some());
            let offer = wire::take_offer(&mut fields).expect("an offer");
            assert_eq!(offer.version, expected.then_some(version.name));
        }
    }
}
