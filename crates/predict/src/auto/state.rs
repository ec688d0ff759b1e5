//! The knowledge of `auto` as bytes: to start warm after a restart, and to merge the knowledge of
//! several gateways or logs. This file reads them, and `saving` writes them.
//!
//! The format is little endian: 16 bytes of name, a version, the model, the URLs, the contexts, and
//! a checksum. It contains no sessions, and no URL or page that fewer than the required number of
//! users requested: data that is private to one user is not written. It contains no habits of
//! User-Agents either, since these may be as rare as their users, and are soon learned again. The
//! caller writes the bytes to a file in one step.

use std::io::{self, Read};

use super::mixer::{Mixer, Rate, Reliability};
use super::model::{ASSET_INPUTS, FOLLOWER_SETS, Model};
use super::store::{ContextId, Crowd, FOLLOWERS, Key, LIMITS, NONE, Store};
use super::url::{Kind, parts, template};
use super::{Auto, AutoConfig, fnv1a};

pub(super) const NAME: &[u8; 16] = b"tandem predict\n\0";
pub(super) const VERSION: u32 = 5;
/// The version before, which lacks the followers of assets. It is read as well.
const WITHOUT_FOLLOWERS: u32 = 4;
/// The version before that, which lacks the rates of transfers too.
const WITHOUT_TRANSFERS: u32 = 3;
/// The time at which the URLs of a state became known.
const LONG_AGO: i64 = i64::MIN / 2;
/// Longest URL or name of a context that is read back.
const MAX_NAME: usize = 64 * 1024;

/// Why bytes are no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// They do not begin as a state does.
    #[error("not a prediction state")]
    Foreign,
    /// They are of a version this build does not know.
    #[error("prediction state of unknown version {0}")]
    Version(u32),
    /// They end too soon or were changed.
    #[error("damaged prediction state")]
    Damaged,
}

/// The length in bytes of the longest state that is read, unless the memory is larger.
const LONGEST: u64 = 256 << 20;

/// Reads a state for [`Auto::load`]. Of a file that does not begin as a state does, only the
/// beginning is read.
///
/// # Errors
/// Fails if the input does, or if it is longer than any state for this memory.
pub fn read_state(input: impl Read, config: &AutoConfig) -> io::Result<Vec<u8>> {
    read_bounded(input, LONGEST.max(4 * config.max_memory as u64))
}

fn read_bounded(mut input: impl Read, longest: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input
        .by_ref()
        .take(NAME.len() as u64)
        .read_to_end(&mut bytes)?;
    if bytes != NAME {
        return Ok(bytes);
    }
    input.take(longest).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > longest {
        let detail = format!("it is longer than {longest} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, detail));
    }
    Ok(bytes)
}

impl Auto {
    /// Creates a predictor from saved knowledge, also that of the two versions before. They have no
    /// followers of assets, and the older one has no rates of transfers.
    ///
    /// # Errors
    /// Returns an error if [`save`](Self::save) did not write the bytes.
    pub fn load(bytes: &[u8], config: AutoConfig) -> Result<Self, StateError> {
        let rest = bytes.strip_prefix(NAME).ok_or(StateError::Foreign)?;
        let mut input = Reader {
            rest,
            has_transfers: true,
            has_followers: true,
        };
        match input.u32()? {
            VERSION => {}
            WITHOUT_FOLLOWERS => input.has_followers = false,
            WITHOUT_TRANSFERS => (input.has_transfers, input.has_followers) = (false, false),
            version => return Err(StateError::Version(version)),
        }
        let (body, sum) = bytes.split_last_chunk::<8>().ok_or(StateError::Damaged)?;
        if fnv1a(body) != u64::from_le_bytes(*sum) {
            return Err(StateError::Damaged);
        }
        let mut auto = Self::new(config);
        auto.model = input.model()?;
        auto.store = input.store()?;
        if input.rest.len() != sum.len() {
            return Err(StateError::Damaged);
        }
        auto.budget.trust();
        auto.bound_memory();
        Ok(auto)
    }
}

pub(super) struct Reader<'a> {
    pub(super) rest: &'a [u8],
    has_transfers: bool,
    /// Indicates whether the mixer of assets has weights for followers.
    has_followers: bool,
}

impl<'a> Reader<'a> {
    /// Reads the format of gains.
    pub(super) fn of_gains(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            has_transfers: false,
            has_followers: true,
        }
    }

    fn transfers(&mut self) -> Result<Option<Rate>, StateError> {
        if self.has_transfers {
            self.optional()
        } else {
            Ok(None)
        }
    }

    fn take<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], StateError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(StateError::Damaged)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, StateError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    /// A number of things that take at least `size` bytes each, so that nothing is reserved for
    /// more than is there.
    fn count(&mut self, size: usize) -> Result<usize, StateError> {
        let count = self.u32()? as usize;
        if count > self.rest.len() / size {
            Err(StateError::Damaged)
        } else {
            Ok(count)
        }
    }

    /// A finite number no larger than anything that is ever learned or counted.
    fn f32(&mut self) -> Result<f32, StateError> {
        let value = f32::from_le_bytes(self.take()?);
        if value.is_finite() && value.abs() <= 1e20 {
            Ok(value)
        } else {
            Err(StateError::Damaged)
        }
    }

    fn positive(&mut self) -> Result<f32, StateError> {
        self.f32().and_then(|value| {
            if value >= 0.0 {
                Ok(value)
            } else {
                Err(StateError::Damaged)
            }
        })
    }

    fn optional(&mut self) -> Result<Option<Rate>, StateError> {
        let (p, n) = (self.f32()?, self.positive()?);
        if p > 1.0 {
            return Err(StateError::Damaged);
        }
        Ok((p >= 0.0).then_some(Rate { p, n }))
    }

    fn rate(&mut self) -> Result<Rate, StateError> {
        self.optional()?.ok_or(StateError::Damaged)
    }

    fn text(&mut self) -> Result<&'a str, StateError> {
        let length = self.u32()? as usize;
        if length > MAX_NAME || length > self.rest.len() {
            return Err(StateError::Damaged);
        }
        let (text, rest) = self.rest.split_at(length);
        self.rest = rest;
        std::str::from_utf8(text).map_err(|_| StateError::Damaged)
    }

    fn mixer<const INPUTS: usize>(&mut self, mixer: &mut Mixer<INPUTS>) -> Result<(), StateError> {
        let sets = mixer.weights.len();
        self.mixer_of(mixer, sets, INPUTS)
    }

    /// Reads the first weights of the first sets. The others keep their start.
    fn mixer_of<const INPUTS: usize>(
        &mut self,
        mixer: &mut Mixer<INPUTS>,
        sets: usize,
        inputs: usize,
    ) -> Result<(), StateError> {
        let all = mixer.weights.iter_mut().zip(&mut mixer.seen);
        for (weights, seen) in all.take(sets) {
            for weight in weights.iter_mut().take(inputs) {
                *weight = self.f32()?.clamp(-20.0, 20.0);
            }
            *seen = self.positive()?;
        }
        Ok(())
    }

    fn reliability(&mut self, reliability: &mut Reliability) -> Result<(), StateError> {
        for point in &mut reliability.points {
            *point = self.rate()?;
        }
        Ok(())
    }

    fn model(&mut self) -> Result<Model, StateError> {
        let mut model = Model::default();
        self.mixer(&mut model.fetch)?;
        self.mixer(&mut model.lead)?;
        if self.has_followers {
            self.mixer(&mut model.asset)?;
        } else {
            self.mixer_of(&mut model.asset, FOLLOWER_SETS, ASSET_INPUTS - 1)?;
        }
        for reliability in &mut model.reliability {
            self.reliability(reliability)?;
        }
        for rate in [&mut model.fetches, &mut model.follows] {
            *rate = self.rate()?;
        }
        for rate in model.circumstances.iter_mut().chain(&mut model.firsts) {
            *rate = self.rate()?;
        }
        self.mixer(&mut model.repetition.mixer)?;
        self.reliability(&mut model.repetition.reliability)?;
        for rate in &mut model.repetition.rates {
            *rate = self.rate()?;
        }
        if self.has_transfers {
            self.transfer_model(&mut model)?;
        }
        Ok(model)
    }

    fn transfer_model(&mut self, model: &mut Model) -> Result<(), StateError> {
        for rate in &mut model.repetition.transfers {
            *rate = self.rate()?;
        }
        self.mixer(&mut model.transfers.mixer)?;
        model.transfers.overall = self.rate()?;
        for rate in &mut model.transfers.rates {
            *rate = self.rate()?;
        }
        Ok(())
    }

    pub(super) fn store(&mut self) -> Result<Store, StateError> {
        let mut store = Store::default();
        let mut ids = Vec::new();
        for _ in 0..self.count(42)? {
            ids.push(self.url(&mut store)?);
        }
        let mut pages = Vec::new();
        for _ in 0..self.count(21)? {
            let context = self.context(&mut store, &ids)?;
            if let Key::Page(page) = store.context(context).key {
                pages.push((page, context));
            }
            store.link_followers(context);
        }
        for (page, context) in pages {
            if store.at(page).contexts[0] != NONE {
                return Err(StateError::Damaged);
            }
            link(&mut store, page, context);
        }
        Ok(store)
    }

    fn url(&mut self, store: &mut Store) -> Result<u32, StateError> {
        let name = self.text()?;
        if store.find(name).is_some() {
            return Err(StateError::Damaged);
        }
        let id = store.url(name);
        let [kind, users] = self.take()?;
        let url = store.at_mut(id);
        url.kind = Kind::ALL
            .get(usize::from(kind))
            .copied()
            .ok_or(StateError::Damaged)?;
        url.crowd = Crowd::of(users);
        url.known_since = LONG_AGO;
        url.count = self.u32()?;
        url.size = self.positive()?;
        url.sizes = self.positive()?;
        url.as_page = self.positive()?;
        url.as_asset = self.positive()?;
        url.leads = self.optional()?;
        url.again = self.optional()?;
        url.transfers = self.transfers()?;
        url.again_transfers = self.transfers()?;
        Ok(id)
    }

    fn context(&mut self, store: &mut Store, ids: &[u32]) -> Result<ContextId, StateError> {
        let id_of = |number: u32| ids.get(number as usize).copied().ok_or(StateError::Damaged);
        let id = match self.u32()? {
            NONE => {
                let name = self.text()?;
                if !name.starts_with(['S', 'T', 'E', FOLLOWERS]) || store.is_named(name) {
                    return Err(StateError::Damaged);
                }
                store.named(name.to_owned())
            }
            page => store.new_context(Key::Page(id_of(page)?)),
        };
        let [users] = self.take()?;
        let loads = self.positive()?;
        let (fetches, transfers) = (self.optional()?, self.transfers()?);
        let context = store.context_mut(id);
        (context.loads, context.crowd) = (loads, Crowd::of(users));
        (context.fetches, context.transfers) = (fetches, transfers);
        let count = self.count(29)?;
        if count > LIMITS[0] {
            return Err(StateError::Damaged);
        }
        for _ in 0..count {
            let url = id_of(self.u32()?)?;
            let [users] = self.take()?;
            let rate = self.rate()?;
            let later = [self.rate()?, self.rate()?];
            store.add_entry(id, LIMITS[0], url, rate, Crowd::of(users));
            if let Some(entry) = store.context_mut(id).entries.last_mut() {
                entry.later = later;
            }
        }
        Ok(id)
    }
}

/// Ties a page to its own context, its kind and its site.
pub(super) fn link(store: &mut Store, page: u32, context: ContextId) {
    let name = store.at(page).name.clone();
    let parts = parts(&name);
    let site = store.named(format!("S{}", parts.site));
    let kind = store.named(format!("T{}", template(&parts)));
    store.at_mut(page).contexts = [context, kind, site];
}

#[cfg(test)]
mod tests {
    use super::super::Exchange;
    use super::*;

    #[test]
    fn reading_of_a_state_is_bounded() {
        let zeros = || io::repeat(0);
        assert_eq!(read_bounded(zeros(), 64).unwrap(), [0; 16]);
        let found = read_bounded(NAME.chain(zeros()), 64).map_err(|error| error.kind());
        assert_eq!(found, Err(io::ErrorKind::FileTooLarge));
        for length in [0, 7, 48] {
            let content = NAME.chain(zeros().take(length));
            assert_eq!(read_bounded(content, 64).unwrap().len() as u64, 16 + length);
        }
        let state = written("a");
        assert_eq!(read_state(&*state, &AutoConfig::default()).unwrap(), state);
    }

    /// Returns the bytes that are written after forty visits of as many users with this agent.
    fn written(agent: &str) -> Vec<u8> {
        let mut auto = Auto::new(AutoConfig::default());
        for number in 0..40 {
            for (url, referer) in [("http://h/", None), ("http://h/a.css", Some("http://h/"))] {
                auto.sending(&Exchange {
                    session: number,
                    user: number,
                    now: number as i64 * 60_000,
                    url,
                    get: true,
                    status: 200,
                    referer,
                    agent: Some(agent.as_bytes()),
                    ..Exchange::default()
                });
            }
            auto.session_closed(number);
        }
        assert!(
            auto.model.agents.contains_key(&fnv1a(agent.as_bytes())),
            "the agent's habits are learned"
        );
        auto.save()
    }

    #[test]
    fn a_file_does_not_tell_which_agents_were_seen() {
        assert_eq!(
            written("Firefox/130"),
            written("A browser that one person has/0.1")
        );
    }
}
