//! The fewest bytes that any encoder of HPACK can write (RFC 7541), and the first ten requests of
//! each site beside them.
//!
//! A field that an earlier list had takes at least one byte. Any other field of no static entry is
//! a literal: one byte with the index of the name, or with the name as a string, and the value as
//! a string. Each string has the shorter code. A real table may be too small, or an index too large
//! for one byte, so that an encoder may need more.

use std::collections::HashSet;

use serde::Serialize;
use tandem_http::fields::Field;
use tandem_http::hpack;

use super::codec::{Codec, HeaderList, integer, integer_bytes, text_bytes};
use super::input::HeaderSession;

/// The number of requests of a site that a study of 2016 compressed.
const REQUESTS: usize = 10;

/// The first ten requests of a site.
#[derive(Clone, Debug, Serialize)]
pub struct Site {
    /// The name of the site.
    pub name: String,
    /// The bytes of all names and values.
    pub text: usize,
    /// The bytes of HPACK as Tandem writes it.
    pub hpack: usize,
    /// The fewest bytes of HPACK.
    pub least: usize,
}

impl Site {
    /// Returns the sites of sessions that have ten requests.
    pub(super) fn all(sessions: &[HeaderSession]) -> Vec<Self> {
        let long = |session: &&HeaderSession| session.exchanges.len() >= REQUESTS;
        sessions.iter().filter(long).map(Self::of).collect()
    }

    fn of(session: &HeaderSession) -> Self {
        let mut hpack = Codec::Hpack.begin();
        let mut least = Least::default();
        let mut site = Self {
            name: session.name.clone(),
            text: 0,
            hpack: 0,
            least: 0,
        };
        for exchange in session.exchanges.iter().take(REQUESTS) {
            site.text += text_bytes(&exchange.request);
            site.hpack += hpack(&exchange.request);
            site.least += least.add(&exchange.request);
        }
        site
    }

    /// The ratio of HPACK.
    pub fn ratio(&self) -> f64 {
        self.hpack as f64 / self.text.max(1) as f64
    }

    /// The least ratio of HPACK.
    pub fn least_ratio(&self) -> f64 {
        self.least as f64 / self.text.max(1) as f64
    }
}

/// The fields and names of earlier lists in one direction of a session.
#[derive(Default)]
struct Least {
    fields: HashSet<(String, String)>,
    names: HashSet<String>,
}

impl Least {
    /// Returns the fewest bytes of the next list.
    fn add(&mut self, list: &HeaderList) -> usize {
        list.iter().map(|field| self.field(field)).sum()
    }

    fn field(&mut self, (name, value): &(String, String)) -> usize {
        let is_known = !self.fields.insert((name.clone(), value.clone()));
        let has_name = !self.names.insert(name.clone());
        if is_known {
            return 1;
        }
        // A fresh encoder finds the entries of the static table.
        let mut block = Vec::new();
        let mut encoder = hpack::Encoder::new();
        encoder.begin(&mut block);
        let field = Field {
            name: name.as_bytes(),
            value: value.as_bytes(),
            sensitive: false,
        };
        encoder.field(&mut block, field);
        let prefix = match block[0] {
            0x80.. => return 1,
            0x40.. => 6,
            _ => 4,
        };
        let is_static = integer(&block, prefix).0 > 0;
        let named = if is_static || has_name {
            0
        } else {
            string(name)
        };
        1 + named + string(value)
    }
}

/// The bytes of a string with the shorter code.
fn string(text: &str) -> usize {
    let count = hpack::huffman::encoded_len(text.as_bytes()).min(text.len());
    integer_bytes(count, 7) + count
}

#[cfg(test)]
mod tests {
    use super::super::input::Exchange;
    use super::*;

    fn list(fields: &[(&str, &str)]) -> HeaderList {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        fields.iter().map(owned).collect()
    }

    #[test]
    fn least_counts_known_fields_names_and_strings() {
        let mut least = Least::default();
        // "a" and "1" take 5 bits each, and "!!" is shorter without the code.
        for (field, expected) in [
            ((":method", "GET"), 1),
            ((":path", "1"), 1 + 2),
            (("a", "1"), 1 + 2 + 2),
            (("a", "1"), 1),
            (("a", "!!"), 1 + 3),
            (("referer", "1"), 1 + 2),
        ] {
            assert_eq!(least.add(&list(&[field])), expected, "{field:?}");
        }
    }

    #[test]
    fn sites_have_their_first_ten_requests() {
        let session = |count: usize| {
            let exchange = |number: usize| Exchange {
                request: list(&[
                    (":path", &format!("/{number}")),
                    ("user-agent", "a browser"),
                ]),
                ..Exchange::default()
            };
            HeaderSession {
                name: count.to_string(),
                exchanges: (0..count).map(exchange).collect(),
            }
        };
        let sites = Site::all(&[session(9), session(10), session(30)]);
        assert_eq!(sites.len(), 2);
        assert_eq!(
            (sites[0].text, sites[0].hpack),
            (sites[1].text, sites[1].hpack)
        );
        assert_eq!(sites[0].text, 10 * (":path/0user-agenta browser".len()));
        assert!(sites[0].least <= sites[0].hpack && sites[0].ratio() < 0.5);
    }
}
