//! The streams and circuits of a client's `tor`, as its events tell (`STREAM` and `CIRC` of the
//! control protocol).

use std::collections::{BTreeMap, BTreeSet};

/// A stream that a program asked the `tor` for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stream {
    /// `HOST:PORT`.
    pub(super) target: String,
    /// The user name in the SOCKS request: the isolation key.
    pub(super) user: String,
    /// The circuits that carried it. A stream moves to another one if the first fails.
    pub(super) circuits: BTreeSet<String>,
}

/// The streams of a visit by their numbers, and the onion services at the ends of circuits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Streams {
    streams: BTreeMap<String, Stream>,
    ends: BTreeMap<String, String>,
}

impl Streams {
    /// Reads the lines of events.
    pub(super) fn of(events: &[String]) -> Self {
        let mut streams = Self::default();
        for event in events {
            match event.split_once(' ') {
                Some(("STREAM", rest)) => streams.stream(rest),
                Some(("CIRC", rest)) => streams.circuit(rest),
                _ => {}
            }
        }
        streams
    }

    /// Notes `ID STATUS CIRCUIT TARGET KEY=VALUE…`.
    fn stream(&mut self, event: &str) {
        let words: Vec<&str> = event.split(' ').collect();
        let [id, status, circuit, target, ..] = words[..] else {
            return;
        };
        // Tor also opens streams that no program asked for, to fetch descriptors.
        let is_own = value(&words, "PURPOSE").is_some_and(|it| it.starts_with("DIR"));
        if status == "NEW" && !is_own {
            let stream = Stream {
                target: target.to_owned(),
                user: value(&words, "SOCKS_USERNAME").unwrap_or_default(),
                circuits: BTreeSet::new(),
            };
            self.streams.insert(id.to_owned(), stream);
        }
        if let Some(stream) = self.streams.get_mut(id)
            && circuit != "0"
        {
            stream.circuits.insert(circuit.to_owned());
        }
    }

    /// Notes `ID STATUS [PATH] KEY=VALUE…`.
    fn circuit(&mut self, event: &str) {
        let words: Vec<&str> = event.split(' ').collect();
        if let Some(end) = value(&words, "REND_QUERY") {
            self.ends.insert(words[0].to_owned(), end);
        }
    }

    /// Returns the streams.
    pub(super) fn all(&self) -> impl Iterator<Item = &Stream> {
        self.streams.values()
    }

    /// Returns the users of each circuit.
    pub(super) fn users_of_circuits(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut users = BTreeMap::<_, BTreeSet<_>>::new();
        for stream in self.all() {
            for circuit in &stream.circuits {
                let users = users.entry(circuit.as_str()).or_default();
                users.insert(stream.user.as_str());
            }
        }
        users
    }

    /// Returns the name of the onion service at the end of a circuit, without its suffix, if tor
    /// has told it.
    pub(super) fn end_of(&self, circuit: &str) -> Option<&str> {
        self.ends.get(circuit).map(String::as_str)
    }
}

/// Returns the value of a keyword argument without its quotes.
fn value(words: &[&str], key: &str) -> Option<String> {
    let value = words
        .iter()
        .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))?;
    Some(value.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_have_a_user_and_circuits() {
        let events = [
            "CIRC 7 BUILT $A~a,$B~b PURPOSE=HS_CLIENT_REND REND_QUERY=abc SOCKS_USERNAME=\"u\"",
            "STREAM 1 NEW 0 abc.onion:80 SOURCE_ADDR=127.0.0.1:9 SOCKS_USERNAME=\"u\" NYM_EPOCH=0",
            "STREAM 1 SENTCONNECT 7 abc.onion:80",
            "STREAM 1 DETACHED 7 abc.onion:80 REASON=TIMEOUT",
            "STREAM 1 SENTCONNECT 8 abc.onion:80",
            "STREAM 2 SUCCEEDED 9 old.onion:80",
            "STREAM 3 NEW 0 198.18.13.1.$A.exit:5001 PURPOSE=DIR_FETCH NYM_EPOCH=0",
            "STREAM 3 SENTCONNECT 9 198.18.13.1.$A.exit:5001",
        ];
        let streams = Streams::of(&events.map(str::to_owned));
        let all: Vec<_> = streams.all().collect();
        let [stream] = all[..] else {
            panic!("an earlier stream, or one of tor, counts: {all:?}");
        };
        assert_eq!((&*stream.target, &*stream.user), ("abc.onion:80", "u"));
        let users = streams.users_of_circuits();
        let circuits: Vec<_> = users.keys().copied().collect();
        assert_eq!(circuits, ["7", "8"]);
        assert_eq!(
            (streams.end_of("7"), streams.end_of("8")),
            (Some("abc"), None)
        );
    }
}
