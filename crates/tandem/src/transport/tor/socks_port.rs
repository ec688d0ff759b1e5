//! The SOCKS port of a running Tor client, which is asked for before each dial.
//!
//! Another program may listen at the port of a Tor client that has ended or changed its settings.
//! That program would get the isolation key, the destination and the request in clear. The control
//! connection ends with the Tor client, so its reply shows that the port is still Tor's.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Mutex;

use super::control::Control;
use super::unreachable;
use crate::error::{Error, Kind, Side};

/// A control connection that tells the SOCKS port.
#[derive(Debug)]
pub(super) struct SocksPort {
    /// The connection, or `None` once it has failed.
    control: Mutex<Option<Control>>,
    /// The time for a reply.
    timeout: Duration,
}

impl SocksPort {
    /// Creates a source of addresses from an authenticated control connection.
    pub(super) fn over(control: Control, timeout: Duration) -> Rc<Self> {
        Rc::new(Self {
            control: Mutex::new(Some(control)),
            timeout,
        })
    }

    /// Returns the present address of the SOCKS port. After an error, the connection is closed, and
    /// each later call fails too.
    pub(super) async fn address(self: &Rc<Self>) -> Result<SocketAddr, Error> {
        let this = Rc::clone(self);
        // A separate task reads the whole reply if the dial is dropped. Otherwise the next question
        // would get it.
        let asking = tokio::task::spawn_local(async move { this.ask().await });
        let broken = |_| {
            let detail = "the question to Tor's control port broke off";
            Error::new(Kind::Internal, Side::Local, detail)
        };
        asking.await.map_err(broken)?
    }

    async fn ask(&self) -> Result<SocketAddr, Error> {
        let mut kept = self.control.lock().await;
        let ended = || unreachable("Tor closed its control port").at(Side::Via);
        let mut control = kept.take().ok_or_else(ended)?;
        let asked = tokio::time::timeout(self.timeout, control.socks_port()).await;
        let silent = |_| unreachable("Tor's control port does not answer").at(Side::Via);
        let address = asked
            .map_err(silent)?
            .map_err(|error| error.at(Side::Via))?;
        *kept = Some(control);
        Ok(address)
    }
}
