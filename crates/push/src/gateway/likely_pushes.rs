//! The pushes of a session that wait for no claim, because nearly all visits transferred their
//! resources.
//!
//! A browser with a full cache has no use for them. The first page of a session that gets them
//! shows that: others wait for its reports.

/// The experience of a session with likely pushes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LikelyPushes {
    /// None has left.
    #[default]
    Untried,
    /// Those of one page have left, and no report has come.
    Tried,
    /// The browser has used some.
    Used,
    /// One was of no use.
    Wasted,
}

impl LikelyPushes {
    /// Returns whether the likely pushes of a page may leave. `has_some` tells whether it has any.
    pub(super) fn permits(&mut self, has_some: bool) -> bool {
        let is_permitted = has_some && matches!(self, Self::Untried | Self::Used);
        if is_permitted && *self == Self::Untried {
            *self = Self::Tried;
        }
        is_permitted
    }

    /// Notes the report on a likely push.
    pub(super) fn note(&mut self, is_used: bool) {
        if *self != Self::Wasted {
            *self = match is_used {
                true => Self::Used,
                false => Self::Wasted,
            };
        }
    }
}
