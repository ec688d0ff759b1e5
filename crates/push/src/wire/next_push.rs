//! The pushes of documents for the next page that a client takes.

use tandem_http::RequestHead;

/// The field of a companion whose client takes documents for the next page.
pub(super) const NEXT_FIELD: &str = "tandem-next";

/// The field of the head of such a push.
pub const NEXT_PAGE_FIELD: &str = "tandem-next-page";

/// The pushes for the next page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NextPush {
    /// The client takes no such pushes.
    #[default]
    Off,
    /// Heads with validators, for documents of which the browser may have a copy.
    Validators,
    /// The same, and the bodies of other documents.
    Bodies,
}

impl NextPush {
    /// Returns the value of the field, unless there are no such pushes.
    pub(super) const fn as_str(self) -> Option<&'static str> {
        match self {
            Self::Off => None,
            Self::Validators => Some("validators"),
            Self::Bodies => Some("bodies"),
        }
    }

    /// Returns the pushes that the client of a companion takes.
    pub fn of_companion(companion: &RequestHead) -> Self {
        match companion.fields.get(NEXT_FIELD) {
            Some(b"validators") => Self::Validators,
            Some(b"bodies") => Self::Bodies,
            _ => Self::Off,
        }
    }
}
