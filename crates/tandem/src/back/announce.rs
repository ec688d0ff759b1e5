//! Announces in the log whether a gateway answers: one line for each change, with the reason and
//! the remedy.
//!
//! The lines name the gateway and addresses on the way to it. They stay on this machine. Pages and
//! `Proxy-Status` fields hold the reason only.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, Kind, Side};
use crate::journal::Problems;

/// The time after which the same failure is logged again.
const REMINDER: Duration = Duration::from_secs(600);

/// The number of lines that may be written within [`WINDOW`], for a gateway that comes and goes.
const BURST: u32 = 6;
const WINDOW: Duration = Duration::from_secs(60);

/// The name of gateways that sites have announced. Their own names would tell which sites the user
/// visits.
const UNNAMED: &str = "of a site";

/// The log lines about one gateway.
#[derive(Debug)]
pub struct Announcer {
    /// The gateway as the user knows it, such as `gw.example:443`.
    gateway: String,
    /// The session protocol and the transport, such as `h2 over TLS`.
    protocol: String,
    /// Holds the present failure for the dashboard.
    problems: Arc<Problems>,
    answers: Cell<Option<bool>>,
    lines: Rc<Lines>,
    /// True if no line is written, and no problem is shown.
    is_silent: bool,
}

/// The lines that were written, and the one that follows once the limit permits it.
#[derive(Debug, Default)]
struct Lines {
    /// True if the last line told of a session, false if it told of a failure.
    is_up: Cell<Option<bool>>,
    /// The failure that was logged last, and the time of its line.
    told: RefCell<Option<(Error, Instant)>>,
    /// The number of lines in the current window, and the window's beginning.
    count: Cell<(u32, Option<Instant>)>,
    /// The present state, if the limit has held its line back.
    owed: RefCell<Option<Line>>,
}

/// A line about the state of a gateway.
#[derive(Debug)]
enum Line {
    Up(String),
    Down(String, Error),
}

impl Lines {
    /// Writes a line. Beyond the limit it is written at the end of the window, unless another line
    /// takes its place: the log never ends with a state that has passed.
    fn say(self: &Rc<Self>, line: Line) {
        if self.may_speak() {
            self.owed.take();
            self.write(line);
        } else if self.owed.replace(Some(line)).is_none() {
            tokio::task::spawn_local(tell_later(Rc::downgrade(self)));
        }
    }

    fn write(&self, line: Line) {
        match line {
            Line::Up(text) => {
                self.told.take();
                self.is_up.set(Some(true));
                tracing::info!("{text}");
            }
            Line::Down(text, error) => {
                self.told.replace(Some((error, Instant::now())));
                self.is_up.set(Some(false));
                tracing::warn!("{text}");
            }
        }
    }

    /// Returns true if this failure was logged last, and not long ago.
    fn has_told(&self, error: &Error) -> bool {
        self.told.borrow().as_ref().is_some_and(|(last, at)| {
            (last.kind, last.side, &last.detail) == (error.kind, error.side, &error.detail)
                && at.elapsed() < REMINDER
        })
    }

    /// Writes the line that was held back, if the log ends with another state.
    fn catch_up(&self) {
        let Some(line) = self.owed.take() else {
            return;
        };
        let is_known = match &line {
            Line::Up(_) => self.is_up.get() == Some(true),
            Line::Down(_, error) => self.is_up.get() == Some(false) && self.has_told(error),
        };
        if !is_known {
            self.may_speak();
            self.write(line);
        }
    }

    /// Counts a line. Returns false if the current window has too many lines already.
    fn may_speak(&self) -> bool {
        let now = Instant::now();
        let (lines, since) = self.count.get();
        match since {
            Some(since) if now - since < WINDOW => {
                self.count.set((lines.saturating_add(1), Some(since)));
                lines < BURST
            }
            _ => {
                self.count.set((1, Some(now)));
                true
            }
        }
    }
}

/// Waits for the end of the window, and lets the log catch up.
async fn tell_later(lines: Weak<Lines>) {
    let since = lines.upgrade().and_then(|lines| lines.count.get().1);
    if let Some(since) = since {
        tokio::time::sleep_until(since + WINDOW).await;
    }
    if let Some(lines) = lines.upgrade() {
        lines.catch_up();
    }
}

/// Returns the sentence that tells of a failure on the way to `gateway`, with the remedy if one is
/// known. It may name addresses, so it is for the user of this machine only.
pub fn explain(gateway: &str, error: &Error) -> String {
    let detail = &error.detail;
    let address = error
        .address
        .as_ref()
        .map_or_else(String::new, |address| format!(" ({address})"));
    match (error.side, error.kind) {
        (Side::Via, _) => format!(
            "the proxy on the way to gateway {gateway} does not answer: {detail}{address}: \
             is Tor running, and is --via right?"
        ),
        (_, Kind::Unauthorized) => {
            format!("gateway {gateway} does not let this client in: {detail}")
        }
        (_, Kind::Tls | Kind::Protocol) => {
            format!("gateway {gateway} cannot be used: {detail}{address}")
        }
        (Side::Peer, Kind::Dns) => format!(
            "gateway {gateway} cannot be reached: {detail}: is the network up, and is the name \
             right? It is looked up again when the gateway is needed"
        ),
        (_, Kind::ConnectionRefused) => format!(
            "gateway {gateway} does not answer: {detail}{address}: \
             is it running, and is the port right?"
        ),
        (_, Kind::Timeout) => format!(
            "gateway {gateway} does not answer: {detail}{address}: \
             is the address right, and does a firewall let the port through?"
        ),
        _ => format!("gateway {gateway} does not answer: {detail}{address}"),
    }
}

impl Announcer {
    /// Creates the announcer of `gateway`, which is reached by `protocol`.
    pub fn new(gateway: String, protocol: String, problems: Arc<Problems>) -> Self {
        Self {
            gateway,
            protocol,
            problems,
            answers: Cell::new(None),
            lines: Rc::default(),
            is_silent: false,
        }
    }

    /// Creates the announcer of a gateway that a site has announced. It writes nothing, because a
    /// failure has no effect, and the lines would tell which sites the user visits.
    pub fn silent(protocol: String) -> Self {
        Self {
            is_silent: true,
            ..Self::new(UNNAMED.to_owned(), protocol, Arc::default())
        }
    }

    /// Returns the gateway as the status shows it.
    pub fn gateway(&self) -> &str {
        &self.gateway
    }

    /// Returns true if the gateway has failed since it last answered.
    pub fn has_failed(&self) -> bool {
        self.answers.get() == Some(false)
    }

    /// Logs that a session works. `answered_in` is the time to its first response.
    pub fn up(&self, answered_in: Option<Duration>) {
        if self.is_silent || self.answers.replace(Some(true)) == Some(true) {
            return;
        }
        self.problems.set(&self.gateway, None);
        self.problems.set(&self.name(), None);
        let time =
            answered_in.map_or_else(String::new, |time| format!(", {} ms", time.as_millis()));
        self.lines.say(Line::Up(format!(
            "session with gateway {}: {}{time}",
            self.gateway, self.protocol
        )));
    }

    /// Logs that the gateway cannot be used.
    pub fn down(&self, error: &Error) {
        if self.is_silent {
            return;
        }
        let repeated =
            self.answers.replace(Some(false)) == Some(false) && self.lines.has_told(error);
        let problem = explain(&self.gateway, error);
        let is_of_name = (error.side, error.kind) == (Side::Peer, Kind::Dns);
        let (of_name, of_gateway) = match is_of_name {
            true => (Some(&*problem), None),
            false => (None, Some(&*problem)),
        };
        self.problems.set(&self.name(), of_name);
        self.problems.set(&self.gateway, of_gateway);
        if !repeated {
            self.lines.say(Line::Down(problem, error.clone()));
        }
    }

    /// Logs that the gateway has not answered after `waited`.
    pub fn waiting(&self, waited: Duration) {
        if !self.is_silent && self.answers.get().is_none() && self.lines.may_speak() {
            let problem = format!(
                "gateway {} has not answered in {} s ({}): still trying",
                self.gateway,
                waited.as_secs(),
                self.protocol
            );
            tracing::warn!("{problem}");
            self.problems.set(&self.gateway, Some(&problem));
        }
    }

    /// Returns the session protocol and the transport.
    pub fn protocol(&self) -> &str {
        &self.protocol
    }

    /// Returns the part with the problem that the gateway's name has no address. All ways to the
    /// gateway share it, and each one that works ends it.
    fn name(&self) -> String {
        let host = self.gateway.rsplit_once(':').map(|(host, _)| host);
        format!("the name {}", host.unwrap_or(&self.gateway))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcer() -> Announcer {
        let problems = Arc::default();
        Announcer::new("gw.example:443".into(), "h2 over TLS".into(), problems)
    }

    #[test]
    fn failure_of_a_gateway_is_a_problem_until_it_answers() {
        let announcer = announcer();
        let problems = || announcer.problems.list();
        let error = Error::new(Kind::ConnectionRefused, Side::Peer, "connection refused");
        announcer.down(&error);
        assert!(problems()[0].contains("is it running"), "{:?}", problems());
        announcer.up(None);
        assert!(problems().is_empty());
        announcer.down(&error);
        assert_eq!(problems().len(), 1);
    }

    #[test]
    fn way_that_works_ends_the_problem_of_the_name() {
        let problems = Arc::<Problems>::default();
        let way = |port| Announcer {
            gateway: format!("gw.example:{port}"),
            problems: Arc::clone(&problems),
            ..announcer()
        };
        let (tcp, udp) = (way(443), way(444));
        let unknown = Error::new(Kind::Dns, Side::Peer, "no such name");
        tcp.down(&unknown);
        udp.down(&unknown);
        assert_eq!(problems.list().len(), 1);
        udp.up(None);
        assert!(problems.list().is_empty(), "{:?}", problems.list());
        // The failure of one way is not that of another one.
        tcp.down(&Error::new(Kind::ConnectionRefused, Side::Peer, "refused"));
        udp.down(&unknown);
        udp.up(None);
        assert_eq!(problems.list().len(), 1);
        assert!(problems.list()[0].contains("refused"));
    }

    #[test]
    fn the_proxy_on_the_way_is_told_from_the_gateway() {
        let down = |side| {
            let error = Error::new(Kind::ConnectionRefused, side, "connection refused");
            explain("gw.example:443", &error.with_address("127.0.0.1:9050"))
        };
        assert_eq!(
            down(Side::Via),
            "the proxy on the way to gateway gw.example:443 does not answer: \
             connection refused (127.0.0.1:9050): is Tor running, and is --via right?"
        );
        assert!(down(Side::Peer).starts_with("gateway gw.example:443 does not answer"));
    }

    #[test]
    fn silent_announcer_shows_no_problem() {
        let announcer = Announcer::silent("h2 over TCP".into());
        let error = Error::new(Kind::ConnectionRefused, Side::Peer, "connection refused");
        announcer.down(&error);
        announcer.waiting(Duration::from_secs(4));
        assert!(announcer.problems.list().is_empty());
        assert_eq!(announcer.gateway(), "of a site");
    }

    #[test]
    fn a_gateway_that_flaps_is_told_of_in_bounds() {
        let announcer = announcer();
        let spoken = (0..100).filter(|_| announcer.lines.may_speak()).count();
        assert_eq!(spoken, BURST as usize);
    }

    #[tokio::test(start_paused = true)]
    async fn last_state_of_a_gateway_that_flaps_is_told() {
        let refused = Error::new(Kind::ConnectionRefused, Side::Peer, "connection refused");
        let local = tokio::task::LocalSet::new();
        // The first state, and the number of changes: the limit holds back those after the sixth.
        for (first, changes, held_back, last) in [
            (true, 6, Some(false), true),
            (false, 6, Some(true), false),
            (true, 7, Some(false), false),
            (true, 5, Some(false), false),
        ] {
            local
                .run_until(async {
                    let announcer = announcer();
                    for change in 0..=changes {
                        if first == (change % 2 == 0) {
                            announcer.up(None);
                        } else {
                            announcer.down(&refused);
                        }
                    }
                    let told = || announcer.lines.is_up.get();
                    assert_eq!(told(), held_back, "{first} {changes}");
                    tokio::time::sleep(WINDOW + Duration::from_millis(2)).await;
                    assert_eq!(told(), Some(last), "{first} {changes}");
                    assert!(announcer.lines.owed.borrow().is_none());
                    assert_eq!(announcer.lines.told.borrow().is_some(), !last);
                })
                .await;
        }
    }
}
