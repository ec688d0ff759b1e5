//! Announces in the log whether a gateway answers: one line for each change, with the reason and
//! the remedy.
//!
//! The lines name the gateway and addresses on the way to it. They stay on this machine. Pages and
//! `Proxy-Status` fields hold the reason only.

use std::cell::{Cell, RefCell};
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
    /// The failure that was logged last, and the time of its line.
    told: RefCell<Option<(Error, Instant)>>,
    /// The number of lines in the current window, and the window's beginning.
    lines: Cell<(u32, Option<Instant>)>,
    /// True if no line is written, and no problem is shown.
    is_silent: bool,
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
            told: RefCell::default(),
            lines: Cell::default(),
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
        if !self.may_speak() {
            return;
        }
        *self.told.borrow_mut() = None;
        let time =
            answered_in.map_or_else(String::new, |time| format!(", {} ms", time.as_millis()));
        tracing::info!(
            "session with gateway {}: {}{time}",
            self.gateway,
            self.protocol
        );
    }

    /// Logs that the gateway cannot be used.
    pub fn down(&self, error: &Error) {
        if self.is_silent {
            return;
        }
        let now = Instant::now();
        let repeated = self.answers.get() == Some(false)
            && self.told.borrow().as_ref().is_some_and(|(last, at)| {
                (last.kind, last.side, &last.detail) == (error.kind, error.side, &error.detail)
                    && now - *at < REMINDER
            });
        self.answers.set(Some(false));
        let problem = explain(&self.gateway, error);
        let is_of_name = (error.side, error.kind) == (Side::Peer, Kind::Dns);
        let (of_name, of_gateway) = match is_of_name {
            true => (Some(&*problem), None),
            false => (None, Some(&*problem)),
        };
        self.problems.set(&self.name(), of_name);
        self.problems.set(&self.gateway, of_gateway);
        if repeated || !self.may_speak() {
            return;
        }
        *self.told.borrow_mut() = Some((error.clone(), now));
        tracing::warn!("{problem}");
    }

    /// Logs that the gateway has not answered after `waited`.
    pub fn waiting(&self, waited: Duration) {
        if !self.is_silent && self.answers.get().is_none() && self.may_speak() {
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

    /// Counts a line. Returns false if the current window has too many lines already.
    fn may_speak(&self) -> bool {
        let now = Instant::now();
        let (lines, since) = self.lines.get();
        match since {
            Some(since) if now - since < WINDOW => {
                self.lines.set((lines.saturating_add(1), Some(since)));
                lines < BURST
            }
            _ => {
                self.lines.set((1, Some(now)));
                true
            }
        }
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
        let spoken = (0..100).filter(|_| announcer.may_speak()).count();
        assert_eq!(spoken, BURST as usize);
    }
}
