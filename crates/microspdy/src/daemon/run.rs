//! `SPDY_run`: accepts, reads, calls the program and writes, without ever waiting.

use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use socket2::{SockAddr, Socket};
use tandem_http::StreamId;

use super::listener::{self, Accepted};
use super::session::{Origin, Session};
use super::{Daemon, Lingering, MAX_LINGERING, RequestEntry, SessionEntry, SessionId};
use crate::ffi::callbacks::{NewRequest, Outcome, PingCallback, ResultCallback};
use crate::handles::{self, Handle};
use crate::sys;
use crate::transport::{self, Transport};
use crate::user_data::UserData;

/// Connections that one run accepts.
const MAX_ACCEPTS: usize = 64;
/// The read buffer, in bytes.
const SCRATCH: usize = 64 << 10;
/// The time that a client has to read our last frames.
const LINGER_TIME: Duration = Duration::from_secs(5);

/// A callback that is due.
#[derive(Debug)]
pub(super) enum Notice {
    Request {
        request: Handle,
        stream: StreamId,
        more: bool,
    },
    Data {
        request: Handle,
        stream: StreamId,
        data: Bytes,
        more: bool,
    },
    Result {
        callback: ResultCallback,
        response: Handle,
        request: Handle,
        outcome: Outcome,
        open: bool,
    },
    /// A request has ended without a response.
    Ended { request: Handle, outcome: Outcome },
    Pong {
        callback: PingCallback,
        sent: Instant,
    },
}

/// A session that a run has to visit.
struct Visit {
    id: SessionId,
    readable: bool,
    writable: bool,
}

impl Daemon {
    /// Does the work that is due. A call inside a callback of the same daemon does nothing, nor
    /// does one beside the run of another thread.
    pub(crate) fn run(&self) {
        let Some(turn) = self.turns.begin() else {
            return;
        };
        let now = Instant::now();
        let (visits, accepts) = self.look(now);
        if accepts {
            self.accept_all(now);
        }
        for visit in visits {
            self.serve(&visit, now);
        }
        self.state().trim.check(now);
        if let Some(_turn) = turn.end() {
            self.close_all();
        }
    }

    /// Finds out which descriptors are ready.
    fn look(&self, now: Instant) -> (Vec<Visit>, bool) {
        let mut state = self.state();
        let entry = |descriptor, read: bool, write: bool| libc::pollfd {
            fd: descriptor,
            events: if read { libc::POLLIN } else { 0 } | if write { libc::POLLOUT } else { 0 },
            revents: 0,
        };
        let mut polled: Vec<_> = state
            .sessions
            .values()
            .map(|session| {
                entry(
                    session.descriptor(),
                    session.wants_read(),
                    session.is_blocked(),
                )
            })
            .collect();
        let listener = state.accepting(now).map(|socket| socket.as_raw_fd());
        polled.extend(listener.map(|descriptor| entry(descriptor, true, false)));
        sys::poll_now(&mut polled);
        let accepts = listener.is_some() && polled.pop().is_some_and(|last| last.revents != 0);
        let timeout = self.session_timeout;
        let visits = state
            .sessions
            .iter()
            .zip(&polled)
            .filter_map(|((&id, session), polled)| {
                let due = session.deadline(timeout).is_some_and(|time| time <= now);
                let writable = !session.is_blocked() || polled.revents & !libc::POLLIN != 0;
                let readable = polled.revents & !libc::POLLOUT != 0 || session.has_buffered_input();
                let work = due || readable || writable && session.has_work();
                work.then_some(Visit {
                    id,
                    readable,
                    writable,
                })
            })
            .collect();
        state
            .lingering
            .retain(|lingering| now < lingering.until && transport::drain(&lingering.socket));
        (visits, accepts)
    }

    fn accept_all(&self, now: Instant) {
        for _ in 0..MAX_ACCEPTS {
            let accepted = match &self.state().listener {
                Some(listener) => listener::accept(listener),
                None => Accepted::None,
            };
            match accepted {
                Accepted::Connection(socket, address) => {
                    if let Some((id, handle)) = self.enter(socket, address, now) {
                        self.callbacks.new_session(handle);
                        // The first frames of the client have often come already.
                        let visit = Visit {
                            id,
                            readable: true,
                            writable: true,
                        };
                        self.serve(&visit, now);
                    }
                }
                Accepted::Unusable => {}
                Accepted::None => return,
                Accepted::Exhausted => return self.state().pause.begin(Instant::now()),
            }
        }
    }

    /// Makes a connection a session.
    fn enter(
        &self,
        socket: Socket,
        address: SockAddr,
        now: Instant,
    ) -> Option<(SessionId, Handle)> {
        // Each write carries all bytes that are ready, so there is nothing to wait for. A socket
        // without the option still works.
        let _ = socket.set_tcp_nodelay(true);
        let transport = match &self.acceptor {
            None => Transport::Raw,
            Some(acceptor) => Transport::Tls(Box::new(acceptor.accept().ok()?)),
        };
        let mut state = self.state();
        let id = state.next_session;
        state.next_session += 1;
        let handle = handles::insert(Arc::new(SessionEntry {
            daemon: self.me.clone(),
            id,
            address,
            cls: UserData::default(),
        }))?;
        let origin = Origin {
            id,
            handle,
            daemon: self.me.clone(),
            socket,
            transport,
            v31: self.v31,
        };
        state.sessions.insert(id, Session::new(origin, now));
        Some((id, handle))
    }

    /// Serves a session: input, callbacks, output.
    fn serve(&self, visit: &Visit, now: Instant) {
        let id = visit.id;
        if visit.readable {
            let mut scratch = std::mem::take(&mut self.state().scratch);
            scratch.resize(SCRATCH, 0);
            let notices = self.with_session(id, |session| session.receive(&mut scratch, now));
            self.state().scratch = scratch;
            self.deliver(id, notices.unwrap_or_default(), now);
        }
        let timeout = self.session_timeout;
        let freed = self.with_session(id, |session| {
            session.begin_round();
            session.check_time(timeout, now)
        });
        if freed == Some(true) {
            self.state().trim.want();
        }
        if visit.writable {
            self.send(id, now);
        }
        self.end_if_over(id, now);
    }

    /// Lets a session write, and fetches the bodies that come from callbacks.
    fn send(&self, id: SessionId, now: Instant) {
        let mut frames = self.max_frames as usize;
        loop {
            let pulls = self.with_session(id, Session::pulls).unwrap_or_default();
            for pull in pulls {
                let block = pull.callback.call();
                let notices = self.with_session(id, |session| session.fill(pull.stream, block));
                self.deliver(id, notices.unwrap_or_default(), now);
            }
            let result = self.with_session(id, |session| session.transmit(&mut frames, now));
            let Some((notices, again)) = result else {
                return;
            };
            self.deliver(id, notices, now);
            if !again {
                return;
            }
        }
    }

    /// Calls the program.
    fn deliver(&self, id: SessionId, notices: Vec<Notice>, now: Instant) {
        for notice in notices {
            match notice {
                Notice::Request {
                    request,
                    stream,
                    more,
                } => self.deliver_request(id, request, stream, more),
                Notice::Data {
                    request,
                    stream,
                    data,
                    more,
                } => self.deliver_data(id, request, (stream, data), more),
                Notice::Result {
                    callback,
                    response,
                    request,
                    outcome,
                    open,
                } => callback.call(response, request, outcome, open),
                Notice::Ended { request, outcome } => {
                    self.deliver_end(id, request, outcome, now);
                }
                Notice::Pong { callback, sent } => {
                    if let Some(session) = self.with_session(id, |session| session.handle()) {
                        callback.call(session, now.saturating_duration_since(sent));
                    }
                }
            }
        }
    }

    fn deliver_request(&self, id: SessionId, request: Handle, stream: StreamId, more: bool) {
        let live = self.with_session(id, |session| session.takes_requests());
        let wanted = self.callbacks.new_request.is_some() && live == Some(true);
        // A program for libmicrospdy expects that it can answer at once.
        let entry =
            handles::get::<RequestEntry>(request).filter(|entry| wanted && !entry.has_ended());
        let Some(entry) = entry else {
            let entry = handles::remove::<RequestEntry>(request);
            if !entry.is_some_and(|entry| entry.has_ended()) {
                self.with_session(id, |session| session.refuse(stream));
            }
            return;
        };
        self.callbacks.new_request(&NewRequest {
            request,
            priority: entry.priority.0,
            texts: entry.texts(),
            headers: entry.headers,
            more,
        });
    }

    fn deliver_data(
        &self,
        id: SessionId,
        request: Handle,
        (stream, data): (StreamId, Bytes),
        more: bool,
    ) {
        let live = self.with_session(id, |session| session.takes_requests());
        if let Some(entry) = handles::get::<RequestEntry>(request)
            && live == Some(true)
            && !entry.has_ended()
            && !entry.is_deaf()
            && !self.callbacks.new_data(request, &data, more)
        {
            entry.deaf.store(true, Ordering::Release);
        }
        self.with_session(id, |session| session.release(stream, data.len()));
    }

    /// Destroys a request that has ended without a response. A program that has no callback for it
    /// may use the request until its session ends.
    fn deliver_end(&self, id: SessionId, request: Handle, outcome: Outcome, now: Instant) {
        let Some(entry) = handles::get::<RequestEntry>(request) else {
            return;
        };
        match self.ended_callback() {
            // The texts that the program got belong to `entry`.
            Some(callback) => callback.call(request, outcome),
            None if outcome == Outcome::StreamClosed => {
                let kept = self.with_session(id, |session| session.keep(request, now));
                if kept.is_some() {
                    return;
                }
            }
            None => {}
        }
        drop(handles::remove::<RequestEntry>(request));
        drop(entry);
    }

    /// Removes a session that has ended, and tells the program.
    fn end_if_over(&self, id: SessionId, now: Instant) {
        let mut state = self.state();
        let Some(by_client) = state.sessions.get(&id).and_then(Session::ended) else {
            return;
        };
        let Some(session) = state.sessions.remove(&id) else {
            return;
        };
        state.pause.end();
        drop(state);
        let handle = session.handle();
        let (socket, notices) = session.end();
        self.tell_end(id, handle, by_client, notices, now);
        self.linger(socket, by_client, now);
    }

    /// Keeps a connection that we closed until the client has read our last frames.
    fn linger(&self, socket: Socket, by_client: bool, now: Instant) {
        let ended = socket.shutdown(std::net::Shutdown::Write).is_ok();
        let mut state = self.state();
        if ended && !by_client && state.lingering.len() < MAX_LINGERING {
            state.lingering.push(Lingering {
                socket,
                until: now + LINGER_TIME,
            });
        }
    }

    /// Calls the program for the end of a session. Its handle is valid until the last call.
    fn tell_end(
        &self,
        id: SessionId,
        handle: Handle,
        by_client: bool,
        notices: Vec<Notice>,
        now: Instant,
    ) {
        self.callbacks.session_closed(handle, by_client);
        self.deliver(id, notices, now);
        drop(handles::remove::<SessionEntry>(handle));
    }

    /// Closes the listener and all sessions, with a GOAWAY where the socket takes it at once.
    pub(super) fn close_all(&self) {
        let now = Instant::now();
        let (listener, sessions) = {
            let mut state = self.state();
            state.lingering.clear();
            (state.listener.take(), std::mem::take(&mut state.sessions))
        };
        drop(listener);
        for (id, mut session) in sessions {
            session.close(now);
            let mut frames = usize::MAX;
            let (mut notices, _) = session.transmit(&mut frames, now);
            let handle = session.handle();
            let (socket, ended) = session.end();
            notices.extend(ended);
            self.tell_end(id, handle, false, notices, now);
            // A close with unread input would reset the connection and lose the GOAWAY.
            let _ = socket.shutdown(std::net::Shutdown::Write);
            transport::drain(&socket);
        }
    }
}
