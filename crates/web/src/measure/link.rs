//! The traffic of a load on the surrounding link, as the link counts it.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::MeasureError;
use tandem_net::emulator::counters::{self, Counters};
use tandem_net::emulator::report::Traffic;

/// Closing connections is part of a load; one that never ends is not.
const SETTLE: Duration = Duration::from_secs(10);

/// Packets and bytes (of IP packets) at this host's end of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Wire {
    /// Sent.
    pub up: Traffic,
    /// Received.
    pub down: Traffic,
    /// Lost by the loss model, in full queues or by queue management, in both directions.
    pub lost: u64,
}

impl Wire {
    /// From the beginning of a load to now.
    fn since(self, before: Self) -> Self {
        let less = |now: Traffic, then: Traffic| Traffic {
            packets: now.packets.saturating_sub(then.packets),
            bytes: now.bytes.saturating_sub(then.bytes),
        };
        Self {
            up: less(self.up, before.up),
            down: less(self.down, before.down),
            lost: self.lost.saturating_sub(before.lost),
        }
    }
}

/// The counters when a load began.
#[derive(Debug)]
pub(super) struct Before(Wire);

impl Before {
    /// Asks the link around; `None` when there is none.
    pub(super) async fn load() -> Result<Option<Self>, MeasureError> {
        Ok(ask().await?.map(|counters| Self(totals(&counters).0)))
    }

    /// Waits until the link is idle, and returns the traffic since the start.
    pub(super) async fn until_quiet(self) -> Result<Option<Wire>, MeasureError> {
        let limit = Instant::now() + SETTLE;
        let mut last = None;
        loop {
            let Some(counters) = ask().await? else {
                return Ok(None);
            };
            let (now, in_flight) = totals(&counters);
            if (last == Some(now) && !in_flight) || Instant::now() > limit {
                return Ok(Some(now.since(self.0)));
            }
            last = Some(now);
        }
    }
}

async fn ask() -> Result<Option<Counters>, MeasureError> {
    let asked = tokio::task::spawn_blocking(|| counters::ask().transpose()).await;
    asked
        .unwrap_or_else(|panic| Err(std::io::Error::other(panic)))
        .map_err(MeasureError::Link)
}

/// Totals at this host, and whether packets are on their way anywhere.
fn totals(counters: &Counters) -> (Wire, bool) {
    let Counters { host, network } = counters;
    let port = network.port(host).cloned().unwrap_or_default();
    let dropped = |link: &tandem_net::emulator::report::LinkReport| {
        link.lost + link.overflowed + link.managed
    };
    let lost = network.links.iter().map(dropped).sum();
    let in_flight = network.links.iter().any(|link| {
        link.received.packets + link.duplicated > link.delivered.packets + dropped(link)
    });
    (
        Wire {
            up: port.sent,
            down: port.received,
            lost,
        },
        in_flight,
    )
}
