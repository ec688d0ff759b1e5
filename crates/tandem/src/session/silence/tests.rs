use super::*;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A path in both directions.
#[derive(Clone, Copy, Debug)]
struct Link {
    round_trip: Duration,
    /// The longest additional delay in each direction.
    jitter: Duration,
    /// The share of datagrams that are lost in each direction.
    loss: f64,
}

const fn link(round_trip: u64, jitter: u64, loss: f64) -> Link {
    Link {
        round_trip: Duration::from_millis(round_trip),
        jitter: Duration::from_millis(jitter),
        loss,
    }
}

/// The exchanges under way.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// A request whose response does not begin.
    Poll,
    /// A new request after each such time.
    Requests(Duration),
    /// A response whose datagrams leave after each such time.
    Download(Duration),
}

/// A datagram that arrives, with the time at which the one that it answers was sent.
struct Arrival {
    at: Instant,
    asked: Option<Instant>,
}

/// A session over a link in virtual time. Its carrier measures the round trip as in RFC 6298, and
/// repeats datagrams without an answer as in RFC 9002 section 6.2.
struct Scene {
    silence: Silence,
    now: Instant,
    link: Link,
    load: Load,
    random: u64,
    arrivals: Vec<Arrival>,
    count: u64,
    smoothed: Duration,
    variation: Duration,
    /// The time of the next repetition, the first time of what it repeats, and its number.
    repeat: Option<(Instant, Instant, u32)>,
    next_look: Instant,
    next_load: Instant,
    /// True for a probe that is lost.
    loses: fn(usize) -> bool,
    probes: usize,
}

impl Scene {
    fn new(link: Link, load: Load, seed: u64) -> Self {
        let now = Instant::now();
        let mut this = Self {
            silence: Silence::new(now),
            now,
            link,
            load,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            arrivals: Vec::new(),
            count: 0,
            smoothed: link.round_trip + link.jitter,
            variation: link.round_trip / 4,
            repeat: None,
            next_look: now,
            next_load: now,
            loses: |_| false,
            probes: 0,
        };
        this.silence.expect(now, this.smoothed, Probing::Eager);
        this.send(now, 0);
        this
    }

    /// Returns the next number of a sequence between 0 and 1 (xorshift).
    fn random(&mut self) -> f64 {
        for shift in [13_i32, -7, 17] {
            self.random ^= match shift {
                0.. => self.random << shift,
                _ => self.random >> -shift,
            };
        }
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn is_lost(&mut self) -> bool {
        self.random() < self.link.loss
    }

    fn delay(&mut self) -> Duration {
        self.link.round_trip / 2 + self.link.jitter.mul_f64(self.random())
    }

    /// Sends a datagram that the other end acknowledges.
    fn send(&mut self, first_sent: Instant, repetitions: u32) {
        let is_lost = [self.is_lost(), self.is_lost()];
        if is_lost == [false; 2] {
            let acknowledging = ACK_DELAY.mul_f64(self.random());
            let at = self.now + self.delay() + self.delay() + acknowledging;
            let asked = Some(self.now);
            self.arrivals.push(Arrival { at, asked });
        }
        let timeout = (self.smoothed + 4 * self.variation + ACK_DELAY) * (1 << repetitions);
        self.repeat = Some((self.now + timeout, first_sent, repetitions));
    }

    fn receive(&mut self) {
        let now = self.now;
        for arrival in self.arrivals.extract_if(.., |arrival| arrival.at <= now) {
            self.count += 1;
            let Some(asked) = arrival.asked else {
                continue;
            };
            let sample = now - asked;
            self.variation = (3 * self.variation + sample.abs_diff(self.smoothed)) / 4;
            self.smoothed = (7 * self.smoothed + sample) / 8;
            self.repeat = self.repeat.filter(|(_, first_sent, _)| *first_sent > asked);
        }
        if let Some((at, first_sent, repetitions)) = self.repeat
            && now >= at
        {
            // Two datagrams, as RFC 9002 permits.
            self.send(first_sent, (repetitions + 1).min(6));
            self.send(first_sent, (repetitions + 1).min(6));
        }
    }

    fn load(&mut self) {
        match self.load {
            _ if self.now < self.next_load => {}
            Load::Poll => {}
            Load::Requests(every) => {
                self.next_load = self.now + every;
                self.silence.expect(self.now, self.smoothed, Probing::Eager);
                self.send(self.now, 0);
                self.next_look = self.now;
            }
            Load::Download(every) => {
                self.next_load = self.now + every;
                if !self.is_lost() {
                    let at = self.now + self.delay();
                    self.arrivals.push(Arrival { at, asked: None });
                }
            }
        }
    }

    /// Looks at the path if it is time.
    fn look(&mut self) -> Option<PathState> {
        if self.now < self.next_look {
            return None;
        }
        let look = self.silence.look(self.now, self.count, self.smoothed);
        self.next_look = self.now + look.wait.max(MS);
        if look.probe {
            self.probes += 1;
            if !(self.loses)(self.probes) {
                self.send(self.now, 0);
            }
        }
        Some(look.state)
    }

    /// Lets time pass, and returns the times after which the path was first silent, and dead.
    fn pass(&mut self, time: Duration) -> [Option<Duration>; 2] {
        let (begun, mut seen) = (self.now, [None; 2]);
        while self.now < begun + time && seen[1].is_none() {
            let state = self.step();
            for (at, wanted) in [PathState::Silent, PathState::Dead].into_iter().enumerate() {
                if state.is_some_and(|state| state >= wanted) {
                    seen[at].get_or_insert(self.now - begun);
                }
            }
        }
        seen
    }

    /// Lets a millisecond pass.
    fn step(&mut self) -> Option<PathState> {
        self.receive();
        self.load();
        let state = self.look();
        self.now += MS;
        state
    }

    /// Lets nothing through from now on. Datagrams on their way to this end still arrive.
    fn cut(&mut self) {
        let on_their_way = self.now + self.link.round_trip / 2;
        self.arrivals.retain(|it| it.at <= on_their_way);
        self.link.loss = 1.0;
    }
}

/// At 10 % in each direction, all probes of some path are lost once in hours.
#[test]
fn loss_and_jitter_kill_no_path() {
    let loads = [
        Load::Poll,
        Load::Requests(500 * MS),
        Load::Requests(2 * SECOND),
        Load::Download(10 * MS),
        Load::Download(300 * MS),
    ];
    for round_trip in [20, 100, 600] {
        for (jitter, loss) in [
            (0, 0.0),
            (50, 0.0),
            (0, 0.01),
            (50, 0.05),
            (0, 0.1),
            (50, 0.1),
        ] {
            for load in loads {
                let link = link(round_trip, jitter, loss);
                let [silent, dead] = Scene::new(link, load, 1).pass(60 * SECOND);
                assert_eq!(dead, None, "{link:?}, {load:?}");
                assert!(loss > 0.01 || silent.is_none(), "{link:?}, {load:?}");
            }
        }
    }
}

/// The times count from the cut. The last datagrams arrive half of a round trip later, and a look
/// is late by a sixteenth of the limit.
#[test]
fn broken_download_kills_its_path_in_time() {
    let cases = [
        (20, 0, 270, 400),
        (100, 0, 310, 430),
        (150, 0, 450, 620),
        (600, 0, 1600, 2200),
        (100, 50, 460, 660),
    ];
    for (round_trip, jitter, silent, dead) in cases {
        for seed in 1..20 {
            let link = link(round_trip, jitter, 0.0);
            let mut scene = Scene::new(link, Load::Download(5 * MS), seed);
            assert_eq!(scene.pass(10 * SECOND + seed as u32 * 7 * MS), [None; 2]);
            scene.cut();
            let [silent_at, dead_at] = scene.pass(10 * SECOND).map(|it| it.expect("a verdict"));
            assert!(silent_at <= silent * MS, "{link:?}: {silent_at:?}");
            assert!(dead_at <= dead * MS, "{link:?}: {dead_at:?}");
            let least = link.round_trip / 2 + LEAST.max(2 * link.round_trip);
            assert!(silent_at + 5 * MS >= least, "{link:?}: {silent_at:?}");
            let sent = scene.silence.probes.sent;
            assert!((PROBES..PROBES + 3).contains(&sent), "{link:?}: {sent}");
            // An exchange still waits.
            let before = scene.probes;
            (0..20_000).for_each(|_| _ = scene.step());
            let probes = scene.probes - before;
            assert!((10..60).contains(&probes), "{link:?}: {probes}");
        }
    }
}

#[test]
fn new_request_beside_a_long_poll_finds_a_dead_path() {
    let mut scene = Scene::new(link(100, 0, 0.0), Load::Poll, 1);
    assert_eq!(scene.pass(120 * SECOND), [None; 2]);
    scene.cut();
    // Requests follow each other without a pause, and none of them delays the verdict.
    scene.load = Load::Requests(10 * MS);
    let [silent, dead] = scene.pass(SECOND).map(|it| it.expect("a verdict"));
    assert!(
        silent <= 300 * MS && dead <= 450 * MS,
        "{silent:?} {dead:?}"
    );
}

#[test]
fn one_answered_probe_keeps_the_path() {
    let losses: [fn(usize) -> bool; 3] =
        [|probe| probe == 1, |probe| probe == 2, |probe| probe < 5];
    for loses in losses {
        let mut scene = Scene::new(link(100, 0, 0.0), Load::Requests(200 * MS), 1);
        assert_eq!(scene.pass(10 * SECOND), [None; 2]);
        scene.load = Load::Poll;
        // The carrier does not repeat these probes.
        (scene.loses, scene.probes) = (loses, 0);
        let [silent, dead] = scene.pass(5 * SECOND);
        assert_eq!(dead, None);
        assert_eq!(
            silent.is_some(),
            loses(3),
            "one lost probe does not even dial"
        );
    }
}

#[test]
fn throttled_path_is_not_silent() {
    // 2 kB in a second.
    let trickle = Load::Download(600 * MS);
    for seed in 1..10 {
        let mut scene = Scene::new(link(100, 20, 0.05), trickle, seed);
        assert_eq!(scene.pass(30 * SECOND)[1], None);
    }
}

#[test]
fn path_that_returns_is_alive() {
    let mut scene = Scene::new(link(20, 0, 0.0), Load::Download(5 * MS), 1);
    assert_eq!(scene.pass(5 * SECOND), [None; 2]);
    scene.cut();
    let [silent, dead] = scene.pass(270 * MS);
    assert!(silent.is_some() && dead.is_none(), "{silent:?} {dead:?}");
    scene.link.loss = 0.0;
    assert_eq!(scene.pass(200 * MS)[1], None);
    assert_eq!(scene.silence.state(scene.now), PathState::Alive);
    assert_eq!(scene.pass(10 * SECOND), [None; 2]);
}

#[test]
fn long_poll_over_a_live_path_costs_few_probes() {
    let mut scene = Scene::new(link(100, 10, 0.0), Load::Poll, 1);
    assert_eq!(scene.pass(600 * SECOND), [None; 2]);
    assert!((20..100).contains(&scene.probes), "{}", scene.probes);
}

#[test]
fn request_with_a_soon_response_costs_few_probes() {
    for (round_trip, most) in [(20, 0), (100, 2), (600, 2)] {
        let link = link(round_trip, 0, 0.0);
        let mut scene = Scene::new(link, Load::Requests(5 * SECOND), 1);
        assert_eq!(scene.pass(60 * SECOND), [None; 2]);
        // Another request, after a while without one.
        (scene.now, scene.load) = (scene.now + 60 * SECOND, Load::Poll);
        scene
            .silence
            .expect(scene.now, scene.smoothed, Probing::Eager);
        scene.send(scene.now, 0);
        (scene.next_look, scene.probes) = (scene.now, 0);
        assert_eq!(scene.pass(link.round_trip + ACK_DELAY), [None; 2]);
        assert!(scene.probes <= most, "{round_trip} ms: {}", scene.probes);
    }
}

#[test]
fn jitter_widens_the_limit_of_silence() {
    let mut round_trip = RoundTrip::default();
    round_trip.note(100 * MS);
    for _ in 0..20 {
        round_trip.note(100 * MS + Duration::from_micros(1));
        round_trip.note(100 * MS);
    }
    assert_eq!(round_trip.limit(), LEAST);
    for smoothed in [150, 120, 160, 130, 160] {
        round_trip.note(smoothed * MS);
    }
    assert!(round_trip.answer() > 400 * MS, "{round_trip:?}");
    assert!(round_trip.limit() > round_trip.answer());
}

#[test]
fn round_trip_beyond_the_limits_is_watched_too() {
    let begun = Instant::now();
    for round_trip in [80 * SECOND, 100 * SECOND, 3600 * SECOND] {
        let mut silence = Silence::new(begun);
        silence.expect(begun, round_trip, Probing::Eager);
        let mut now = begun;
        for count in 0..20 {
            now += silence.look(now, count, round_trip).wait;
            let look = silence.look(now, count, round_trip);
            assert!(look.wait >= MS, "{round_trip:?}: {look:?}");
        }
    }
}

#[test]
fn time_without_exchanges_is_no_silence() {
    let mut scene = Scene::new(link(100, 0, 0.0), Load::Download(5 * MS), 1);
    assert_eq!(scene.pass(SECOND), [None; 2]);
    scene.cut();
    assert_eq!(scene.pass(200 * MS), [None; 2]);
    assert!(scene.silence.probes.sent > 0);
    // The exchange has ended, and the next one comes after a minute.
    scene.now += 60 * SECOND;
    scene
        .silence
        .expect(scene.now, scene.smoothed, Probing::Eager);
    let look = scene.silence.look(scene.now, scene.count, scene.smoothed);
    assert_eq!((look.state, look.probe), (PathState::Alive, false));
}

#[test]
fn process_that_did_not_run_looks_again() {
    let mut scene = Scene::new(link(100, 0, 0.0), Load::Download(5 * MS), 1);
    assert_eq!(scene.pass(SECOND), [None; 2]);
    scene.cut();
    assert_eq!(scene.pass(100 * MS), [None; 2]);
    // The datagrams of this time may still be unread.
    scene.now += 500 * MS;
    assert_eq!(scene.look(), Some(PathState::Alive));
    assert_eq!(scene.silence.probes.sent, 0);
}

#[test]
fn dead_path_stays_dead_for_later_requests() {
    let mut scene = Scene::new(link(100, 0, 0.0), Load::Download(5 * MS), 1);
    assert_eq!(scene.pass(SECOND), [None; 2]);
    scene.cut();
    assert!(scene.pass(SECOND)[1].is_some());
    // Nothing looks while another way is dialled.
    for (later, state, probe) in [
        (2 * SECOND, PathState::Dead, true),
        (60 * SECOND, PathState::Alive, false),
    ] {
        scene.now += later;
        scene
            .silence
            .expect(scene.now, scene.smoothed, Probing::Eager);
        let look = scene.silence.look(scene.now, scene.count, scene.smoothed);
        assert_eq!((look.state, look.probe), (state, probe));
    }
}

/// Returns the time at which a probe over TCP is answered that is first sent at `sent`. The path
/// delivers from `returns` on. TCP repeats the probe as in RFC 6298, and waits for 200 ms or more.
fn answered_by_tcp(round_trip: Duration, sent: Instant, returns: Instant) -> Instant {
    let mut timeout = round_trip + (200 * MS).max(round_trip / 2);
    let mut sent = sent;
    while sent < returns {
        sent += timeout;
        timeout *= 2;
    }
    sent + round_trip
}

/// TCP goes by the same network. Its answer moves the exchanges if it arrives before a datagram.
#[test]
fn probes_mostly_find_a_returned_path_before_tcp() {
    for round_trip in [20, 100, 600] {
        let (mut gaps, mut wins) = (0, 0);
        for gap in (500..12_000).step_by(230).map(|gap| gap * MS) {
            let link = link(round_trip, 0, 0.0);
            let mut scene = Scene::new(link, Load::Download(5 * MS), 1);
            assert_eq!(scene.pass(5 * SECOND), [None; 2]);
            scene.cut();
            scene.load = Load::Poll;
            let begun = scene.now;
            let mut silent_at = None;
            while scene.now < begun + gap {
                if scene.step() == Some(PathState::Silent) {
                    silent_at.get_or_insert(scene.now);
                }
            }
            let is_dead = scene.silence.state(scene.now) == PathState::Dead;
            let Some(silent_at) = silent_at.filter(|_| is_dead) else {
                continue;
            };
            scene.link.loss = 0.0;
            let returns = scene.now;
            while scene.silence.state(scene.now) == PathState::Dead {
                scene.step();
            }
            let took = scene.now - returns;
            let most = SECOND + link.round_trip + 2 * scene.silence.round_trip.answer();
            assert!(took <= most, "{round_trip} ms, {gap:?}: {took:?}");
            let by_tcp = answered_by_tcp(link.round_trip, silent_at, returns);
            gaps += 1;
            wins += usize::from(scene.now < by_tcp);
        }
        assert!(
            gaps > 30 && 4 * wins >= 3 * gaps,
            "{round_trip} ms: {wins} of {gaps}"
        );
    }
}

/// Passes time over a live path without another way. Returns the times of the probes, each of which
/// brings a datagram. The carrier keeps the path alive.
fn pass_alone(silence: &mut Silence, begun: Instant, time: Duration) -> Vec<Duration> {
    let (mut now, mut count, mut probes, mut looks) = (begun, 1, Vec::new(), 0);
    let mut active = begun;
    silence.expect(begun, 100 * MS, Probing::Alone);
    while now < begun + time {
        if now >= active + MOST {
            (count, active) = (count + 2, now);
        }
        let look = silence.look(now, count, 100 * MS);
        if look.probe {
            (count, active) = (count + 1, now);
            probes.push(now - begun);
        }
        assert_eq!(look.state, PathState::Alive);
        looks += 1;
        now += look.wait.min(active + MOST - now);
    }
    assert!(looks < 30 + time.as_secs() / 5, "{looks} looks");
    probes
}

#[test]
fn lone_long_poll_costs_few_probes() {
    let begun = Instant::now();
    let mut silence = Silence::new(begun);
    let probes = pass_alone(&mut silence, begun, 600 * SECOND);
    let early = probes.iter().filter(|at| **at < 60 * SECOND).count();
    assert!((5..=8).contains(&early), "{probes:?}");
    assert!(probes.len() <= early + 2, "{probes:?}");
}

#[test]
fn lone_download_is_probed_once_it_stops() {
    let begun = Instant::now();
    let mut silence = Silence::new(begun);
    silence.expect(begun, 100 * MS, Probing::Alone);
    let (mut now, mut count) = (begun, 0);
    while now < begun + 60 * SECOND {
        count += 10;
        let look = silence.look(now, count, 100 * MS);
        assert!(!look.probe, "datagrams arrive");
        now += look.wait;
    }
    let stopped = now;
    let mut probes = Vec::new();
    while now < stopped + 5 * SECOND {
        let look = silence.look(now, count, 100 * MS);
        if look.probe {
            probes.push(now - stopped);
        }
        now += look.wait;
    }
    assert!(probes[0] <= SECOND, "{probes:?}");
    assert!(
        probes.windows(2).all(|two| two[1] - two[0] <= RARELY),
        "{probes:?}"
    );
}
