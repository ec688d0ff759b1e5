//! The pushes of a session that wait for no claim, because nearly all visits transferred their
//! resources.
//!
//! A browser with a full cache has no use for such pushes. The first page of a session that gets
//! them shows whether that is so, and later pages get none before its reports.

use super::table::PageId;

/// The experience of a session with likely pushes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LikelyPushes {
    /// No likely push has left.
    #[default]
    Untried,
    /// The likely pushes of this page have left, and no report has come.
    Tried(PageId),
    /// The browser has used some. The budget of the gateway bounds the others.
    Used,
    /// The first report was one of no use.
    Wasted,
}

impl LikelyPushes {
    /// Returns whether a likely push of a page may leave.
    pub(super) fn permits(&mut self, page: PageId) -> bool {
        if *self == Self::Untried {
            *self = Self::Tried(page);
        }
        matches!(self, Self::Used) || *self == Self::Tried(page)
    }

    /// Notes the report on a likely push.
    pub(super) fn note(&mut self, is_used: bool) {
        *self = match (is_used, *self) {
            (true, _) => Self::Used,
            (false, Self::Untried | Self::Tried(_)) => Self::Wasted,
            (false, other) => other,
        };
    }
}
