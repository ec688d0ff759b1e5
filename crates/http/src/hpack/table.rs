//! The static and the dynamic table (RFC 7541 sections 2.3 and 4, appendix A), as both halves of a
//! codec need them.

use std::collections::VecDeque;

/// The size of an entry, in bytes, in addition to its text (RFC 7541 section 4.1).
pub(crate) const ENTRY_OVERHEAD: usize = 32;

/// The text buffer grows and is cleared in steps of about this.
const STEP: usize = 512;

/// The first step of growth. Later ones double the buffer until they reach [`STEP`].
const FIRST_STEP: usize = 128;

/// Appendix A; index 1 is the first.
pub(super) const STATIC: [(&[u8], &[u8]); 61] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

/// The dynamic table, newest entry first. One buffer holds the text of all entries. Removed entries
/// free its front, which is reclaimed when the buffer is full.
#[derive(Debug)]
pub(crate) struct Table {
    /// Oldest first.
    entries: VecDeque<TableEntry>,
    text: Vec<u8>,
    /// How much was ever cut off the front of `text` (wrapping).
    cut: u32,
    size: usize,
    max: usize,
}

#[derive(Clone, Copy, Debug)]
struct TableEntry {
    /// Place in all text ever (wrapping).
    at: u32,
    name: u16,
    value: u16,
}

impl TableEntry {
    /// Returns the bytes that the entry takes of the table.
    fn size(&self) -> usize {
        usize::from(self.name) + usize::from(self.value) + ENTRY_OVERHEAD
    }
}

impl Table {
    /// An empty table of at most `max` bytes, which is less than 64 KiB; allocates nothing.
    pub(crate) const fn new(max: usize) -> Self {
        debug_assert!(
            max <= u16::MAX as usize,
            "lengths of entries are kept in 16 bits"
        );
        Self {
            entries: VecDeque::new(),
            text: Vec::new(),
            cut: 0,
            size: 0,
            max,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Name and value of the entry at `age`, 0 being the newest.
    pub(crate) fn get(&self, age: usize) -> Option<(&[u8], &[u8])> {
        let place = self.entries.len().checked_sub(1)?.checked_sub(age)?;
        let entry = self.entries.get(place)?;
        let at = entry.at.wrapping_sub(self.cut) as usize;
        let (name, rest) = self.text[at..].split_at(usize::from(entry.name));
        Some((name, &rest[..usize::from(entry.value)]))
    }

    /// Changes the bound, and drops the entries that no longer fit (RFC 7541 section 4.3).
    pub(crate) fn set_max(&mut self, max: usize) {
        debug_assert!(
            max <= usize::from(u16::MAX),
            "lengths of entries are kept in 16 bits"
        );
        self.max = max;
        self.evict(0);
    }

    /// Adds an entry after evicting old ones; returns whether it fitted. An entry larger than the
    /// table only empties it (RFC 7541 section 4.4).
    pub(crate) fn insert(&mut self, name: &[u8], value: &[u8]) -> bool {
        let size = name.len() + value.len() + ENTRY_OVERHEAD;
        self.evict(size);
        if size > self.max {
            return false;
        }
        self.make_room(name.len() + value.len());
        let at = self.cut.wrapping_add(self.text.len() as u32);
        self.text.extend_from_slice(name);
        self.text.extend_from_slice(value);
        self.entries.push_back(TableEntry {
            at,
            name: name.len() as u16,
            value: value.len() as u16,
        });
        self.size += size;
        true
    }

    /// Returns the number of entries that an entry of `more` bytes would evict, or `None` if it is
    /// larger than the table.
    pub(crate) fn evicted_by(&self, more: usize) -> Option<usize> {
        let mut over = (self.size + more).saturating_sub(self.max);
        if more > self.max {
            return None;
        }
        let mut count = 0;
        for old in &self.entries {
            if over == 0 {
                break;
            }
            over = over.saturating_sub(old.size());
            count += 1;
        }
        Some(count)
    }

    /// Returns the bytes of the entry at `age` and of all newer entries.
    pub(crate) fn size_since(&self, age: usize) -> Option<usize> {
        let place = self.entries.len().checked_sub(age + 1)?;
        let at = self.entries.get(place)?.at.wrapping_sub(self.cut) as usize;
        Some(self.text.len() - at + (age + 1) * ENTRY_OVERHEAD)
    }

    /// Drops old entries until `more` bytes fit.
    fn evict(&mut self, more: usize) {
        while self.size + more > self.max {
            let Some(old) = self.entries.pop_front() else {
                break;
            };
            self.size -= old.size();
        }
        if self.entries.is_empty() {
            self.cut = self.cut.wrapping_add(self.text.len() as u32);
            self.text.clear();
        }
    }

    /// Moves the living text to the front rather than growing much, so that an idle session's table
    /// stays small.
    fn make_room(&mut self, more: usize) {
        if self.text.len() + more <= self.text.capacity() {
            return;
        }
        let dead = self
            .entries
            .front()
            .map_or(0, |oldest| oldest.at.wrapping_sub(self.cut) as usize);
        if dead >= STEP {
            self.text.drain(..dead);
            self.cut = self.cut.wrapping_add(dead as u32);
        }
        if self.text.len() + more > self.text.capacity() {
            let step = self.text.len().clamp(FIRST_STEP, STEP);
            self.text.reserve_exact(more.max(step));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The packed table against a plain list of pairs.
        #[test]
        fn behaves_like_a_list(
            steps in prop::collection::vec((0usize..60, 0usize..90, prop::option::weighted(0.1, 0usize..400)), 1..300)
        ) {
            let mut table = Table::new(400);
            let mut model: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            let mut max = 400;
            for (step, (name, value, resize)) in steps.into_iter().enumerate() {
                if let Some(size) = resize {
                    max = size;
                    table.set_max(size);
                }
                let pair = (vec![step as u8; name], vec![!step as u8; value]);
                let fitted = table.insert(&pair.0, &pair.1);
                prop_assert_eq!(fitted, name + value + 32 <= max);
                model.insert(0, pair);
                while model.iter().map(|(n, v)| n.len() + v.len() + 32).sum::<usize>() > max {
                    let keep = if fitted { model.len() - 1 } else { 0 };
                    model.truncate(keep);
                }
                prop_assert_eq!(table.len(), model.len());
                for (age, (name, value)) in model.iter().enumerate() {
                    prop_assert_eq!(table.get(age), Some((&name[..], &value[..])));
                }
                prop_assert_eq!(table.get(model.len()), None);
                let sizes = |pairs: &[(Vec<u8>, Vec<u8>)]| {
                    pairs.iter().map(|(n, v)| n.len() + v.len() + 32).sum::<usize>()
                };
                for age in 0..model.len() {
                    prop_assert_eq!(table.size_since(age), Some(sizes(&model[..=age])));
                }
                let left = (0..=model.len()).rev().find(|left| sizes(&model[..*left]) + 100 <= max);
                prop_assert_eq!(table.evicted_by(100), left.map(|left| model.len() - left));
                prop_assert!(table.text.capacity() <= 400 + 3 * STEP);
            }
        }
    }
}
