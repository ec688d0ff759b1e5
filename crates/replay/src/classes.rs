//! Pages and assets by the documented rules, for a replay that needs no other statistics of them.

use crate::basic::Sent;
use crate::learn::{Class, LearnOptions, Request, Requests, class_of};

/// The requests of URLs so far, and the page loads of sessions.
#[derive(Debug)]
pub(crate) struct Classes {
    options: LearnOptions,
    /// For each table of the options, by number of the URL.
    requests: Vec<Vec<Requests>>,
    /// By number of the session.
    sessions: Vec<Option<Current>>,
}

/// The page load that a session is in.
#[derive(Debug, Clone, Copy)]
struct Current {
    load: u32,
    last_time: i64,
}

impl Classes {
    pub(crate) fn new(options: LearnOptions) -> Self {
        Self {
            requests: vec![Vec::new(); options.tables()],
            options,
            sessions: Vec::new(),
        }
    }

    /// Classifies a request and counts it, or returns `None` if it does not count.
    pub(crate) fn class(&mut self, session: u32, request: &Request) -> Option<Sent> {
        if !self.options.considers(request) {
            return None;
        }
        let table = &mut self.requests[self.options.table(request.agent)];
        let url = request.url as usize;
        if table.len() <= url {
            table.resize(url + 1, Requests::default());
        }
        let at = session as usize;
        if self.sessions.len() <= at {
            self.sessions.resize(at + 1, None);
        }
        let current = &mut self.sessions[at];
        let pause = current.map(|current| request.now.saturating_sub(current.last_time));
        let class = class_of(pause, table[url], &self.options);
        table[url].count(class, request);
        let load = match (class, *current) {
            (Class::Asset, Some(current)) => current.load,
            _ => request.number,
        };
        let last_time = request.now;
        *current = Some(Current { load, last_time });
        Some(Sent { class, load })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::agent::{Agent, Browser};
    use crate::basic::Basic;
    use crate::options::Options;

    fn agent(number: u8) -> Agent {
        Agent {
            known: number != 0,
            mobile: number == 1,
            browser: match number {
                2 => Browser::Chrome,
                _ => Browser::Firefox,
            },
        }
    }

    /// The statistics of the second browser do not know the page.
    #[test]
    fn session_may_change_its_browser() {
        let options = Options {
            consider_browser: true,
            ..Options::default()
        };
        let mut basic = Basic::new(options);
        for (number, url, browser) in [(0, 4, 2), (1, 0, 3)] {
            let request = Request {
                session: 0,
                user: 0,
                number,
                url,
                favicon: false,
                get: true,
                status: 200,
                size: 1,
                agent: agent(browser),
                now: 0,
            };
            let sent = basic.sending(&request, |a, b| a.cmp(&b), &mut Vec::new());
            let expected = [Class::Page, Class::Asset][number as usize];
            assert_eq!(sent.map(|sent| sent.class), Some(expected));
        }
    }

    proptest! {
        #[test]
        fn classes_are_those_of_the_full_statistics(
            steps in proptest::collection::vec(
                (0..3_u32, 0..5_u32, 0..30_i64, 0..4_u8, any::<bool>(), 0..4_usize),
                1..120,
            ),
            (ignore_mobile, consider_browser) in any::<(bool, bool)>(),
        ) {
            let options = Options { ignore_mobile, consider_browser, ..Options::default() };
            let mut classes = Classes::new(LearnOptions::of(&options));
            let mut basic = Basic::new(options);
            let mut now = 0;
            for (number, step) in (0..).zip(steps) {
                let (session, url, pause, agent_number, get, status) = step;
                now += pause * pause * 50;
                let request = Request {
                    session: u64::from(session),
                    user: 0,
                    number,
                    url,
                    favicon: false,
                    get,
                    status: [200, 301, 304, 404][status],
                    size: 1,
                    agent: agent(agent_number),
                    now,
                };
                let want = basic.sending(&request, |a, b| a.cmp(&b), &mut Vec::new());
                prop_assert_eq!(classes.class(session, &request), want);
            }
        }
    }
}
