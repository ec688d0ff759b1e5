//! The sessions of a log: the requests of one user without a longer pause than the timeout.

use crate::cost::Tally;
use crate::log::{AccessLog, Record};

/// A considered request in its place.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Index into the records.
    pub record: u32,
    /// Session, numbered from 0 in order of creation.
    pub session: u32,
    /// Session of the same user that this request finds timed out.
    pub closes: Option<u32>,
}

/// A log cut into sessions by one timeout.
#[derive(Debug, Default)]
pub struct Sessions {
    /// Considered requests in order.
    pub steps: Vec<Step>,
    /// Sessions still open at the end of the log, in order of number.
    pub open: Vec<u32>,
    /// Counts that no predictor changes: considered, ignored, mobile, sessions, their length.
    pub tally: Tally,
}

impl Sessions {
    /// Cuts `records` into sessions: a longer pause than `timeout` (milliseconds) between two
    /// considered requests of a user starts a new one.
    #[must_use]
    pub fn cut(log: &AccessLog, records: &[Record], timeout: i64, ignore_mobile: bool) -> Self {
        /// A user's session: number, first and last time.
        #[derive(Clone, Copy)]
        struct Current {
            session: u32,
            last: i64,
        }
        let mut users: Vec<Option<Current>> = vec![None; log.user_count()];
        let mut sessions = Self::default();
        for (at, record) in records.iter().enumerate() {
            let agent = log.agents[record.agent as usize];
            if !agent.known || (ignore_mobile && agent.mobile) || log.favicons[record.url as usize]
            {
                sessions.tally.ignored += 1;
                continue;
            }
            sessions.tally.considered += 1;
            sessions.tally.mobile += u64::from(agent.mobile);
            let current = &mut users[record.user as usize];
            let pause = current.map(|current| record.time.saturating_sub(current.last));
            let mut closes = None;
            let session = match (*current, pause) {
                (Some(open), Some(pause)) if pause <= timeout => {
                    sessions.tally.session_ms += pause;
                    open.session
                }
                (old, _) => {
                    closes = old.map(|old| old.session);
                    sessions.tally.sessions += 1;
                    (sessions.tally.sessions - 1) as u32
                }
            };
            *current = Some(Current {
                session,
                last: record.time,
            });
            sessions.steps.push(Step {
                record: at as u32,
                session,
                closes,
            });
        }
        sessions.open = users
            .into_iter()
            .flatten()
            .map(|current| current.session)
            .collect();
        sessions.open.sort_unstable();
        sessions
    }
}
