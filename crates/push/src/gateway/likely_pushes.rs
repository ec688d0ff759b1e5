//! The pushes of a session that wait for no claim, because nearly all visits transferred their
//! resources.
//!
//! A browser with a full cache has no use for such pushes. The first page that gets them is a trial
//! of the session: later pages get none before its reports. If none of its pushes can bring a
//! report any more, the trial passes to a later page. It never passes back to an earlier one, so
//! each page has at most one trial.

use super::table::PageId;

/// The experience of a session with these pushes, which are called likely.
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
    /// Returns whether a likely push of a page may leave. `awaits_report` tells whether the report
    /// on an earlier one may still come.
    pub(super) fn permits(&mut self, page: PageId, awaits_report: impl FnOnce() -> bool) -> bool {
        match *self {
            Self::Untried => *self = Self::Tried(page),
            // Later pages have larger numbers.
            Self::Tried(tried) if tried < page && !awaits_report() => *self = Self::Tried(page),
            _ => {}
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trial_passes_to_later_pages_only() {
        let [first, second, third] = [1, 2, 3].map(PageId::from);
        let mut likely = LikelyPushes::default();
        assert!(likely.permits(second, || false));
        assert!(likely.permits(second, || true), "its other pushes");
        assert!(!likely.permits(third, || true), "a report may come");
        assert!(likely.permits(third, || false));
        for page in [first, second] {
            assert!(!likely.permits(page, || false), "{page:?}");
        }
        likely.note(false);
        let fourth = PageId::from(4);
        assert!(!likely.permits(third, || false) && !likely.permits(fourth, || false));
    }
}
