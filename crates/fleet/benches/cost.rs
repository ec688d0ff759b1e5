//! The cost of a fleet: bytes of records for each page load, and the times for which a thread of
//! the fleet holds the locks that requests need. `docs/src/fleet.md` has the figures.
//!
//! `cargo bench -p tandem-fleet`

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program that prints a table and ends at the first surprise"
)]

use std::time::{Duration, Instant};

use bytes::Bytes;
use tandem_cache::{Cache, Config, Group, Incoming, Key, Lookup, Namer, Now, Received, Sharing};
use tandem_fleet::{
    Content, FleetKey, GatewayId, Keeper, Record, ResponseSealer, Sealer, Sighting, Sightings,
    response,
};
use tandem_http::{RequestHead, ResponseHead, Scheme};
use tandem_predict::{Auto, AutoConfig, Exchange, Gains};

/// The pages of the model, the sites that they are on, and the assets of a page.
const PAGES: u64 = 5_000;
const SITES: u64 = 1_000;
const ASSETS: u64 = 25;

/// The page loads of the model, and those in a second.
const LOADS: u64 = 80_000;
const LOADS_PER_SECOND: u64 = 100;

/// The bytes of the content of a record, about, as the gateway takes them.
const RECORD_BYTES: usize = 48 * 1024;

/// A sequence of numbers (xorshift).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a page: popular ones often (Zipf's law with exponent 1).
    fn page(&mut self) -> u64 {
        let part = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        ((PAGES as f64).powf(part) as u64).min(PAGES - 1)
    }
}

/// The longest and the mean of times.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn measure<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = work();
        self.0.push(began.elapsed());
        result
    }

    fn print(&mut self, name: &str) {
        self.0.sort_unstable();
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let at = |part: f64| micros(self.0[((self.0.len() - 1) as f64 * part) as usize]);
        println!(
            "{name:<52} {:>7} times, median {:>7.1} µs, 99 % {:>7.1} µs, longest {:>7.1} µs",
            self.0.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
}

fn predictor() -> Auto {
    let mut auto = Auto::new(AutoConfig::default());
    auto.count_gains();
    auto.report_users();
    auto
}

/// Loads a page with its assets, as a user with an empty cache does.
fn load(auto: &mut Auto, session: u64, page: u64, now: i64) {
    let site = page % SITES;
    let page_url = format!("http://www.site-{site}.example/articles/{page}");
    for asset in 0..=ASSETS {
        let url = match asset {
            0 => page_url.clone(),
            // Half of the assets belong to the site, and half to the page.
            1..13 => format!("http://www.site-{site}.example/static/{asset}.js"),
            _ => format!("http://www.site-{site}.example/images/{page}/{asset}.jpg"),
        };
        auto.sending(&Exchange {
            session,
            user: session.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            now: now + asset as i64,
            url: &url,
            get: true,
            status: 200,
            size: 12_000,
            referer: (asset > 0).then_some(&page_url),
            agent: Some(b"Mozilla/5.0 Firefox/130"),
            ..Exchange::default()
        });
    }
    auto.session_closed(session);
}

/// The records of one kind.
#[derive(Default)]
struct Kind {
    records: u64,
    bytes: u64,
    /// The bytes of the last quarter of the page loads.
    late: u64,
}

impl Kind {
    fn add(&mut self, load: u64, sealer: &mut Sealer, content: &Content, log: &mut Vec<Vec<u8>>) {
        let record = sealer.seal(1_700_000_000, content).unwrap();
        self.records += 1;
        self.bytes += record.len() as u64;
        if load > LOADS / 4 * 3 {
            self.late += record.len() as u64;
        }
        log.push(record);
    }

    fn print(&self, name: &str) {
        println!(
            "{name:<28} {:>6} records, {:>6} bytes each, {:>6.1} bytes for each page load, {:>6.1} in \
             the last quarter",
            self.records,
            self.bytes.checked_div(self.records).unwrap_or_default(),
            self.bytes as f64 / LOADS as f64,
            self.late as f64 / (LOADS / 4) as f64,
        );
    }
}

/// Runs the model. Returns the log.
fn sender(key: &FleetKey) -> Vec<Vec<u8>> {
    let (mut auto, mut numbers) = (predictor(), Numbers(1));
    let (mut sealer, mut sightings) = (
        Sealer::new(key, GatewayId([1; 16])),
        Sightings::new(key.of_names()),
    );
    let (mut gains, mut users, mut log) = (Kind::default(), Kind::default(), Vec::new());
    let (mut looks, mut steps, mut taken) = (Times::default(), Times::default(), Times::default());
    for number in 1..=LOADS {
        load(&mut auto, number, numbers.page(), number as i64 * 10);
        if !number.is_multiple_of(LOADS_PER_SECOND) {
            continue;
        }
        loop {
            let users = taken.measure(|| auto.take_users(256));
            if users.is_empty() {
                break;
            }
            for (name, tag) in users {
                sightings.saw(number, Sighting { name, tag });
            }
        }
        while let Some(reports) = sightings.take_reports(RECORD_BYTES) {
            users.add(number, &mut sealer, &Content::Users(reports), &mut log);
        }
        let mut gathering = looks.measure(|| auto.due_gains());
        loop {
            while !steps.measure(|| auto.gather_gains(&mut gathering, RECORD_BYTES, 32)) {}
            let Some(set) = gathering.take() else { break };
            gains.add(number, &mut sealer, &Content::Gains(set.write()), &mut log);
        }
    }
    println!(
        "{LOADS} page loads with {} requests, {LOADS_PER_SECOND} a second:",
        ASSETS + 1
    );
    gains.print("learned statistics");
    users.print("counted users");
    println!("\nTimes for which the lock is held, at the sender:");
    looks.print("a look at all pages, once a second");
    steps.print("gathering of 32 pages");
    taken.print("taking of 256 users");
    log
}

/// Applies the log at a gateway that knows as much itself.
fn receiver(key: &FleetKey, log: &[Vec<u8>]) {
    let (mut whole, mut auto, mut numbers) = (predictor(), predictor(), Numbers(2));
    let mut sightings = Sightings::new(key.of_names());
    for number in 1..=LOADS / 4 {
        let (session, page) = (number + LOADS, numbers.page());
        load(&mut whole, session, page, number as i64 * 10);
        load(&mut auto, session, page, number as i64 * 10);
    }
    for (name, tag) in auto.take_users(usize::MAX) {
        sightings.saw(0, Sighting { name, tag });
    }
    let (mut opened, mut merged, mut sets, mut noted) = Default::default();
    for bytes in log {
        let record = Times::measure(&mut opened, || Record::open(key, bytes)).unwrap();
        match record.content {
            Content::Gains(bytes) => {
                let gains = || Gains::read(&bytes).unwrap();
                let set = gains();
                Times::measure(&mut merged, || whole.merge_gains(set));
                for set in gains().split(64) {
                    Times::measure(&mut sets, || auto.merge_gains(set));
                }
            }
            Content::Users(reports) => {
                let heard = sightings.heard(1, &reports).unwrap();
                for users in heard.known.chunks(64) {
                    Times::measure(&mut noted, || {
                        for user in users {
                            auto.note_user(&user.name, user.tag);
                        }
                    });
                }
            }
            _ => {}
        }
    }
    println!("\nAt a receiver:");
    opened.print("decryption of a record, without a lock");
    merged.print("merging of a record as a whole, as before");
    sets.print("merging of 64 assets");
    noted.print("counting of 64 users");
}

/// Lends a response of 12 kB.
fn responses(key: &FleetKey) {
    let config = Config {
        sharing: Sharing::Origin,
        memory: 64 << 20,
        min_users: 1,
    };
    let now = Now {
        elapsed: Duration::from_secs(1),
        unix: Some(1_700_000_000),
    };
    let names = key.of_targets();
    let namer = Namer::new(move |target| names.name(b"scope", target));
    let gateway = || {
        let mut cache: Cache<()> = Cache::new(config.clone());
        cache.join_fleet(
            Now {
                elapsed: Duration::ZERO,
                ..now
            },
            Some(namer.clone()),
        );
        cache
    };
    let (mut lender, mut borrower) = (gateway(), gateway());
    let mut sealer = ResponseSealer::new(Keeper::Engine, key, GatewayId([1; 16]));
    let (mut taken, mut sealed_in, mut opened, mut adopted) = Default::default();
    let mut bytes = 0;
    const RESPONSES: usize = 2000;
    for number in 0..RESPONSES {
        let request = RequestHead::get(Scheme::Http, "www.example", format!("/{number}"));
        let look = |cache: &mut Cache<()>| {
            let key = Key::new(0, b"", &request, false).unwrap();
            let group = Group::Origin("www.example".into());
            match cache.lookup(now, &key, group, 1, &request, None) {
                Lookup::Fetch(fetch, _) => fetch,
                _ => panic!("it is stored already"),
            }
        };
        let fetch = look(&mut lender);
        let mut head = ResponseHead::new(200);
        for (name, value) in [
            ("cache-control", "public, max-age=86400"),
            ("content-type", "text/javascript; charset=utf-8"),
            ("etag", "\"0123456789abcdef\""),
            ("date", "Tue, 14 Nov 2023 22:13:20 GMT"),
            ("server", "nginx"),
            ("vary", "accept-encoding"),
        ] {
            head.fields.push(name, value);
        }
        let Received::Store(pending) = lender.receive(now, &fetch, &head) else {
            panic!("it may be stored");
        };
        lender.finish(*pending, vec![Bytes::from(vec![b'x'; 12_000])], None);
        let due = Times::measure(&mut taken, || lender.take_due(now, 1));
        let name = due[0].name;
        let sealed = Times::measure(&mut sealed_in, || {
            sealer.seal(&name, &due[0].write(now).unwrap()).unwrap()
        });
        bytes += sealed.len();
        let incoming = Times::measure(&mut opened, || {
            let content = response::open(Keeper::Engine, key, &name, sealed).unwrap();
            Incoming::read(&Bytes::from(content)).unwrap()
        });
        let fetch = look(&mut borrower);
        assert!(Times::measure(&mut adopted, || borrower.adopt(now, &fetch, incoming)));
    }
    println!(
        "\nResponses of 12,000 bytes take {} bytes in the engine.",
        bytes / RESPONSES
    );
    taken.print("taking of a response, with the lock of the cache");
    sealed_in.print("encryption of a response");
    opened.print("decryption of a response");
    adopted.print("storing of a lent response, with the lock");
}

fn main() {
    let key = FleetKey::new(&[7; 32]).unwrap();
    let log = sender(&key);
    receiver(&key, &log);
    responses(&key);
}
