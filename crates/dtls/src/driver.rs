//! The task of one association, which moves its datagrams and wakes its streams.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use tandem::error::{Error, Kind};
use tandem::metrics::METRICS;

use crate::carrier::{AssociationFacts, LINGER, Shared};
use crate::socket::{After, Socket};

/// The datagrams that are sent or received before other tasks of the thread run.
const BATCH: usize = 64;
/// The failures of the socket in a row, without a datagram between them, that end an association.
const MAX_FAILURES: u32 = 3;

/// Moves the datagrams of one association.
pub(crate) struct Driver {
    pub(crate) shared: Rc<Shared>,
    pub(crate) socket: Socket,
    pub(crate) facts: Rc<AssociationFacts>,
    /// True once the tasks that wait for the handshake were woken.
    pub(crate) announced: bool,
    pub(crate) dropped_at: Option<Instant>,
    pub(crate) failures: u32,
    pub(crate) out: Vec<u8>,
}

impl Drop for Driver {
    /// Tells the peer if the task ends with its thread.
    fn drop(&mut self) {
        let mut association = self.shared.association.borrow_mut();
        association.close(0);
        for _ in 0..BATCH {
            let to = association.poll_output(Instant::now(), &mut self.out);
            let Some(to) = to else { return };
            self.socket.try_send(to, &self.out);
        }
    }
}

impl Driver {
    pub(crate) async fn run(mut self) {
        METRICS.dtls_associations.add(1);
        loop {
            let all = self.send().await;
            self.shared.dispatch();
            let (ended, wake_at, remote, connected, certified) = {
                let association = self.shared.association.borrow();
                if let Some(error) = association.ended() {
                    self.shared.end(error);
                }
                let ended = association.ended().is_some();
                let (remote, connected) = (association.remote(), association.is_connected());
                let certified = connected && association.has_peer_certificate();
                (
                    ended,
                    association.poll_timeout(),
                    remote,
                    connected,
                    certified,
                )
            };
            self.facts.peer.set(remote);
            self.facts.has_peer_certificate.set(certified);
            if connected && !self.announced {
                self.announced = true;
                self.shared.wake_waiting();
            }
            if ended || self.shared.ended.borrow().is_some() {
                break;
            }
            let now = Instant::now();
            if self.shared.is_done(&mut self.dropped_at, now) {
                let mut association = self.shared.association.borrow_mut();
                if !association.is_connected() {
                    drop(association);
                    let detail = "the handshake was given up";
                    self.shared
                        .fail(Error::new(Kind::Reset, self.shared.side, detail));
                    break;
                }
                association.close(0);
                continue;
            }
            self.wait(all, wake_at).await;
        }
        METRICS.dtls_associations.sub(1);
    }

    /// Sends the datagrams that are due. Returns false if more of them wait.
    async fn send(&mut self) -> bool {
        for _ in 0..BATCH {
            let now = Instant::now();
            let mut out = std::mem::take(&mut self.out);
            let to = self
                .shared
                .association
                .borrow_mut()
                .poll_output(now, &mut out);
            self.out = out;
            let Some(to) = to else { return true };
            match self.socket.send(to, &self.out).await {
                Ok(()) => METRICS.dtls_datagrams_sent.add(1),
                Err(error) => self.on_failure(&error),
            }
        }
        false
    }

    /// Acts on an error of the socket. A datagram that could not be sent counts as lost.
    fn on_failure(&mut self, error: &io::Error) {
        match self.socket.after(error) {
            After::Ignore => {}
            After::Moved => {
                let mut association = self.shared.association.borrow_mut();
                let now = association.tunnel_time(Instant::now());
                association.tunnel().path_changed(now);
            }
            After::Refused => {
                self.failures += 1;
                let connected = self.shared.association.borrow().is_connected();
                if !connected || self.failures >= MAX_FAILURES {
                    self.shared.fail(Error::io(error, self.shared.side));
                }
            }
        }
    }

    /// Waits for a datagram, a call of a stream or a timer.
    async fn wait(&mut self, all_sent: bool, wake_at: Option<Instant>) {
        if !all_sent {
            tokio::task::yield_now().await;
        }
        let linger = self.dropped_at.map(|at| at + LINGER);
        let wake_at = if all_sent {
            wake_at.into_iter().chain(linger).min()
        } else {
            Some(Instant::now())
        };
        let timer = async {
            match wake_at {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let shared = Rc::clone(&self.shared);
        let received = tokio::select! {
            biased;
            received = self.socket.receive() => Some(received),
            () = shared.work.notified() => None,
            () = timer => None,
        };
        if let Some(received) = received {
            self.take(received);
            // More datagrams are often there already.
            for _ in 1..BATCH {
                match self.socket.try_receive() {
                    Some(received) => self.take(received),
                    None => break,
                }
            }
        }
        shared
            .association
            .borrow_mut()
            .handle_timeout(Instant::now());
    }

    fn take(&mut self, received: io::Result<(SocketAddr, Vec<u8>)>) {
        match received {
            Ok((from, datagram)) => {
                METRICS.dtls_datagrams_received.add(1);
                self.facts.received.set(self.facts.received.get() + 1);
                let bytes = &self.facts.received_bytes;
                bytes.set(bytes.get() + datagram.len() as u64);
                self.failures = 0;
                let now = Instant::now();
                let mut association = self.shared.association.borrow_mut();
                association.handle_datagram(now, from, &datagram);
            }
            Err(error) => self.on_failure(&error),
        }
    }
}
