//! The imports of a JavaScript module (ECMAScript section 16.2), which the browser fetches before
//! the module runs.
//!
//! The scanner only reads the head, where compilers put them: comments, directives, `import` and
//! `export … from`. Any other statement ends it, so that a classic script costs no more than its
//! first word. Names that need an import map are ignored.

use super::token::Token;
use super::{Ask, Cors, Kind, Sink, urgency};

/// The state of reading a module.
#[derive(Debug)]
pub(super) struct Module {
    lexer: Lexer,
    /// The word or string being read.
    token: Token,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lexer {
    /// The beginning, after the given number of bytes of a byte order mark.
    Start(usize),
    Plain,
    Word,
    /// After a slash that may begin a comment.
    Slash,
    Line,
    Block {
        star: bool,
    },
    Text {
        quote: u8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Statement,
    /// After `import`.
    Import,
    /// After `export`.
    Export,
    /// In the list of imported or exported names.
    Clause {
        braces: u8,
        /// The last word was `from`.
        from: bool,
        export: bool,
    },
    /// After the specifier of a module.
    Named,
    /// In `with { … }`.
    Attributes,
    /// The end state, in which no more needs can be found.
    Over,
}

const MARK: &[u8] = b"\xef\xbb\xbf";

impl Module {
    pub(super) const fn new() -> Self {
        Self {
            lexer: Lexer::Start(0),
            token: Token::new(),
            place: Place::Statement,
        }
    }

    /// Returns true if the head has been read.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self.place, Place::Over)
    }

    /// Leaves the rest alone.
    pub(super) const fn stop(&mut self) {
        self.place = Place::Over;
    }

    /// Takes the next bytes.
    pub(super) fn feed(&mut self, bytes: &[u8], sink: &mut Sink) {
        for &byte in bytes {
            if self.is_over() {
                return;
            }
            self.step(byte, sink);
        }
    }

    fn step(&mut self, byte: u8, sink: &mut Sink) {
        self.lexer = match self.lexer {
            Lexer::Start(seen) if MARK.get(seen) == Some(&byte) => Lexer::Start(seen + 1),
            Lexer::Word if is_word(byte) => {
                self.token.push(&[byte]);
                Lexer::Word
            }
            Lexer::Word => {
                self.word();
                self.plain(byte)
            }
            Lexer::Start(_) | Lexer::Plain => self.plain(byte),
            Lexer::Slash if byte == b'/' => Lexer::Line,
            Lexer::Slash if byte == b'*' => Lexer::Block { star: false },
            Lexer::Slash => {
                self.stop();
                Lexer::Plain
            }
            Lexer::Line if matches!(byte, b'\n' | b'\r') => Lexer::Plain,
            Lexer::Line => Lexer::Line,
            Lexer::Block { star: true } if byte == b'/' => Lexer::Plain,
            Lexer::Block { .. } => Lexer::Block { star: byte == b'*' },
            Lexer::Text { quote } if byte == quote => {
                self.string(sink);
                Lexer::Plain
            }
            // No name of a module needs an escape, and no string has a line's end.
            Lexer::Text { .. } if matches!(byte, b'\\' | b'\n' | b'\r') => {
                self.stop();
                Lexer::Plain
            }
            Lexer::Text { quote } => {
                self.token.push(&[byte]);
                Lexer::Text { quote }
            }
        };
    }

    fn plain(&mut self, byte: u8) -> Lexer {
        match byte {
            b'/' => return Lexer::Slash,
            b'"' | b'\'' => {
                self.token.clear();
                return Lexer::Text { quote: byte };
            }
            _ if is_word(byte) => {
                self.token.clear();
                self.token.push(&[byte]);
                return Lexer::Word;
            }
            b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c => {}
            _ => self.mark(byte),
        }
        Lexer::Plain
    }

    fn word(&mut self) {
        let word = self.token.get().unwrap_or_default();
        self.place = match (self.place, word) {
            (Place::Statement | Place::Named, b"import") => Place::Import,
            (Place::Statement | Place::Named, b"export") => Place::Export,
            (Place::Named, b"with" | b"assert") => Place::Attributes,
            (Place::Import, _) => Place::Clause {
                braces: 0,
                from: false,
                export: false,
            },
            (Place::Clause { braces, export, .. }, _) => Place::Clause {
                braces,
                from: braces == 0 && word == b"from",
                export,
            },
            (Place::Attributes, _) => Place::Attributes,
            _ => Place::Over,
        };
    }

    fn mark(&mut self, byte: u8) {
        self.place = match (self.place, byte) {
            (Place::Statement | Place::Named, b';') => Place::Statement,
            (
                Place::Clause {
                    braces: 0,
                    export: true,
                    ..
                },
                b';',
            ) => Place::Statement,
            (Place::Import | Place::Export, b'{' | b'*') => Place::Clause {
                braces: u8::from(byte == b'{'),
                from: false,
                export: self.place == Place::Export,
            },
            (
                Place::Clause {
                    braces: 0, export, ..
                },
                b'{',
            ) => Place::Clause {
                braces: 1,
                from: false,
                export,
            },
            (
                Place::Clause {
                    braces: 1, export, ..
                },
                b'}',
            ) => Place::Clause {
                braces: 0,
                from: false,
                export,
            },
            (Place::Clause { braces, export, .. }, b',' | b'*') => Place::Clause {
                braces,
                from: false,
                export,
            },
            (Place::Attributes, b'}') => Place::Statement,
            (Place::Attributes, b'{' | b':' | b',') => Place::Attributes,
            _ => Place::Over,
        };
    }

    fn string(&mut self, sink: &mut Sink) {
        self.place = match self.place {
            // A directive.
            Place::Statement => Place::Statement,
            Place::Import
            | Place::Clause {
                braces: 0,
                from: true,
                ..
            } => {
                self.offer(sink);
                Place::Named
            }
            Place::Clause {
                braces: 1, export, ..
            } => Place::Clause {
                braces: 1,
                from: false,
                export,
            },
            Place::Attributes => Place::Attributes,
            _ => Place::Over,
        };
    }

    /// HTML section 8.1.5.2: a name that is no URL begins with a slash or dots.
    fn offer(&self, sink: &mut Sink) {
        let Some(name) = self
            .token
            .get()
            .and_then(|name| std::str::from_utf8(name).ok())
        else {
            return;
        };
        let absolute = ["http://", "https://"].iter().any(|scheme| {
            name.get(..scheme.len())
                .is_some_and(|begin| begin.eq_ignore_ascii_case(scheme))
        });
        if absolute
            || ["/", "./", "../"]
                .iter()
                .any(|begin| name.starts_with(begin))
        {
            sink.offer(
                name,
                Ask::new(Kind::Script, urgency::DEFERRED_SCRIPT).cors(Cors::Anonymous),
            );
        }
    }
}

/// Returns true if a byte may be part of a word; letters beyond ASCII may be part of names.
const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..)
}
