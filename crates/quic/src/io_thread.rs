//! The thread that moves the datagrams of all connections.

use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{Builder, ThreadId};
use std::time::{Duration, Instant};

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The time for the last datagrams of connections that are closed.
const LAST: Duration = Duration::from_secs(1);
/// The turns of the thread in which the closed connections send their last datagrams.
const LAST_TURNS: usize = 16;

/// The thread. It ends once the last handle is dropped.
#[derive(Debug)]
pub(crate) struct IoThread {
    handle: Handle,
    thread: ThreadId,
    stop: Option<oneshot::Sender<()>>,
    /// The message that the last datagrams were sent.
    stopped: Mutex<mpsc::Receiver<()>>,
}

impl IoThread {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopping) = oneshot::channel::<()>();
        let (tell, stopped) = mpsc::channel();
        let thread = Builder::new().name("quic".into()).spawn(move || {
            runtime.block_on(async {
                // A dropped sender ends the thread as well.
                let _ = stopping.await;
                for _ in 0..LAST_TURNS {
                    tokio::task::yield_now().await;
                }
            });
            // The tasks hold the sockets, whose ports are free after this.
            drop(runtime);
            // The other side may have stopped waiting.
            let _ = tell.send(());
        })?;
        Ok(Arc::new(Self {
            handle,
            thread: thread.thread().id(),
            stop: Some(stop),
            stopped: Mutex::new(stopped),
        }))
    }

    /// Returns the runtime of the thread, as quinn uses it.
    pub(crate) fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(IoRuntime(self.handle.clone()))
    }

    /// Returns the handle of the runtime.
    pub(crate) const fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for IoThread {
    /// Lets the connections that were closed tell their peers, for a short time.
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
            if std::thread::current().id() != self.thread
                && let Ok(stopped) = self.stopped.get_mut()
            {
                let _ = stopped.recv_timeout(LAST);
            }
        }
    }
}

/// The runtime of the thread. All tasks of quinn run there.
#[derive(Debug)]
struct IoRuntime(Handle);

impl Runtime for IoRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let _context = self.0.enter();
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let _context = self.0.enter();
        TokioRuntime.wrap_udp_socket(socket)
    }
}
