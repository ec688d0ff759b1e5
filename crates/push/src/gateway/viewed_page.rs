//! The page that the user looks at, as far as it leads to other documents (see `next_page`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_http::RequestHead;
use tandem_preload::Referrer;

use super::table::ResponseId;
use crate::next_pages::NextPage;
use crate::wire::NextPush;

/// The silence after which a load has ended: no request, no fetch, and no response under way.
const IDLE_PERIOD: Duration = Duration::from_secs(1);

/// The account of a session: its first balance, and the largest one.
const CREDIT: f64 = 2.0;
const MAX_BALANCE: f64 = 4.0;

/// The amount that each page earns, so that a session that lost its credit tries again.
const EARNING: f64 = 0.1;

/// The state of the pushes for the next page.
pub(super) struct NextPages {
    /// The pushes that the client takes.
    pub(super) taken: NextPush,
    /// The page that the user looks at, until its documents are promised.
    viewed: Option<Box<ViewedPage>>,
    /// The requests of the documents that were promised last.
    pub(super) promised: Vec<Arc<RequestHead>>,
    /// The requests with unsafe methods that are under way.
    changes: u32,
    balance: f64,
}

/// A page that may lead to others.
pub(super) struct ViewedPage {
    pub(super) response: ResponseId,
    /// The number of the last change of cookies before the browser's request for the page.
    pub(super) cookies_of: u64,
    pub(super) request: Arc<RequestHead>,
    pub(super) url: Arc<str>,
    pub(super) policy: Referrer,
    pub(super) documents: Vec<NextPage>,
    pub(super) since: Instant,
    /// The time at which its load has ended, unless there are signs of the opposite.
    pub(super) due: Instant,
}

impl Default for NextPages {
    fn default() -> Self {
        Self {
            taken: NextPush::Off,
            viewed: None,
            promised: Vec::new(),
            changes: 0,
            balance: CREDIT,
        }
    }
}

impl NextPages {
    /// Returns the time of the next look at the load of the page.
    pub(super) fn due(&self) -> Option<Instant> {
        self.viewed.as_ref().map(|page| page.due)
    }

    /// Notes that the session is not idle.
    pub(super) fn note_activity(&mut self, now: Instant) {
        if let Some(page) = &mut self.viewed {
            page.due = now + IDLE_PERIOD;
        }
    }

    /// Notes the start of a request with an unsafe method.
    pub(super) fn begin_change(&mut self, now: Instant) {
        self.changes = self.changes.saturating_add(1);
        self.note_activity(now);
    }

    /// Notes the end of such a request.
    pub(super) fn end_change(&mut self, now: Instant) {
        self.changes = self.changes.saturating_sub(1);
        self.note_activity(now);
    }

    /// Returns whether such a request is under way.
    pub(super) const fn is_changing(&self) -> bool {
        self.changes > 0
    }

    /// Remembers a page whose load has not ended.
    pub(super) fn view(&mut self, now: Instant, page: Option<ViewedPage>) {
        self.viewed = page.map(|page| {
            Box::new(ViewedPage {
                due: now + IDLE_PERIOD,
                ..page
            })
        });
    }

    /// Takes the page if its load may have ended.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<ViewedPage> {
        self.viewed
            .take_if(|page| page.due <= now)
            .map(|page| *page)
    }

    /// Counts a page, which earns a little.
    pub(super) const fn earn(&mut self) {
        self.balance = (self.balance + EARNING).min(MAX_BALANCE);
    }

    /// Counts a document that the browser has asked for.
    pub(super) const fn win(&mut self) {
        self.balance = (self.balance + 1.0).min(MAX_BALANCE);
    }

    /// Returns whether the account covers a push.
    pub(super) fn covers(&self, price: f64) -> bool {
        price <= self.balance
    }

    /// Pays for a push.
    pub(super) fn pay(&mut self, price: f64, request: RequestHead) {
        self.balance -= price;
        self.promised.push(Arc::new(request));
    }

    /// Forgets the page, because the browser leaves it.
    pub(super) fn leave(&mut self) {
        self.viewed = None;
    }
}
