//! The pushes of `auto` on small made-up sites: a slightly larger omega never stops them.

use std::collections::HashSet;

use tandem_predict::{Auto, AutoConfig, Exchange, Worth};

/// Small sites to test.
const SITES: u64 = 10;

/// The credits of a gateway and of a replay, and the steps between omegas of which one may be a
/// fall.
const CREDITS: [(f64, usize); 2] = [(1000.0, 50), (0.0, 30)];

/// Numbers that look random and are the same in every run (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }
}

/// A page view: the user, the time in milliseconds, the page and its requests.
struct View {
    user: u64,
    now: i64,
    page: String,
    assets: Vec<String>,
}

/// Returns the traffic of a small site. Its visitors view up to three of eight pages, and some
/// fetch nothing else. Each resource has a rate at which a page view needs it.
fn traffic(seed: u64) -> Vec<View> {
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15 ^ (seed << 20));
    (0..10).for_each(|_| _ = chance.below(2));
    let fetching = 40 + chance.below(50);
    let rates: Vec<u64> = (0..12).map(|_| 20 + chance.below(80)).collect();
    let mut views = Vec::new();
    for user in 0..60 {
        let mut now = user as i64 * 600_000;
        let mut held = HashSet::new();
        let fetches = chance.percent(fetching);
        for _ in 0..=chance.below(3) {
            let page = chance.below(8);
            let mut assets = Vec::new();
            for (number, &rate) in rates.iter().enumerate() {
                // A third of the resources belong to one page.
                let name = match number % 3 {
                    0 => format!("/page-{page}/{number}.png"),
                    _ => format!("/shared/{number}.js"),
                };
                if fetches && chance.percent(rate) && held.insert(name.clone()) {
                    assets.push(name);
                }
            }
            let page = format!("/page-{page}");
            views.push(View {
                user,
                now,
                page,
                assets,
            });
            now += 30_000;
        }
    }
    views
}

/// Returns the number of pushes at `omega`.
fn pushes(views: &[View], omega: f64, credit: f64) -> usize {
    let mut auto = Auto::new(AutoConfig {
        worth: Worth::Omega(omega),
        min_users: 1,
        credit,
        ..AutoConfig::default()
    });
    let mut pushes = 0;
    for view in views {
        let mut now = view.now;
        let mut send = |url: &str, referer| {
            now += 20;
            let offers = auto.sending(&Exchange {
                session: view.user,
                user: view.user,
                now,
                url,
                get: true,
                status: 200,
                size: 1000,
                referer,
                ..Exchange::default()
            });
            pushes += offers.len();
        };
        send(&view.page, None);
        for asset in &view.assets {
            send(asset, Some(&view.page));
        }
    }
    pushes
}

#[test]
fn pushes_hardly_fall_as_omega_grows() {
    let omegas: Vec<f64> = (0..=16)
        .map(|step| 0.30 + f64::from(step) * 0.025)
        .collect();
    for (credit, per_fall) in CREDITS {
        let (mut falls, mut steps, mut most) = (0, 0, 0);
        for seed in 1..=SITES {
            let views = traffic(seed);
            let at = |omega: &f64| pushes(&views, *omega, credit);
            let counts: Vec<usize> = omegas.iter().map(at).collect();
            // A fall by a fifth and two pushes is more than the model of the site explains.
            for pair in counts.windows(2) {
                steps += 1;
                falls += usize::from((pair[1] as f64) < 0.8 * pair[0] as f64 - 2.0);
                most = most.max(pair[1]);
            }
        }
        assert!(
            falls * per_fall <= steps,
            "{falls} of {steps} steps, credit {credit}"
        );
        assert!(most > 100, "{most} pushes, credit {credit}");
    }
}
