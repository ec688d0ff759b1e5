//! Address tokens at the ends of an association: the gateway sends one inside DTLS, and the client
//! shows it when it returns ([`crate::token`]).
//!
//! A client that does not know the message ignores it, as it ignores each datagram of the tunnel
//! that is not valid. The message may be lost. The gateway sends it again with the first datagram
//! of the client that comes at least a second later.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use tandem_tunnel::Side;

use super::{Arrival, Association, NEW_TOKEN};
use crate::token::AddressToken;

/// The least time between the two copies of a message.
const AGAIN: Duration = Duration::from_secs(1);

/// Makes a token for the client at an address, if the client could return here.
pub type Issue = Box<dyn Fn(IpAddr) -> Option<AddressToken>>;

/// The tokens of an association.
#[derive(Default)]
pub(super) struct Returning {
    /// Gateway: the maker of tokens.
    issue: Option<Issue>,
    /// Gateway: a token, and the time from which it may be sent again.
    again: Option<(Instant, AddressToken)>,
    /// Client: the last token that has come.
    last: Option<AddressToken>,
    /// Client: true until that was taken.
    is_new: bool,
}

impl Association {
    /// Makes a client show an address token in place of a cookie. It must be called before the
    /// first datagram leaves.
    pub fn show(&mut self, token: &AddressToken, now: Instant) {
        if self.wrap.show(token) {
            let (from, marked) = (self.ends, false);
            self.send_first_flight(Arrival { now, from, marked });
        }
    }

    /// Makes a gateway send its client a token once the handshake is over, and another one for each
    /// further address of the client.
    pub fn issue_tokens(&mut self, issue: Issue) {
        self.returning.issue = Some(issue);
    }

    /// Takes the token that a gateway has sent, if a new one has come.
    pub fn take_token(&mut self) -> Option<AddressToken> {
        let is_new = std::mem::take(&mut self.returning.is_new);
        self.returning.last.clone().filter(|_| is_new)
    }

    /// Sends the client a token for its present address.
    pub(super) fn issue_token(&mut self, now: Instant) {
        let issue = self.returning.issue.as_ref();
        let token = issue.and_then(|issue| issue(self.ends.peer.ip()));
        if let Some(token) = &token {
            self.send_token(token);
        }
        self.returning.again = token.map(|token| (now + AGAIN, token));
    }

    /// Sends the last token again, if that is due.
    pub(super) fn repeat_token(&mut self, now: Instant) {
        let due = self.returning.again.take_if(|(at, _)| *at <= now);
        if let Some((_, token)) = due {
            self.send_token(&token);
        }
    }

    fn send_token(&mut self, token: &AddressToken) {
        let mut content = vec![NEW_TOKEN];
        content.extend_from_slice(&token.to_bytes());
        self.reply(self.ends, content);
    }

    /// Takes the content of a message with a token.
    pub(super) fn on_token(&mut self, content: &[u8]) {
        let token = AddressToken::decode(content).filter(|_| self.side == Side::Client);
        if token.is_some() && token != self.returning.last {
            self.returning.last = token;
            self.returning.is_new = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tandem_tunnel::Config;

    use super::*;
    use crate::association::Settings;
    use crate::certificates::anonymous;
    use crate::envelope::Envelope;
    use crate::token::Tokens;

    const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);
    const GATEWAY: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 2);

    /// Brings all datagrams of one end to the other.
    fn bring(now: Instant, from: (&mut Association, SocketAddr), to: &mut Association) {
        let mut out = Vec::new();
        while from.0.poll_output(now, &mut out).is_some() {
            to.handle_datagram(now, from.1.into(), &std::mem::take(&mut out), false);
        }
    }

    fn exchange(now: Instant, client: &mut Association, gateway: &mut Association) {
        for _ in 0..10 {
            bring(now, (client, CLIENT), gateway);
            bring(now, (gateway, GATEWAY), client);
        }
    }

    /// Returns the ends of an association that a token begins, and the client's first datagram.
    fn begin(now: Instant) -> (Association, Association, Vec<u8>) {
        let config = Config {
            max_datagram: 1200,
            ..Config::default()
        };
        let settings = Settings::new(config, Duration::from_secs(30), false).expect("settings");
        let identity = || anonymous().expect("an identity");
        let accept = Box::new(|_: &[u8]| Ok(true));
        let mut client = Association::connect(&settings, identity(), GATEWAY, accept, now);
        let token = Tokens::new(&[1; 32]).make(Duration::ZERO, CLIENT.ip());
        client.show(&token, now);
        let mut first = Vec::new();
        client.poll_output(now, &mut first).expect("a first flight");
        let Ok(Envelope::Initial { nonce, cookie, .. }) = Envelope::decode(&first) else {
            panic!("no records");
        };
        assert_eq!(cookie, token.shown());
        let (id, ends) = (token.id(&nonce), CLIENT.into());
        let gateway = Association::accept(&settings, identity(), None, id, ends, now);
        (client, gateway, first)
    }

    /// Returns the connected ends of an association that a token has begun.
    fn pair(now: Instant) -> (Association, Association) {
        let (mut client, mut gateway, first) = begin(now);
        gateway.handle_datagram(now, CLIENT.into(), &first, false);
        exchange(now, &mut client, &mut gateway);
        assert!(client.is_connected() && gateway.is_connected());
        (client, gateway)
    }

    /// The owner of the address may not be the sender of the token.
    #[test]
    fn first_flight_is_sent_seven_times_at_most() {
        let start = Instant::now();
        let (_, mut gateway, first) = begin(start);
        let (mut out, mut sizes) = (Vec::new(), Vec::new());
        for tenth in 0..600 {
            let now = start + Duration::from_millis(100) * tenth;
            gateway.handle_datagram(now, CLIENT.into(), &first, false);
            gateway.handle_timeout(now);
            while gateway.poll_output(now, &mut out).is_some() {}
            sizes.push(std::mem::take(&mut out).len());
        }
        let (flight, all) = (sizes[0], sizes.iter().sum::<usize>());
        println!(
            "{} bytes bring {flight} bytes, and {all} in total",
            first.len()
        );
        assert!(flight > 0 && all <= 7 * flight, "{sizes:?}");
    }

    /// A client of an earlier version does not know the message with a token.
    #[test]
    fn message_of_an_unknown_kind_is_ignored() {
        let now = Instant::now();
        let (mut client, mut gateway) = pair(now);
        for kind in NEW_TOKEN + 1..=u8::MAX {
            gateway.reply(gateway.ends, vec![kind; 29]);
            client.reply(client.ends, vec![kind; 29]);
            exchange(now, &mut client, &mut gateway);
        }
        for end in [&mut client, &mut gateway] {
            assert!(end.ended().is_none() && end.tunnel().closed().is_none());
            assert!(end.take_token().is_none());
        }
    }

    #[test]
    fn only_a_client_takes_whole_tokens() {
        let now = Instant::now();
        let (mut client, mut gateway) = pair(now);
        let message = vec![NEW_TOKEN; 29];
        client.reply(client.ends, message.clone());
        gateway.reply(gateway.ends, message[..28].to_vec());
        exchange(now, &mut client, &mut gateway);
        assert!(gateway.take_token().is_none() && client.take_token().is_none());
        // A later version may send more bytes.
        gateway.reply(gateway.ends, [&message[..], b"more"].concat());
        exchange(now, &mut client, &mut gateway);
        assert_eq!(client.take_token(), AddressToken::decode(&message[1..]));
    }
}
