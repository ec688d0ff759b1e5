//! The users that know a name, counted by all gateways together.
//!
//! A gateway reports each user that it counts for a name that few users know: a URL, or a page with
//! a resource. A report has a keyed hash of the name, and a tag of the user with 15 bits. Gateways
//! with other keys learn nothing from it. A gateway uses the reports of others for the names that
//! it knows itself: when it hears them, or when it meets the name later.
//!
//! The reports form a set for each name, so their order and repetitions do not matter. Memory is
//! bounded: both tables forget the oldest half when they are full, and after half a day.

use std::collections::HashMap;

use crate::key::NameKey;

/// The keyed hash of a name.
pub type NameHash = [u8; 16];

/// The bytes of a report: the hash of a name, and the tag of a user.
const REPORT: usize = size_of::<NameHash>() + 2;

/// The most tags that are kept for a name. More users need not be counted.
const MAX_TAGS: usize = 8;

/// The most names of a table's generation.
const MAX_NAMES: usize = 1 << 16;

/// The age at which a generation is replaced, in seconds.
const GENERATION: u64 = crate::inbox::LIFETIME / 2;

/// A name that this gateway knows, and the tag of a user that it has counted for the name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    /// The name.
    pub name: String,
    /// The tag of the user.
    pub tag: u16,
}

/// The users that another gateway has counted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// The users of names that this gateway knows.
    pub known: Vec<Sighting>,
    /// The users of other names, by their hashes.
    pub others: Vec<(NameHash, u16)>,
}

/// A map that forgets its oldest entries.
#[derive(Debug)]
struct Generations<V> {
    new: HashMap<NameHash, V>,
    old: HashMap<NameHash, V>,
    began: u64,
}

impl<V> Default for Generations<V> {
    fn default() -> Self {
        Self {
            new: HashMap::new(),
            old: HashMap::new(),
            began: 0,
        }
    }
}

impl<V> Generations<V> {
    fn get(&self, hash: &NameHash) -> Option<&V> {
        self.new.get(hash).or_else(|| self.old.get(hash))
    }

    /// Returns the value of a name, in the new generation.
    fn entry(&mut self, now: u64, hash: NameHash, default: impl FnOnce() -> V) -> &mut V {
        if self.new.len() >= MAX_NAMES || self.began.saturating_add(GENERATION) <= now {
            self.old = std::mem::take(&mut self.new);
            self.began = now;
        }
        let old = &mut self.old;
        let value = || old.remove(&hash).unwrap_or_else(default);
        self.new.entry(hash).or_insert_with(value)
    }
}

/// The names and the reports of a gateway.
#[derive(Debug)]
pub struct Sightings {
    key: NameKey,
    /// The names that this gateway has counted users for.
    known: Generations<String>,
    /// The tags that other gateways have reported.
    heard: Generations<Vec<u16>>,
    reports: Vec<u8>,
}

impl Sightings {
    /// Creates the tables of a gateway.
    #[must_use]
    pub fn new(key: NameKey) -> Self {
        Self {
            key,
            known: Generations::default(),
            heard: Generations::default(),
            reports: Vec::new(),
        }
    }

    /// Notes a user that this gateway has counted. Returns the tags of other gateways for the name.
    pub fn saw(&mut self, now: u64, sighting: Sighting) -> Vec<Sighting> {
        let hash = self.key.hash(&sighting.name);
        let tags = self.saw_hash(hash, sighting.tag);
        let known = self.known.entry(now, hash, || sighting.name);
        let sighting = |tag| Sighting {
            name: known.clone(),
            tag,
        };
        tags.into_iter().map(sighting).collect()
    }

    /// Notes a user that this gateway has counted for the name with this hash. Returns the tags of
    /// other gateways for it.
    pub fn saw_hash(&mut self, hash: NameHash, tag: u16) -> Vec<u16> {
        self.reports.extend_from_slice(&hash);
        self.reports.extend_from_slice(&tag.to_be_bytes());
        self.heard.get(&hash).cloned().unwrap_or_default()
    }

    /// Returns the bytes of the reports that wait.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.reports.len()
    }

    /// Takes reports of at most `limit` bytes. Returns `None` if no report waits.
    pub fn take_reports(&mut self, limit: usize) -> Option<Vec<u8>> {
        let length = self.reports.len().min(limit / REPORT * REPORT);
        let rest = self.reports.split_off(length);
        let reports = std::mem::replace(&mut self.reports, rest);
        (!reports.is_empty()).then_some(reports)
    }

    /// Notes the reports of another gateway. Returns the new users, or `None` for bytes that are no
    /// reports.
    pub fn heard(&mut self, now: u64, reports: &[u8]) -> Option<Heard> {
        let (reports, rest) = reports.as_chunks::<REPORT>();
        if !rest.is_empty() {
            return None;
        }
        let mut found = Heard::default();
        for report in reports {
            let (hash, tag) = report.split_last_chunk::<2>()?;
            let (hash, tag) = (*hash.first_chunk()?, u16::from_be_bytes(*tag));
            let tags = self.heard.entry(now, hash, Vec::new);
            if tags.contains(&tag) || tags.len() >= MAX_TAGS {
                continue;
            }
            tags.push(tag);
            match self.known.get(&hash).cloned() {
                Some(name) => found.known.push(Sighting { name, tag }),
                None => found.others.push((hash, tag)),
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::key::test_key;

    fn sightings() -> Sightings {
        Sightings::new(test_key(1).of_names())
    }

    fn sighting(name: &str, tag: u16) -> Sighting {
        Sighting {
            name: name.to_owned(),
            tag,
        }
    }

    #[test]
    fn reports_reach_gateways_that_know_the_name() {
        let (mut one, mut other) = (sightings(), sightings());
        assert!(one.saw(0, sighting("U1", 5)).is_empty());
        assert!(one.saw(0, sighting("U2", 5)).is_empty());
        let reports = one.take_reports(1 << 16).expect("two reports");
        assert_eq!(one.take_reports(1 << 16), None);
        assert!(!reports.windows(2).any(|part| part == b"U1"));
        // The other gateway hears of one name before it knows it, and of one after that.
        assert!(other.saw(0, sighting("U1", 7)).is_empty());
        let heard = other.heard(0, &reports).expect("two reports");
        assert_eq!(heard.known, [sighting("U1", 5)]);
        assert_eq!(heard.others, [(other.key.hash("U2"), 5)]);
        assert_eq!(other.heard(0, &reports), Some(Heard::default()), "again");
        assert_eq!(other.saw(0, sighting("U2", 7)), [sighting("U2", 5)]);
        assert_eq!(other.saw_hash(other.key.hash("U2"), 8), [5]);
        assert_eq!(other.heard(0, &reports[1..]), None);
    }

    #[test]
    fn tables_forget_the_oldest_names() {
        let mut table = sightings();
        for number in 0..3 * MAX_NAMES {
            table.saw(0, sighting(&format!("U{number}"), 5));
            table.take_reports(1 << 16);
        }
        assert!(table.known.new.len() + table.known.old.len() <= 2 * MAX_NAMES);
        let mut later = sightings();
        later.saw(0, sighting("U", 5));
        for half in 1..=2 {
            later.saw(half * GENERATION, sighting("V", 5));
        }
        assert!(
            later.known.get(&later.key.hash("U")).is_none(),
            "its time is over"
        );
    }

    proptest! {
        #[test]
        fn gateways_agree_on_the_users_of_a_name(
            sights in prop::collection::vec((0..3_usize, 0..3_u8, 1..4_u16), 0..40),
            order: prop::sample::Index,
        ) {
            let mut gateways = [sightings(), sightings(), sightings()];
            let mut counted = vec![BTreeSet::new(); 3];
            for (at, name, tag) in &sights {
                let name = format!("U{name}");
                counted[*at].insert((name.clone(), *tag));
                gateways[*at].saw(0, sighting(&name, *tag));
            }
            let reports: Vec<_> =
                gateways.iter_mut().filter_map(|gateway| gateway.take_reports(1 << 16)).collect();
            let all: BTreeSet<_> = counted.iter().flatten().cloned().collect();
            for (at, gateway) in gateways.iter_mut().enumerate() {
                for turn in 0..reports.len() {
                    let turn = (turn + order.index(3)) % reports.len();
                    let heard = gateway.heard(0, &reports[turn]).expect("reports");
                    counted[at].extend(heard.known.into_iter().map(|it| (it.name, it.tag)));
                }
                let names: BTreeSet<_> = sights
                    .iter()
                    .filter(|(by, ..)| *by == at)
                    .map(|(_, name, _)| format!("U{name}"))
                    .collect();
                let expected = all.iter().filter(|(name, _)| names.contains(name)).cloned();
                prop_assert_eq!(&counted[at], &expected.collect::<BTreeSet<_>>());
            }
        }

        #[test]
        fn reports_of_any_bytes_are_harmless(bytes: Vec<u8>) {
            let mut table = sightings();
            table.saw(0, sighting("U", 5));
            table.heard(0, &bytes);
        }
    }
}
