//! Targeted cache control (RFC 9213): a field for one class of caches, such as
//! `CDN-Cache-Control`. The field is a dictionary of structured fields (RFC 9651 section 3.2).

use std::collections::BTreeMap;
use std::time::Duration;

use super::CacheControl;
use crate::Fields;

/// The largest length of time that a number of seconds can mean (RFC 9111 section 1.2.2).
const MAX_SECONDS: u64 = 1 << 31;

/// A value of the dictionary, as far as directives need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DictionaryValue {
    Integer(i64),
    Boolean(bool),
    /// A value of another type: a decimal, string, token, byte sequence, date or inner list.
    Other,
}

impl CacheControl {
    /// Reads the targeted field `name` (lower case). Returns `None` if the field is absent, empty
    /// or no dictionary; the cache then ignores the field (RFC 9213 section 2.1). A directive with
    /// a value of a wrong type is ignored too (section 2.2).
    pub fn targeted(fields: &Fields, name: &str) -> Option<Self> {
        let lines: Vec<&[u8]> = fields.get_all(name).collect();
        let text = lines.join(&b", "[..]);
        let members = dictionary(&text).filter(|members| !members.is_empty())?;
        let is_true = |name: &str| members.get(name) == Some(&DictionaryValue::Boolean(true));
        let seconds = |name: &str| match members.get(name) {
            Some(DictionaryValue::Integer(seconds)) => {
                let seconds = u64::try_from(*seconds).unwrap_or(0).min(MAX_SECONDS);
                Some(Duration::from_secs(seconds))
            }
            _ => None,
        };
        Some(Self {
            is_present: true,
            max_age: seconds("max-age"),
            s_maxage: seconds("s-maxage"),
            no_cache: is_true("no-cache"),
            no_store: is_true("no-store"),
            private: is_true("private"),
            public: is_true("public"),
            must_revalidate: is_true("must-revalidate"),
            proxy_revalidate: is_true("proxy-revalidate"),
            must_understand: is_true("must-understand"),
            stale_while_revalidate: seconds("stale-while-revalidate"),
            stale_if_error: seconds("stale-if-error"),
            ..Self::default()
        })
    }
}

/// Parses a dictionary (RFC 9651 section 4.2.2). Returns `None` if the text is none. The last of
/// several members with one name counts.
fn dictionary(text: &[u8]) -> Option<BTreeMap<String, DictionaryValue>> {
    let mut members = BTreeMap::new();
    let mut rest = Unparsed(text);
    rest.skip(b" ");
    while !rest.0.is_empty() {
        let name = rest.key()?;
        let value = if rest.take(b'=') {
            rest.value()?
        } else {
            DictionaryValue::Boolean(true)
        };
        rest.parameters()?;
        members.insert(name, value);
        rest.skip(b" \t");
        if rest.0.is_empty() {
            break;
        }
        if !rest.take(b',') {
            return None;
        }
        rest.skip(b" \t");
        // A comma at the end is an error.
        if rest.0.is_empty() {
            return None;
        }
    }
    Some(members)
}

/// The part of the text that is not parsed yet.
struct Unparsed<'a>(&'a [u8]);

impl Unparsed<'_> {
    fn skip(&mut self, bytes: &[u8]) {
        let count = self.0.iter().take_while(|byte| bytes.contains(byte));
        self.0 = &self.0[count.count()..];
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.0.first() == Some(&byte);
        if found {
            self.0 = &self.0[1..];
        }
        found
    }

    fn take_while(&mut self, accepts: impl Fn(u8) -> bool) -> &[u8] {
        let count = self.0.iter().take_while(|byte| accepts(**byte)).count();
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    /// A key (RFC 9651 section 4.2.3.3).
    fn key(&mut self) -> Option<String> {
        let first = *self.0.first()?;
        if !first.is_ascii_lowercase() && first != b'*' {
            return None;
        }
        let key = self.take_while(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte)
        });
        Some(String::from_utf8_lossy(key).into_owned())
    }

    fn parameters(&mut self) -> Option<()> {
        while self.take(b';') {
            self.skip(b" ");
            self.key()?;
            if self.take(b'=') {
                self.bare_item()?;
            }
        }
        Some(())
    }

    fn value(&mut self) -> Option<DictionaryValue> {
        if !self.take(b'(') {
            return self.bare_item();
        }
        loop {
            self.skip(b" ");
            if self.take(b')') {
                return Some(DictionaryValue::Other);
            }
            self.bare_item()?;
            self.parameters()?;
            if !matches!(self.0.first(), Some(b' ' | b')')) {
                return None;
            }
        }
    }

    /// A bare item (RFC 9651 section 4.2.3.1).
    fn bare_item(&mut self) -> Option<DictionaryValue> {
        match *self.0.first()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'?' => {
                self.take(b'?');
                let value = self.take(b'1');
                (value || self.take(b'0')).then_some(DictionaryValue::Boolean(value))
            }
            b'"' => self.string(),
            b':' => {
                self.take(b':');
                self.take_while(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
                self.take(b':').then_some(DictionaryValue::Other)
            }
            b'@' => {
                self.take(b'@');
                let date = self.number()?;
                matches!(date, DictionaryValue::Integer(_)).then_some(DictionaryValue::Other)
            }
            first if first.is_ascii_alphabetic() || first == b'*' => {
                self.take_while(|byte| {
                    crate::message::is_token(byte) || byte == b':' || byte == b'/'
                });
                Some(DictionaryValue::Other)
            }
            _ => None,
        }
    }

    /// An integer of at most 15 digits, or a decimal (RFC 9651 section 4.2.4).
    fn number(&mut self) -> Option<DictionaryValue> {
        let is_negative = self.take(b'-');
        let digits = self.take_while(|byte| byte.is_ascii_digit()).to_vec();
        if digits.is_empty() || digits.len() > 15 {
            return None;
        }
        if self.take(b'.') {
            let fraction = self.take_while(|byte| byte.is_ascii_digit()).len();
            return (digits.len() <= 12 && (1..=3).contains(&fraction))
                .then_some(DictionaryValue::Other);
        }
        let number = digits
            .iter()
            .fold(0i64, |number, digit| number * 10 + i64::from(digit - b'0'));
        Some(DictionaryValue::Integer(if is_negative {
            -number
        } else {
            number
        }))
    }

    fn string(&mut self) -> Option<DictionaryValue> {
        self.take(b'"');
        loop {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            match byte {
                b'"' => return Some(DictionaryValue::Other),
                b'\\' => {
                    let (escaped, rest) = self.0.split_first()?;
                    self.0 = rest;
                    if !matches!(escaped, b'"' | b'\\') {
                        return None;
                    }
                }
                b' '..=b'~' => {}
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> Option<CacheControl> {
        let fields = lines.iter().map(|line| ("cdn-cache-control", *line));
        CacheControl::targeted(&fields.collect(), "cdn-cache-control")
    }

    #[test]
    fn dictionary_yields_its_directives() {
        let control = of(&[
            "max-age=60, no-cache;x=\"1\" , s-maxage=5",
            "private=?0, x=(1 a)",
        ])
        .expect("a dictionary");
        assert_eq!(control.max_age, Some(Duration::from_secs(60)));
        assert_eq!(control.s_maxage, Some(Duration::from_secs(5)));
        assert!(control.no_cache && !control.private && !control.no_store);
        let last = of(&["max-age=60, max-age=5"]).and_then(|control| control.max_age);
        assert_eq!(last, Some(Duration::from_secs(5)));
        let large = of(&["max-age=99999999999"]).and_then(|control| control.max_age);
        assert_eq!(large, Some(Duration::from_secs(MAX_SECONDS)));
        let negative = of(&["max-age=-5"]).and_then(|control| control.max_age);
        assert_eq!(negative, Some(Duration::ZERO));
    }

    #[test]
    fn value_of_a_wrong_type_is_ignored() {
        for wrong in [
            "max-age=\"60\"",
            "max-age=6.0",
            "max-age",
            "max-age=x",
            "max-age=(60)",
        ] {
            let control = of(&[wrong, "no-store"]).unwrap_or_else(|| panic!("{wrong}"));
            assert!(control.max_age.is_none() && control.no_store, "{wrong}");
        }
    }

    #[test]
    fn malformed_dictionary_is_ignored_whole() {
        for bad in [
            "",
            "  ",
            "max-age=60,",
            ",max-age=60",
            "max-age =60",
            "max-age= 60",
            "MaX-aGe=60",
            "max-age=60, &",
            "max-age=60 no-store",
            "max-age=\"60",
            "max-age=60;=",
            "max-age=1.",
            "max-age=(1",
            "max-age=1234567890123456",
            "a=?2",
            "a=:x",
            "a=\"\\x\"",
            "a=\"\u{e9}\"",
        ] {
            assert_eq!(of(&[bad]), None, "{bad:?}");
        }
        assert_eq!(of(&[]), None);
    }

    proptest::proptest! {
        #[test]
        fn dictionary_takes_any_bytes(text: Vec<u8>, near in "[a-z=,;?\"(): 0-9.@-]{0,24}") {
            dictionary(&text);
            dictionary(near.as_bytes());
        }

        #[test]
        fn dictionary_reads_every_integer(seconds in 0u64..1 << 31) {
            let control = of(&[&format!("max-age={seconds}")]).expect("a dictionary");
            proptest::prop_assert_eq!(control.max_age, Some(Duration::from_secs(seconds)));
        }
    }
}
