//! A streaming reader of style sheets (CSS Syntax Level 3), which finds the targets of `@import`,
//! `@font-face` and `url()`.
//!
//! The reader only distinguishes comments, strings, addresses and blocks. Constructs that must be
//! read as a whole (an import, a font's block, a media query, an image set) are collected in a
//! bounded text, in which marks delimit addresses and strings. [`super::rules`] evaluates that
//! text.

use super::rules::{self, MARK_END, MARK_STRING, MARK_URL};
use super::token::{Short, Token};
use super::{Ask, Kind, Sink, urgency};
use memchr::{memchr, memchr2, memchr3};

/// The state of reading a style sheet or a part of one.
#[derive(Debug)]
pub(super) struct Css {
    state: State,
    /// The address or string being read.
    token: Token,
    /// The collected text of a rule that is read as a whole.
    text: Token,
    capture: Capture,
    prelude: Prelude,
    at: Short,
    /// Blocks that are open.
    depth: u32,
    /// Blocks that were open where a block began that does not apply here.
    skipped: Option<u32>,
    /// The number of open parentheses in the collected text.
    parentheses: u32,
    /// True while an `@import` is still valid: only other imports came before.
    imports: bool,
    /// The urgency of an image.
    images: u8,
    /// The last bytes before those at hand, for a function's name that was cut.
    tail: [u8; TAIL],
}

/// More than the longest function name that means anything.
const TAIL: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Plain,
    /// After a backslash.
    Escape,
    /// After a slash that may begin a comment.
    Slash,
    Comment {
        star: bool,
    },
    Text {
        quote: u8,
        escaped: bool,
        address: bool,
    },
    /// The name of an at-rule.
    At,
    /// After `url(`.
    Address,
    Bare {
        escaped: bool,
    },
    /// After the string in `url("…"`.
    AddressEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Capture {
    None,
    Import,
    Media,
    Font,
    ImageSet,
}

/// The kind of prelude between an at-rule's name and its block or semicolon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prelude {
    None,
    Font,
    Other,
}

/// Bytes that mean something between tokens.
const TELLING: [bool; 256] = {
    let mut table = [false; 256];
    let bytes = b"\\/\"'@(){};";
    let mut at = 0;
    while at < bytes.len() {
        table[bytes[at] as usize] = true;
        at += 1;
    }
    table
};

impl Css {
    /// A whole style sheet.
    pub(super) const fn sheet() -> Self {
        Self {
            state: State::Plain,
            token: Token::new(),
            text: Token::new(),
            capture: Capture::None,
            prelude: Prelude::None,
            at: Short::new(),
            depth: 0,
            skipped: None,
            parentheses: 0,
            imports: true,
            images: urgency::STYLE_IMAGE,
            tail: [0; TAIL],
        }
    }

    /// Declarations only, as in a `style` attribute.
    pub(super) fn declarations(images: u8) -> Self {
        Self {
            depth: 1,
            imports: false,
            images,
            ..Self::sheet()
        }
    }

    /// Takes the next bytes.
    pub(super) fn feed(&mut self, bytes: &[u8], sink: &mut Sink) {
        let mut at = 0;
        while at < bytes.len() {
            at += self.step(bytes, at, sink);
        }
        self.keep_tail(bytes);
    }

    /// Ends the style sheet and closes all open constructs.
    pub(super) fn finish(&mut self, sink: &mut Sink) {
        match self.state {
            State::Bare { .. } | State::AddressEnd | State::Text { address: true, .. } => {
                self.end_address(sink)
            }
            State::Text { .. } => self.collect_token(MARK_STRING),
            _ => {}
        }
        self.end_capture(sink);
        self.state = State::Plain;
    }

    fn keep_tail(&mut self, bytes: &[u8]) {
        if let Some(last) = bytes.last_chunk::<TAIL>() {
            self.tail = *last;
            return;
        }
        self.tail.copy_within(bytes.len().., 0);
        self.tail[TAIL - bytes.len()..].copy_from_slice(bytes);
    }

    /// Goes on from `at` and tells how many bytes that took; none only where the state changed.
    fn step(&mut self, bytes: &[u8], at: usize, sink: &mut Sink) -> usize {
        let rest = &bytes[at..];
        match self.state {
            State::Plain => self.plain(bytes, at, sink),
            State::Escape => {
                self.collect(&rest[..1]);
                self.state = State::Plain;
                1
            }
            State::Slash => self.slash(rest[0]),
            State::Comment { star } => self.comment(rest, star),
            State::Text {
                quote,
                escaped,
                address,
            } => self.string(rest, quote, escaped, address),
            State::At => self.at_name(rest),
            State::Address => self.address(rest, sink),
            State::Bare { escaped } => self.bare(rest, escaped, sink),
            State::AddressEnd => {
                let end = memchr(b')', rest);
                if end.is_some() {
                    self.end_address(sink);
                }
                end.map_or(rest.len(), |end| end + 1)
            }
        }
    }

    fn plain(&mut self, bytes: &[u8], at: usize, sink: &mut Sink) -> usize {
        let rest = &bytes[at..];
        let run = rest
            .iter()
            .position(|&b| TELLING[usize::from(b)])
            .unwrap_or(rest.len());
        self.collect(&rest[..run]);
        let Some(&byte) = rest.get(run) else {
            return run;
        };
        match byte {
            b'\\' => {
                self.collect(b"\\");
                self.state = State::Escape;
            }
            b'/' => self.state = State::Slash,
            b'"' | b'\'' => {
                self.token.clear();
                self.state = State::Text {
                    quote: byte,
                    escaped: false,
                    address: false,
                };
            }
            b'@' => {
                self.at.clear();
                self.state = State::At;
            }
            b'(' => self.open_parenthesis(&bytes[..at + run]),
            b')' => self.close_parenthesis(sink),
            b'{' => self.open_block(sink),
            b'}' => self.close_block(sink),
            _ => self.semicolon(sink),
        }
        run + 1
    }

    fn slash(&mut self, next: u8) -> usize {
        if next == b'*' {
            self.state = State::Comment { star: false };
            return 1;
        }
        self.collect(b"/");
        self.state = State::Plain;
        0
    }

    fn comment(&mut self, rest: &[u8], star: bool) -> usize {
        if star && rest[0] == b'/' {
            self.collect(b" ");
            self.state = State::Plain;
            return 1;
        }
        let found = memchr(b'*', rest);
        self.state = State::Comment {
            star: found.is_some(),
        };
        found.map_or(rest.len(), |at| at + 1)
    }

    fn string(&mut self, rest: &[u8], quote: u8, escaped: bool, address: bool) -> usize {
        let keep = address || self.capture != Capture::None;
        if escaped {
            if keep {
                self.token.push(&rest[..1]);
            }
            self.state = State::Text {
                quote,
                escaped: false,
                address,
            };
            return 1;
        }
        let end = memchr3(quote, b'\\', b'\n', rest);
        let run = end.unwrap_or(rest.len());
        if keep {
            self.token.push(&rest[..run]);
        }
        let Some(&byte) = rest.get(run) else {
            return run;
        };
        if byte == b'\\' {
            if keep {
                self.token.push(b"\\");
            }
            self.state = State::Text {
                quote,
                escaped: true,
                address,
            };
        } else if address {
            // A line end makes it a bad address, which also ends at the parenthesis.
            self.state = State::AddressEnd;
        } else {
            self.collect_token(MARK_STRING);
            self.state = State::Plain;
        }
        run + 1
    }

    /// The bytes after an at sign.
    fn at_name(&mut self, rest: &[u8]) -> usize {
        let run = rest.iter().position(|&b| !is_name(b)).unwrap_or(rest.len());
        self.at.push(&rest[..run]);
        if run < rest.len() {
            self.state = State::Plain;
            self.begin_rule();
        }
        run
    }

    fn begin_rule(&mut self) {
        if self.capture != Capture::None {
            return;
        }
        self.prelude = Prelude::Other;
        let applies = self.skipped.is_none();
        match self.at.get() {
            Some(b"import") if self.imports && self.depth == 0 => {
                self.begin_capture(Capture::Import)
            }
            Some(b"media") if applies => self.begin_capture(Capture::Media),
            Some(b"font-face") if applies => self.prelude = Prelude::Font,
            // Any block ends the imports too; unknown statements do not.
            Some(b"namespace") => self.imports = false,
            _ => {}
        }
    }

    fn begin_capture(&mut self, capture: Capture) {
        self.capture = capture;
        self.parentheses = 0;
        self.text.clear();
    }

    fn open_parenthesis(&mut self, before: &[u8]) {
        let mut name = Short::new();
        self.name_before(before, &mut name);
        if name.get() == Some(b"url") {
            self.token.clear();
            self.state = State::Address;
            return;
        }
        if self.capture == Capture::None && self.wanted() {
            if matches!(name.get(), Some(b"image-set" | b"-webkit-image-set")) {
                self.begin_capture(Capture::ImageSet);
                self.parentheses = 1;
            }
            return;
        }
        self.collect(b"(");
        self.parentheses = self.parentheses.saturating_add(1);
    }

    /// Stores the name that ends right before a parenthesis. A name longer than all known ones is
    /// dropped.
    fn name_before(&self, before: &[u8], name: &mut Short) {
        let run = before
            .iter()
            .rev()
            .take(TAIL)
            .take_while(|&&b| is_name(b))
            .count();
        if run == before.len() && run < TAIL {
            let cut = self.tail.iter().rev().take_while(|&&b| is_name(b)).count();
            name.push(&self.tail[TAIL - cut..]);
        }
        name.push(&before[before.len() - run..]);
    }

    fn close_parenthesis(&mut self, sink: &mut Sink) {
        self.collect(b")");
        self.parentheses = self.parentheses.saturating_sub(1);
        if self.capture == Capture::ImageSet && self.parentheses == 0 {
            self.end_capture(sink);
        }
    }

    fn open_block(&mut self, sink: &mut Sink) {
        if self.capture == Capture::Media && !rules::applies(self.text.get(), sink.viewport) {
            self.skipped = Some(self.depth);
        }
        self.capture = Capture::None;
        if self.prelude == Prelude::Font {
            self.begin_capture(Capture::Font);
        }
        self.prelude = Prelude::None;
        self.imports = false;
        self.depth = self.depth.saturating_add(1);
    }

    fn close_block(&mut self, sink: &mut Sink) {
        match self.capture {
            Capture::Font | Capture::ImageSet => self.end_capture(sink),
            _ => self.capture = Capture::None,
        }
        self.prelude = Prelude::None;
        self.depth = self.depth.saturating_sub(1);
        if self.skipped.is_some_and(|depth| self.depth <= depth) {
            self.skipped = None;
        }
    }

    fn semicolon(&mut self, sink: &mut Sink) {
        match self.capture {
            Capture::None | Capture::Media => self.capture = Capture::None,
            Capture::Import | Capture::ImageSet => self.end_capture(sink),
            Capture::Font => self.collect(b";"),
        }
        self.prelude = Prelude::None;
    }

    /// Evaluates the collected text.
    fn end_capture(&mut self, sink: &mut Sink) {
        let capture = std::mem::replace(&mut self.capture, Capture::None);
        let Some(text) = self.text.get() else { return };
        match capture {
            Capture::Import => rules::import(text, sink),
            Capture::Font => rules::font_face(text, sink),
            Capture::ImageSet => rules::image_set(text, self.images, sink),
            Capture::None | Capture::Media => {}
        }
    }

    fn address(&mut self, rest: &[u8], sink: &mut Sink) -> usize {
        let run = rest
            .iter()
            .position(|b| !b.is_ascii_whitespace())
            .unwrap_or(rest.len());
        match rest.get(run) {
            None => return run,
            Some(&quote @ (b'"' | b'\'')) => {
                self.state = State::Text {
                    quote,
                    escaped: false,
                    address: true,
                };
            }
            Some(b')') => self.end_address(sink),
            Some(_) => {
                self.state = State::Bare { escaped: false };
                return run;
            }
        }
        run + 1
    }

    fn bare(&mut self, rest: &[u8], escaped: bool, sink: &mut Sink) -> usize {
        if escaped {
            self.token.push(&rest[..1]);
            self.state = State::Bare { escaped: false };
            return 1;
        }
        let end = memchr2(b')', b'\\', rest);
        let run = end.unwrap_or(rest.len());
        self.token.push(&rest[..run]);
        match rest.get(run) {
            None => return run,
            Some(b'\\') => {
                self.token.push(b"\\");
                self.state = State::Bare { escaped: true };
            }
            Some(_) => self.end_address(sink),
        }
        run + 1
    }

    fn end_address(&mut self, sink: &mut Sink) {
        self.state = State::Plain;
        if self.capture != Capture::None {
            return self.collect_token(MARK_URL);
        }
        if !self.wanted() {
            return;
        }
        let Some(raw) = self.token.get() else { return };
        let url = rules::unescape(raw);
        sink.offer(
            &url,
            Ask::new(Kind::Image, rules::image_urgency(&url, self.images)),
        );
    }

    /// Returns true if a page would load an address at this place: the enclosing block applies.
    fn wanted(&self) -> bool {
        self.depth > 0 && self.prelude == Prelude::None && self.skipped.is_none()
    }

    fn collect(&mut self, bytes: &[u8]) {
        if self.capture != Capture::None {
            self.text.push(bytes);
        }
    }

    fn collect_token(&mut self, mark: u8) {
        if self.capture == Capture::None {
            return;
        }
        self.text.push(&[mark]);
        let whole = self
            .token
            .get()
            .filter(|raw| !raw.iter().any(|b| matches!(*b, 0..=8)));
        if let Some(raw) = whole {
            self.text.push(raw);
        }
        self.text.push(&[MARK_END]);
    }
}

/// Returns true if `byte` may be part of a name.
const fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') || byte >= 0x80
}
