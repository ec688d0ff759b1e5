//! Sets of SETTINGS entries that programs build. SPDY draft section 2.6.4.

use std::sync::{Mutex, PoisonError};

use tandem_spdy::frame::{Setting, Settings as Frame};

/// The highest number of a setting that SPDY/3 defines.
const LAST_ID: u32 = 8;
/// All flags of an entry: PERSIST_VALUE and PERSISTED.
const ALL_FLAGS: u8 = 3;

/// A set of entries, shared with the program through a handle.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    entries: Mutex<Vec<Setting>>,
}

impl Settings {
    /// Adds or replaces an entry. False if the number, a flag or the value is illegal: values are
    /// never negative.
    pub(crate) fn add(&self, id: i32, flags: i32, value: i32) -> bool {
        let (Ok(id), Ok(flags), Ok(value)) =
            (u32::try_from(id), u8::try_from(flags), u32::try_from(value))
        else {
            return false;
        };
        if !(1..=LAST_ID).contains(&id) || flags > ALL_FLAGS {
            return false;
        }
        let entry = Setting { flags, id, value };
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        match entries.binary_search_by_key(&id, |entry| entry.id) {
            Ok(at) => entries[at] = entry,
            Err(at) => entries.insert(at, entry),
        }
        true
    }

    /// Returns the entries, in the order of their numbers.
    pub(crate) fn entries(&self) -> Vec<Setting> {
        self.entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns the frame that carries the set.
    pub(crate) fn frame(&self, clear: bool) -> Frame {
        Frame {
            clear,
            entries: self.entries(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn add_replaces_and_sorts() {
        let set = Settings::default();
        assert!(set.add(7, 0, 1));
        assert!(set.add(4, 1, 100));
        assert!(set.add(7, 2, 65_536));
        let ids: Vec<_> = set
            .entries()
            .iter()
            .map(|e| (e.id, e.flags, e.value))
            .collect();
        assert_eq!(ids, [(4, 1, 100), (7, 2, 65_536)]);
    }

    #[test]
    fn add_refuses_illegal_entries() {
        let set = Settings::default();
        for (id, flags, value) in [(0, 0, 1), (9, 0, 1), (4, 4, 1), (4, -1, 1), (4, 0, -1)] {
            assert!(!set.add(id, flags, value), "{id} {flags} {value}");
        }
        assert!(set.entries().is_empty());
    }
}
