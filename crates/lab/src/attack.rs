//! Attacks on the running programs, with limits that are checked: memory, processor time, and the
//! service for an honest user during the attack.
//!
//! - [`floods`]: frames that move no data, against a gateway, over both protocols; [`slow`]:
//!   connections and streams that are held open; [`origin`]: malicious origins behind the gateway;
//!   [`gateway`]: malicious gateways against the client. [`datagrams`]: forged and repeated
//!   datagrams against a gateway over UDP.
//! - [`victim`], [`pair`]: the programs and the honest user. [`servers`]: the honest origin and the
//!   frame of malicious servers. [`wire`]: hand-made frames.
//!
//! Attack traffic goes to loopback only. Each attack is bounded in time, sessions and frames. The
//! attacker's threads use only processor time that the victim and the honest user leave, as if the
//! attacker had a separate machine. Attacks by datagrams have a fixed rate instead.

pub mod datagrams;
pub mod floods;
pub mod gateway;
pub mod origin;
pub mod pair;
pub mod servers;
pub mod slow;
pub mod victim;
pub mod wire;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tandem_http::flood::RESTORED_PER_SECOND;
use tandem_net::emulator::sys;

use crate::bench::BenchError;
use crate::bench::testbed::Testbed;
use floods::{Flood, Maker};
use pair::AttackedPair;
use servers::HonestOrigin;
use victim::{HonestUser, Service, Usage, VictimClient, VictimGateway};
use wire::{Wire, has_ended};

/// The largest number of frames in a session of a flood, without those that time pays for: the full
/// reserve and earned balance buy up to 4,608 frames, and the last batch is counted whole.
const MAX_FLOOD: u64 = 5000;
/// The largest number of frames that a unit of the reserve pays for: a request, its body and its
/// reset.
const FRAMES_PER_UNIT: u64 = 3;
/// Frames between two questions whether the session goes on.
const BATCH: u64 = 250;
/// The largest number of sessions of one flood.
const MAX_SESSIONS: u64 = 500;
/// The largest time that an honest user waits for an answer. The time in which a busy machine has
/// no processor for the user or the victim is not counted.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// The number of requests that an honest user must have answered in each second, of those in which
/// the machine has a processor for the user and the victim.
const MIN_ANSWERS: f64 = 4.0;

/// The least part of the rate that an honest download must keep in an attack by datagrams.
const MIN_GOODPUT: f64 = 0.9;

/// Bounds of an attack.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of memory that the victim may need above its state before.
    pub memory: u64,
    /// Processor time of the victim for each frame or byte sequence that was sent, and a second.
    pub cpu: Duration,
}

/// The kinds of attack.
#[derive(Clone, Copy, Debug)]
enum AttackKind {
    Flood(&'static Flood),
    Slow(slow::SlowAttack),
    /// Against a gateway that requires a token and permits few connections.
    Few(slow::SlowAttack),
    Origin(&'static origin::AttackOrigin),
    Gateway(&'static gateway::MaliciousGateway),
    Datagrams(&'static datagrams::DatagramAttack),
}

/// An attack.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// The name on the command line.
    pub name: &'static str,
    /// The limits for the victim.
    pub bounds: Bounds,
    kind: AttackKind,
}

/// The result of one attack.
#[derive(Clone, Debug)]
pub struct AttackOutcome {
    /// Frames, connections or requests of the attacker.
    pub sent: u64,
    /// The largest number of frames that one session of a flood has carried, without those that
    /// time pays for.
    pub longest: u64,
    /// Bytes of memory that the victim needed above its state before.
    pub memory: u64,
    /// Processor time of the victim.
    pub cpu: Duration,
    /// The honest user's service.
    pub service: Service,
    /// The rate of the honest user's download in the attacks, by that in quiet times between them.
    pub goodput: Option<f64>,
    /// Bounds that do not hold, in words.
    pub broken: Vec<String>,
}

const MIB: u64 = 1 << 20;

/// Returns all attacks.
pub fn all() -> Vec<Attack> {
    let bounds = |memory, micros| Bounds {
        memory: memory * MIB,
        cpu: Duration::from_micros(micros),
    };
    let mut all = Vec::new();
    for flood in floods::H2.iter().chain(floods::SPDY) {
        all.push(Attack {
            name: flood.name,
            // Header blocks that inflate to a MiB cost more than frames of a few bytes.
            bounds: bounds(
                24,
                if flood.name.ends_with("bomb") {
                    20_000
                } else {
                    500
                },
            ),
            kind: AttackKind::Flood(flood),
        });
    }
    let slow: [(&str, u64, slow::SlowAttack); 7] = [
        ("half-open", 24, slow::half_open),
        ("slow-head", 24, slow::slow_head),
        ("slow-body", 64, slow::slow_body),
        // A stream holds 128 KiB unsent: 1,000 streams, and their origins' connections.
        ("unread-answers", 256, slow::unread_answers),
        ("shut-windows", 256, slow::shut_windows),
        ("spdy-unread-answers", 256, slow::spdy_unread_answers),
        ("unread-pings", 64, slow::unread_pings),
    ];
    for (name, memory, attack) in slow {
        all.push(Attack {
            name,
            bounds: bounds(memory, 5000),
            kind: AttackKind::Slow(attack),
        });
    }
    all.push(Attack {
        name: "half-open-full",
        bounds: bounds(24, 5000),
        kind: AttackKind::Few(slow::half_open_full),
    });
    for origin in origin::ALL {
        all.push(Attack {
            name: origin.name,
            bounds: bounds(64, 100_000),
            kind: AttackKind::Origin(origin),
        });
    }
    for gateway in gateway::ALL {
        all.push(Attack {
            name: gateway.name,
            bounds: Bounds {
                memory: gateway.memory,
                cpu: Duration::from_millis(20),
            },
            kind: AttackKind::Gateway(gateway),
        });
    }
    for attack in datagrams::ALL {
        all.push(Attack {
            name: attack.name,
            bounds: Bounds {
                memory: attack.memory,
                cpu: Duration::from_millis(2),
            },
            kind: AttackKind::Datagrams(attack),
        });
    }
    all
}

/// The counts of the attacker's actions.
#[derive(Clone, Copy, Debug, Default)]
struct AttackTally {
    sent: u64,
    longest: u64,
}

impl Attack {
    /// Runs the attack on fresh programs for some time, and checks the victim's use of resources.
    ///
    /// # Errors
    ///
    /// A program could not be started or watched, or the attacker could not reach it.
    pub fn run(
        &self,
        testbed: &Testbed,
        tandem: &Path,
        time: Duration,
    ) -> Result<AttackOutcome, BenchError> {
        let outcome = match self.kind {
            AttackKind::Gateway(gateway) => self.run_on_client(testbed, tandem, gateway, time),
            AttackKind::Datagrams(attack) => self.run_on_pair(testbed, tandem, attack, time),
            _ => self.run_on_gateway(testbed, tandem, time),
        };
        testbed.clear();
        outcome
    }

    fn run_on_gateway(
        &self,
        testbed: &Testbed,
        tandem: &Path,
        time: Duration,
    ) -> Result<AttackOutcome, BenchError> {
        let honest = HonestOrigin::start().map_err(BenchError::system("start an origin"))?;
        let (gateway, user) = if let AttackKind::Few(_) = self.kind {
            let gateway = VictimGateway::start_with_token(testbed, tandem)?;
            (gateway, HonestUser::with_token(gateway, honest.address))
        } else {
            let gateway = VictimGateway::start(testbed, tandem)?;
            (gateway, HonestUser::of_gateway(gateway, honest.address))
        };
        let user = user.map_err(BenchError::system("reach the gateway"))?;
        let before = Usage::of(gateway.pid)?;
        let until = Instant::now() + time;
        let tally = as_attacker(|| match self.kind {
            AttackKind::Flood(flood) => run_flood(flood, gateway, honest.address, until),
            AttackKind::Slow(attack) | AttackKind::Few(attack) => {
                attack(gateway, honest.address, until).map(AttackTally::of)
            }
            AttackKind::Origin(origin) => {
                let origin = origin.start()?;
                origin::ask(gateway, origin.address, until).map(AttackTally::of)
            }
            AttackKind::Gateway(_) | AttackKind::Datagrams(_) => Ok(AttackTally::default()),
        });
        let tally = tally.map_err(BenchError::system(format!("attack by {}", self.name)))?;
        // Some floods end early. The user's requests are counted against the whole time.
        thread::sleep(until.saturating_duration_since(Instant::now()));
        let after = Usage::of(gateway.pid)?;
        Ok(self.judge(tally, before, after, user.end(), time))
    }

    fn run_on_client(
        &self,
        testbed: &Testbed,
        tandem: &Path,
        gateway: &'static gateway::MaliciousGateway,
        time: Duration,
    ) -> Result<AttackOutcome, BenchError> {
        let sent = Arc::new(AtomicU64::new(0));
        let server = as_attacker(|| gateway.start(Arc::clone(&sent)))
            .map_err(BenchError::system("start a gateway"))?;
        let near = VictimGateway::start(testbed, tandem)?;
        let protocol = gateway.protocol;
        let client = VictimClient::start(testbed, tandem, protocol, server.address, near)?;
        let honest = HonestOrigin::start().map_err(BenchError::system("start an origin"))?;
        let user = HonestUser::of_client(client, near, honest.address);
        let before = Usage::of(client.pid)?;
        for thread in gateway::browse(client.http, Instant::now() + time) {
            let _ = thread.join();
        }
        let after = Usage::of(client.pid)?;
        let tally = AttackTally::of(sent.load(Ordering::Relaxed));
        Ok(self.judge(tally, before, after, user.end(), time))
    }

    fn run_on_pair(
        &self,
        testbed: &Testbed,
        tandem: &Path,
        attack: &'static datagrams::DatagramAttack,
        time: Duration,
    ) -> Result<AttackOutcome, BenchError> {
        let pair = AttackedPair::start(testbed, tandem, attack.way)?;
        let before = Usage::of(pair.pid)?;
        // A gateway that has ended is an error of the download.
        let cpu = || Usage::of(pair.pid).map_or(Duration::ZERO, |usage| usage.cpu);
        let done = attack.run(&pair, time, cpu);
        let done = done.map_err(BenchError::system(format!("attack by {}", self.name)))?;
        let memory = Usage::of(pair.pid)?.peak.saturating_sub(before.resident);
        let broken = self.judge_datagrams(attack, &done, memory, pair.end());
        Ok(AttackOutcome {
            sent: done.sent,
            longest: 0,
            memory,
            cpu: done.cpu,
            service: Service::default(),
            goodput: Some(done.goodput),
            broken,
        })
    }

    fn judge_datagrams(
        &self,
        attack: &datagrams::DatagramAttack,
        done: &datagrams::DatagramOutcome,
        memory: u64,
        ended: io::Result<()>,
    ) -> Vec<String> {
        let sent = u32::try_from(done.sent).unwrap_or(u32::MAX);
        let allowed = self.bounds.cpu * sent + Duration::from_secs(1);
        let most = attack.amplification.map(|times| times * done.bytes);
        let checks = [
            (done.sent > 0, "nothing was sent".into()),
            (
                memory <= self.bounds.memory,
                format!(
                    "{} MiB, more than {} MiB",
                    memory / MIB,
                    self.bounds.memory / MIB
                ),
            ),
            (
                done.cpu <= allowed,
                format!(
                    "{:.1?} of processor time, more than {allowed:.1?}",
                    done.cpu
                ),
            ),
            (
                most.is_none_or(|most| done.replied <= most),
                format!("{} bytes of replies to {} bytes", done.replied, done.bytes),
            ),
            (
                done.goodput >= MIN_GOODPUT,
                format!(
                    "the download kept {:.2} of its rate, below {MIN_GOODPUT}",
                    done.goodput
                ),
            ),
            (
                ended.is_ok(),
                ended.map_or_else(
                    |error| format!("the download failed: {error}"),
                    |()| String::new(),
                ),
            ),
        ];
        let broken = checks.into_iter().filter(|(holds, _)| !holds);
        broken.map(|(_, problem)| problem).collect()
    }

    fn judge(
        &self,
        tally: AttackTally,
        before: Usage,
        after: Usage,
        service: Service,
        time: Duration,
    ) -> AttackOutcome {
        let memory = after.peak.saturating_sub(before.resident);
        let cpu = after.cpu.saturating_sub(before.cpu);
        // The total includes the cost of the honest user's requests, which have two milliseconds
        // each.
        let own = Duration::from_secs(1) + Duration::from_millis(2) * service.answered;
        let allowed = self.bounds.cpu * u32::try_from(tally.sent).unwrap_or(u32::MAX) + own;
        let served = time.saturating_sub(service.stalled);
        let least = (MIN_ANSWERS * served.as_secs_f64()) as u32;
        let mut broken = Vec::new();
        let mut check = |holds: bool, problem: String| {
            if !holds {
                broken.push(problem);
            }
        };
        check(tally.sent > 0, "nothing was sent".into());
        check(
            tally.longest <= MAX_FLOOD,
            format!(
                "a session carried {} frames, more than {MAX_FLOOD}",
                tally.longest
            ),
        );
        check(
            memory <= self.bounds.memory,
            format!(
                "{} MiB, more than {} MiB",
                memory / MIB,
                self.bounds.memory / MIB
            ),
        );
        check(
            cpu <= allowed,
            format!("{cpu:.1?} of processor time, more than {allowed:.1?}"),
        );
        check(
            service.failed == 0,
            format!(
                "{} honest requests failed: {}",
                service.failed,
                service.problem.as_deref().unwrap_or("the user ended")
            ),
        );
        check(
            service.answered >= least,
            format!(
                "{} honest requests answered, fewer than {least}",
                service.answered
            ),
        );
        check(
            service.slowest <= MAX_WAIT,
            format!("an honest request took {:.1?}", service.slowest),
        );
        AttackOutcome {
            sent: tally.sent,
            longest: tally.longest,
            memory,
            cpu,
            service,
            goodput: None,
            broken,
        }
    }
}

impl AttackTally {
    const fn of(sent: u64) -> Self {
        Self { sent, longest: 0 }
    }
}

/// Runs an attacker on a thread of the lowest class. The victim and the honest user share the
/// processors of this machine with the attacker, and must not wait for them.
fn as_attacker<T: Send>(attack: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let attacker = || sys::use_idle().and_then(|()| attack());
    thread::scope(|scope| scope.spawn(attacker).join())
        .unwrap_or_else(|_| Err(io::Error::other("the attacker's thread panicked")))
}

/// Floods one session after the other, each until the gateway ends it.
fn run_flood(
    flood: &Flood,
    gateway: VictimGateway,
    origin: SocketAddr,
    until: Instant,
) -> io::Result<AttackTally> {
    let mut tally = AttackTally::default();
    let mut sessions = 0;
    // The first session may exceed the time: the limit is about its cost.
    while sessions == 0 || (Instant::now() < until && sessions < MAX_SESSIONS) {
        sessions += 1;
        let begun = Instant::now();
        let frames = flood_session(flood, gateway, origin)?;
        tally.sent += frames;
        tally.longest = tally
            .longest
            .max(frames.saturating_sub(restored(begun.elapsed())));
    }
    Ok(tally)
}

/// Returns the number of frames that the flood budget restores in this time. A busy machine makes a
/// session last longer, and the budget permits more frames then.
fn restored(time: Duration) -> u64 {
    (time.as_secs_f64() * (RESTORED_PER_SECOND * FRAMES_PER_UNIT) as f64) as u64
}

/// Floods a session until it ends, or is far beyond the bound. Returns the number of frames.
fn flood_session(flood: &Flood, gateway: VictimGateway, origin: SocketAddr) -> io::Result<u64> {
    let mut maker = Maker::new(&origin.to_string());
    let mut wire = Wire::connect(gateway.address(flood.protocol), flood.protocol)?;
    let mut bytes = (flood.first)(&mut maker);
    let (mut frames, mut unasked, mut id) = (0, 0, 1);
    loop {
        id += 2;
        bytes.extend((flood.turn)(&mut maker, id));
        frames += flood.frames as u64;
        unasked += flood.frames as u64;
        if unasked >= BATCH || bytes.len() > 100_000 {
            match wire.send(&bytes) {
                Err(error) if has_ended(&error) => return Ok(frames),
                sent => sent?,
            }
            if frames > 2 * MAX_FLOOD || !wire.goes_on()? {
                return Ok(frames);
            }
            bytes.clear();
            unasked = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn attacks_have_names_of_their_own() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|attack| attack.name).collect();
        assert_eq!(names.len(), all.len());
    }

    #[test]
    fn time_pays_for_frames_of_a_flood() {
        assert_eq!(restored(Duration::ZERO), 0);
        assert_eq!(restored(Duration::from_millis(1500)), 288);
    }

    #[test]
    fn turns_hold_the_frames_that_they_count() {
        for flood in floods::H2 {
            let turn = (flood.turn)(&mut Maker::new("a.test"), 3);
            let (mut rest, mut frames) = (&turn[..], 0);
            while let [l2, l1, l0, ..] = *rest {
                let length = u32::from_be_bytes([0, l2, l1, l0]) as usize;
                rest = &rest[9 + length..];
                frames += 1;
            }
            assert_eq!(frames, flood.frames, "{}", flood.name);
        }
    }
}
