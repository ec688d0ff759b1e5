//! Dense numbers for the strings of a log, above all its URLs.

use tandem_predict::ids::Index;

/// Number of an interned URL.
pub type UrlId = u32;

/// Interned byte strings: equal strings get equal numbers, numbers run from 0 in order of first
/// appearance.
#[derive(Debug, Clone, Default)]
pub struct Interner {
    index: Index,
    /// All strings one after another, and where each ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// The number that was returned last. Neighbouring lines share most strings but the URL.
    last: Option<u32>,
}

impl Interner {
    /// The number of `name`, new if it was never seen.
    pub fn intern(&mut self, name: &[u8]) -> u32 {
        if let Some(last) = self.last.filter(|&last| self.name(last) == name) {
            return last;
        }
        let id = self.find_or_add(name);
        self.last = Some(id);
        id
    }

    fn find_or_add(&mut self, name: &[u8]) -> u32 {
        match self.index.find(name, |id| self.name(id) == name) {
            Ok(id) => id,
            Err(vacant) => {
                let id = self.ends.len() as u32;
                self.bytes.extend_from_slice(name);
                self.ends.push(self.bytes.len());
                self.index.insert(vacant, id);
                id
            }
        }
    }

    /// The number of `name` if it was seen.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<u32> {
        self.index.find(name, |id| self.name(id) == name).ok()
    }

    /// The string behind a number; empty for a number never handed out.
    #[must_use]
    pub fn name(&self, id: u32) -> &[u8] {
        let at = id as usize;
        let start = at
            .checked_sub(1)
            .map_or(0, |before| self.ends.get(before).copied().unwrap_or(0));
        self.ends
            .get(at)
            .and_then(|&end| self.bytes.get(start..end))
            .unwrap_or(&[])
    }

    /// How many strings were seen.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether no string is interned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Renumbers so that numbers follow the byte order of the strings; returns old number -> new
    /// number.
    pub fn sort(&mut self) -> Vec<u32> {
        let mut by_name: Vec<u32> = (0..self.ends.len() as u32).collect();
        by_name.sort_unstable_by(|&a, &b| self.name(a).cmp(self.name(b)));
        let mut renumbered = vec![0; by_name.len()];
        let mut bytes = Vec::with_capacity(self.bytes.len());
        let mut ends = Vec::with_capacity(self.ends.len());
        for (new, old) in by_name.into_iter().enumerate() {
            renumbered[old as usize] = new as u32;
            bytes.extend_from_slice(self.name(old));
            ends.push(bytes.len());
        }
        self.index.renumber(&renumbered);
        (self.bytes, self.ends, self.last) = (bytes, ends, None);
        renumbered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorted_interner_numbers_follow_byte_order() {
        let mut names = Interner::default();
        for name in ["/b", "/", "/a?z", "/a"] {
            names.intern(name.as_bytes());
        }
        assert_eq!(names.sort(), [3, 0, 2, 1]);
        assert_eq!(names.get(b"/a?z"), Some(2));
        assert_eq!(names.name(1), b"/a");
        assert_eq!(names.intern(b"/b"), 3);
        assert_eq!(names.intern(b"/c"), 4);
        assert_eq!([names.intern(b"/c"), names.intern(b"/")], [4, 0]);
    }
}
