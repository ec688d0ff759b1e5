//! Random sessions. A plain, slow model of stream states and windows must agree with the session
//! after every step, for both roles and versions, with frames cut at any byte.

mod plain;
mod real;

use std::collections::BTreeMap;

use plain::Model;
use proptest::prelude::*;
use real::Real;
use tandem_http::{Mux, Role};
use tandem_spdy::Version;

const STREAM_WINDOW: u32 = 70_000;
const SESSION_WINDOW: u32 = 100_000;
const MAX_STREAMS: usize = 4;

/// A step of a random session.
#[derive(Clone, Debug)]
enum Step {
    PeerOpens { id: u32, associated: u32, fin: bool },
    PeerReplies { id: u32, fin: bool },
    PeerSends { id: u32, len: usize, fin: bool },
    PeerAdds { id: u32, name: u8, fin: bool },
    PeerResets { id: u32 },
    PeerCredits { id: u32, delta: u32 },
    PeerSets { window: u32 },
    PeerPings { id: u32 },
    PeerLeaves { last: u32 },
    Open { fin: bool, urgency: u8 },
    Push { parent: u32, urgency: u8 },
    Respond { id: u32, fin: bool },
    Send { id: u32, len: usize, fin: bool },
    Reset { id: u32 },
    Release { id: u32, len: usize },
    Leave,
}

/// The compared output: frames without their credit and boundaries, events without their
/// boundaries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Outcome {
    frames: Vec<String>,
    data: BTreeMap<u32, (usize, bool)>,
    events: Vec<(String, usize)>,
    failed: bool,
}

impl Outcome {
    fn frame(&mut self, text: impl Into<String>) {
        self.frames.push(text.into());
    }

    fn event(&mut self, text: impl Into<String>) {
        self.events.push((text.into(), 0));
    }

    /// Data events of one stream in a row count as one.
    fn data_event(&mut self, id: u32, len: usize, end: bool) {
        let text = format!("data {id}");
        match self.events.last_mut() {
            Some((last, total)) if *last == text => *total += len,
            _ => self.events.push((text, len)),
        }
        if end {
            self.event(format!("end {id}"));
        }
    }
}

/// Zero-length data events are of no account to either.
fn tidy(mut outcome: Outcome) -> Outcome {
    outcome
        .events
        .retain(|(text, len)| *len > 0 || !text.starts_with("data"));
    outcome
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let id = 0u32..12;
    let len = prop_oneof![Just(0usize), 1usize..100, 1usize..40_000];
    let delta = prop_oneof![8 => 1u32..100_000, 1 => Just(0), 1 => Just(0x7fff_ffff)];
    let window = prop_oneof![8 => 0u32..100_000, 1 => Just(0x7fff_ffff)];
    let step = prop_oneof![
        6 => (id.clone(), id.clone(), any::<bool>())
            .prop_map(|(id, associated, fin)| Step::PeerOpens { id, associated, fin }),
        4 => (id.clone(), any::<bool>()).prop_map(|(id, fin)| Step::PeerReplies { id, fin }),
        8 => (id.clone(), len.clone(), any::<bool>()).prop_map(|(id, len, fin)| Step::PeerSends { id, len, fin }),
        2 => (id.clone(), 0u8..3, any::<bool>()).prop_map(|(id, name, fin)| Step::PeerAdds { id, name, fin }),
        1 => id.clone().prop_map(|id| Step::PeerResets { id }),
        4 => (id.clone(), delta).prop_map(|(id, delta)| Step::PeerCredits { id, delta }),
        2 => window.prop_map(|window| Step::PeerSets { window }),
        1 => id.clone().prop_map(|id| Step::PeerPings { id }),
        1 => id.clone().prop_map(|last| Step::PeerLeaves { last }),
        4 => (any::<bool>(), 0u8..8).prop_map(|(fin, urgency)| Step::Open { fin, urgency }),
        3 => (id.clone(), 0u8..8).prop_map(|(parent, urgency)| Step::Push { parent, urgency }),
        4 => (id.clone(), any::<bool>()).prop_map(|(id, fin)| Step::Respond { id, fin }),
        8 => (id.clone(), len.clone(), any::<bool>()).prop_map(|(id, len, fin)| Step::Send { id, len, fin }),
        1 => id.clone().prop_map(|id| Step::Reset { id }),
        4 => (id, len).prop_map(|(id, len)| Step::Release { id, len }),
        1 => Just(Step::Leave),
    ];
    prop::collection::vec(step, 1..120)
}

/// Turns numbers into ones that mean something more often: peers rarely break the rules of ids.
fn sensible(step: Step, model: &Model) -> Step {
    match step {
        Step::PeerOpens {
            id,
            associated,
            fin,
        } if id > 1 => {
            let next = if model.last_peer > 0 {
                model.last_peer + 2
            } else {
                1 + u32::from(model.client)
            };
            let parent = model
                .live
                .iter()
                .filter(|(_, stream)| stream.own)
                .map(|(id, _)| *id)
                .nth(associated as usize);
            Step::PeerOpens {
                id: next,
                associated: parent.unwrap_or(associated),
                fin,
            }
        }
        Step::PeerSends { id: 0, len, fin } => Step::PeerSends { id: 1, len, fin },
        other => other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn the_session_agrees_with_the_model(
        client: bool,
        v31: bool,
        cut in prop_oneof![Just(1usize), 2usize..40, Just(usize::MAX)],
        steps in steps(),
    ) {
        let role = if client { Role::Client } else { Role::Server };
        let version = if v31 { Version::V31 } else { Version::V3 };
        let mut model = Model::new(role, version);
        let mut real = Real::new(role, version, cut);
        for step in steps {
            let step = sensible(step, &model);
            model.step(&step);
            let (outcome, credit) = real.step(&step);
            let failed = outcome.failed;
            prop_assert_eq!(tidy(outcome), tidy(std::mem::take(&mut model.out)), "after {:?}", step);
            if failed {
                return Ok(());
            }
            prop_assert_eq!(real.session.active(), model.live.len(), "after {:?}", step);
            for (id, delta) in credit {
                model.credited(id, delta);
            }
            model.check_credit();
        }
    }
}
