//! A circuit of three hops to the gateway's exit, kept ready for the next isolation key.
//!
//! To reach an exit by name, Tor lengthens a ready circuit of three hops by a fourth where it has
//! none that ends there, and the first stream waits for it. So one is built ahead, in its own
//! purpose, which keeps other programs' streams off it:
//!
//! 1. Tor builds a circuit of its own choice (`EXTENDCIRCUIT 0`). Nobody uses it; its guard and
//!    middle are taken over.
//! 2. If they may share a circuit with the exit, by the rules that Tor has for its own, one of the
//!    three is built.
//! 3. Who dials has it made an ordinary one just before; his is the first stream that fits it. Then
//!    it starts over.
//!
//! One circuit at a time, after failures ever later. Whatever goes wrong, Tor goes its own way.
//! <https://spec.torproject.org/control-spec>.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::circuits::{Circuit, StreamState, may_share};
use super::control::Control;
use crate::error::Error;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Between two looks at a circuit that is being built or was just given away.
    look: Duration,
    /// Between two looks at one that is ready.
    watch: Duration,
    /// Until a circuit is built; Tor gives most of them up long before.
    build: Duration,
    /// Until a stream is on a circuit that was given away.
    unused: Duration,
    /// Age, in the mean, at which a circuit that nobody has wanted is exchanged for another.
    age: Duration,
    /// Without anybody who dials for so long, none is kept ready.
    idle: Duration,
    /// Mean of the time until the next is begun; each is chosen at random.
    rest: Duration,
    /// Pauses after failures: doubled from the first to the last.
    pauses: (Duration, Duration),
}

impl Times {
    /// Tor itself keeps unused circuits, and builds them ahead, for half an hour to an hour after
    /// the last use.
    pub(crate) const USUAL: Self = Self {
        look: Duration::from_millis(100),
        watch: Duration::from_secs(15),
        build: Duration::from_secs(60),
        unused: Duration::from_secs(1),
        age: Duration::from_secs(20 * 60),
        idle: Duration::from_secs(60 * 60),
        rest: Duration::from_secs(10),
        pauses: (Duration::from_secs(2), Duration::from_secs(10 * 60)),
    };
}

/// Circuits that are asked of Tor in a row until one has a guard and a middle that may share one
/// with the exit.
const MODELS: usize = 3;

/// What dialling may wait for the control port: it answers at once, as a rule.
const RELEASE_LIMIT: Duration = Duration::from_millis(500);

/// How long to leave it after failures. It outlives exits and connections to the control port.
#[derive(Debug)]
pub(crate) struct Patience {
    times: Times,
    failures: Cell<u32>,
    last: Cell<Option<Instant>>,
    until: Cell<Option<Instant>>,
}

impl Patience {
    pub(crate) const fn new(times: Times) -> Self {
        Self {
            times,
            failures: Cell::new(0),
            last: Cell::new(None),
            until: Cell::new(None),
        }
    }

    /// Another failure. They are forgotten when none has followed for as long as the longest pause:
    /// an exit that lets a stream begin has proved nothing.
    pub(crate) fn lose(&self) {
        let now = Instant::now();
        let before = self
            .last
            .replace(Some(now))
            .filter(|last| now - *last <= self.times.pauses.1 + self.pause());
        self.failures
            .set(before.map_or(0, |_| self.failures.get()).saturating_add(1));
        self.until.set(Some(now + self.lost()));
    }

    /// The pause that so many failures ask for.
    fn lost(&self) -> Duration {
        let (first, last) = self.times.pauses;
        let doublings = self.failures.get().checked_sub(1);
        doublings.map_or(Duration::ZERO, |n| {
            first.saturating_mul(1 << n.min(16)).min(last)
        })
    }

    fn note(&self, outcome: Outcome) {
        match outcome {
            Outcome::Failed => self.lose(),
            Outcome::Unused => self.until.set(Some(Instant::now() + self.times.pauses.0)),
            // The exit sees circuits come and go: one that always follows another at once would be
            // the same user's.
            Outcome::Good => self
                .until
                .set(Some(Instant::now() + at_random(self.times.rest))),
        }
    }

    /// What is left of the pause.
    pub(crate) fn pause(&self) -> Duration {
        self.until.get().map_or(Duration::ZERO, |until| {
            until.saturating_duration_since(Instant::now())
        })
    }
}

/// A time with this mean, exponentially distributed: how much of it has passed tells nothing of the
/// rest.
fn at_random(mean: Duration) -> Duration {
    // From above 0 to 1.
    let share = ((super::random() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    mean.mul_f64(-share.ln())
}

/// What became of a circuit.
enum Outcome {
    /// It is in use, or has grown old without fault.
    Good,
    /// It was given away, and the stream took another.
    Unused,
    /// It could not be built, or broke.
    Failed,
}

/// Dropped as soon as whoever dials can go on: the circuit is an ordinary one, or there is none.
type Ask = oneshot::Sender<()>;

/// Keeps a circuit ready as long as it lives, in a task that ends by itself then: not in the middle
/// of a command, whose circuit nobody would know.
#[derive(Debug)]
pub(crate) struct Spare(mpsc::Sender<Ask>);

impl Spare {
    /// Begins to keep one to the relay with the fingerprint `exit`.
    pub(crate) fn keep(
        control: impl Future<Output = Result<Control, Error>> + 'static,
        exit: String,
        patience: Rc<Patience>,
    ) -> Self {
        let (asks, asked) = mpsc::channel(1);
        tokio::task::spawn_local(async move {
            let ended = match control.await {
                Ok(control) => Keeper::new(control, exit, asked, &patience).run().await,
                Err(error) => End::Lost(error),
            };
            if let End::Lost(error) = ended {
                tracing::debug!(%error, "no circuit is kept ready");
                patience.lose();
            }
        });
        Self(asks)
    }

    /// Whether one is still kept, or will be.
    pub(crate) fn is_kept(&self) -> bool {
        !self.0.is_closed()
    }

    /// Lets the next stream to the exit have the circuit, if there is one; soon over in any case.
    pub(crate) async fn release(&self) {
        let (ask, answer) = oneshot::channel();
        if self.0.try_send(ask).is_ok() {
            // Either way there is nothing more to be done.
            let _ = tokio::time::timeout(RELEASE_LIMIT, answer).await;
        }
    }
}

/// Why none is kept any more.
enum End {
    /// Nobody wants one any more.
    Idle,
    /// The control port.
    Lost(Error),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Lost(error)
    }
}

struct Keeper {
    control: Control,
    exit: String,
    asks: mpsc::Receiver<Ask>,
    /// Who waits for the circuit.
    wanted: Option<Ask>,
    /// When somebody wanted one last.
    asked: Instant,
    /// The circuit that is ours to close.
    own: Option<String>,
    patience: Rc<Patience>,
    times: Times,
}

impl Keeper {
    fn new(
        control: Control,
        exit: String,
        asks: mpsc::Receiver<Ask>,
        patience: &Rc<Patience>,
    ) -> Self {
        let (patience, times) = (Rc::clone(patience), patience.times);
        Self {
            control,
            exit,
            asks,
            wanted: None,
            asked: Instant::now(),
            own: None,
            patience,
            times,
        }
    }

    async fn run(mut self) -> End {
        loop {
            if let Err(end) = self.turn().await {
                return end;
            }
        }
    }

    async fn turn(&mut self) -> Result<(), End> {
        self.pause(self.patience.pause(), false).await?;
        let outcome = self.one().await?;
        self.patience.note(outcome);
        self.wanted = None;
        if let Some(id) = self.own.take() {
            self.control.close_unused(&id).await?;
        }
        Ok(())
    }

    /// From a circuit's beginning until it is in use.
    async fn one(&mut self) -> Result<Outcome, End> {
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

    /// Waits, and answers who dials meanwhile: with `held`, by and by.
    async fn pause(&mut self, time: Duration, held: bool) -> Result<(), End> {
        let until = Instant::now() + time;
        loop {
            let ask = tokio::select! {
                () = tokio::time::sleep_until(until) => {
                    return if self.asked.elapsed() > self.times.idle { Err(End::Idle) } else { Ok(()) };
                }
                ask = self.asks.recv() => ask,
            };
            self.asked = Instant::now();
            self.wanted = Some(ask.ok_or(End::Idle)?).filter(|_| held);
            if held {
                return Ok(());
            }
        }
    }

    async fn begin(&mut self, path: &str) -> Result<Option<String>, End> {
        self.own = self.control.extend_circuit(path).await?;
        Ok(self.own.clone())
    }

    async fn circuit(&mut self, id: &str) -> Result<Option<Circuit>, End> {
        Ok(self
            .control
            .circuits()
            .await?
            .into_iter()
            .find(|circuit| circuit.id == id))
    }

    /// A guard and a middle of Tor's own choice that may stand before the exit.
    async fn model(&mut self) -> Result<Option<[String; 2]>, End> {
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

    /// The first two hops of a circuit that Tor builds, and that nobody else uses then or later:
    /// else a middle could tell that two identities are one user's.
    async fn chosen_by_tor(&mut self) -> Result<Option<[String; 2]>, End> {
        let Some(id) = self.begin("0").await? else {
            return Ok(None);
        };
        let begun = Instant::now();
        let path = loop {
            match self.circuit(&id).await? {
                Some(circuit) if circuit.purpose != "GENERAL" => return Ok(None),
                Some(circuit) if circuit.built => break circuit.path,
                Some(_) if begun.elapsed() < self.times.build => {
                    self.pause(self.times.look, false).await?
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

    /// One that is not built yet can be given away, too: a stream waits for it instead of
    /// lengthening another.
    async fn wait_for_demand(&mut self, id: &str) -> Result<Demand, End> {
        let begun = Instant::now();
        let lifetime = self.times.age / 2 + at_random(self.times.age / 2);
        loop {
            let built = match self.circuit(id).await? {
                Some(circuit) if circuit.purpose == "CONTROLLER" => circuit.built,
                _ => return Ok(Demand::Gone),
            };
            // Who has given up waiting dials without.
            self.wanted = self.wanted.take().filter(|ask| !ask.is_closed());
            if self.wanted.is_some() {
                return Ok(Demand::Wanted);
            }
            match begun.elapsed() {
                age if age > self.times.build && !built => return Ok(Demand::Gone),
                age if age > lifetime => return Ok(Demand::Aged),
                _ => {
                    self.pause(
                        if built {
                            self.times.watch
                        } else {
                            self.times.look
                        },
                        true,
                    )
                    .await?
                }
            }
        }
    }

    /// Whether a stream takes the circuit that was given away, and comes through.
    async fn use_of(&mut self, id: &str) -> Result<Outcome, End> {
        let given = Instant::now();
        let mut unused_since = None;
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
            self.pause(self.times.look, false).await?;
        }
    }

    /// Whether the time without a stream, which begins now if it has not yet, is over.
    fn is_over(&self, unused_since: &mut Option<Instant>) -> bool {
        unused_since.get_or_insert_with(Instant::now).elapsed() > self.times.unused
    }
}

/// What became of a circuit that is ready.
enum Demand {
    /// Somebody dials.
    Wanted,
    /// Tor has closed it, or lets it go on for measurement only.
    Gone,
    /// Nobody has for long.
    Aged,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Tor closes no unused circuit of this purpose by itself.
        if let Some(id) = self.own.take() {
            self.control.close_unused_without_answer(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::Future;

    use tokio::net::TcpListener;

    use super::super::double::{Circuits, Double, FINGERPRINT, accept, relay};
    use super::super::{Exit, Tor};
    use super::*;
    use crate::endpoint::Via;
    use crate::exchange::Isolation;
    use crate::transport::tcp::SocketOptions;
    use crate::transport::{Target, Transport};

    const QUICK: Times = Times {
        look: Duration::from_millis(1),
        watch: Duration::from_millis(5),
        build: Duration::from_secs(60),
        unused: Duration::from_millis(20),
        age: Duration::from_secs(600),
        idle: Duration::from_secs(600),
        rest: Duration::from_millis(1),
        pauses: (Duration::from_millis(5), Duration::from_millis(40)),
    };

    struct Scene {
        double: Rc<RefCell<Double>>,
        tor: Option<Tor>,
    }

    impl Scene {
        /// Waits for what must come; without it, this does not end.
        async fn until(&self, come: impl Fn(&Double) -> bool) {
            while !come(&self.double.borrow()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }

        async fn ready(&self) {
            self.until(|double| !double.circuits.kept().is_empty())
                .await;
        }

        fn tor(&self) -> &Tor {
            self.tor.as_ref().expect("not ended yet")
        }

        async fn dial(&self) {
            let path = self.tor().dial(&target(), &Isolation::none()).await;
            drop(path.expect("the SOCKS port accepts"));
        }

        fn circuits(&self) -> Circuits {
            self.double.borrow().circuits.clone()
        }
    }

    fn target() -> Target {
        Target {
            host: "192.0.2.80".into(),
            port: 9980,
        }
    }

    /// Plays a scene with a Tor client that has found its exit.
    fn play<F: Future<Output = ()>>(
        times: Times,
        change: impl FnOnce(&mut Double),
        scene: impl FnOnce(Scene) -> F,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let (control, socks) = (
                TcpListener::bind("127.0.0.1:0").await,
                TcpListener::bind("127.0.0.1:0").await,
            );
            let (control, socks) = (control.expect("listens"), socks.expect("listens"));
            let address = control.local_addr().expect("bound");
            let mut double = Double {
                has_descriptor: true,
                fetched: 1,
                ..Double::new()
            };
            change(&mut double);
            let double = Rc::new(RefCell::new(double));
            tokio::task::spawn_local(accept(
                control,
                socks.local_addr().expect("bound"),
                Rc::clone(&double),
            ));
            let exit = Exit::Fingerprint(FINGERPRINT.into());
            let mut tor = Tor::new(
                Via::TorPort(address),
                None,
                Some(exit),
                SocketOptions::default(),
            );
            tor.patience = Rc::new(Patience::new(times));
            tor.get_ready(&target()).await;
            scene(Scene {
                double,
                tor: Some(tor),
            })
            .await;
        });
    }

    #[test]
    fn a_circuit_of_three_is_ready_before_anybody_dials_and_again_after() {
        let others = |double: &mut Double| {
            double.circuits.models = vec![
                [relay("A"), relay("B"), relay("C")],
                [relay("A"), relay("D"), relay("C")],
            ];
        };
        play(QUICK, others, |scene| async move {
            for middle in [relay("B"), relay("D")] {
                scene.ready().await;
                let circuits = scene.circuits();
                let kept = circuits.kept();
                assert_eq!(kept.len(), 1, "{circuits:?}");
                assert_eq!(kept[0].path, [relay("A"), middle, FINGERPRINT]);
                let id = kept[0].id.clone();
                let model = (id.parse::<u32>().expect("a number") - 1).to_string();
                assert!(
                    circuits
                        .commands
                        .contains(&format!("CLOSECIRCUIT {model} IfUnused")),
                    "{circuits:?}"
                );
                scene.dial().await;
                let given = scene
                    .circuits()
                    .open
                    .into_iter()
                    .find(|circuit| circuit.id == id)
                    .expect("in use");
                assert_eq!(given.purpose, "GENERAL", "before the stream is there");
            }
            // Tor builds no more: those that are in use stay.
            scene
                .until(|double| double.circuits.kept().is_empty())
                .await;
            assert_eq!(scene.circuits().open.len(), 2);
        });
    }

    #[test]
    fn only_what_may_stand_before_the_exit_does() {
        let (a, b, c) = (relay("A"), relay("B"), relay("C"));
        let odd = |double: &mut Double| {
            double.circuits.models = vec![
                [FINGERPRINT, b, c],
                [a, FINGERPRINT, c],
                [a, a, c],
                [c, b, FINGERPRINT],
            ];
        };
        play(QUICK, odd, |scene| async move {
            scene.ready().await;
            assert_eq!(scene.circuits().kept()[0].path, [c, b, FINGERPRINT]);
            assert_eq!(
                scene.circuits().count("EXTENDCIRCUIT 0 $"),
                1,
                "the others were not even tried"
            );
        });
    }

    /// Every relay says that all of them are its family.
    const FAMILY: &str = "family $AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA $BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB \
                          $000102030405060708090A0B0C0D0E0F10111213";

    #[test]
    fn without_a_path_everything_goes_on_as_before() {
        type Change = fn(&mut Circuits);
        let changes: [(Change, bool); 5] = [
            (|circuits| circuits.setting = "NodeFamily=$A,$B", false),
            (
                |circuits| circuits.setting = "__DisablePredictedCircuits=1",
                false,
            ),
            (|circuits| circuits.models.clear(), false),
            (|circuits| circuits.grabbed = true, true),
            (|circuits| circuits.family = FAMILY, true),
        ];
        for (change, asks_for_models) in changes {
            play(
                QUICK,
                |double| change(&mut double.circuits),
                |scene| async move {
                    scene
                        .until(|double| double.circuits.count("GETCONF") > 2)
                        .await;
                    scene.dial().await;
                    let circuits = scene.circuits();
                    assert_eq!(circuits.count("EXTENDCIRCUIT 0 $"), 0, "{circuits:?}");
                    assert_eq!(
                        circuits.count("EXTENDCIRCUIT") > 0,
                        asks_for_models,
                        "{circuits:?}"
                    );
                    assert_eq!(
                        scene.double.borrow().connections,
                        1,
                        "one connection, not one for each time"
                    );
                },
            );
        }
    }

    #[test]
    fn a_circuit_that_dies_or_takes_too_long_is_replaced() {
        let change: [fn(&mut Circuits); 2] = [
            |circuits| circuits.open.clear(),
            |circuits| circuits.open[0].purpose = "MEASURE_TIMEOUT",
        ];
        for change in change {
            play(
                QUICK,
                |_| {},
                |scene| async move {
                    scene.ready().await;
                    let first = scene.circuits().kept()[0].id.clone();
                    change(&mut scene.double.borrow_mut().circuits);
                    scene
                        .until(|double| {
                            double
                                .circuits
                                .kept()
                                .iter()
                                .any(|circuit| circuit.id != first)
                        })
                        .await;
                    assert_eq!(scene.circuits().kept().len(), 1);
                },
            );
        }
    }

    #[test]
    fn one_that_grows_old_is_exchanged() {
        play(
            Times {
                age: Duration::from_millis(10),
                ..QUICK
            },
            |_| {},
            |scene| async move {
                scene
                    .until(|double| double.circuits.count("EXTENDCIRCUIT 0 $") > 2)
                    .await;
                scene.until(|double| double.circuits.open.len() <= 1).await;
            },
        );
    }

    #[test]
    fn one_that_the_stream_does_not_take_is_closed() {
        play(
            QUICK,
            |double| double.circuits.stream = "",
            |scene| async move {
                scene.ready().await;
                let first = scene.circuits().kept()[0].id.clone();
                scene.dial().await;
                scene
                    .until(|double| {
                        double
                            .circuits
                            .open
                            .iter()
                            .all(|circuit| circuit.id != first)
                    })
                    .await;
                scene.ready().await;
            },
        );
    }

    #[test]
    fn one_is_given_away_while_it_is_built() {
        play(
            QUICK,
            |double| double.circuits.slow = 1,
            |scene| async move {
                scene
                    .until(|double| double.circuits.count("EXTENDCIRCUIT 0") > 0)
                    .await;
                scene.double.borrow_mut().circuits.slow = u32::MAX;
                let unfinished = |double: &Double| {
                    double
                        .circuits
                        .open
                        .iter()
                        .any(|circuit| circuit.purpose == "CONTROLLER")
                };
                scene.until(unfinished).await;
                scene.dial().await;
                let circuits = scene.circuits();
                assert!(
                    circuits
                        .open
                        .iter()
                        .all(|circuit| circuit.purpose == "GENERAL"),
                    "{circuits:?}"
                );
            },
        );
    }

    #[test]
    fn whoever_ends_leaves_no_circuit_behind() {
        play(
            QUICK,
            |_| {},
            |mut scene| async move {
                scene.ready().await;
                scene.tor = None;
                scene.until(|double| double.circuits.open.is_empty()).await;
            },
        );
    }

    #[test]
    fn a_control_port_that_closes_or_falls_silent_holds_nobody_up() {
        for (silent, hangs_up) in [
            (Some("SETCIRCUITPURPOSE"), None),
            (None, Some("SETCIRCUITPURPOSE")),
        ] {
            play(
                QUICK,
                |_| {},
                |scene| async move {
                    scene.ready().await;
                    (
                        scene.double.borrow_mut().silent,
                        scene.double.borrow_mut().hangs_up,
                    ) = (silent, hangs_up);
                    scene.dial().await;
                    scene.dial().await;
                },
            );
        }
    }

    #[test]
    fn a_control_port_that_closed_is_asked_again_when_somebody_dials() {
        play(
            QUICK,
            |_| {},
            |scene| async move {
                scene.ready().await;
                scene.double.borrow_mut().hangs_up = Some("GETINFO circuit-status");
                scene
                    .until(|_| {
                        !scene
                            .tor()
                            .spare
                            .borrow()
                            .as_ref()
                            .expect("begun")
                            .is_kept()
                    })
                    .await;
                scene.double.borrow_mut().hangs_up = None;
                scene.double.borrow_mut().circuits.open.clear();
                assert_eq!(scene.double.borrow().connections, 1, "nobody has dialled");
                while scene.circuits().kept().is_empty() {
                    scene.dial().await;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                assert_eq!(scene.double.borrow().connections, 2);
            },
        );
    }

    #[test]
    fn without_anybody_who_dials_none_is_kept() {
        play(
            Times {
                idle: Duration::from_secs(1),
                ..QUICK
            },
            |_| {},
            |scene| async move {
                scene.ready().await;
                scene.until(|double| double.circuits.open.is_empty()).await;
                assert!(
                    !scene
                        .tor()
                        .spare
                        .borrow()
                        .as_ref()
                        .expect("begun")
                        .is_kept()
                );
                scene.dial().await;
                scene.ready().await;
                assert_eq!(scene.double.borrow().connections, 2);
            },
        );
    }

    #[test]
    fn failures_take_ever_longer_pauses_until_none_follows_for_long() {
        let patience = Patience::new(Times::USUAL);
        let mut pauses = Vec::new();
        for _ in 0..40 {
            patience.lose();
            pauses.push(patience.lost());
        }
        assert_eq!(pauses[..4], [2, 4, 8, 16].map(Duration::from_secs));
        assert_eq!(pauses[39], Duration::from_secs(600));
        for outcome in [Outcome::Unused, Outcome::Good] {
            patience.note(outcome);
            assert_eq!(
                patience.lost(),
                Duration::from_secs(600),
                "no proof of anything"
            );
        }
        let patience = Patience::new(QUICK);
        (0..3).for_each(|_| patience.lose());
        assert_eq!(patience.lost(), Duration::from_millis(20));
        std::thread::sleep(Duration::from_millis(100));
        patience.lose();
        assert_eq!(patience.lost(), Duration::from_millis(5));
    }

    #[test]
    fn the_next_is_begun_at_no_time_that_could_be_told() {
        let mean = Duration::from_secs(10);
        let times: Vec<_> = (0..4000).map(|_| at_random(mean).as_secs_f64()).collect();
        let share = |below: f64| {
            times.iter().filter(|time| **time < below).count() as f64 / times.len() as f64
        };
        // Six deviations of such a sample.
        for (below, expected) in [(1.0, 0.095), (10.0, 0.632), (30.0, 0.950)] {
            assert!(
                (share(below) - expected).abs() < 0.05,
                "{below}: {}",
                share(below)
            );
        }
    }

    #[test]
    fn a_gateway_that_does_not_answer_costs_no_circuits() {
        play(
            Times {
                pauses: (Duration::from_secs(600), Duration::from_secs(600)),
                ..QUICK
            },
            |_| {},
            |scene| async move {
                scene.ready().await;
                for _ in 0..5 {
                    scene.dial().await;
                    scene.tor().failed();
                }
                scene
                    .until(|double| double.circuits.kept().is_empty())
                    .await;
                assert_eq!(scene.circuits().count("EXTENDCIRCUIT 0 $"), 1);
            },
        );
    }
}
