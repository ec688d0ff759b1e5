//! Streams arrive exactly as they were sent, whatever the path does to datagrams.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use tandem_link::LinkConfig;
use tandem_link::delay::{Jitter, Shape};
use tandem_link::loss::Loss;
use tandem_tunnel::{Algorithm, Config, Coupling, Event, Side, StreamId};

use crate::path::{MS, Path, pattern};

/// The bytes that a stream may always send.
const CREDIT: u64 = 4 << 10;

fn configs() -> impl Strategy<Value = Config> {
    let coupling = prop_oneof![Just(Coupling::Coupled), Just(Coupling::PerStream)];
    let algorithm = prop_oneof![Just(Algorithm::Cubic), Just(Algorithm::Bbr)];
    let offers = (0u32..8, 0u64..64);
    (coupling, algorithm, 16u64..2000, offers).prop_map(|(coupling, algorithm, memory, offers)| {
        Config {
            coupling,
            algorithm,
            memory: memory << 10,
            initial_credit: CREDIT,
            offered_streams: offers.0,
            first_window: offers.1 << 10,
            ..Config::default()
        }
    })
}

fn links() -> impl Strategy<Value = LinkConfig> {
    (
        0u64..120,
        0.0..0.15f64,
        0.0..0.1f64,
        0.0..0.05f64,
        any::<bool>(),
    )
        .prop_map(|(delay, loss, duplicate, corrupt, reorder)| LinkConfig {
            delay: MS * delay as u32,
            jitter: reorder.then(|| Jitter {
                shape: Shape::Exponential,
                scale: 5 * MS,
                reorder: true,
            }),
            loss: Loss::Independent(loss),
            duplicate,
            corrupt,
            ..LinkConfig::default()
        })
}

/// An action of an application.
#[derive(Clone, Debug)]
enum Action {
    Open(bool),
    Write(bool, usize, usize),
    Finish(bool, usize),
    Reset(bool, usize),
    Prioritise(bool, usize, u8),
    /// Stops the reader, or lets it go on.
    Pause(bool),
    Wait(u64),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        3 => any::<bool>().prop_map(Action::Open),
        8 => (any::<bool>(), 0usize..8, 0usize..30_000).prop_map(|(c, i, n)| Action::Write(c, i, n)),
        3 => (any::<bool>(), 0usize..8).prop_map(|(c, i)| Action::Finish(c, i)),
        1 => (any::<bool>(), 0usize..8).prop_map(|(c, i)| Action::Reset(c, i)),
        1 => (any::<bool>(), 0usize..8, 0u8..9).prop_map(|(c, i, u)| Action::Prioritise(c, i, u)),
        1 => any::<bool>().prop_map(Action::Pause),
        4 => (0u64..400).prop_map(Action::Wait),
    ];
    prop::collection::vec(action, 1..60)
}

/// A plain model of the streams: the bytes that each side wrote.
#[derive(Default)]
struct Model {
    ids: Vec<StreamId>,
    written: BTreeMap<(bool, StreamId), Vec<u8>>,
    finished: BTreeMap<(bool, StreamId), bool>,
    reset: Vec<StreamId>,
}

impl Model {
    fn apply(&mut self, path: &mut Path, action: &Action) {
        let now = path.now;
        match *action {
            Action::Open(client) => {
                let tunnel = tunnel(path, client);
                self.ids.push(tunnel.open(now).expect("an open tunnel"));
            }
            Action::Write(client, index, len) => {
                let Some(&id) = self.ids.get(index) else {
                    return;
                };
                let data = pattern(len, index as u64 + len as u64);
                let mut rest = Bytes::from(data.clone());
                if let Ok(taken) = tunnel(path, client).write(id, &mut rest) {
                    let written = self.written.entry((client, id)).or_default();
                    written.extend_from_slice(&data[..taken]);
                }
            }
            Action::Finish(client, index) => {
                let Some(&id) = self.ids.get(index) else {
                    return;
                };
                if tunnel(path, client).finish(id).is_ok() {
                    self.finished.insert((client, id), true);
                }
            }
            Action::Reset(client, index) => {
                let Some(&id) = self.ids.get(index) else {
                    return;
                };
                if tunnel(path, client).reset(id, 7).is_ok() {
                    self.reset.push(id);
                }
            }
            Action::Prioritise(client, index, urgency) => {
                let Some(&id) = self.ids.get(index) else {
                    return;
                };
                // The stream may have ended.
                let _ = tunnel(path, client).prioritise(id, urgency);
            }
            Action::Pause(client) => {
                let end = if client {
                    &mut path.client
                } else {
                    &mut path.server
                };
                end.is_paused = !end.is_paused;
            }
            Action::Wait(time) => path.run_for(MS * time as u32),
        }
    }

    /// Checks that all data written to streams without a reset has arrived.
    fn check(&self, path: &Path) -> Result<(), TestCaseError> {
        for ((client, id), written) in &self.written {
            let reader = if *client { &path.server } else { &path.client };
            let none = (Vec::new(), false);
            let (received, ended) = reader.received.get(id).unwrap_or(&none);
            if self.reset.contains(id) {
                prop_assert!(written.starts_with(received));
            } else {
                prop_assert_eq!(received.len(), written.len());
                prop_assert!(received == written);
                prop_assert_eq!(*ended, self.finished.contains_key(&(*client, *id)));
            }
        }
        Ok(())
    }
}

fn tunnel(path: &mut Path, client: bool) -> &mut tandem_tunnel::Tunnel {
    if client {
        &mut path.client.tunnel
    } else {
        &mut path.server.tunnel
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn tunnel_equals_a_plain_model_of_streams(
        config in configs(), link in links(), seed in 0u64..1000, actions in actions(),
    ) {
        let mut path = Path::new(&config, &link, seed);
        let mut model = Model::default();
        for action in &actions {
            model.apply(&mut path, action);
        }
        (path.client.is_paused, path.server.is_paused) = (false, false);
        path.run_for(Duration::from_secs(110));
        prop_assert_eq!(path.client.tunnel.closed(), None);
        model.check(&path)?;
        // Streams that ended in both directions leave nothing behind.
        let open = model.ids.iter().filter(|id| {
            let both = [true, false].iter().all(|side| model.finished.contains_key(&(*side, **id)));
            !both && !model.reset.contains(id)
        });
        prop_assert!(path.client.tunnel.open_streams() <= open.count());
        // All memory is back, except for the windows of the next streams.
        for end in [&path.client, &path.server] {
            let offered = config.first_window.saturating_sub(CREDIT);
            let offered = u64::from(config.offered_streams) * offered;
            prop_assert!(end.tunnel.open_streams() > 0 || end.tunnel.memory() <= offered);
        }
    }
}

/// The other end has forgotten the stream, since everything has arrived.
#[test]
fn reset_of_a_complete_stream_that_was_not_read_ends() {
    let mut path = Path::new(&Config::default(), &LinkConfig::default(), 1);
    path.client.is_paused = true;
    let id = path.upload(b"request");
    path.run_for(MS);
    path.server.tunnel.finish(id).expect("an open stream");
    path.run_for(100 * MS);
    assert_eq!(path.server.tunnel.open_streams(), 0);
    path.client.tunnel.reset(id, 7).expect("an open stream");
    path.run_for(Duration::from_secs(60));
    assert_eq!(path.client.tunnel.open_streams(), 0);
    assert_eq!(path.client.tunnel.stats().timeouts, 0);
}

#[test]
fn tunnel_delivers_under_every_kind_of_damage() {
    let link = LinkConfig {
        delay: 30 * MS,
        jitter: Some(Jitter {
            shape: Shape::Exponential,
            scale: 10 * MS,
            reorder: true,
        }),
        loss: Loss::Independent(0.1),
        duplicate: 0.1,
        corrupt: 0.05,
        ..LinkConfig::default()
    };
    for coupling in [Coupling::Coupled, Coupling::PerStream] {
        let config = Config {
            coupling,
            ..Config::default()
        };
        let mut path = Path::new(&config, &link, 5);
        let all: Vec<_> = (0..20)
            .map(|n| {
                let data = pattern(50_000 + n * 7919, n as u64);
                (path.upload(&data), data)
            })
            .collect();
        path.run_while(Duration::from_secs(60), |path| {
            !all.iter()
                .all(|(id, _)| path.client.has(Event::Finished(*id)))
        });
        for (id, data) in all {
            assert!(path.server.received[&id] == (data, true), "stream {id}");
            assert_eq!(id.opener(), Side::Client);
        }
    }
}
