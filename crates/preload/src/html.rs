//! A streaming tokenizer of HTML: it distinguishes comments, raw text and tags with their
//! attributes, as a browser with scripting on does (HTML section 13.2.5). [`super::element`]
//! evaluates the tags.
//!
//! The tokenizer only keeps the current tag: its name, and those attributes that may matter. Each
//! is bounded.

use super::Sink;
use super::attribute::Attributes;
use super::css::Css;
use super::element::{Inside, Page, holds_module};
use super::module::Module;
use super::token::Short;
use memchr::memchr;

/// The state of reading a document.
#[derive(Debug)]
pub(super) struct Html {
    state: State,
    /// The tag's name; in raw text, that of its element.
    name: Short,
    /// The attribute's name; in raw text, the bytes after a `<`.
    word: Short,
    attributes: Attributes,
    /// True if the tag is an end tag.
    closing: bool,
    /// True if a slash stands right before the end of the tag.
    slash: bool,
    inside: Inside,
    escape: Escape,
    /// The style sheet in a `style` element.
    style: Css,
    /// The script in a `script` element.
    module: Module,
    page: Page,
    /// The tags so far, where a test compares the tokenizer alone.
    #[cfg(test)]
    tags: Option<Vec<tests::Tag>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    /// After the first byte of a possible UTF-16 byte order mark.
    Mark(u8),
    /// The end state, in which no more needs can be found.
    Over,
    Data,
    /// After `<`.
    Open,
    /// After `</`.
    Close,
    Name,
    BeforeAttribute,
    AttributeName,
    AfterAttributeName,
    BeforeValue,
    Quoted(u8),
    Unquoted,
    /// After `<!` and the given number of bytes of a CDATA section's beginning.
    Declaration(u8),
    /// After `<!-`.
    Dash,
    Comment(Dashes),
    /// Up to the next `>`.
    Bogus,
    /// In a CDATA section, after the given number of closing brackets.
    Section(u8),
    Raw,
    /// In raw text, after `<`.
    RawOpen,
}

/// The part of a comment's end that has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dashes {
    Start,
    StartOne,
    None,
    One,
    Two,
    Bang,
}

/// Scripts may hold comments, and scripts in these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    /// In `<!--`, after the given number of dashes.
    Once(u8),
    /// In a `<script>` in that.
    Twice(u8),
}

const SECTION: &[u8] = b"[CDATA[";

impl Html {
    pub(super) const fn new() -> Self {
        Self {
            state: State::Start,
            name: Short::new(),
            word: Short::new(),
            attributes: Attributes::new(),
            closing: false,
            slash: false,
            inside: Inside::Content,
            escape: Escape::None,
            style: Css::sheet(),
            module: Module::new(),
            page: Page::new(),
            #[cfg(test)]
            tags: None,
        }
    }

    /// Takes the next bytes.
    pub(super) fn feed(&mut self, bytes: &[u8], sink: &mut Sink) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let used = self.step(rest, sink);
            rest = &rest[used..];
        }
    }

    /// The document is whole.
    pub(super) fn finish(&mut self, sink: &mut Sink) {
        if self.inside == Inside::Style {
            self.style.finish(sink);
        }
        self.page.finish(sink);
    }

    /// Takes some bytes and tells how many; none only where the state changed.
    fn step(&mut self, rest: &[u8], sink: &mut Sink) -> usize {
        match self.state {
            State::Data => self.data(rest),
            State::Open => self.open(rest[0]),
            State::Name => self.tag_name(rest),
            State::BeforeAttribute => self.before_attribute(rest, sink),
            State::AttributeName => self.attribute_name(rest),
            State::AfterAttributeName => self.after_attribute_name(rest),
            State::BeforeValue => self.before_value(rest),
            State::Quoted(quote) => self.quoted(rest, quote),
            State::Unquoted => self.unquoted(rest),
            State::Close => self.close(rest[0]),
            State::Declaration(seen) => self.declaration(rest[0], seen),
            State::Dash => self.dash(rest[0]),
            State::Comment(dashes) => self.comment(rest, dashes),
            State::Bogus => self.bogus(rest),
            State::Section(brackets) => self.section(rest, brackets),
            State::Raw => self.raw(rest, sink),
            State::RawOpen => self.raw_open(rest[0], sink),
            State::Start => self.start(rest[0]),
            State::Mark(first) => self.mark(first, rest[0]),
            State::Over => rest.len(),
        }
    }

    const fn go(&mut self, state: State, used: usize) -> usize {
        self.state = state;
        used
    }

    const fn start(&mut self, byte: u8) -> usize {
        match byte {
            0xfe | 0xff => self.go(State::Mark(byte), 1),
            _ => self.go(State::Data, 0),
        }
    }

    /// UTF-16 is rare enough to be left alone.
    const fn mark(&mut self, first: u8, second: u8) -> usize {
        if first ^ second == 1 {
            self.go(State::Over, 1)
        } else {
            self.go(State::Data, 0)
        }
    }

    fn data(&mut self, rest: &[u8]) -> usize {
        match memchr(b'<', rest) {
            Some(at) => self.go(State::Open, at + 1),
            None => rest.len(),
        }
    }

    fn open(&mut self, byte: u8) -> usize {
        match byte {
            b'/' => self.go(State::Close, 1),
            b'!' => self.go(State::Declaration(0), 1),
            b'?' => self.go(State::Bogus, 1),
            _ if byte.is_ascii_alphabetic() => self.begin_tag(false),
            _ => self.go(State::Data, 0),
        }
    }

    fn close(&mut self, byte: u8) -> usize {
        match byte {
            b'>' => self.go(State::Data, 1),
            _ if byte.is_ascii_alphabetic() => self.begin_tag(true),
            _ => self.go(State::Bogus, 0),
        }
    }

    fn begin_tag(&mut self, closing: bool) -> usize {
        self.name.clear();
        self.attributes.clear();
        self.closing = closing;
        self.slash = false;
        self.go(State::Name, 0)
    }

    fn tag_name(&mut self, rest: &[u8]) -> usize {
        let run = self.name.take(rest, &LOWER_IN_TAG);
        if run < rest.len() {
            self.state = State::BeforeAttribute;
        }
        run
    }

    fn before_attribute(&mut self, rest: &[u8], sink: &mut Sink) -> usize {
        match rest[0] {
            b'>' => {
                self.state = State::Data;
                self.end_tag(sink);
                1
            }
            b'/' => {
                self.slash = true;
                1
            }
            byte if byte.is_ascii_whitespace() => {
                self.slash = false;
                rest.iter()
                    .position(|b| !b.is_ascii_whitespace())
                    .unwrap_or(rest.len())
            }
            byte => {
                self.slash = false;
                self.word.clear();
                self.word.push(&[byte]);
                self.go(State::AttributeName, 1)
            }
        }
    }

    fn attribute_name(&mut self, rest: &[u8]) -> usize {
        let run = self.word.take(rest, &LOWER_IN_ATTRIBUTE);
        let Some(&byte) = rest.get(run) else {
            return run;
        };
        self.attributes.begin(self.word.get());
        match byte {
            b'=' => self.go(State::BeforeValue, run + 1),
            b'/' | b'>' => self.end_attribute(run),
            _ => self.go(State::AfterAttributeName, run + 1),
        }
    }

    fn after_attribute_name(&mut self, rest: &[u8]) -> usize {
        match rest[0] {
            b'=' => self.go(State::BeforeValue, 1),
            byte if byte.is_ascii_whitespace() => 1,
            _ => self.end_attribute(0),
        }
    }

    fn before_value(&mut self, rest: &[u8]) -> usize {
        match rest[0] {
            quote @ (b'"' | b'\'') => self.go(State::Quoted(quote), 1),
            b'>' => self.end_attribute(0),
            byte if byte.is_ascii_whitespace() => 1,
            _ => self.go(State::Unquoted, 0),
        }
    }

    fn quoted(&mut self, rest: &[u8], quote: u8) -> usize {
        let end = memchr(quote, rest);
        let run = end.unwrap_or(rest.len());
        self.attributes.push(&rest[..run]);
        if end.is_some() {
            self.end_attribute(run + 1)
        } else {
            run
        }
    }

    fn unquoted(&mut self, rest: &[u8]) -> usize {
        let end = rest
            .iter()
            .position(|&b| b == b'>' || b.is_ascii_whitespace());
        let run = end.unwrap_or(rest.len());
        self.attributes.push(&rest[..run]);
        if end.is_some() {
            self.end_attribute(run)
        } else {
            run
        }
    }

    fn end_attribute(&mut self, used: usize) -> usize {
        self.attributes.end();
        self.go(State::BeforeAttribute, used)
    }

    fn end_tag(&mut self, sink: &mut Sink) {
        #[cfg(test)]
        if self.record() {
            return;
        }
        let Some(name) = self.name.get() else {
            return self.page.unknown(&self.attributes, self.closing, sink);
        };
        if self.closing {
            return self.page.close(name);
        }
        self.inside = self.page.open(name, &self.attributes, self.slash, sink);
        match self.inside {
            Inside::Content => return,
            Inside::Nothing => return self.state = State::Over,
            Inside::Style => self.style = Css::sheet(),
            Inside::Script => {
                self.escape = Escape::None;
                self.module = Module::new();
                if let Some(literals) = &mut sink.literals {
                    literals.restart();
                }
                if !self.page.applies() || !holds_module(&self.attributes) {
                    self.module.stop();
                }
            }
            Inside::Text => {}
        }
        self.state = State::Raw;
    }

    fn declaration(&mut self, byte: u8, seen: u8) -> usize {
        let next = SECTION
            .get(usize::from(seen))
            .filter(|_| self.page.is_foreign());
        if seen == 0 && byte == b'-' {
            self.go(State::Dash, 1)
        } else if next != Some(&byte) {
            self.go(State::Bogus, 0)
        } else if usize::from(seen) + 1 == SECTION.len() {
            self.go(State::Section(0), 1)
        } else {
            self.go(State::Declaration(seen + 1), 1)
        }
    }

    const fn dash(&mut self, byte: u8) -> usize {
        match byte {
            b'-' => self.go(State::Comment(Dashes::Start), 1),
            _ => self.go(State::Bogus, 0),
        }
    }

    fn comment(&mut self, rest: &[u8], dashes: Dashes) -> usize {
        let mut at = 0;
        if dashes == Dashes::None {
            let Some(dash) = memchr(b'-', rest) else {
                return rest.len();
            };
            at = dash;
        }
        let next = match (dashes, rest[at]) {
            (Dashes::Start | Dashes::StartOne | Dashes::Two | Dashes::Bang, b'>') => {
                return self.go(State::Data, at + 1);
            }
            (Dashes::Start, b'-') => Dashes::StartOne,
            (Dashes::None | Dashes::Bang, b'-') => Dashes::One,
            (_, b'-') => Dashes::Two,
            (Dashes::Two, b'!') => Dashes::Bang,
            _ => Dashes::None,
        };
        self.go(State::Comment(next), at + 1)
    }

    fn bogus(&mut self, rest: &[u8]) -> usize {
        match memchr(b'>', rest) {
            Some(at) => self.go(State::Data, at + 1),
            None => rest.len(),
        }
    }

    fn section(&mut self, rest: &[u8], brackets: u8) -> usize {
        match rest[0] {
            b']' => self.go(State::Section((brackets + 1).min(2)), 1),
            b'>' if brackets == 2 => self.go(State::Data, 1),
            _ => {
                let run = memchr(b']', rest).unwrap_or(rest.len());
                self.go(State::Section(0), run)
            }
        }
    }

    fn raw(&mut self, rest: &[u8], sink: &mut Sink) -> usize {
        if self.escape != Escape::None && self.inside == Inside::Script {
            return self.escaped(rest);
        }
        let end = memchr(b'<', rest);
        let run = end.unwrap_or(rest.len());
        self.feed_raw(&rest[..run], sink);
        if end.is_none() {
            return run;
        }
        self.word.clear();
        self.go(State::RawOpen, run + 1)
    }

    /// In the comment of a script.
    fn escaped(&mut self, rest: &[u8]) -> usize {
        let (Escape::Once(mut dashes) | Escape::Twice(mut dashes)) = self.escape else {
            return 0;
        };
        let mut used = rest.len();
        for (at, &byte) in rest.iter().enumerate() {
            match byte {
                b'-' => dashes = (dashes + 1).min(2),
                b'>' if dashes == 2 => {
                    self.escape = Escape::None;
                    return at + 1;
                }
                b'<' => {
                    dashes = 0;
                    self.word.clear();
                    self.state = State::RawOpen;
                    used = at + 1;
                    break;
                }
                _ => dashes = 0,
            }
        }
        self.escape = if matches!(self.escape, Escape::Once(_)) {
            Escape::Once(dashes)
        } else {
            Escape::Twice(dashes)
        };
        used
    }

    /// After a `<` in raw text and the bytes in `word`: the element's end, or a step into or out of
    /// a script's comment.
    fn raw_open(&mut self, byte: u8, sink: &mut Sink) -> usize {
        let held = self.word.get().unwrap_or(b"");
        let name = self.name.get().unwrap_or(b"");
        let script = self.inside == Inside::Script;
        if ends_name(byte) && held.strip_prefix(b"/") == Some(name) {
            if matches!(self.escape, Escape::Twice(_)) && script {
                self.escape = Escape::Once(0);
                return self.go(State::Raw, 0);
            }
            return self.end_raw(sink);
        }
        if script && ends_name(byte) && held == b"script" && matches!(self.escape, Escape::Once(_))
        {
            self.escape = Escape::Twice(0);
            return self.go(State::Raw, 0);
        }
        let mut longer = self.word;
        longer.push(&[byte]);
        let longer_bytes = longer.get().unwrap_or(b"?");
        let goes_on = longer_bytes
            .strip_prefix(b"/")
            .is_some_and(|rest| name.starts_with(rest))
            || script && self.escape == Escape::None && b"!--".starts_with(longer_bytes)
            || script
                && matches!(self.escape, Escape::Once(_))
                && b"script".starts_with(longer_bytes);
        if !goes_on {
            let held = self.word;
            self.feed_raw(b"<", sink);
            self.feed_raw(held.get().unwrap_or(b""), sink);
            return self.go(State::Raw, 0);
        }
        if longer_bytes == b"!--" {
            // No module has such comments.
            self.module.stop();
            self.escape = Escape::Once(2);
            return self.go(State::Raw, 1);
        }
        self.word = longer;
        1
    }

    fn feed_raw(&mut self, bytes: &[u8], sink: &mut Sink) {
        match self.inside {
            Inside::Style => self.style.feed(bytes, sink),
            Inside::Script => {
                sink.read_literals(bytes);
                self.module.feed(bytes, sink);
            }
            _ => {}
        }
    }

    fn end_raw(&mut self, sink: &mut Sink) -> usize {
        if self.inside == Inside::Style {
            self.style.finish(sink);
        }
        self.inside = Inside::Content;
        self.escape = Escape::None;
        self.attributes.clear();
        self.closing = true;
        self.go(State::BeforeAttribute, 0)
    }
}

/// The lower case form of each byte of a tag's name; 0 for bytes that end the name.
const LOWER_IN_TAG: [u8; 256] = lower_until(b'>');
/// The same for an attribute's name.
const LOWER_IN_ATTRIBUTE: [u8; 256] = lower_until(b'=');

const fn lower_until(end: u8) -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        // A zero byte is no part of any name of ours.
        table[byte] = match byte as u8 {
            0 => b'?',
            other if other == end || ends_name(other) => 0,
            other => other.to_ascii_lowercase(),
        };
        byte += 1;
    }
    table
}

const fn ends_name(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>')
}

#[cfg(test)]
mod tests;
