//! An ordered list of header fields in one allocation for the text and one for the index.
//!
//! HTTP is carried exactly, so order and repetition are kept; names are lower case, as HTTP/2 and
//! SPDY write them. It sits under every message of [`crate::message`]. RFC 9110 section 5.

use std::fmt;

/// Header or trailer fields in wire order. Names are lower-case ASCII; values are bytes without CR,
/// LF or NUL. Each codec checks its input; [`Fields::push`] checks nothing.
#[derive(Clone, Default)]
pub struct Fields {
    text: Vec<u8>,
    index: Vec<FieldEntry>,
    /// The [bits](bit_of) of the names. Most names that are asked for are absent, and their bits
    /// usually show that.
    names: u64,
}

#[derive(Clone, Copy)]
struct FieldEntry {
    at: u32,
    name: u16,
    value: u32,
    sensitive: bool,
}

/// A field as returned by [`Fields::iter`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// Lower-case name.
    pub name: &'a [u8],
    /// Value without surrounding white space.
    pub value: &'a [u8],
    /// The value must not enter a compression context (RFC 7541 section 7.1.3).
    pub sensitive: bool,
}

/// Returns the bit of a name, whose case does not count.
#[inline]
const fn bit_of(name: &[u8]) -> u64 {
    let (first, last) = match name {
        [] => (0, 0),
        [only] => (*only, *only),
        [first, .., last] => (*first, *last),
    };
    // These factors separate the usual names from those that are asked for.
    let (first, last) = ((first | 0x20) as usize * 61, (last | 0x20) as usize * 42);
    1 << ((name.len() + first + last) % 64)
}

impl Fields {
    /// An empty list; allocates nothing.
    pub const fn new() -> Self {
        Self {
            text: Vec::new(),
            index: Vec::new(),
            names: 0,
        }
    }

    /// An empty list with room for `fields` entries of `bytes` bytes in all.
    pub fn with_capacity(fields: usize, bytes: usize) -> Self {
        Self {
            text: Vec::with_capacity(bytes),
            index: Vec::with_capacity(fields),
            names: 0,
        }
    }

    /// Appends a field, with its name in lower case.
    ///
    /// # Panics
    /// Panics if the name has more than 65,535 bytes, which no codec accepts.
    pub fn push(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.push_entry(name.as_ref(), value.as_ref(), false);
    }

    /// Appends a field with a value that must never enter a compression context.
    pub fn push_sensitive(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.push_entry(name.as_ref(), value.as_ref(), true);
    }

    fn push_entry(&mut self, name: &[u8], value: &[u8], sensitive: bool) {
        let at = self.text.len();
        self.append(name, value, sensitive);
        self.text[at..at + name.len()].make_ascii_lowercase();
    }

    /// Appends a field, whose name is in lower case. If it is `sensitive`, its value must never
    /// enter a compression context.
    pub(crate) fn push_lower(&mut self, name: &[u8], value: &[u8], sensitive: bool) {
        debug_assert!(
            !name.iter().any(u8::is_ascii_uppercase),
            "a name in lower case"
        );
        self.append(name, value, sensitive);
    }

    fn append(&mut self, name: &[u8], value: &[u8], sensitive: bool) {
        // A length that did not fit would make bytes of a name part of its value.
        let name_length = u16::try_from(name.len()).expect("a name within the codecs' limits");
        let at = u32::try_from(self.text.len()).expect("fields of less than 4 GiB");
        let value_length = u32::try_from(value.len()).expect("a value of less than 4 GiB");
        self.names |= bit_of(name);
        self.text.reserve(name.len() + value.len());
        self.text.extend_from_slice(name);
        self.text.extend_from_slice(value);
        self.index.push(FieldEntry {
            at,
            name: name_length,
            value: value_length,
            sensitive,
        });
    }

    fn field(&self, entry: &FieldEntry) -> Field<'_> {
        let name_end = entry.at as usize + usize::from(entry.name);
        Field {
            name: &self.text[entry.at as usize..name_end],
            value: &self.text[name_end..name_end + entry.value as usize],
            sensitive: entry.sensitive,
        }
    }

    /// The fields in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Field<'_>> + DoubleEndedIterator + Clone {
        self.index.iter().map(|entry| self.field(entry))
    }

    /// The first value of `name` (lower case).
    #[inline]
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&[u8]> {
        let name = name.as_ref();
        match self.may_contain(name) {
            true => self.values(name).next(),
            false => None,
        }
    }

    /// Returns false if no field has this name. Inlined, it costs a few instructions for a constant
    /// name.
    #[inline]
    const fn may_contain(&self, name: &[u8]) -> bool {
        self.names & bit_of(name) != 0
    }

    fn values<'a>(&'a self, name: &[u8]) -> impl Iterator<Item = &'a [u8]> {
        let index = match self.may_contain(name) {
            true => &self.index[..],
            false => &[],
        };
        index
            .iter()
            .filter(|entry| usize::from(entry.name) == name.len())
            .map(|entry| self.field(entry))
            .filter(move |field| field.name == name)
            .map(|field| field.value)
    }

    /// All values of `name` (lower case), in order.
    pub fn get_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.values(name.as_bytes())
    }

    /// Returns true if a field of this (lower-case) name is present.
    #[inline]
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Returns true if any value of `name`, read as a comma-separated list, has `token` (ASCII case
    /// ignored).
    pub fn has_token(&self, name: &str, token: &str) -> bool {
        self.get_all(name).any(|value| {
            value
                .split(|&b| b == b',')
                .any(|part| part.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
        })
    }

    /// Keeps only the fields for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(Field<'_>) -> bool) {
        let old = std::mem::take(self);
        if old.iter().all(&mut keep) {
            *self = old;
            return;
        }
        self.text.reserve(old.text.len());
        self.index.reserve(old.index.len());
        for field in old.iter() {
            if keep(field) {
                self.push_lower(field.name, field.value, field.sensitive);
            }
        }
    }

    /// Removes every field of this (lower-case) name; returns true if there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        let had = self.contains(name);
        if had {
            self.retain(|f| f.name != name.as_bytes());
        }
        had
    }

    /// Replaces all fields of this name by one at the end.
    pub fn set(&mut self, name: &str, value: impl AsRef<[u8]>) {
        self.remove(name);
        self.push(name, value);
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns true if there is no field.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Bytes of all names and values together.
    pub fn text_len(&self) -> usize {
        self.text.len()
    }
}

impl PartialEq for Fields {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len()
            && self
                .iter()
                .zip(other.iter())
                .all(|(a, b)| a.name == b.name && a.value == b.value)
    }
}

impl Eq for Fields {}

/// Shows names only: values may be private.
impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(
                self.iter()
                    .map(|f| String::from_utf8_lossy(f.name).into_owned()),
            )
            .finish()
    }
}

impl<N: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(N, V)> for Fields {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(iter: I) -> Self {
        let mut fields = Self::new();
        for (name, value) in iter {
            fields.push(name, value);
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_and_repetition() {
        let mut fields: Fields = [("A", "1"), ("set-cookie", "x"), ("set-cookie", "y")]
            .into_iter()
            .collect();
        assert_eq!(fields.get("a"), Some(&b"1"[..]));
        assert_eq!(
            fields.get_all("set-cookie").collect::<Vec<_>>(),
            [b"x", b"y"]
        );
        assert!(fields.remove("a"));
        assert!(!fields.remove("a"));
        assert_eq!(fields.len(), 2);
        fields.set("set-cookie", "z");
        assert_eq!(fields.iter().map(|f| f.value).collect::<Vec<_>>(), [b"z"]);
    }

    #[test]
    #[should_panic(expected = "a name within the codecs' limits")]
    fn name_whose_length_does_not_fit_panics() {
        Fields::new().push(vec![b'a'; (1 << 16) + 3], "value");
    }

    #[test]
    fn fields_are_found_by_any_name_that_they_have() {
        let names: Vec<String> = (0..400)
            .map(|number| format!("{}-{number}", "x".repeat(number % 7)))
            .collect();
        let mut fields: Fields = names
            .iter()
            .map(|name| (name.to_uppercase(), "1"))
            .collect();
        assert!(names.iter().all(|name| fields.contains(name)));
        assert!(!fields.contains("x-400") && fields.get("").is_none());
        fields.retain(|field| field.name.ends_with(b"7"));
        for name in &names {
            let is_kept = name.ends_with('7');
            assert_eq!(fields.contains(name), is_kept, "{name}");
            assert_eq!(fields.get_all(name).count(), usize::from(is_kept));
        }
        fields.push("", "2");
        assert!(fields.contains(""), "a name without bytes");
    }

    #[test]
    fn removed_names_leave_no_bit() {
        let mut fields: Fields = [("vary", "a"), ("etag", "b")].into_iter().collect();
        let both = fields.names;
        assert!(fields.remove("vary"));
        assert_eq!(fields.names, bit_of(b"etag"));
        assert_eq!(both, bit_of(b"etag") | bit_of(b"vary"));
        assert_eq!(both.count_ones(), 2);
    }

    #[test]
    fn finds_tokens() {
        let fields: Fields = [("connection", "keep-alive, Upgrade")]
            .into_iter()
            .collect();
        assert!(fields.has_token("connection", "upgrade"));
        assert!(!fields.has_token("connection", "close"));
    }
}
