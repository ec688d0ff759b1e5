//! Counters for whoever lives behind a link: a socket in its network namespace answers each
//! connection with the state of the network.
//!
//! The socket's name is abstract (unix(7)): it exists in that namespace only, needs no file and
//! leaves none.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::engine::Watch;
use super::report::Snapshot;
use crate::netns::Netns;

/// Variable that names the socket.
pub const VARIABLE: &str = "TANDEM_LINK_STATS";
/// The name.
pub const NAME: &str = "tandem-link-stats";

/// The polling interval for a newer snapshot.
const LOOK: Duration = Duration::from_millis(5);
/// Snapshots are this old at most, several times over.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);

/// The network as it is, seen from one host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Counters {
    /// The host that asks.
    pub host: String,
    /// All counters.
    pub network: Snapshot,
}

/// Answers in a host's namespace for as long as the process lives.
pub fn serve(namespace: &Netns, host: &str, watch: Watch) -> io::Result<()> {
    let listener =
        namespace.run(|| UnixListener::bind_addr(&SocketAddr::from_abstract_name(NAME)?))?;
    let host = host.to_owned();
    let answer = move || {
        for asker in listener.incoming().flatten() {
            let counters = Counters {
                host: host.clone(),
                network: fresh(&watch),
            };
            // A client that does not read its answer misses it.
            let _ = tell(asker, &counters);
        }
    };
    thread::Builder::new()
        .name("counters".into())
        .spawn(answer)
        .map(drop)
}

/// A snapshot from after this call: it has everything that happened before.
fn fresh(watch: &Watch) -> Snapshot {
    let (old, limit) = (watch.snapshot(), Instant::now() + SNAPSHOT_TIMEOUT);
    loop {
        thread::sleep(LOOK);
        let snapshot = watch.snapshot();
        if snapshot.time_s > old.time_s || Instant::now() > limit {
            return snapshot;
        }
    }
}

fn tell(mut asker: UnixStream, counters: &Counters) -> io::Result<()> {
    asker.set_write_timeout(Some(SNAPSHOT_TIMEOUT))?;
    asker.write_all(&serde_json::to_vec(counters)?)?;
    asker.shutdown(Shutdown::Write)
}

/// Asks for the counters of the link that this process lives behind; `None` when there is none.
pub fn ask() -> Option<io::Result<Counters>> {
    let name = std::env::var(VARIABLE).ok()?;
    let answer = || {
        let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&name)?)?;
        stream.set_read_timeout(Some(SNAPSHOT_TIMEOUT * 2))?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    };
    Some(answer())
}
