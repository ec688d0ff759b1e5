//! A daemon: a listener and its sessions.
//!
//! ```text
//!   SPDY_run ─▶ run.rs: poll, then for each session
//!                 read ─▶ session.rs ─▶ notices ─▶ callbacks (without the lock)
//!                 bodies from callbacks ─▶ delivery.rs ─▶ session core ─▶ write
//! ```
//!
//! All state is behind one lock. It is never held during a callback, so a callback may call every
//! function of the library.

mod delivery;
mod entries;
mod idle_memory;
mod listener;
mod requests;
mod run;
mod session;
mod turn;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use socket2::Socket;

pub(crate) use delivery::Queued;
pub(crate) use entries::{PushTarget, RequestEntry, SessionEntry};

use crate::ffi::callbacks::{Callbacks, EndedCallback};
use crate::transport::{TlsAcceptor, TlsError};
#[cfg(test)]
pub(crate) use session::MAX_STREAMS;
use session::Session;

/// Frames that a session sends in one run unless the program says otherwise.
const DEFAULT_FRAMES: u32 = 10;

/// Connections that wait for the client's end after ours, at most.
const MAX_LINGERING: usize = 64;

/// Identifies a session within its daemon.
pub(crate) type SessionId = u64;

/// The paths of PEM files.
#[derive(Debug)]
pub(crate) struct TlsFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// The options of a new daemon.
#[derive(Debug)]
pub(crate) struct Options {
    /// The port, if there is no address.
    pub(crate) port: u16,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) only_v6: bool,
    /// SPDY/3.1 where no handshake chooses the version.
    pub(crate) v31: bool,
    /// How long a session may be silent; `None` for ever.
    pub(crate) session_timeout: Option<Duration>,
    /// 0 for the default.
    pub(crate) max_frames: u32,
    /// `None` for plain TCP.
    pub(crate) tls: Option<TlsFiles>,
}

/// Why a daemon did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("port 0 needs an address")]
    NoPort,
    #[error("the address is not an IPv6 address")]
    NotV6,
    #[error("the listening descriptor does not fit into a set of select")]
    Descriptor,
    #[error("cannot listen: {0}")]
    Listen(#[from] std::io::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The descriptor of a daemon, and the events that it waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interest {
    pub(crate) descriptor: RawFd,
    pub(crate) read: bool,
    pub(crate) write: bool,
}

/// A daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    callbacks: Callbacks,
    /// The callback for requests that end without a response.
    ended: Mutex<Option<EndedCallback>>,
    me: Weak<Self>,
    v31: bool,
    session_timeout: Option<Duration>,
    max_frames: u32,
    acceptor: Option<TlsAcceptor>,
    turns: turn::Turns,
    state: Mutex<State>,
}

/// The part of a daemon that changes.
#[derive(Debug)]
struct State {
    listener: Option<Socket>,
    pause: listener::Pause,
    sessions: BTreeMap<SessionId, Session>,
    next_session: SessionId,
    /// Closed connections whose last bytes the client may still read.
    lingering: Vec<Lingering>,
    /// Read buffer of all sessions, while a run does not use it.
    scratch: Vec<u8>,
    trim: idle_memory::Trim,
}

/// A connection after our last byte: it is closed when the client closes it, or at a deadline. A
/// close with unread input would destroy a GOAWAY on its way.
#[derive(Debug)]
struct Lingering {
    socket: Socket,
    until: Instant,
}

impl State {
    /// Returns the listener, unless it pauses.
    fn accepting(&self, now: Instant) -> Option<&Socket> {
        let pauses = self.pause.until(now).is_some();
        self.listener.as_ref().filter(|_| !pauses)
    }
}

impl Daemon {
    /// Binds the address and listens.
    pub(crate) fn start(options: &Options, callbacks: Callbacks) -> Result<Arc<Self>, StartError> {
        // Clients may connect while the keys are read.
        let listener = listener::bind(options)?;
        let acceptor = match &options.tls {
            Some(files) => Some(TlsAcceptor::new(&files.certificate, &files.key)?),
            None => None,
        };
        let max_frames = match options.max_frames {
            0 => DEFAULT_FRAMES,
            frames => frames,
        };
        Ok(Arc::new_cyclic(|me| Self {
            callbacks,
            ended: Mutex::new(None),
            me: me.clone(),
            v31: options.v31,
            session_timeout: options.session_timeout,
            max_frames,
            acceptor,
            turns: turn::Turns::default(),
            state: Mutex::new(State {
                listener: Some(listener),
                pause: listener::Pause::default(),
                sessions: BTreeMap::new(),
                next_session: 0,
                lingering: Vec::new(),
                scratch: Vec::new(),
                trim: idle_memory::Trim::default(),
            }),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the callback for requests that end without a response.
    pub(crate) fn set_ended_callback(&self, callback: Option<EndedCallback>) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = callback;
    }

    fn ended_callback(&self) -> Option<EndedCallback> {
        let callback = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        callback.clone()
    }

    /// Runs `work` on a session; `None` if the session has ended.
    fn with_session<T>(&self, id: SessionId, work: impl FnOnce(&mut Session) -> T) -> Option<T> {
        self.state().sessions.get_mut(&id).map(work)
    }

    /// Stops the daemon. Inside a callback, the run does it at its end. Else this waits for the run
    /// of another thread.
    pub(crate) fn stop(&self) {
        if let Some(_turn) = self.turns.stop() {
            self.close_all();
        }
    }

    /// Lists the descriptors for `select`.
    pub(crate) fn interests(&self, now: Instant) -> Vec<Interest> {
        let state = self.state();
        let mut interests = Vec::with_capacity(state.sessions.len() + 1);
        if let Some(listener) = state.accepting(now) {
            interests.push(Interest {
                descriptor: listener.as_raw_fd(),
                read: true,
                write: false,
            });
        }
        let mut trim = state.trim.due(now).is_some_and(|time| time <= now);
        for session in state.sessions.values() {
            let deadline = session.deadline(self.session_timeout);
            let due = deadline.is_some_and(|deadline| deadline <= now) || trim;
            // One session that is writable lets `select` return.
            trim = false;
            interests.push(Interest {
                descriptor: session.descriptor(),
                read: session.wants_read(),
                write: due || session.has_work(),
            });
        }
        for lingering in &state.lingering {
            interests.push(Interest {
                descriptor: lingering.socket.as_raw_fd(),
                read: true,
                write: lingering.until <= now,
            });
        }
        interests
    }

    /// Returns the time of the next timeout, if there is one. Closed connections have none, since
    /// programs expect none without sessions: a later run removes them. The pause of a listener has
    /// one, or its end would pass unnoticed.
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        let state = self.state();
        let sessions = state.sessions.values().filter_map(|session| {
            if session.has_buffered_input() {
                Some(now)
            } else {
                session.deadline(self.session_timeout)
            }
        });
        let trim = state.trim.due(now).filter(|_| !state.sessions.is_empty());
        let pause = state.pause.until(now);
        sessions.chain(trim).chain(pause).min()
    }
}

/// A daemon that is dropped without [`Daemon::stop`] closes its sockets.
impl Drop for Daemon {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for session in state.sessions.values() {
            drop(crate::handles::remove::<SessionEntry>(session.handle()));
        }
    }
}
