//! A circuit of three hops to the gateway's exit, kept ready for the next isolation key.
//!
//! To reach an exit by name, Tor extends a circuit of three hops by a fourth, unless a circuit
//! already ends there. The first stream waits for that, so a circuit is built ahead. Its purpose is
//! `controller`, which keeps the streams of other programs off it:
//!
//! 1. Tor builds a circuit that it chooses (`EXTENDCIRCUIT 0`). No stream uses that circuit; the
//!    next one takes over its guard and its middle relay.
//! 2. If both relays may share a circuit with the exit, by Tor's rules for its own circuits, the
//!    circuit of three relays is built.
//! 3. A dial makes the circuit an ordinary one just before it connects, so that its stream is the
//!    first one that fits. Then the next circuit is begun.
//!
//! Only one such circuit is kept at a time, and failures lengthen the pause before the next
//! ([`backoff`]). After any failure Tor chooses a circuit as it does without this module. The
//! control port's events (`CIRC`, `STREAM`) tell when to read the state again.
//! <https://spec.torproject.org/control-spec>.

mod backoff;

use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::circuits::{Circuit, StreamState, may_share};
use super::control::{Control, Events};
use crate::error::Error;
pub(crate) use backoff::{Backoff, TimeLimits};
use backoff::{Outcome, at_random};

/// The most circuits requested of Tor in a row until one has a guard and a middle that may share a
/// circuit with the exit.
const MODELS: usize = 3;

/// The time that a dial waits for the control port, which usually replies at once.
const RELEASE_LIMIT: Duration = Duration::from_millis(500);

/// A dial's request for the circuit. It is dropped as soon as the dial can continue: the circuit is
/// an ordinary one, or there is none.
type Ask = oneshot::Sender<()>;

/// Keeps a circuit ready until it is dropped. A task does the work, and ends after the command that
/// it has begun. Otherwise a circuit could stay open for ever because the reply with its number was
/// not read.
#[derive(Debug)]
pub(crate) struct ReadyCircuit(mpsc::Sender<Ask>);

impl ReadyCircuit {
    /// Begins to keep a circuit to the relay with the fingerprint `exit`.
    pub(crate) fn keep(
        control: impl Future<Output = Result<Control, Error>> + 'static,
        exit: String,
        backoff: Rc<Backoff>,
    ) -> Self {
        let (asks, asked) = mpsc::channel(1);
        tokio::task::spawn_local(async move {
            let ended = match control.await {
                Ok(control) => Keeper::new(control, exit, asked, &backoff).run().await,
                Err(error) => CircuitEnd::Lost(error),
            };
            if let CircuitEnd::Lost(error) = ended {
                tracing::debug!(%error, "no circuit is kept ready");
                backoff.lose();
            }
        });
        Self(asks)
    }

    /// Returns true if a circuit is kept, or will be.
    pub(crate) fn is_kept(&self) -> bool {
        !self.0.is_closed()
    }

    /// Gives the circuit to the next stream to the exit, if there is a circuit. Returns within
    /// [`RELEASE_LIMIT`].
    pub(crate) async fn release(&self) {
        let (ask, answer) = oneshot::channel();
        if self.0.try_send(ask).is_ok() {
            // The dial continues with or without the circuit.
            let _ = tokio::time::timeout(RELEASE_LIMIT, answer).await;
        }
    }
}

/// The reason for which no circuit is kept any more.
enum CircuitEnd {
    /// No dial has wanted one for long, or the handle was dropped.
    Idle,
    /// The control port failed.
    Lost(Error),
}

impl From<Error> for CircuitEnd {
    fn from(error: Error) -> Self {
        Self::Lost(error)
    }
}

struct Keeper {
    control: Control,
    exit: String,
    asks: mpsc::Receiver<Ask>,
    /// The dial that waits for the circuit.
    wanted: Option<Ask>,
    /// The time of the last dial.
    asked: Instant,
    /// The circuit that the keeper has to close.
    own: Option<String>,
    backoff: Rc<Backoff>,
    times: TimeLimits,
}

impl Keeper {
    fn new(
        control: Control,
        exit: String,
        asks: mpsc::Receiver<Ask>,
        backoff: &Rc<Backoff>,
    ) -> Self {
        Self {
            control,
            exit,
            asks,
            wanted: None,
            asked: Instant::now(),
            own: None,
            backoff: Rc::clone(backoff),
            times: backoff.times,
        }
    }

    async fn run(mut self) -> CircuitEnd {
        loop {
            if let Err(end) = self.turn().await {
                return end;
            }
        }
    }

    /// Keeps one circuit, after the pause before it.
    async fn turn(&mut self) -> Result<(), CircuitEnd> {
        self.pause(self.backoff.pause()).await?;
        let outcome = self.one().await?;
        self.backoff.note(outcome);
        self.wanted = None;
        if let Some(id) = self.own.take() {
            self.control.close_unused(&id).await?;
        }
        // Tor need not queue events for this connection during the pause.
        self.control.subscribe(Events::None).await?;
        Ok(())
    }

    /// Keeps a circuit from its beginning until a stream uses it.
    async fn one(&mut self) -> Result<Outcome, CircuitEnd> {
        self.control.subscribe(Events::Circuits).await?;
        let Some([guard, middle]) = self.model().await? else {
            return Ok(Outcome::Failed);
        };
        let path = format!("0 ${guard},${middle},${} purpose=controller", self.exit);
        let Some(id) = self.begin(&path).await? else {
            return Ok(Outcome::Failed);
        };
        match self.wait_for_demand(&id).await? {
            Demand::Wanted if self.control.make_general(&id).await? => {
                self.wanted = None;
                self.use_of(&id).await
            }
            Demand::Aged => Ok(Outcome::Good),
            Demand::Wanted | Demand::Gone => Ok(Outcome::Failed),
        }
    }

    /// Waits for `time`. Dials that come during the wait continue without the circuit.
    async fn pause(&mut self, time: Duration) -> Result<(), CircuitEnd> {
        let until = Instant::now() + time;
        loop {
            let ask = tokio::select! {
                () = tokio::time::sleep_until(until) => return self.check_idle(),
                ask = self.asks.recv() => ask,
            };
            self.asked = Instant::now();
            drop(ask.ok_or(CircuitEnd::Idle)?);
        }
    }

    /// Waits for an event about the circuit, at most for `time`. A dial during the wait continues
    /// without the circuit. With `held` it ends the wait and gets the circuit.
    async fn wait_for_change(&mut self, time: Duration, held: bool) -> Result<(), CircuitEnd> {
        let until = Instant::now() + time;
        loop {
            let ask = tokio::select! {
                () = tokio::time::sleep_until(until) => return self.check_idle(),
                changed = self.control.changed() => {
                    changed?;
                    return self.check_idle();
                }
                ask = self.asks.recv() => ask.ok_or(CircuitEnd::Idle)?,
            };
            self.asked = Instant::now();
            if held {
                self.wanted = Some(ask);
                return Ok(());
            }
        }
    }

    fn check_idle(&self) -> Result<(), CircuitEnd> {
        if self.asked.elapsed() > self.times.idle {
            Err(CircuitEnd::Idle)
        } else {
            Ok(())
        }
    }

    async fn begin(&mut self, path: &str) -> Result<Option<String>, CircuitEnd> {
        self.own = self.control.extend_circuit(path).await?;
        Ok(self.own.clone())
    }

    async fn circuit(&mut self, id: &str) -> Result<Option<Circuit>, CircuitEnd> {
        Ok(self
            .control
            .circuits()
            .await?
            .into_iter()
            .find(|circuit| circuit.id == id))
    }

    /// Finds a guard and a middle that Tor chose and that may precede the exit.
    async fn model(&mut self) -> Result<Option<[String; 2]>, CircuitEnd> {
        let Some(distinct) = self.control.distinct_subnets().await? else {
            return Ok(None);
        };
        for _ in 0..MODELS {
            let Some([guard, middle]) = self.chosen_by_tor().await? else {
                return Ok(None);
            };
            let mut relays = Vec::new();
            for fingerprint in [&guard, &middle, &self.exit] {
                relays.extend(self.control.relay(fingerprint).await?);
            }
            if relays.len() == 3 && may_share(&relays, distinct) {
                return Ok(Some([guard, middle]));
            }
        }
        Ok(None)
    }

    /// Returns the first two hops of a circuit that Tor builds and that no stream ever uses. With a
    /// stream on it, the middle relay could tell that two identities belong to the same user.
    async fn chosen_by_tor(&mut self) -> Result<Option<[String; 2]>, CircuitEnd> {
        let Some(id) = self.begin("0").await? else {
            return Ok(None);
        };
        let begun = Instant::now();
        let path = loop {
            match self.circuit(&id).await? {
                Some(circuit) if circuit.purpose != "GENERAL" => return Ok(None),
                Some(circuit) if circuit.built => break circuit.path,
                Some(_) if begun.elapsed() < self.times.build => {
                    self.wait_for_change(self.times.look, false).await?;
                }
                _ => return Ok(None),
            }
        };
        self.control.close_unused(&id).await?;
        self.own = None;
        let [guard, middle, _]: [String; 3] = match path.try_into() {
            Ok(hops) if self.circuit(&id).await?.is_none() => hops,
            _ => return Ok(None),
        };
        Ok(Some([guard, middle]))
    }

    /// Waits until a dial wants the circuit. An unfinished circuit can be given away, too: the
    /// stream then waits for it instead of extending another.
    async fn wait_for_demand(&mut self, id: &str) -> Result<Demand, CircuitEnd> {
        let begun = Instant::now();
        let lifetime = self.times.age / 2 + at_random(self.times.age / 2);
        loop {
            let built = match self.circuit(id).await? {
                Some(circuit) if circuit.purpose == "CONTROLLER" => circuit.built,
                _ => return Ok(Demand::Gone),
            };
            // A dial that has stopped waiting continues without the circuit.
            self.wanted = self.wanted.take().filter(|ask| !ask.is_closed());
            if self.wanted.is_some() {
                return Ok(Demand::Wanted);
            }
            let look = match begun.elapsed() {
                age if age > self.times.build && !built => return Ok(Demand::Gone),
                age if age > lifetime => return Ok(Demand::Aged),
                _ if built => self.times.watch,
                _ => self.times.look,
            };
            self.wait_for_change(look, true).await?;
        }
    }

    /// Waits until a stream uses the circuit that was given away, and is connected.
    async fn use_of(&mut self, id: &str) -> Result<Outcome, CircuitEnd> {
        let given = Instant::now();
        let mut unused_since = None;
        self.control.subscribe(Events::CircuitsAndStreams).await?;
        loop {
            let Some(circuit) = self.circuit(id).await? else {
                return Ok(Outcome::Failed);
            };
            match self.control.stream_on(id).await? {
                Some(StreamState::Open) => {
                    self.own = None;
                    return Ok(Outcome::Good);
                }
                Some(StreamState::Opening) => unused_since = None,
                None if circuit.built && self.is_over(&mut unused_since) => {
                    return Ok(Outcome::Unused);
                }
                None => {}
            }
            if given.elapsed() > self.times.build {
                return Ok(Outcome::Failed);
            }
            let look = self.times.look.min(self.times.unused);
            self.wait_for_change(look, false).await?;
        }
    }

    /// Returns true if the time without a stream is over. The time begins with the first call.
    fn is_over(&self, unused_since: &mut Option<Instant>) -> bool {
        unused_since.get_or_insert_with(Instant::now).elapsed() > self.times.unused
    }
}

/// The end of the wait for a dial.
enum Demand {
    /// A dial wants the circuit.
    Wanted,
    /// Tor has closed the circuit, or keeps it for measurement only.
    Gone,
    /// No dial has come for long.
    Aged,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Tor does not close unused circuits of this purpose.
        if let Some(id) = self.own.take() {
            self.control.close_unused_without_answer(&id);
        }
    }
}

#[cfg(test)]
mod tests;
