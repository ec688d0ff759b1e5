//! The figures of a study: ratios by position in the session, sizes of heads and bodies, and the
//! worth of a push in bytes.
//!
//! A ratio is the compressed bytes of header lists over the bytes of their names and values.

use serde::Serialize;

use super::codec::{Codec, HeaderList, plain, text_bytes};
use super::input::{Exchange, HeaderSession};
use super::least::Site;

/// The number of values that describe a distribution: at 0, 5, 10 % and so on.
pub(super) const TWENTIETHS: usize = 21;

/// The results of a study.
#[derive(Clone, Debug, Serialize)]
pub struct HeaderStudy {
    /// The number of sessions.
    pub sessions: usize,
    /// The number of exchanges.
    pub exchanges: usize,
    /// The ratios of request heads, for each codec.
    pub requests: Vec<Ratios>,
    /// The ratios of response heads, for each codec.
    pub responses: Vec<Ratios>,
    /// The first ten requests of each session that has as many.
    pub sites: Vec<Site>,
    /// The sizes of all exchanges.
    pub all: Sizes,
    /// The sizes of exchanges that a gateway could push.
    pub pushable: Sizes,
    /// The worth of a push, for each codec.
    pub push: Vec<PushWorth>,
}

/// The ratios of one codec in one direction.
#[derive(Clone, Debug, Serialize)]
pub struct Ratios {
    /// The codec.
    pub codec: Codec,
    /// The ratio of the first list of a session.
    pub first: f64,
    /// The ratio of the second list.
    pub second: f64,
    /// The ratio of the first ten lists together.
    pub ten: f64,
    /// The ratio of all lists.
    pub all: f64,
    /// The ratio at each position in the session.
    pub positions: Vec<Position>,
}

/// The ratio at one position, over all sessions that reach it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Position {
    /// The number of the list in its session, from 1.
    pub position: usize,
    /// The number of sessions.
    pub sessions: usize,
    /// The ratio of the lists at this position.
    pub ratio: f64,
    /// The ratio of the lists up to this position.
    pub cumulative: f64,
}

/// The sizes of the parts of exchanges, in bytes; heads as in HTTP/1.1.
#[derive(Clone, Debug, Serialize)]
pub struct Sizes {
    /// Request heads.
    pub request: Distribution,
    /// Response heads.
    pub response: Distribution,
    /// Bodies of responses.
    pub body: Distribution,
}

/// A distribution of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// The number of values.
    pub count: usize,
    /// The mean.
    pub mean: f64,
    /// The least value.
    pub least: u64,
    /// The value below which a tenth of the values lie.
    pub tenth: u64,
    /// The median.
    pub median: u64,
    /// The value above which a tenth of the values lie.
    pub ninetieth: u64,
    /// The greatest value.
    pub greatest: u64,
    /// The value at each twentieth of the values, from the least to the greatest.
    pub twentieths: [u64; TWENTIETHS],
}

/// The worth of a push in bytes, from the medians of exchanges that could be pushed.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PushWorth {
    /// The codec.
    pub codec: Codec,
    /// The bytes towards the origin that a hit saves: a request head with its frame.
    pub saving: usize,
    /// The bytes of the promise, which every push costs in the other direction.
    pub promise: usize,
    /// The bytes that a mistake costs: promise, response head and body, with their frames.
    pub mistake: usize,
    /// The largest share of mistakes at which pushes cost no bytes: `saving / (saving + mistake)`.
    pub omega: f64,
    /// The same without the body, for a push that is cancelled at once.
    pub omega_without_body: f64,
}

impl HeaderStudy {
    /// Returns the means over the sites of the text of ten requests, of the ratio of HPACK, and of
    /// its least ratio. `None` without sites.
    pub fn ten_requests(&self) -> Option<[f64; 3]> {
        let sites = &self.sites;
        let mean = |of: fn(&Site) -> f64| sites.iter().map(of).sum::<f64>() / sites.len() as f64;
        let means = || {
            [
                mean(|site| site.text as f64),
                mean(Site::ratio),
                mean(Site::least_ratio),
            ]
        };
        (!sites.is_empty()).then(means)
    }

    /// Measures sessions.
    pub fn of(sessions: &[HeaderSession]) -> Self {
        let requests = |exchange: &Exchange| exchange.request.clone();
        let responses = |exchange: &Exchange| exchange.response.clone();
        let exchanges: Vec<_> = sessions.iter().flat_map(|each| &each.exchanges).collect();
        let pushable: Vec<_> = exchanges
            .iter()
            .copied()
            .filter(|exchange| exchange.is_pushable)
            .collect();
        let sizes = Sizes::of(&pushable);
        let (body, ups, downs) = (
            sizes.body.median as usize,
            coded(sessions, requests),
            coded(sessions, responses),
        );
        let push = Codec::ALL.iter().zip(ups.iter().zip(&downs));
        Self {
            sessions: sessions.len(),
            exchanges: exchanges.len(),
            push: push
                .map(|(codec, (up, down))| PushWorth::of(*codec, up.median(), down.median(), body))
                .collect(),
            requests: ups.into_iter().map(Coded::ratios).collect(),
            responses: downs.into_iter().map(Coded::ratios).collect(),
            sites: Site::all(sessions),
            all: Sizes::of(&exchanges),
            pushable: sizes,
        }
    }
}

/// The sizes of lists under one codec, by position.
struct Coded {
    codec: Codec,
    /// For each position: sessions, compressed bytes and bytes of text.
    totals: Vec<(usize, usize, usize)>,
    /// The compressed bytes of each list that could be pushed.
    pushable: Vec<u64>,
}

/// Compresses one direction of all sessions with every codec. Each session has fresh tables.
fn coded(sessions: &[HeaderSession], list: impl Fn(&Exchange) -> HeaderList) -> Vec<Coded> {
    let measure = |codec: &Codec| {
        let mut coded = Coded {
            codec: *codec,
            totals: Vec::new(),
            pushable: Vec::new(),
        };
        for session in sessions {
            let mut compress = codec.begin();
            for (position, exchange) in session.exchanges.iter().enumerate() {
                let list = list(exchange);
                let bytes = compress(&list);
                if coded.totals.len() == position {
                    coded.totals.push((0, 0, 0));
                }
                let total = &mut coded.totals[position];
                total.0 += 1;
                total.1 += bytes;
                total.2 += text_bytes(&list);
                if exchange.is_pushable {
                    coded.pushable.push(bytes as u64);
                }
            }
        }
        coded
    };
    Codec::ALL.iter().map(measure).collect()
}

impl Coded {
    fn median(&self) -> usize {
        Distribution::of(self.pushable.clone()).median as usize
    }

    fn ratios(self) -> Ratios {
        let (mut bytes, mut text) = (0, 0);
        let positions: Vec<_> = self
            .totals
            .iter()
            .zip(1..)
            .map(|((sessions, coded, plain), position)| {
                bytes += coded;
                text += plain;
                Position {
                    position,
                    sessions: *sessions,
                    ratio: share(*coded, *plain),
                    cumulative: share(bytes, text),
                }
            })
            .collect();
        let at = |index: usize| positions.get(index).map_or(0.0, |each| each.ratio);
        let up_to = |count: usize| {
            let last = positions.iter().take(count).next_back();
            last.map_or(0.0, |each| each.cumulative)
        };
        Ratios {
            codec: self.codec,
            first: at(0),
            second: at(1),
            ten: up_to(10),
            all: up_to(usize::MAX),
            positions,
        }
    }
}

fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}

impl Sizes {
    fn of(exchanges: &[&Exchange]) -> Self {
        let of = |bytes: &dyn Fn(&Exchange) -> u64| {
            Distribution::of(exchanges.iter().map(|each| bytes(each)).collect())
        };
        Self {
            request: of(&|exchange| plain(&exchange.request) as u64),
            response: of(&|exchange| plain(&exchange.response) as u64),
            body: of(&|exchange| exchange.body),
        }
    }
}

impl Distribution {
    /// Describes values. Without values, all figures are 0.
    pub fn of(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        let (Some(least), Some(greatest)) = (values.first(), values.last()) else {
            return Self::default();
        };
        let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
        Self {
            count: values.len(),
            mean: values.iter().map(|value| *value as f64).sum::<f64>() / values.len() as f64,
            least: *least,
            tenth: at(0.1),
            median: at(0.5),
            ninetieth: at(0.9),
            greatest: *greatest,
            twentieths: std::array::from_fn(|index| at(index as f64 / (TWENTIETHS - 1) as f64)),
        }
    }
}

impl PushWorth {
    /// Computes the worth from the compressed bytes of a request head and a response head, and the
    /// bytes of a body.
    fn of(codec: Codec, request: usize, response: usize, body: usize) -> Self {
        let frames = codec.frames();
        let saving = request + frames.request;
        // A promise has the fields of the request, in the context of the other direction.
        let promise = request + frames.promise;
        let head = promise + response + frames.response;
        let mistake = head + body + frames.body;
        Self {
            codec,
            saving,
            promise,
            mistake,
            omega: share(saving, saving + mistake),
            omega_without_body: share(saving, saving + head),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::input::of_page;
    use super::*;
    use tandem_web::page::Page;

    #[test]
    fn distribution_has_the_median_of_its_values() {
        let some = Distribution::of(vec![5, 1, 3]);
        assert_eq!((some.least, some.median, some.greatest), (1, 3, 5));
        let ends = (some.twentieths[0], some.twentieths[10], some.twentieths[20]);
        assert_eq!(ends, (1, 3, 5));
        assert_eq!(Distribution::of(Vec::new()), Distribution::default());
    }

    /// Returns the sessions of the page models in the repository.
    fn pages() -> Vec<HeaderSession> {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/pages");
        let files = std::fs::read_dir(directory).expect("the page models");
        let page = |file: std::io::Result<std::fs::DirEntry>| {
            let path = file.expect("a file").path();
            of_page(&Page::read(&path).expect("a page model"))
        };
        files.map(page).collect()
    }

    #[test]
    fn hpack_meets_the_ratio_of_ten_requests() {
        let study = HeaderStudy::of(&pages());
        let ratios = |codec| {
            let all = study.requests.iter();
            all.clone()
                .find(|each| each.codec == codec)
                .expect("all are measured")
        };
        assert!(
            ratios(Codec::Hpack).ten <= 0.201,
            "{}",
            ratios(Codec::Hpack).ten
        );
        // Each of these knows less than the one after it.
        let order = [
            Codec::HpackNeverIndexed,
            Codec::HpackNoHuffman,
            Codec::Hpack,
        ];
        let all = order.map(|codec| ratios(codec).all);
        assert!(all[0] > all[1] && all[1] > all[2], "{all:?}");
        assert!(
            ratios(Codec::SpdyOff).all > 1.0,
            "stored blocks have lengths"
        );
    }

    #[test]
    fn omega_follows_from_the_worth_of_a_push() {
        // The published estimate: 71 bytes saved, and 4,457 bytes without a promise.
        assert!((share(71, 71 + 4457) - 1.0 / 63.8).abs() < 1e-3);
        let worth = PushWorth::of(Codec::Hpack, 40, 60, 4000);
        assert_eq!((worth.saving, worth.promise), (49, 53));
        assert_eq!(worth.mistake, 53 + 69 + 4009);
        assert!(worth.omega < worth.omega_without_body);
    }
}
