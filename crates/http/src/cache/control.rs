//! The `Cache-Control` field of requests and responses (RFC 9111 section 5.2).
//!
//! Directive names are case-insensitive, arguments may be tokens or quoted strings (section 5.2).
//! A directive that occurs twice counts in its strictest form, and a malformed number counts as
//! the strictest value (section 4.2.1). The qualified forms `no-cache="field"` and
//! `private="field"` count as the unqualified ones, as sections 5.2.2.4 and 5.2.2.7 permit.
//!
//! Many origins separate directives by semicolons. A restriction counts wherever it stands in a
//! malformed member, since the origin has asked for it.

use std::borrow::Cow;
use std::time::Duration;

use crate::Fields;

/// The largest length of time that a number of seconds can mean (RFC 9111 section 1.2.2).
pub(super) const MAX_SECONDS: u64 = 1 << 31;

/// The staleness that a request accepts (`max-stale`, RFC 9111 section 5.2.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staleness {
    /// A response may have been stale for any time.
    Any,
    /// A response may have been stale for at most this time.
    UpTo(Duration),
}

/// The directives of one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheControl {
    /// The message has a `Cache-Control` field, whatever it says.
    pub is_present: bool,
    /// A member of the field is no directive, such as `private;`.
    pub is_malformed: bool,
    /// `max-age`, the shortest one.
    pub max_age: Option<Duration>,
    /// `s-maxage`, the shortest one.
    pub s_maxage: Option<Duration>,
    /// `no-cache`, qualified or not.
    pub no_cache: bool,
    /// `no-store`.
    pub no_store: bool,
    /// `private`, qualified or not.
    pub private: bool,
    /// `public`.
    pub public: bool,
    /// `must-revalidate`.
    pub must_revalidate: bool,
    /// `proxy-revalidate`.
    pub proxy_revalidate: bool,
    /// `must-understand`.
    pub must_understand: bool,
    /// `min-fresh`, the longest one.
    pub min_fresh: Option<Duration>,
    /// `max-stale`, the smallest one.
    pub max_stale: Option<Staleness>,
    /// `only-if-cached`.
    pub only_if_cached: bool,
    /// `stale-while-revalidate`, the shortest one (RFC 5861 section 3).
    pub stale_while_revalidate: Option<Duration>,
    /// `stale-if-error`, the shortest one (RFC 5861 section 4).
    pub stale_if_error: Option<Duration>,
}

impl CacheControl {
    /// Reads all `Cache-Control` fields of a message.
    pub fn of(fields: &Fields) -> Self {
        let mut control = Self::default();
        for value in fields.get_all("cache-control") {
            control.is_present = true;
            for member in members(value) {
                control.add(member);
            }
        }
        control
    }

    fn add(&mut self, member: &[u8]) {
        let at = member.iter().position(|&byte| byte == b'=');
        let (name, argument) = member.split_at(at.unwrap_or(member.len()));
        let (name, argument) = (name.trim_ascii(), argument.get(1..));
        if !is_token(name) || argument.is_some_and(|argument| !is_argument(argument.trim_ascii())) {
            self.is_malformed = true;
            for word in member.split(|byte| !is_token_byte(*byte)) {
                self.add_restriction(word);
            }
        }
        let argument = argument.map(unquote);
        let argument = argument.as_deref();
        // A number that is missing or malformed means the response is stale.
        let shortest = |before: Option<Duration>| {
            let time = argument.and_then(delta_seconds).unwrap_or(Duration::ZERO);
            Some(before.map_or(time, |before| before.min(time)))
        };
        match &*name.to_ascii_lowercase() {
            b"max-age" => self.max_age = shortest(self.max_age),
            b"s-maxage" => self.s_maxage = shortest(self.s_maxage),
            b"stale-while-revalidate" => {
                self.stale_while_revalidate = shortest(self.stale_while_revalidate);
            }
            b"stale-if-error" => self.stale_if_error = shortest(self.stale_if_error),
            b"public" => self.public |= argument.is_none(),
            b"must-understand" => self.must_understand |= argument.is_none(),
            b"only-if-cached" => self.only_if_cached = true,
            b"min-fresh" => {
                let time = argument.and_then(delta_seconds);
                let time = time.unwrap_or(Duration::from_secs(MAX_SECONDS));
                self.min_fresh = self.min_fresh.max(Some(time));
            }
            b"max-stale" => self.add_max_stale(argument),
            name => self.add_restriction(name),
        }
    }

    /// Adds a directive that restricts the storage or the use of a response without an argument.
    fn add_restriction(&mut self, name: &[u8]) {
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        self.no_cache |= is("no-cache");
        self.no_store |= is("no-store");
        self.private |= is("private");
        self.must_revalidate |= is("must-revalidate");
        self.proxy_revalidate |= is("proxy-revalidate");
    }

    fn add_max_stale(&mut self, argument: Option<&[u8]>) {
        let accepted = match argument {
            None => Staleness::Any,
            Some(argument) => Staleness::UpTo(delta_seconds(argument).unwrap_or(Duration::ZERO)),
        };
        self.max_stale = Some(match (self.max_stale, accepted) {
            (None | Some(Staleness::Any), accepted) => accepted,
            (Some(before), Staleness::Any) => before,
            (Some(Staleness::UpTo(before)), Staleness::UpTo(accepted)) => {
                Staleness::UpTo(before.min(accepted))
            }
        });
    }
}

/// Reads a number of seconds (RFC 9111 section 1.2.2): digits only, at most 2^31.
pub(super) fn delta_seconds(digits: &[u8]) -> Option<Duration> {
    let digits = digits.trim_ascii();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0u64, |number, digit| {
        (number * 10 + u64::from(digit - b'0')).min(MAX_SECONDS)
    });
    Some(Duration::from_secs(number))
}

/// The members of a comma-separated list, without empty ones (RFC 9110 section 5.6.1). A comma
/// within a quoted string separates nothing; a quote that is never closed is no quote.
pub(super) fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(value);
    let parts = std::iter::from_fn(move || {
        let value = rest?;
        let end = member_end(value);
        rest = value.get(end + 1..);
        Some(value[..end].trim_ascii())
    });
    parts.filter(|member| !member.is_empty())
}

fn member_end(value: &[u8]) -> usize {
    let mut at = 0;
    while at < value.len() {
        match value[at] {
            b',' => return at,
            b'"' => at = quote_end(value, at).unwrap_or(at) + 1,
            _ => at += 1,
        }
    }
    value.len()
}

/// The position of the quote that closes the one at `open` (RFC 9110 section 5.6.4).
fn quote_end(value: &[u8], open: usize) -> Option<usize> {
    let mut at = open + 1;
    while at < value.len() {
        match value[at] {
            b'\\' => at += 2,
            b'"' => return Some(at),
            _ => at += 1,
        }
    }
    None
}

/// Returns true for a token (RFC 9110 section 5.6.2).
fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().copied().all(is_token_byte)
}

const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}

/// Returns true for a token or a quoted string (RFC 9110 section 5.6.4).
fn is_argument(text: &[u8]) -> bool {
    is_token(text) || (text.first() == Some(&b'"') && quote_end(text, 0) == Some(text.len() - 1))
}

/// The text of a token or quoted string, without the quotes and escapes.
fn unquote(argument: &[u8]) -> Cow<'_, [u8]> {
    let argument = argument.trim_ascii();
    let Some(inner) = argument
        .strip_prefix(b"\"")
        .and_then(|inner| inner.strip_suffix(b"\""))
    else {
        return Cow::Borrowed(argument);
    };
    if !inner.contains(&b'\\') {
        return Cow::Borrowed(inner);
    }
    let mut text = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter().copied();
    while let Some(byte) = bytes.next() {
        text.extend(if byte == b'\\' {
            bytes.next()
        } else {
            Some(byte)
        });
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str]) -> CacheControl {
        let fields = values.iter().map(|value| ("cache-control", *value));
        CacheControl::of(&fields.collect())
    }

    const fn seconds(count: u64) -> Option<Duration> {
        Some(Duration::from_secs(count))
    }

    #[test]
    fn directives_ignore_case_and_quotes() {
        for value in [
            "max-age=600",
            "Max-Age=600",
            "MAX-AGE=\"600\"",
            "max-age=\"\\600\"",
            " , max-age = 600 ,,",
            "foo=\"a, max-age=1\", max-age=600",
            "max-age=600, max-agee=1, xmax-age=2",
            "max-age=000600",
        ] {
            assert_eq!(of(&[value]).max_age, seconds(600), "{value}");
        }
        let all = of(&["No-Store, NO-CACHE=\"a, b\", Private=\"c\", PUBLIC, Must-Revalidate"]);
        assert!(all.no_store && all.no_cache && all.private && all.public && all.must_revalidate);
        let rest = of(&["Proxy-Revalidate", "Must-Understand, only-if-cached"]);
        assert!(rest.proxy_revalidate && rest.must_understand && rest.only_if_cached);
        assert!(!rest.no_store && !rest.no_cache && !rest.private && !rest.public);
        assert_eq!(of(&[]), CacheControl::default());
        assert!(of(&[""]).is_present);
    }

    #[test]
    fn duplicates_count_in_their_strictest_form() {
        assert_eq!(of(&["max-age=60, max-age=5"]).max_age, seconds(5));
        assert_eq!(of(&["max-age=5", "max-age=60"]).max_age, seconds(5));
        assert_eq!(of(&["s-maxage=60, s-maxage=7"]).s_maxage, seconds(7));
        assert_eq!(of(&["min-fresh=60, min-fresh=5"]).min_fresh, seconds(60));
        let up_to = |count| Some(Staleness::UpTo(Duration::from_secs(count)));
        assert_eq!(of(&["max-stale"]).max_stale, Some(Staleness::Any));
        assert_eq!(of(&["max-stale, max-stale=9"]).max_stale, up_to(9));
        assert_eq!(of(&["max-stale=9, max-stale"]).max_stale, up_to(9));
        assert_eq!(of(&["max-stale=9, max-stale=3"]).max_stale, up_to(3));
    }

    #[test]
    fn malformed_numbers_count_as_the_strictest_value() {
        for value in [
            "", "=", "=soon", "=-1", "=1.5", "=0x10", "=\"", "=\"60", "=6 0",
        ] {
            let control = of(&[&format!("max-age{value}"), &format!("s-maxage{value}")]);
            assert_eq!(control.max_age, seconds(0), "{value}");
            assert_eq!(control.s_maxage, seconds(0), "{value}");
        }
        assert_eq!(of(&["min-fresh=soon"]).min_fresh, seconds(1 << 31));
        assert_eq!(
            of(&["max-stale=soon"]).max_stale,
            Some(Staleness::UpTo(Duration::ZERO))
        );
        let large = format!("max-age={}", "9".repeat(400));
        assert_eq!(of(&[&large]).max_age, seconds(1 << 31));
        assert!(!of(&["public=1, must-understand=1"]).public);
    }

    #[test]
    fn unclosed_quote_hides_no_directive() {
        let control = of(&["community=\"x, no-store, max-age=5"]);
        assert!(control.no_store);
        assert_eq!(control.max_age, seconds(5));
        assert!(!of(&["community=\"x, no-store\""]).no_store);
    }

    #[test]
    fn malformed_members_keep_their_restrictions() {
        for value in [
            "private;",
            "private; max-age=600",
            "max-age=600; private",
            "max-age=600, private;",
            "public; private",
            "max-age=600 private",
            "\"private\", max-age=600",
            "x=\"private, max-age=600",
            "PRIVATE;no-transform",
        ] {
            let control = of(&[value]);
            assert!(control.private && control.is_malformed, "{value}");
            assert!(!control.public, "{value}");
        }
        assert!(of(&["no-store; max-age=0"]).no_store);
        assert!(of(&["no-cache;must-revalidate"]).must_revalidate);
        assert!(of(&["no-cache; no-store"]).no_store);
        assert_eq!(of(&["max-age=600; private"]).max_age, seconds(0));
        for value in [
            "max-age=1, x=\"private;\"",
            "max-age = 1",
            "private-token",
            "x=private",
            "",
        ] {
            let control = of(&[value]);
            assert!(!control.private && !control.is_malformed, "{value}");
        }
    }

    proptest::proptest! {
        /// More directives never permit more.
        #[test]
        fn restriction_grows_with_each_directive(
            values in proptest::collection::vec("(max-age=[0-9]{1,3}|no-store|no-cache|s-maxage=[0-9]{1,3}|min-fresh=[0-9]{1,3}|[a-z\",=\\\\]{0,6})", 0..6),
        ) {
            let lines: Vec<&str> = values.iter().map(String::as_str).collect();
            for count in 0..lines.len() {
                let (fewer, more) = (of(&lines[..count]), of(&lines[..=count]));
                let at_most = |a: Option<Duration>, b: Option<Duration>| {
                    b.is_none() || a.is_some_and(|a| b.is_some_and(|b| a <= b))
                };
                proptest::prop_assert!(at_most(more.max_age, fewer.max_age));
                proptest::prop_assert!(at_most(more.s_maxage, fewer.s_maxage));
                proptest::prop_assert!(more.min_fresh >= fewer.min_fresh);
                proptest::prop_assert!(more.no_store >= fewer.no_store);
                proptest::prop_assert!(more.no_cache >= fewer.no_cache);
            }
        }

        #[test]
        fn list_keeps_every_byte_outside_separators(value: Vec<u8>) {
            let kept: usize = members(&value).map(<[u8]>::len).sum();
            proptest::prop_assert!(kept <= value.len());
            proptest::prop_assert!(members(&value).all(|member| !member.is_empty()));
            CacheControl::of(&[("cache-control", value)].into_iter().collect());
        }
    }
}
