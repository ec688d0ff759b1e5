//! Resources that a session requests again although it had them: because they may not be cached, or
//! are revalidated on every view.
//!
//! The probability of a repeated request is almost independent of the probability of a first one,
//! so it is learned separately: by the last answer, by resource, by session, and by earlier
//! repeated requests of this load. Resources that are hardly ever requested again are judged only
//! occasionally, to notice changes.

use super::mixer::{Evidence, Mixer, Rate, Reliability, squash, stretch};
use super::model::NOT_YET;
use super::session::Session;
use super::store::ContextId;
use super::transfer::OUTCOME_MEMORY;
use super::{Aim, Auto, Candidate};

/// Bias, circumstances, the resource, the session, the page.
const INPUTS: usize = 5;
/// By last answer (fresh, anything else) and moment (page, first repetition of the load).
const SETS: usize = 4;
/// Assets of a page that are looked at.
const MAX_REPEATS: usize = 64;
/// Least share of the page's loads that ask for it.
pub(super) const LEAST_CHANCE: f32 = 0.2;
/// The share below which a resource is judged only occasionally.
const HOPELESS: f32 = 0.02;
/// The number of loads in one of which a rare resource is judged.
const SAMPLE: u32 = 8;

/// A resource that a page needs and the session has had.
#[derive(Debug, Clone, Copy)]
pub(super) struct Repeat {
    pub(super) url: u32,
    /// Indicates whether the last answer was anything but a fresh copy.
    revalidated: bool,
    inputs: [[f32; INPUTS]; 2],
    /// Moments judged before it was asked for; [`NOT_YET`] until then.
    after: u8,
    /// Indicates whether a push in place of that request would have been of use.
    saves: bool,
    /// The probability that the request, if it comes, transfers a body.
    transfers: f32,
}

impl Repeat {
    /// Notes that the resource was requested after this number of moments. Only the first request
    /// counts.
    pub(super) fn came(&mut self, moments: u8, saves: bool) {
        if self.after == NOT_YET {
            (self.after, self.saves) = (moments, saves);
        }
    }
}

/// The knowledge about repeated requests.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Repetition {
    pub(super) mixer: Mixer<INPUTS>,
    pub(super) reliability: Reliability,
    pub(super) rates: [Rate; SETS],
    /// The share of the repeated requests that transfer a body, by the last answer.
    pub(super) transfers: [Rate; 2],
}

impl Default for Repetition {
    fn default() -> Self {
        Self {
            mixer: Mixer::new(SETS, [0.0, 1.0, 0.5, 0.7, 0.3]),
            reliability: Reliability::default(),
            rates: [
                Rate::prior(0.05),
                Rate::prior(0.4),
                Rate::prior(0.5),
                Rate::prior(0.8),
            ],
            transfers: [Rate::prior(0.5), Rate::prior(0.2)],
        }
    }
}

fn set(revalidated: bool, moment: u8) -> usize {
    usize::from(revalidated) + 2 * usize::from(moment)
}

impl Repetition {
    fn mixed(&self, repeat: &Repeat, moment: u8) -> f32 {
        self.mixer.mix(
            &repeat.inputs[usize::from(moment)],
            &[set(repeat.revalidated, moment)],
        )
    }

    fn probability(&self, repeat: &Repeat, moment: u8) -> f32 {
        let mixed = self.mixed(repeat, moment);
        0.5 * (squash(mixed) + self.reliability.check(mixed))
    }

    /// Returns the probability that a repeated request, if it comes, transfers a body.
    fn transfers(&self, resource: Option<Rate>, revalidated: bool) -> f32 {
        let base = stretch(self.transfers[usize::from(revalidated)].p);
        squash(base + resource.map_or(0.0, |rate| rate.excess(base)))
    }

    /// Learns from the repeated requests of a load.
    fn learn(&mut self, repeats: &[Repeat], moments: u8) {
        for moment in 0..moments.min(2) {
            let mut evidence = Evidence::default();
            let mut sums = [(0.0, 0.0); 2];
            for repeat in repeats.iter().filter(|repeat| repeat.after > moment) {
                let outcome = repeat.after != NOT_YET;
                evidence.note(self.mixed(repeat, moment), outcome);
                let sum = &mut sums[usize::from(repeat.revalidated)];
                sum.0 += f32::from(u8::from(outcome));
                sum.1 += 1.0;
            }
            self.reliability.learn(&evidence);
            let scale = 4.0 / (4.0 + sums[0].1 + sums[1].1);
            for repeat in repeats.iter().filter(|repeat| repeat.after > moment) {
                let outcome = f32::from(u8::from(repeat.after != NOT_YET));
                let error = outcome - squash(self.mixed(repeat, moment));
                let inputs = &repeat.inputs[usize::from(moment)];
                self.mixer
                    .learn(inputs, &[set(repeat.revalidated, moment)], error * scale);
            }
            for (revalidated, (hits, all)) in [false, true].into_iter().zip(sums) {
                if all > 0.0 {
                    self.rates[set(revalidated, moment)].learn(hits / all, 4.0, 300.0);
                }
            }
        }
    }

    /// Merges the knowledge of another table.
    pub(super) fn merge(&mut self, other: &Self) {
        self.mixer.merge(&other.mixer);
        self.reliability.merge(&other.reliability);
        let mine = self.rates.iter_mut().chain(&mut self.transfers);
        let theirs = other.rates.iter().chain(&other.transfers);
        for (mine, theirs) in mine.zip(theirs) {
            *mine = mine.merged(*theirs, 300.0);
        }
    }
}

impl Auto {
    /// Returns the assets of a page that the session holds and may request again.
    pub(super) fn repeats(&self, session: &Session, page: ContextId, load: u32) -> Vec<Repeat> {
        let learned = &self.model.repetition;
        let base =
            [0, 1].map(|moment| [false, true].map(|r| stretch(learned.rates[set(r, moment)].p)));
        let sampled = load.is_multiple_of(SAMPLE);
        let mut repeats = Vec::new();
        for entry in self.store.known(page, self.least_users()) {
            if entry.rate.p < LEAST_CHANCE {
                continue;
            }
            let Some(held) = session.held.get(entry.url) else {
                continue;
            };
            let url = self.store.at(entry.url);
            let revalidated = held.revalidated;
            let page = stretch(entry.rate.p);
            let inputs = base.map(|base| {
                let base = base[usize::from(revalidated)];
                let resource = url.again.map_or(0.0, |rate| rate.excess(base));
                [1.0, base, resource, session.repeats.excess(base), page]
            });
            let repeat = Repeat {
                url: entry.url,
                revalidated,
                inputs,
                after: NOT_YET,
                saves: false,
                transfers: match self.config.aim {
                    Aim::Transfers => learned.transfers(url.again_transfers, revalidated),
                    Aim::Requests => 1.0,
                },
            };
            if sampled || learned.probability(&repeat, 1) >= HOPELESS {
                repeats.push(repeat);
                if repeats.len() == MAX_REPEATS {
                    break;
                }
            }
        }
        repeats
    }

    /// Judges the possible repeated requests of a load, when its page is sent and when the first
    /// one has arrived.
    pub(super) fn judge_repeats(
        &mut self,
        session: &mut Session,
        at: usize,
        offers: &mut Vec<Candidate>,
    ) {
        let load = &mut session.loads[at];
        let moment = load.moments;
        if moment >= 2 || load.repeats.is_empty() {
            return;
        }
        load.moments += 1;
        let open = load.repeats.iter().filter(|repeat| repeat.after == NOT_YET);
        let judged: Vec<(u32, f32)> = open
            .map(|repeat| {
                (
                    repeat.url,
                    self.model.repetition.probability(repeat, moment) * repeat.transfers,
                )
            })
            .collect();
        self.offer(session, &judged, offers);
    }

    /// A URL that the session holds is asked for again.
    pub(super) fn asked_again(
        &mut self,
        session: &mut Session,
        at: usize,
        (url, saves): (u32, bool),
        offers: &mut Vec<Candidate>,
    ) {
        let load = &mut session.loads[at];
        let moments = load.moments;
        let Some(repeat) = load
            .repeats
            .iter_mut()
            .find(|repeat| repeat.url == url && repeat.after == NOT_YET)
        else {
            return;
        };
        repeat.came(moments, saves);
        self.judge_repeats(session, at, offers);
    }

    /// Learns from the repeated requests of a load.
    pub(super) fn learn_repeats(&mut self, session: &mut Session, repeats: &[Repeat], moments: u8) {
        if repeats.is_empty() {
            return;
        }
        self.model.repetition.learn(repeats, moments);
        let again = repeats
            .iter()
            .filter(|repeat| repeat.after != NOT_YET)
            .count();
        session
            .repeats
            .learn(again as f32 / repeats.len() as f32, 1.0, 8.0);
        for repeat in repeats {
            let outcome = f32::from(u8::from(repeat.after != NOT_YET));
            let prior = self.model.repetition.rates[set(repeat.revalidated, 0)].p;
            self.store
                .at_mut(repeat.url)
                .again
                .get_or_insert_with(|| Rate::prior(prior))
                .learn(outcome, 1.0, 30.0);
            if repeat.after != NOT_YET {
                self.learn_repeated_transfer(repeat);
            }
        }
    }

    fn learn_repeated_transfer(&mut self, repeat: &Repeat) {
        let saves = f32::from(u8::from(repeat.saves));
        let rate = &mut self.model.repetition.transfers[usize::from(repeat.revalidated)];
        rate.learn(saves, 4.0, 300.0);
        let prior = rate.p;
        let url = &mut self.store.at_mut(repeat.url).again_transfers;
        url.get_or_insert_with(|| Rate::prior(prior))
            .learn(saves, 1.0, OUTCOME_MEMORY);
    }
}
