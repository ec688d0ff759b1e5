//! The session under test, with the script of its peer.

use std::time::Instant;

use bytes::{Buf as _, Bytes};
use tandem_http::{ByteMux as _, Event, Mux as _, Priority, Reason, Role, SendBuf};
use tandem_spdy::{Connection, Version};

use super::{MAX_STREAMS, Outcome, SESSION_WINDOW, STREAM_WINDOW, Step};
use crate::support::{
    GET, OK, POST, Script, Seen, Wire, config, data, get, goaway, ping, response, rst, settings,
    window_update,
};

/// The session under test, with the wire read into the same words.
pub(super) struct Real {
    pub(super) session: Connection,
    script: Script,
    wire: Wire,
    now: Instant,
    client: bool,
    cut: usize,
}

impl Real {
    pub(super) fn new(role: Role, version: Version, cut: usize) -> Self {
        let mut config = config(role, version);
        config.mux.stream_window = STREAM_WINDOW;
        config.mux.session_window = SESSION_WINDOW;
        config.mux.max_streams = MAX_STREAMS as u32;
        config.mux.send_buffer = 1 << 30;
        let mut this = Self {
            session: Connection::new(config),
            script: Script::default(),
            wire: Wire::default(),
            now: Instant::now(),
            client: role == Role::Client,
            cut,
        };
        this.output(&mut Outcome::default());
        this
    }

    fn bytes(&mut self, step: &Step) -> Option<Vec<u8>> {
        Some(match *step {
            Step::PeerOpens { id, associated, .. } if self.client => {
                let pairs = [
                    (":scheme", "http"),
                    (":host", "example.org"),
                    (":path", "/a"),
                    OK[0],
                    OK[1],
                ];
                let mut frame = self.script.push(id, associated, &pairs);
                frame[4] |= u8::from(matches!(step, Step::PeerOpens { fin: true, .. }));
                frame
            }
            Step::PeerOpens { id, fin, .. } => {
                self.script
                    .syn_stream(id, fin, if fin { &GET } else { &POST })
            }
            Step::PeerReplies { id, fin } => self.script.syn_reply(id, fin, &OK),
            Step::PeerSends { id, len, fin } => data(id, fin, &vec![7; len]),
            Step::PeerAdds { id, name, fin } => {
                self.script.headers(id, fin, &[(&format!("x-{name}"), "v")])
            }
            Step::PeerResets { id } => rst(id, 5),
            Step::PeerCredits { id, delta } => window_update(id, delta),
            Step::PeerSets { window } => settings(&[(7, window)]),
            Step::PeerPings { id } => ping(id),
            Step::PeerLeaves { last } => goaway(last, 0),
            _ => return None,
        })
    }

    pub(super) fn step(&mut self, step: &Step) -> (Outcome, Vec<(u32, u32)>) {
        let mut out = Outcome::default();
        if let Some(bytes) = self.bytes(step) {
            out.failed = bytes
                .chunks(self.cut)
                .any(|part| self.session.handle_input(self.now, part).is_err());
        }
        match *step {
            Step::Open { fin, urgency } => {
                let _ = self.session.open(&get("/"), fin, Priority(urgency));
            }
            Step::Push { parent, urgency } => {
                let _ = self.session.push(parent, &get("/a"), Priority(urgency));
            }
            Step::Respond { id, fin } => {
                self.session.respond(id, &response(200, &[("x", "y")]), fin)
            }
            Step::Send { id, len, fin } => {
                self.session.send_data(id, Bytes::from(vec![1; len]), fin)
            }
            Step::Reset { id } => self.session.reset(id, Reason::Cancel),
            Step::Release { id, len } => self.session.release(id, len),
            Step::Leave => self.session.go_away(Reason::NoError),
            _ => {}
        }
        let credit = self.output(&mut out);
        while let Some(event) = self.session.poll_event() {
            Self::event(&mut out, &event);
        }
        (out, credit)
    }

    fn event(out: &mut Outcome, event: &Event) {
        match event {
            Event::Request { id, .. } => out.event(format!("request {id}")),
            Event::Response { id, .. } => out.event(format!("response {id}")),
            Event::Push { id, .. } => out.event(format!("push {id}")),
            Event::Data { id, data, end } => out.data_event(*id, data.len(), *end),
            Event::Trailers { id, .. } => out.event(format!("trailers {id}")),
            Event::Reset { id, .. } => out.event(format!("reset {id}")),
            Event::GoAway { last, .. } => out.event(format!("goaway {last}")),
            other => panic!("{other:?}"),
        }
    }

    fn output(&mut self, out: &mut Outcome) -> Vec<(u32, u32)> {
        let mut buffer = SendBuf::new();
        while self.session.wants_output() {
            self.session.poll_output(&mut buffer, usize::MAX);
        }
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        let mut credit = Vec::new();
        for seen in self.wire.read(&bytes) {
            match seen {
                Seen::SynStream { id, .. } => out.frame(format!("syn_stream {id}")),
                Seen::SynReply { id, fin, .. } => out.frame(format!("syn_reply {id} {fin}")),
                Seen::Rst { id, status } => out.frame(format!("rst {id} {status}")),
                Seen::Ping(id) => out.frame(format!("ping {id}")),
                Seen::GoAway { last, status } => out.frame(format!("goaway {last} {status}")),
                Seen::Headers { id, .. } => out.frame(format!("headers {id}")),
                Seen::WindowUpdate { id, delta } => credit.push((id, delta)),
                Seen::Settings(_) => {}
                Seen::Data { id, fin, bytes } => {
                    let (total, ended) = out.data.entry(id).or_default();
                    assert!(!*ended, "data after the end of {id}");
                    *total += bytes.len();
                    *ended |= fin;
                }
            }
        }
        credit
    }
}
