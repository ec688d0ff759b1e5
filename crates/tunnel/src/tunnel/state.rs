//! The parts of a tunnel's state that its modules share: acknowledgements that are due, segments of
//! the tunnel itself, and times.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// Acknowledgements that are due.
#[derive(Clone, Debug, Default)]
pub(super) struct Acks {
    pub(super) now: BTreeSet<u32>,
    pub(super) later: BTreeSet<(Duration, u32)>,
    /// Streams that ended, whose peer repeats something.
    pub(super) ended: BTreeSet<u32>,
    /// The streams whose acknowledgements left last, and those of this datagram.
    pub(super) last: Vec<u32>,
    pub(super) written: Vec<u32>,
}

/// Segments that concern the tunnel.
#[derive(Clone, Debug, Default)]
pub(super) struct Control {
    /// Probes to reply to.
    pub(super) replies: VecDeque<u32>,
    /// The next probe's number, and the time of the last one that measures the round trip.
    pub(super) next_probe: u32,
    pub(super) pending_probe: Option<(u32, Duration)>,
    pub(super) probe_due: bool,
    /// True if the application has asked for a probe.
    pub(super) echo_due: bool,
    /// The probes in succession that a later one replaced before a reply.
    pub(super) unanswered_probes: u32,
    /// Congestion marks that arrived, those reported, and the count that the peer reported.
    pub(super) marks: u32,
    pub(super) marks_reported: u32,
    pub(super) marks_seen: u32,
    pub(super) close: Option<u32>,
    /// Resets to send.
    pub(super) resets: BTreeSet<u32>,
    /// Streams whose window was shut when the application wrote.
    pub(super) blocked: BTreeSet<u32>,
    /// Streams whose zero window is probed now.
    pub(super) window_probes: BTreeSet<u32>,
}

/// The times that concern the tunnel as a whole.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timing {
    pub(super) last_received: Duration,
    pub(super) last_sent: Duration,
    /// The first time since the last answer at which something left that the peer answers.
    pub(super) asked: Option<Duration>,
    /// The last time at which something left or arrived that restarts the timeout.
    pub(super) restarted: Duration,
    pub(super) backoff: u32,
    pub(super) datagram: u64,
    /// True if a tail loss probe is due: one segment may leave beside the window.
    pub(super) tail_probe: bool,
    pub(super) paced_until: Option<Duration>,
    /// Streams whose window is probed.
    pub(super) persisting: usize,
    /// True if the application found no room when it last asked, and so has more to send.
    pub(super) wants_room: bool,
}
