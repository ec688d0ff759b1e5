//! Threads and listeners. Each worker thread runs a single-threaded runtime and accepts from the
//! same listening sockets. A reload replaces the fronts behind the sockets, and a drain ends them
//! gracefully.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

use crate::config::ConfigError;
use crate::endpoint::Endpoint;
use crate::roles::Role;
use crate::services::Services;
use crate::session::Drain;
use crate::status::{SessionStatus, StatusSource};
use crate::transport::registry::{Protocol, Socket};

/// The reason for which a role could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {endpoint} ({error}): {}", listen_remedy(.error))]
    Listen {
        /// The endpoint of the listener.
        endpoint: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The operating system refused a thread or another resource.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// Returns the remedy for an address that a program cannot listen on.
pub(crate) fn listen_remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "use a port above 1023, or give the program CAP_NET_BIND_SERVICE, as the systemd unit \
             and `setcap cap_net_bind_service=+ep` do"
        }
        std::io::ErrorKind::AddrInUse => "stop the other program, or choose another port",
        std::io::ErrorKind::AddrNotAvailable => "no interface of this machine has the address",
        _ => "choose another address",
    }
}

enum ThreadCommand {
    Serve {
        role: Arc<dyn Role>,
        services: Arc<Services>,
        listeners: Vec<Socket>,
        built: oneshot::Sender<Result<(), ConfigError>>,
    },
    Drain {
        limit: Duration,
    },
    Status(oneshot::Sender<Vec<SessionStatus>>),
}

/// A running role.
pub struct Running {
    workers: Vec<(mpsc::UnboundedSender<ThreadCommand>, JoinHandle<()>)>,
    listeners: HashMap<ListenerKey, Socket>,
    role: Arc<dyn Role>,
    services: Arc<Services>,
}

/// The identity of a listener: the protocol, and the address as it is written in the endpoint. With
/// port 0, endpoints of other schemes have other listeners. Those of other transports have others
/// over UDP: each transport hands its socket over to the next process.
type ListenerKey = (Protocol, String, Option<String>);

fn key(role: &dyn Role, endpoint: &Endpoint) -> Result<ListenerKey, ConfigError> {
    let provider = role.listening().transports.to_listen(endpoint)?;
    let protocol = provider.protocol();
    let user = match (protocol, endpoint.port) {
        (_, 0) => Some(endpoint.scheme()),
        (Protocol::Udp, _) => Some(provider.name().to_owned()),
        (Protocol::Tcp, _) => None,
    };
    Ok((protocol, endpoint.authority(), user))
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("workers", &self.workers.len())
            .finish_non_exhaustive()
    }
}

impl Running {
    /// Listens and serves.
    pub async fn start(role: Arc<dyn Role>) -> Result<Self, StartError> {
        let mut running = Self {
            workers: Vec::new(),
            listeners: HashMap::new(),
            role: Arc::clone(&role),
            services: Arc::default(),
        };
        for index in 0..role.listening().workers {
            let (commands, inbox) = mpsc::unbounded_channel();
            let thread = std::thread::Builder::new()
                .name(format!("tandem-{index}"))
                .spawn(move || worker(inbox))?;
            running.workers.push((commands, thread));
        }
        match running.serve(role).await {
            Ok(()) => Ok(running),
            Err(error) => {
                // Without a session, the files of the cache are as the process before left them.
                let services = Arc::clone(&running.services);
                running.drain(Duration::ZERO).await;
                services.close_disk();
                Err(error)
            }
        }
    }

    /// Replaces the configuration. Listeners that stay keep their sockets, and open connections
    /// continue unchanged.
    pub async fn reload(&mut self, role: Arc<dyn Role>) -> Result<(), StartError> {
        self.serve(role).await
    }

    /// Returns the services of the process. They outlive reloads, and any holder keeps them past
    /// the drain.
    pub fn services(&self) -> &Arc<Services> {
        &self.services
    }

    async fn serve(&mut self, role: Arc<dyn Role>) -> Result<(), StartError> {
        let served = self.build(role).await;
        self.services.end_opening(served.is_ok());
        served
    }

    async fn build(&mut self, role: Arc<dyn Role>) -> Result<(), StartError> {
        role.open(&self.services)?;
        let mut listeners = HashMap::new();
        let mut ordered = Vec::new();
        for endpoint in role.listen() {
            let key = key(&*role, endpoint)?;
            let listener = match self.listeners.get(&key) {
                Some(listener) => listener.try_clone()?,
                None if endpoint.port != 0 && self.has_at(&key) => return Err(taken(endpoint)),
                None => bind(&*role, endpoint)?,
            };
            ordered.push(listener.try_clone()?);
            listeners.insert(key, listener);
        }
        for (commands, _) in &self.workers {
            let clones = ordered
                .iter()
                .map(Socket::try_clone)
                .collect::<Result<_, _>>()?;
            let (built, result) = oneshot::channel();
            let command = ThreadCommand::Serve {
                role: Arc::clone(&role),
                services: Arc::clone(&self.services),
                listeners: clones,
                built,
            };
            let gone = || StartError::System(std::io::Error::other("a worker thread has ended"));
            commands.send(command).map_err(|_| gone())?;
            result.await.map_err(|_| gone())??;
        }
        (self.listeners, self.role) = (listeners, role);
        Ok(())
    }

    /// Returns true if a listener of another transport has the address of a key.
    fn has_at(&self, (protocol, authority, _): &ListenerKey) -> bool {
        let mut keys = self.listeners.keys();
        keys.any(|(present, at, _)| (present, at) == (protocol, authority))
    }

    /// Returns a source of snapshots, which any thread can use.
    pub fn status(&self) -> StatusSource {
        let workers: Vec<_> = self.workers.iter().map(|(it, _)| it.clone()).collect();
        StatusSource::new(move || {
            let ask = |worker: &mpsc::UnboundedSender<ThreadCommand>| {
                let (answer, asked) = oneshot::channel();
                // The receiver sees an error if the thread has ended.
                let _ = worker.send(ThreadCommand::Status(answer));
                asked
            };
            workers.iter().map(ask).collect()
        })
    }

    /// Returns the addresses of all listeners, in no order.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners
            .values()
            .filter_map(|listener| listener.local_addr().ok())
            .collect()
    }

    /// Returns the bound address of the listener for `endpoint`.
    pub fn address(&self, endpoint: &Endpoint) -> Option<SocketAddr> {
        let key = key(&*self.role, endpoint).ok()?;
        self.listeners
            .get(&key)
            .and_then(|listener| listener.local_addr().ok())
    }

    /// Closes the listening sockets, and waits up to `limit` for the exchanges under way to end.
    pub async fn drain(self, limit: Duration) {
        let Self {
            workers, listeners, ..
        } = self;
        // Each worker closes its own handles. A socket that one handle keeps open would let new
        // connections wait for nothing, and keep the address from the next process.
        drop(listeners);
        for (commands, _) in &workers {
            // A worker that has ended does not receive the command.
            let _ = commands.send(ThreadCommand::Drain { limit });
        }
        let threads: Vec<_> = workers.into_iter().map(|(_, thread)| thread).collect();
        let joined = tokio::task::spawn_blocking(move || {
            for thread in threads {
                if thread.join().is_err() {
                    tracing::error!("a worker thread panicked");
                }
            }
        });
        let _ = joined.await;
    }
}

/// Returns the error for a listener whose address the reload does not free.
fn taken(endpoint: &Endpoint) -> StartError {
    let problem = "a listener of another transport has it until a reload removes that";
    StartError::Listen {
        endpoint: endpoint.to_string(),
        error: std::io::Error::other(problem),
    }
}

fn bind(role: &dyn Role, endpoint: &Endpoint) -> Result<Socket, StartError> {
    let failed = |error| StartError::Listen {
        endpoint: endpoint.to_string(),
        error,
    };
    let address = endpoint.socket_addr().ok_or_else(|| {
        failed(std::io::Error::other(
            "give an address to listen on, not a name",
        ))
    })?;
    let provider = role.listening().transports.to_listen(endpoint);
    let provider = provider.map_err(ConfigError::from)?;
    match provider.bound(address) {
        Some(socket) => Ok(socket),
        None => Socket::bind(provider.protocol(), address).map_err(failed),
    }
}

fn worker(mut inbox: mpsc::UnboundedReceiver<ThreadCommand>) {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(127)
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "cannot start a worker thread's runtime");
            return;
        }
    };
    let local = LocalSet::new();
    local.block_on(&runtime, async move {
        // The last entry accepts. The earlier ones are old configurations that still have
        // connections.
        let mut serving: Vec<ThreadParts> = Vec::new();
        while let Some(command) = inbox.recv().await {
            match command {
                ThreadCommand::Serve {
                    role,
                    services,
                    listeners,
                    built,
                } => match ThreadParts::start(&*role, &services, listeners) {
                    Ok(new) => {
                        if let Some(old) = serving.last() {
                            // Sessions of the old configuration end gracefully, because the new one
                            // may not accept their clients.
                            old.accepting.begin();
                            old.sessions.begin();
                            (old.built.on_drain)();
                            old.built.after_reload.set(new.built.continuing.clone());
                        }
                        serving.retain(|old| old.built.connections.open() > 0);
                        serving.push(new);
                        let _ = built.send(Ok(()));
                    }
                    Err(error) => drop(built.send(Err(error))),
                },
                ThreadCommand::Status(answer) => {
                    // The receiver may have given up waiting for the snapshot.
                    let _ = answer.send(serving.iter().flat_map(ThreadParts::status).collect());
                }
                ThreadCommand::Drain { limit } => {
                    drain(&serving, limit).await;
                    return;
                }
            }
        }
    });
    drop(local);
    // Nothing cancels a look-up that waits for its name server, and its result has no use.
    runtime.shutdown_background();
}

/// The parts that a thread serves with.
struct ThreadParts {
    /// Ends the accepting.
    accepting: Drain,
    /// Ends the sessions.
    sessions: Drain,
    built: crate::roles::Built,
}

impl ThreadParts {
    fn status(&self) -> Vec<SessionStatus> {
        let mut sessions = self.built.connections.status();
        sessions.extend((self.built.dialled)());
        sessions
    }

    fn start(
        role: &dyn Role,
        services: &Services,
        listeners: Vec<Socket>,
    ) -> Result<Self, ConfigError> {
        let (accepting, sessions) = (Drain::new(), Drain::new());
        let system = |error: std::io::Error| ConfigError::value("listen", error.to_string());
        let addresses = listeners
            .iter()
            .map(Socket::local_addr)
            .collect::<Result<Vec<_>, _>>()
            .map_err(system)?;
        let built = role.build(services, &addresses, &sessions)?;
        for (front, listener) in built.fronts.iter().zip(listeners) {
            let listener = front.transport.listen(listener).map_err(system)?;
            tokio::task::spawn_local(std::rc::Rc::clone(front).accept(listener, accepting.begun()));
        }
        Ok(Self {
            accepting,
            sessions,
            built,
        })
    }
}

/// Ends all connections within `limit`.
async fn drain(serving: &[ThreadParts], limit: Duration) {
    for one in serving {
        one.accepting.begin();
        one.sessions.begin();
    }
    let ended = async {
        while serving.iter().any(|one| one.built.connections.open() > 0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(limit, ended).await.is_err() {
        tracing::warn!("connections were cut off: they did not end within the time for draining");
    }
    for one in serving {
        (one.built.on_drain)();
    }
    // Sessions to the gateway get a moment to send GOAWAY.
    tokio::time::sleep(Duration::from_millis(20)).await;
}
