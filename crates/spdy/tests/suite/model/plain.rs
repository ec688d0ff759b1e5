//! The model, written from the drafts: the frames, events and streams that each step must cause.

use std::collections::{BTreeMap, BTreeSet};

use tandem_http::Role;
use tandem_spdy::Version;

use super::{MAX_STREAMS, Outcome, SESSION_WINDOW, STREAM_WINDOW, Step};

#[derive(Clone, Debug)]
pub(super) struct ModelStream {
    pub(super) own: bool,
    push: bool,
    parent: u32,
    we_may_send: bool,
    peer_may_send: bool,
    /// Own request: answered. Otherwise: we gave the head.
    replied: bool,
    head_pending: bool,
    urgency: u8,
    sent: usize,
    send_window: i64,
    queued: usize,
    ending: bool,
    receive_window: i64,
    held: usize,
    uncredited: usize,
    names: BTreeSet<u8>,
    trailers: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) client: bool,
    v31: bool,
    pub(super) live: BTreeMap<u32, ModelStream>,
    /// Streams that get no RST_STREAM (any more), and those that closed while data of them was
    /// held.
    told: BTreeSet<u32>,
    next_own: u32,
    pub(super) last_peer: u32,
    last_taken: u32,
    left: bool,
    peer_left: bool,
    peer_window: i64,
    session_send: i64,
    session_receive: i64,
    session_uncredited: usize,
    peer_set: bool,
    pub(super) out: Outcome,
}

impl Model {
    pub(super) fn new(role: Role, version: Version) -> Self {
        let client = role == Role::Client;
        Self {
            client,
            v31: version == Version::V31,
            live: BTreeMap::new(),
            told: BTreeSet::new(),
            next_own: if client { 1 } else { 2 },
            last_peer: 0,
            last_taken: 0,
            left: false,
            peer_left: false,
            peer_window: 65_536,
            session_send: 65_536,
            session_receive: i64::from(SESSION_WINDOW),
            session_uncredited: 0,
            peer_set: false,
            out: Outcome::default(),
        }
    }

    fn own_id(&self, id: u32) -> bool {
        (id % 2 == 1) == self.client
    }

    fn count(&self, own: bool) -> usize {
        self.live
            .values()
            .filter(|stream| stream.own == own)
            .count()
    }

    fn stream(&mut self, id: u32, own: bool, push: bool, urgency: u8) -> &mut ModelStream {
        let stream = ModelStream {
            own,
            push,
            parent: 0,
            we_may_send: true,
            peer_may_send: true,
            replied: false,
            head_pending: push && !own,
            urgency,
            sent: 0,
            send_window: self.peer_window,
            queued: 0,
            ending: false,
            receive_window: i64::from(STREAM_WINDOW),
            held: 0,
            uncredited: 0,
            names: BTreeSet::new(),
            trailers: false,
        };
        self.live.entry(id).or_insert(stream)
    }

    fn fail(&mut self, status: u32) {
        self.live.clear();
        self.out.failed = true;
        let last = self.last_peer;
        self.out.frame(format!("goaway {last} {status}"));
    }

    fn stream_error(&mut self, id: u32, status: u32) {
        if self.live.remove(&id).is_some() {
            self.out.event(format!("reset {id}"));
        } else if self.told.contains(&id) {
            return;
        }
        self.told.insert(id);
        self.out.frame(format!("rst {id} {status}"));
    }

    fn stray(&mut self, id: u32) {
        if id != 0 && !self.left {
            self.stream_error(id, 2);
        }
    }

    fn sweep(&mut self) {
        self.live
            .retain(|_, stream| stream.we_may_send || stream.peer_may_send);
    }

    fn peer_ends(&mut self, id: u32) {
        if let Some(stream) = self.live.get_mut(&id) {
            if stream.trailers {
                self.out.event(format!("trailers {id}"));
            } else {
                self.out.data_event(id, 0, true);
            }
            stream.peer_may_send = false;
        }
        self.sweep();
    }

    pub(super) fn step(&mut self, step: &Step) {
        match *step {
            Step::PeerOpens {
                id,
                associated,
                fin,
            } => self.peer_opens(id, associated, fin),
            Step::PeerReplies { id, fin } => self.peer_replies(id, fin),
            Step::PeerSends { id, len, fin } => self.peer_sends(id, len, fin),
            Step::PeerAdds { id, name, fin } => self.peer_adds(id, name, fin),
            Step::PeerResets { id } => self.peer_resets(id),
            Step::PeerCredits { id, delta } => self.peer_credits(id, delta),
            Step::PeerSets { window } => self.peer_sets(window),
            Step::PeerPings { id } if !self.own_id(id) => self.out.frame(format!("ping {id}")),
            Step::PeerPings { .. } => {}
            Step::PeerLeaves { last } => {
                self.peer_left = true;
                self.out.event(format!("goaway {last}"));
                let gone: Vec<_> = self
                    .live
                    .iter()
                    .filter(|(id, stream)| {
                        let answered = !stream.push && stream.replied;
                        stream.own && **id > last && !answered
                    })
                    .map(|(id, _)| *id)
                    .collect();
                for id in gone {
                    self.live.remove(&id);
                    self.told.insert(id);
                    self.out.event(format!("reset {id}"));
                }
            }
            Step::Open { fin, urgency } if self.client && !self.left && !self.peer_left => {
                let id = self.next_own;
                self.next_own += 2;
                self.out.frame(format!("syn_stream {id}"));
                self.stream(id, true, false, urgency).we_may_send = !fin;
            }
            Step::Push { parent, urgency } => self.push(parent, urgency),
            Step::Respond { id, fin } => self.respond(id, fin),
            Step::Send { id, len, fin } => {
                if let Some(stream) = self
                    .live
                    .get_mut(&id)
                    .filter(|stream| stream.we_may_send && !stream.ending)
                {
                    stream.queued += len;
                    stream.ending = fin;
                }
            }
            Step::Reset { id } => {
                if self.live.remove(&id).is_some() {
                    self.told.insert(id);
                    self.out.frame(format!("rst {id} 5"));
                }
            }
            Step::Release { id, len } => {
                if let Some(stream) = self.live.get_mut(&id) {
                    let len = len.min(stream.held);
                    stream.held -= len;
                    if stream.peer_may_send {
                        stream.uncredited += len;
                    }
                }
            }
            Step::Leave if !self.left => {
                self.left = true;
                let last = self.last_taken;
                self.out.frame(format!("goaway {last} 0"));
            }
            Step::Open { .. } | Step::Leave => {}
        }
        self.send_all();
    }

    fn peer_opens(&mut self, id: u32, associated: u32, fin: bool) {
        if id == 0 || self.own_id(id) || id < self.last_peer {
            return self.fail(1);
        }
        let again = id == self.last_peer;
        self.last_peer = id;
        if self.client && associated == 0 {
            self.fail(1);
        } else if again {
            self.stream_error(id, 1);
        } else if self.left {
            // Ignored.
        } else if self.count(false) >= MAX_STREAMS {
            self.stream_error(id, 3);
        } else if self.client {
            if !self
                .live
                .get(&associated)
                .is_some_and(|parent| parent.own && parent.peer_may_send)
            {
                return self.stream_error(id, 2);
            }
            self.last_taken = id;
            self.stream(id, false, true, 3).we_may_send = false;
            self.out.event(format!("push {id}"));
            if fin {
                self.out.event(format!("response {id}"));
                self.live.remove(&id);
            }
        } else {
            self.last_taken = id;
            self.stream(id, false, false, 3).peer_may_send = !fin;
            self.out.event(format!("request {id}"));
        }
    }

    fn peer_replies(&mut self, id: u32, fin: bool) {
        let Some(stream) = self.live.get_mut(&id) else {
            return self.stray(id);
        };
        match (stream.own, stream.push, stream.replied) {
            (true, false, true) => self.stream_error(id, 8),
            (true, false, false) => {
                stream.replied = true;
                stream.peer_may_send = !fin;
                self.out.event(format!("response {id}"));
                self.sweep();
            }
            (true, true, _) => {}
            (false, ..) => self.stream_error(id, 1),
        }
    }

    fn peer_sends(&mut self, id: u32, len: usize, fin: bool) {
        if id == 0 {
            return self.fail(1);
        }
        if self.v31 {
            self.session_receive -= len as i64;
            if self.session_receive < 0 {
                return self.fail(7);
            }
            self.session_uncredited += len;
        }
        let Some(stream) = self.live.get_mut(&id) else {
            return self.stray(id);
        };
        stream.receive_window -= len as i64;
        if !stream.peer_may_send {
            self.stream_error(id, 9);
        } else if stream.own && !stream.push && !stream.replied {
            self.stream_error(id, 1);
        } else if stream.receive_window < 0 {
            self.stream_error(id, 7);
        } else {
            self.take_data(id, len, fin);
        }
    }

    fn take_data(&mut self, id: u32, len: usize, fin: bool) {
        let Some(stream) = self.live.get_mut(&id) else {
            return;
        };
        stream.held += len;
        if std::mem::take(&mut stream.head_pending) {
            stream.names.clear();
            self.out.event(format!("response {id}"));
            if len == 0 && fin {
                self.live.remove(&id);
                return;
            }
        }
        if len > 0 {
            self.out.data_event(id, len, false);
        }
        if fin {
            self.peer_ends(id);
        }
    }

    fn peer_adds(&mut self, id: u32, name: u8, fin: bool) {
        let Some(stream) = self.live.get_mut(&id) else {
            return self.stray(id);
        };
        if !stream.peer_may_send {
            return self.stream_error(id, 9);
        }
        if stream.own && !stream.push && !stream.replied || !stream.names.insert(name) {
            return self.stream_error(id, 1);
        }
        stream.trailers |= !stream.head_pending;
        if !fin {
            return;
        }
        if stream.head_pending {
            self.out.event(format!("response {id}"));
            self.live.remove(&id);
        } else {
            self.peer_ends(id);
        }
    }

    fn peer_resets(&mut self, id: u32) {
        if self.live.remove(&id).is_some() {
            self.told.insert(id);
            self.out.event(format!("reset {id}"));
        }
        let pushes: Vec<_> = self
            .live
            .iter()
            .filter(|(_, stream)| stream.own && stream.push && stream.parent == id)
            .map(|(id, _)| *id)
            .collect();
        for push in pushes {
            self.stream_error(push, 5);
        }
    }

    fn peer_credits(&mut self, id: u32, delta: u32) {
        let max = i64::from(u32::MAX >> 1);
        if id == 0 {
            if self.v31 {
                self.session_send += i64::from(delta);
                if delta == 0 {
                    self.fail(1);
                } else if self.session_send > max {
                    self.fail(7);
                }
            }
        } else if let Some(stream) = self.live.get_mut(&id) {
            stream.send_window += i64::from(delta);
            if delta == 0 {
                self.stream_error(id, 1);
            } else if stream.send_window > max {
                self.stream_error(id, 7);
            }
        }
    }

    fn peer_sets(&mut self, window: u32) {
        self.peer_set = true;
        let max = i64::from(u32::MAX >> 1);
        let delta = i64::from(window) - self.peer_window;
        self.peer_window = i64::from(window);
        let mut over = Vec::new();
        for (id, stream) in &mut self.live {
            stream.send_window += delta;
            if stream.send_window > max {
                over.push(*id);
            }
        }
        for id in over {
            self.stream_error(id, 7);
        }
    }

    fn push(&mut self, parent: u32, urgency: u8) {
        let open = !self.client && !self.left && !self.peer_left;
        let parent_open = self
            .live
            .get(&parent)
            .is_some_and(|stream| !stream.own && stream.we_may_send);
        if open && parent_open {
            let id = self.next_own;
            self.next_own += 2;
            self.out.frame(format!("syn_stream {id}"));
            let stream = self.stream(id, true, true, urgency);
            stream.peer_may_send = false;
            stream.parent = parent;
        }
    }

    fn respond(&mut self, id: u32, fin: bool) {
        let Some(stream) = self.live.get_mut(&id).filter(|stream| !stream.replied) else {
            return;
        };
        if stream.own && stream.push {
            stream.replied = true;
            stream.ending |= fin;
            self.out.frame(format!("headers {id}"));
        } else if !stream.own && !stream.push {
            stream.replied = true;
            stream.we_may_send = !fin;
            self.out.frame(format!("syn_reply {id} {fin}"));
            self.sweep();
        }
    }

    /// Sends as much as the windows permit, 8 KiB at a time. The most urgent stream goes first,
    /// then the one that sent least in steps of 16 KiB, then the oldest.
    fn send_all(&mut self) {
        loop {
            let room = if self.v31 {
                self.session_send.max(0) as usize
            } else {
                usize::MAX
            };
            let ready = |stream: &ModelStream| {
                let head = stream.replied || stream.own && !stream.push;
                stream.we_may_send
                    && head
                    && stream.queued > 0
                    && stream.send_window > 0
                    && room > 0
            };
            let next = self
                .live
                .iter_mut()
                .filter(|(_, stream)| ready(stream))
                .min_by_key(|(id, stream)| (stream.urgency, stream.sent / 16_384, **id));
            let Some((&id, stream)) = next else { break };
            let len = stream
                .queued
                .min(stream.send_window as usize)
                .min(room)
                .min(8192);
            stream.queued -= len;
            stream.sent += len;
            stream.send_window -= len as i64;
            self.session_send -= len as i64;
            self.out.data.entry(id).or_default().0 += len;
        }
        for (&id, stream) in &mut self.live {
            let head = stream.replied || stream.own && !stream.push;
            if stream.we_may_send && head && stream.ending && stream.queued == 0 {
                stream.we_may_send = false;
                self.out.data.entry(id).or_default().1 = true;
            }
        }
        self.sweep();
    }

    /// Credit that was seen: never more than was used, and none that is urgent left out.
    pub(super) fn credited(&mut self, id: u32, delta: u32) {
        let delta = delta as usize;
        if id == 0 {
            assert!(
                self.v31 && delta <= self.session_uncredited,
                "session credit {delta}"
            );
            self.session_uncredited -= delta;
            self.session_receive += delta as i64;
        } else if let Some(stream) = self.live.get_mut(&id) {
            assert!(
                delta <= stream.uncredited && stream.peer_may_send,
                "credit {delta} on {id}"
            );
            stream.uncredited -= delta;
            stream.receive_window += delta as i64;
        } else {
            panic!("credit on {id}, which is gone");
        }
    }

    pub(super) fn check_credit(&self) {
        let urgent = |window: u32| if self.peer_set { window / 4 } else { 16_384 } as usize;
        assert!(
            self.session_uncredited < urgent(SESSION_WINDOW),
            "session credit held back"
        );
        for (id, stream) in self.live.iter().filter(|(_, stream)| stream.peer_may_send) {
            assert!(
                stream.uncredited < urgent(STREAM_WINDOW),
                "credit of {id} held back"
            );
        }
    }
}
