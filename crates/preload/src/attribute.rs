//! The attributes of one tag: those that may matter, each bounded, the first of a name only.

use super::text::decode;
use super::token::MAX_TOKEN;
use memchr::memchr;
use std::borrow::Cow;

macro_rules! names {
    ($($variant:ident $name:literal,)*) => {
        /// The attributes that decide which resources are fetched.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Name { $($variant,)* }

        impl Name {
            const COUNT: usize = [$(Self::$variant,)*].len();

            fn of(name: &[u8]) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

names! {
    As b"as",
    Async b"async",
    Background b"background",
    Called b"name",
    Content b"content",
    Credentialless b"credentialless",
    Crossorigin b"crossorigin",
    Data b"data",
    Default b"default",
    Defer b"defer",
    Disabled b"disabled",
    Fetchpriority b"fetchpriority",
    Href b"href",
    HttpEquiv b"http-equiv",
    Imagesizes b"imagesizes",
    Imagesrcset b"imagesrcset",
    Language b"language",
    Loading b"loading",
    Media b"media",
    Nomodule b"nomodule",
    Nonce b"nonce",
    Poster b"poster",
    Referrerpolicy b"referrerpolicy",
    Rel b"rel",
    Sandbox b"sandbox",
    Shadowrootmode b"shadowrootmode",
    Sizes b"sizes",
    Src b"src",
    Srcdoc b"srcdoc",
    Srcset b"srcset",
    Style b"style",
    Type b"type",
    Width b"width",
    XlinkHref b"xlink:href",
}

/// The attributes of a tag.
#[derive(Debug)]
pub(super) struct Attributes {
    /// The range in `text` of each value that has its bit set in `present`.
    places: [(u32, u32); Name::COUNT],
    present: u64,
    /// Bits of the attributes with too long a value: they are present without a value.
    lost: u64,
    current: Option<Name>,
    /// True if the tag may have swallowed another one, see [`Self::has_nonce`].
    is_doubtful: bool,
    /// The offset at which the current value begins.
    start: usize,
    text: Vec<u8>,
    /// Every attribute with its undecoded value, for tests of the tokenizer.
    #[cfg(test)]
    recorded: Vec<(String, Vec<u8>)>,
}

impl Attributes {
    pub(super) const fn new() -> Self {
        Self {
            places: [(0, 0); Name::COUNT],
            present: 0,
            lost: 0,
            current: None,
            is_doubtful: false,
            start: 0,
            text: Vec::new(),
            #[cfg(test)]
            recorded: Vec::new(),
        }
    }

    /// Returns all attributes of the tag, the first of each name, with decoded values.
    #[cfg(test)]
    pub(super) fn take_recorded(&mut self) -> Vec<(String, String)> {
        let mut seen = Vec::<(String, String)>::new();
        for (name, value) in self.recorded.drain(..) {
            if !seen.iter().any(|(known, _)| *known == name) {
                seen.push((name, decode(&value).into_owned()));
            }
        }
        seen
    }

    pub(super) fn clear(&mut self) {
        self.present = 0;
        self.lost = 0;
        self.current = None;
        self.is_doubtful = false;
        self.start = 0;
        // Keeps its room for the next tag.
        self.text.clear();
        #[cfg(test)]
        self.recorded.clear();
    }

    /// An attribute of this name begins.
    pub(super) fn begin(&mut self, name: Option<&[u8]>) {
        #[cfg(test)]
        self.recorded.push((
            String::from_utf8_lossy(name.unwrap_or(b"(long)")).into_owned(),
            Vec::new(),
        ));
        self.is_doubtful |= name.is_none_or(|name| name.contains(&b'<'));
        let name = name.and_then(Name::of);
        self.current = name.filter(|&name| !self.has(name));
        self.is_doubtful |= name.is_some() && self.current.is_none();
        self.start = self.text.len();
    }

    /// More of its value.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        #[cfg(test)]
        if let Some((_, value)) = self.recorded.last_mut() {
            value.extend_from_slice(bytes);
        }
        self.is_doubtful |= memchr(b'<', bytes).is_some();
        let Some(name) = self.current else { return };
        if self.text.len() - self.start + bytes.len() > MAX_TOKEN {
            self.lost |= bit(name);
            self.text.truncate(self.start);
            self.current = None;
        } else {
            self.text.extend_from_slice(bytes);
        }
    }

    /// Ends the current value.
    pub(super) fn end(&mut self) {
        let Some(name) = self.current.take() else {
            return;
        };
        self.present |= bit(name);
        let place = |at| u32::try_from(at).unwrap_or(0);
        self.places[name as usize] = (place(self.start), place(self.text.len()));
    }

    /// Returns true if an attribute of this name is present.
    pub(super) const fn has(&self, name: Name) -> bool {
        (self.present | self.lost) & bit(name) != 0
    }

    /// Returns true if the element has this nonce. Markup that an attacker has left open may
    /// swallow the next element and its nonce. A tag with a `<` in it, or with an attribute twice,
    /// therefore has none. This is stricter than Content Security Policy section 6.7.3.1.
    pub(super) fn has_nonce(&self, nonce: Option<&str>) -> bool {
        !self.is_doubtful && nonce.is_some() && self.get(Name::Nonce).as_deref() == nonce
    }

    /// Returns true if no attribute of the list is present.
    pub(super) const fn is_empty(&self) -> bool {
        self.present == 0
    }

    /// Returns the value with character references replaced, or `None` if it is missing or was too
    /// long.
    pub(super) fn get(&self, name: Name) -> Option<Cow<'_, str>> {
        if self.present & bit(name) == 0 {
            return None;
        }
        let (start, end) = self.places[name as usize];
        Some(decode(&self.text[start as usize..end as usize]))
    }

    /// Returns the value, or the empty string if there is none.
    pub(super) fn text(&self, name: Name) -> Cow<'_, str> {
        self.get(name).unwrap_or(Cow::Borrowed(""))
    }

    /// Returns true if the value equals `value`, ignoring case and surrounding spaces.
    pub(super) fn is(&self, name: Name, value: &str) -> bool {
        self.get(name)
            .is_some_and(|text| text.trim().eq_ignore_ascii_case(value))
    }
}

const fn bit(name: Name) -> u64 {
    1 << name as u32
}
