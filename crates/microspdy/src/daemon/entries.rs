//! The objects behind the handles of sessions and requests. They refer to the daemon's state by
//! number, so they may outlive it.

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use socket2::SockAddr;
use tandem_http::{Priority, RequestHead, Scheme, StreamId};
use tandem_spdy::Version;
use tandem_spdy::frame::Settings as SettingsFrame;

use super::session::Session;
use super::{Daemon, Queued, SessionId};
use crate::ffi::callbacks::PingCallback;
use crate::handles::{self, Handle};
use crate::name_value::NameValue;
use crate::user_data::UserData;

/// A session as the program sees it.
#[derive(Debug)]
pub(crate) struct SessionEntry {
    pub(super) daemon: Weak<Daemon>,
    pub(super) id: SessionId,
    pub(crate) address: SockAddr,
    pub(crate) cls: UserData,
}

impl SessionEntry {
    fn with<T>(&self, work: impl FnOnce(&mut Session) -> T) -> Option<T> {
        self.daemon.upgrade()?.with_session(self.id, work)
    }

    /// Closes the session: GOAWAY in the next run, then the connection.
    pub(crate) fn close(&self) {
        self.with(|session| session.close(Instant::now()));
    }

    /// Queues a ping. False if the session cannot send it.
    pub(crate) fn send_ping(&self, callback: Option<PingCallback>) -> bool {
        self.with(|session| session.send_ping(callback, Instant::now()))
            .unwrap_or(false)
    }

    /// Queues a SETTINGS frame. False if the session cannot send it.
    pub(crate) fn send_settings(&self, frame: &SettingsFrame) -> bool {
        self.with(|session| session.send_settings(frame))
            .unwrap_or(false)
    }

    /// Returns true if the client takes pushes.
    pub(crate) fn takes_push(&self) -> bool {
        self.with(|session| session.takes_push()).unwrap_or(false)
    }

    /// Returns 30 for SPDY/3 and 31 for SPDY/3.1, once that is known.
    pub(crate) fn version(&self) -> Option<u8> {
        self.with(|session| session.version())?
            .map(|version| match version {
                Version::V3 => 30,
                Version::V31 => 31,
            })
    }
}

/// A request, or a push, as the program sees it.
#[derive(Debug)]
pub(crate) struct RequestEntry {
    daemon: Weak<Daemon>,
    session_id: SessionId,
    stream: StreamId,
    pub(crate) session: Handle,
    pub(crate) cls: UserData,
    /// Method, path, version, host and scheme.
    texts: [CString; 5],
    /// The header fields, destroyed with the request.
    pub(super) headers: Handle,
    /// The priority of the stream.
    pub(super) priority: Priority,
    /// The program wants no more of the body.
    pub(super) deaf: AtomicBool,
    /// The client has reset the stream, and the program has not answered.
    pub(super) ended: AtomicBool,
    /// The request's own handle.
    pub(super) handle: OnceLock<Handle>,
}

/// The resource of a push.
#[derive(Debug)]
pub(crate) struct PushTarget<'a> {
    pub(crate) scheme: Scheme,
    pub(crate) host: &'a CStr,
    pub(crate) path: &'a CStr,
    pub(crate) priority: u8,
}

impl PushTarget<'_> {
    /// Returns the GET request of the push; `None` if the host or path cannot be one.
    fn head(&self) -> Option<RequestHead> {
        let legal = |text: &CStr| {
            let text = text.to_str().ok()?;
            let legal = !text.is_empty() && text.bytes().all(|byte| byte > b' ' && byte != 0x7f);
            legal.then(|| text.to_owned())
        };
        let path = legal(self.path).filter(|path| path.starts_with('/'))?;
        Some(RequestHead::get(self.scheme, legal(self.host)?, path))
    }
}

impl RequestEntry {
    /// Enters a request of the peer. `None` if it has a NUL in a text, or the table is full.
    pub(super) fn enter(
        daemon: &Weak<Daemon>,
        (session_id, session): (SessionId, Handle),
        stream: StreamId,
        head: &RequestHead,
        priority: Priority,
    ) -> Option<Handle> {
        let version = head.fields.get(":version").unwrap_or(b"HTTP/1.1");
        let texts = [
            CString::new(head.method.as_str()).ok()?,
            CString::new(head.path.as_str()).ok()?,
            CString::new(version).ok()?,
            CString::new(head.authority.as_str()).ok()?,
            CString::new(head.scheme.as_str()).ok()?,
        ];
        let headers = handles::insert(Arc::new(NameValue::from_fields(&head.fields)))?;
        let entry = Arc::new(Self {
            daemon: daemon.clone(),
            session_id,
            stream,
            session,
            cls: UserData::default(),
            texts,
            headers,
            priority,
            deaf: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            handle: OnceLock::new(),
        });
        let handle = handles::insert(Arc::clone(&entry))?;
        entry.handle.get_or_init(|| handle);
        Some(handle)
    }

    pub(super) fn texts(&self) -> [&CStr; 5] {
        self.texts.each_ref().map(CString::as_c_str)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(super) fn is_deaf(&self) -> bool {
        self.deaf.load(Ordering::Acquire)
    }

    fn with<T>(&self, work: impl FnOnce(&mut Session) -> T) -> Option<T> {
        self.daemon.upgrade()?.with_session(self.session_id, work)
    }

    /// Queues a response. False if the stream or the session can send no more.
    pub(crate) fn queue(self: &Arc<Self>, queued: Queued, by_priority: bool) -> bool {
        let priority = if by_priority {
            self.priority
        } else {
            Priority::default()
        };
        self.with(|session| session.queue(self.stream, self, queued, Some(priority)))
            .unwrap_or(false)
    }

    /// Announces a push for this request and queues its response. Returns the handle of the push.
    pub(crate) fn push(&self, target: &PushTarget<'_>, queued: Queued) -> Option<Handle> {
        let head = target.head()?;
        let priority = Priority(target.priority);
        // Only a response with status 200 can be pushed: the announcement names it already.
        if queued.object.status != 200 {
            return None;
        }
        let place = (self.session_id, self.session);
        self.with(|session| {
            let stream = session.announce(self.stream, &head, priority)?;
            let push = Self::enter(&self.daemon, place, stream, &head, priority);
            let entry = push.and_then(handles::get::<Self>);
            match entry {
                Some(entry) if session.queue(stream, &entry, queued, None) => push,
                _ => {
                    session.give_up(stream);
                    None
                }
            }
        })
        .flatten()
    }

    /// Changes the priority of the response. False if the stream has ended.
    pub(crate) fn set_priority(&self, priority: u8) -> bool {
        self.with(|session| session.set_priority(self.stream, Priority(priority)))
            .unwrap_or(false)
    }
}

impl Drop for RequestEntry {
    fn drop(&mut self) {
        drop(handles::remove::<NameValue>(self.headers));
    }
}
