//! Lists of names with one or more values each: the header fields of requests and responses.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, Mutex, PoisonError};

use tandem_http::Fields;

/// A list of names and values, shared with the program through a handle.
#[derive(Debug, Default)]
pub(crate) struct NameValue {
    pairs: Mutex<Vec<Arc<Pair>>>,
}

/// A name with its values.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) name: CString,
    values: Vec<Arc<CStr>>,
    /// The addresses of `values`, as an array for C.
    pointers: Vec<AtomicPtr<c_char>>,
}

impl Pair {
    fn new(name: CString, values: Vec<Arc<CStr>>) -> Self {
        let pointers = values
            .iter()
            .map(|value| AtomicPtr::new(value.as_ptr().cast_mut()))
            .collect();
        Self {
            name,
            values,
            pointers,
        }
    }

    /// Returns the values as an array of C strings, and their number. The array lives as long as
    /// the pair.
    pub(crate) fn array(&self) -> (*const *const c_char, usize) {
        // `AtomicPtr<T>` has the representation of `*mut T`.
        (self.pointers.as_ptr().cast(), self.pointers.len())
    }
}

/// The result of [`NameValue::add`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    Yes,
    /// The pair was there already.
    Known,
    /// The name is empty or has capitals.
    BadName,
}

impl NameValue {
    fn pairs(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Pair>>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a value to a name. An empty value is replaced by the next one.
    pub(crate) fn add(&self, name: &CStr, value: &CStr) -> Added {
        let bytes = name.to_bytes();
        if bytes.is_empty() || bytes.iter().any(u8::is_ascii_uppercase) {
            return Added::BadName;
        }
        let mut pairs = self.pairs();
        let Some(pair) = pairs.iter_mut().find(|pair| pair.name.as_c_str() == name) else {
            pairs.push(Arc::new(Pair::new(name.to_owned(), vec![value.into()])));
            return Added::Yes;
        };
        if pair.values.iter().any(|known| known.as_ref() == value) {
            return Added::Known;
        }
        // The strings stay where they are; only the array is new.
        let mut values = pair.values.clone();
        values.retain(|known| !known.is_empty());
        values.push(value.into());
        *pair = Arc::new(Pair::new(name.to_owned(), values));
        Added::Yes
    }

    /// Finds a name. The array of the pair is valid until the list is changed or destroyed.
    pub(crate) fn lookup(&self, name: &CStr) -> Option<Arc<Pair>> {
        self.pairs()
            .iter()
            .find(|pair| pair.name.as_c_str() == name)
            .cloned()
    }

    /// Returns the pairs in the order of their first values. They stay valid while the caller
    /// visits them, even if the list changes.
    pub(crate) fn snapshot(&self) -> Vec<Arc<Pair>> {
        self.pairs().clone()
    }

    /// Returns the number of names.
    pub(crate) fn len(&self) -> usize {
        self.pairs().len()
    }

    /// Reads received fields without the pseudo fields, which begin with a colon. The effort is
    /// linear: a peer chooses the fields.
    pub(crate) fn from_fields(fields: &Fields) -> Self {
        let mut places = HashMap::new();
        let mut names: Vec<(&[u8], Vec<&[u8]>)> = Vec::new();
        for field in fields.iter().filter(|field| field.name[0] != b':') {
            let place = *places.entry(field.name).or_insert(names.len());
            if place == names.len() {
                names.push((field.name, Vec::new()));
            }
            names[place].1.push(field.value);
        }
        let pairs = names.into_iter().filter_map(|(name, values)| {
            let filled = values.iter().any(|value| !value.is_empty());
            let mut seen = HashSet::new();
            let values: Vec<Arc<CStr>> = values
                .into_iter()
                .filter(|value| !(filled && value.is_empty()) && seen.insert(*value))
                .filter_map(|value| Some(CString::new(value).ok()?.into()))
                .collect();
            let name = CString::new(name).ok()?;
            (!values.is_empty()).then(|| Arc::new(Pair::new(name, values)))
        });
        Self {
            pairs: Mutex::new(pairs.collect()),
        }
    }

    /// Writes the list as fields. `None` if a name or value cannot be sent: an illegal letter in a
    /// name, or a line break in a value.
    pub(crate) fn to_fields(&self) -> Option<Fields> {
        let mut fields = Fields::new();
        for pair in self.pairs().iter() {
            let name = pair.name.to_bytes();
            let token = name
                .iter()
                .all(|&byte| tandem_http::message::is_token(byte));
            if !token || name.len() > usize::from(u16::MAX) {
                return None;
            }
            for value in &pair.values {
                let value = value.to_bytes();
                if value.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
                    return None;
                }
                fields.push(name, value);
            }
        }
        Some(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(list: &NameValue, name: &CStr) -> Vec<String> {
        let pair = list.lookup(name).expect("a known name");
        let (array, count) = pair.array();
        assert!(!array.is_null());
        assert_eq!(count, pair.values.len());
        let text = |value: &Arc<CStr>| value.to_string_lossy().into_owned();
        pair.values.iter().map(text).collect()
    }

    #[test]
    fn add_keeps_values_once_in_order() {
        let list = NameValue::default();
        assert_eq!(list.add(c"accept", c"a"), Added::Yes);
        assert_eq!(list.add(c"accept", c"b"), Added::Yes);
        assert_eq!(list.add(c"accept", c"a"), Added::Known);
        assert_eq!(values(&list, c"accept"), ["a", "b"]);
        assert_eq!(list.len(), 1);
        assert!(list.lookup(c"other").is_none());
    }

    #[test]
    fn add_replaces_an_empty_value() {
        let list = NameValue::default();
        assert_eq!(list.add(c"x", c""), Added::Yes);
        assert_eq!(list.add(c"x", c""), Added::Known);
        assert_eq!(list.add(c"x", c"1"), Added::Yes);
        assert_eq!(values(&list, c"x"), ["1"]);
    }

    #[test]
    fn add_refuses_empty_names_and_capitals() {
        let list = NameValue::default();
        assert_eq!(list.add(c"", c"1"), Added::BadName);
        assert_eq!(list.add(c"Accept", c"1"), Added::BadName);
        assert_eq!(list.len(), 0);
    }

    #[test]
    fn snapshot_survives_changes_of_the_list() {
        let list = NameValue::default();
        list.add(c"x", c"1");
        let before = list.snapshot();
        list.add(c"x", c"2");
        assert_eq!(before[0].array().1, 1);
        assert_eq!(list.snapshot()[0].array().1, 2);
    }

    #[test]
    fn received_fields_are_grouped_by_name() {
        let mut fields = Fields::new();
        for (name, value) in [("a", "1"), ("b", ""), ("a", "2"), ("a", "1"), ("c", "")] {
            fields.push(name, value);
        }
        fields.push("c", "3");
        let list = NameValue::from_fields(&fields);
        assert_eq!(list.len(), 3);
        assert_eq!(values(&list, c"a"), ["1", "2"]);
        assert_eq!(values(&list, c"b"), [""]);
        assert_eq!(values(&list, c"c"), ["3"]);
    }

    #[test]
    fn fields_with_illegal_text_are_refused() {
        for (name, value) in [(c":status", c"1"), (c"a b", c"1"), (c"a", c"1\r\nb: 2")] {
            let list = NameValue::default();
            list.add(name, value);
            assert!(list.to_fields().is_none(), "{name:?}");
        }
        let mut fields = Fields::new();
        fields.push(":version", "HTTP/1.1");
        fields.push("a", "1");
        fields.push("a", "2");
        let list = NameValue::from_fields(&fields);
        assert_eq!(list.len(), 1);
        assert_eq!(list.to_fields().expect("legal").len(), 2);
    }
}
