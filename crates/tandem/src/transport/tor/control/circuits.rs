//! The circuit commands of the control port.

use super::super::circuits::{self, Circuit, Relay, StreamState, parse_circuits, parse_relay};
use super::Control;
use crate::error::Error;

impl Control {
    /// Returns the circuits that this Tor client has begun and not closed.
    pub(crate) async fn circuits(&mut self) -> Result<Vec<Circuit>, Error> {
        Ok(parse_circuits(&self.info("circuit-status").await?))
    }

    /// Returns the description of a relay, or `None` if it is too incomplete to tell which relays
    /// may share a circuit with it.
    pub(crate) async fn relay(&mut self, fingerprint: &str) -> Result<Option<Relay>, Error> {
        let Some(entry) = self.info_if_known(&format!("ns/id/{fingerprint}")).await? else {
            return Ok(None);
        };
        let mut description = self.info_if_known(&format!("md/id/{fingerprint}")).await?;
        if description.as_ref().is_none_or(String::is_empty) {
            description = self
                .info_if_known(&format!("desc/id/{fingerprint}"))
                .await?;
        }
        Ok(parse_relay(
            fingerprint,
            &entry,
            &description.unwrap_or_default(),
        ))
    }

    /// Returns true if the relays of a circuit must be in different networks, or `None` if no
    /// circuit should be built.
    pub(crate) async fn distinct_subnets(&mut self) -> Result<Option<bool>, Error> {
        let lines = self
            .reply(&format!("GETCONF {}", circuits::SETTINGS))
            .await?;
        Ok(circuits::distinct_subnets(
            lines.iter().map(|line| line.text.as_str()),
        ))
    }

    /// Begins a circuit. [`Control::changed`] awaits its events from now on. Returns Tor's number
    /// for it, or `None` if Tor refuses.
    pub(crate) async fn extend_circuit(
        &mut self,
        arguments: &str,
    ) -> Result<Option<String>, Error> {
        let lines = self.reply(&format!("EXTENDCIRCUIT {arguments}")).await?;
        let begun = lines
            .first()
            .filter(|line| line.code < 400)
            .and_then(|line| line.text.strip_prefix("EXTENDED "));
        let begun = begun.map(str::to_owned);
        self.watch(begun.clone());
        Ok(begun)
    }

    /// Lets streams use a circuit. Returns true if the circuit still exists.
    pub(crate) async fn make_general(&mut self, circuit: &str) -> Result<bool, Error> {
        let lines = self
            .reply(&format!("SETCIRCUITPURPOSE {circuit} purpose=general"))
            .await?;
        Ok(lines.iter().all(|line| line.code < 400))
    }

    /// Returns the state of the stream on this circuit, if there is one.
    pub(crate) async fn stream_on(&mut self, circuit: &str) -> Result<Option<StreamState>, Error> {
        Ok(circuits::stream_on(
            &self.info("stream-status").await?,
            circuit,
        ))
    }

    /// Closes a circuit, unless there are streams on it or it is gone already.
    pub(crate) async fn close_unused(&mut self, circuit: &str) -> Result<(), Error> {
        self.reply(&format!("CLOSECIRCUIT {circuit} IfUnused"))
            .await
            .map(drop)
    }

    /// Closes an unused circuit as the last command of this connection, without waiting for the
    /// reply.
    pub(crate) fn close_unused_without_answer(&mut self, circuit: &str) {
        self.send_without_answer(&format!("CLOSECIRCUIT {circuit} IfUnused\r\n"));
    }
}
