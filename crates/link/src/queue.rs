//! Packets that wait for the rate: drop-tail by packets and bytes, and CoDel (RFC 8289) at the
//! head.
//!
//! Only waiting packets count: neither the one being sent nor those on the line do.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::config::ConfigError;
use crate::text;

/// Limits of a queue. As text: parts joined by commas, each `256` (packets), `64kB`, `codel`,
/// `codel:5ms:100ms` or `unlimited`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Most packets that wait.
    pub packets: Option<usize>,
    /// Most bytes that wait.
    pub bytes: Option<usize>,
    /// Active queue management at the head.
    pub codel: Option<CoDel>,
}

/// Parameters of CoDel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoDel {
    /// Waiting time that may stand.
    pub target: Duration,
    /// How long it may be exceeded before dropping begins: about a worst-case round trip.
    pub interval: Duration,
}

impl Default for CoDel {
    /// The values of RFC 8289 section 4: 5 ms, 100 ms.
    fn default() -> Self {
        Self {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
        }
    }
}

impl Default for QueueLimits {
    /// Returns a drop-tail queue of a thousand packets, the default of Linux interfaces.
    fn default() -> Self {
        Self {
            packets: Some(1000),
            bytes: None,
            codel: None,
        }
    }
}

impl fmt::Display for QueueLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packets = self.packets.map(|n| n.to_string());
        let bytes = self.bytes.map(|n| format!("{n}B"));
        let codel = self
            .codel
            .map(|c| format!("codel:{}:{}", text::Time(c.target), text::Time(c.interval)));
        let parts: Vec<String> = [packets, bytes, codel].into_iter().flatten().collect();
        f.write_str(&if parts.is_empty() {
            "unlimited".into()
        } else {
            parts.join(",")
        })
    }
}

impl FromStr for QueueLimits {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let mut limits = Self {
            packets: None,
            bytes: None,
            codel: None,
        };
        for part in text.split(',').map(str::trim) {
            if let Some(parameters) = part.strip_prefix("codel") {
                limits.codel = Some(parse_codel(parameters)?);
            } else if part.ends_with(['B', 'b']) {
                limits.bytes = Some(text::bytes(part)?);
            } else if part != "unlimited" {
                limits.packets = Some(text::count(part, "queue")? as usize);
            }
        }
        Ok(limits)
    }
}

fn parse_codel(parameters: &str) -> Result<CoDel, ConfigError> {
    if parameters.is_empty() {
        return Ok(CoDel::default());
    }
    let wrong = || ConfigError::Text {
        what: "queue",
        text: format!("codel{parameters}"),
        expected: "codel:TARGET:INTERVAL",
    };
    let (target, interval) = parameters
        .strip_prefix(':')
        .and_then(|p| p.split_once(':'))
        .ok_or_else(wrong)?;
    let codel = CoDel {
        target: text::duration(target)?,
        interval: text::duration(interval)?,
    };
    if codel.interval.is_zero() {
        Err(wrong())
    } else {
        Ok(codel)
    }
}

/// An entry of a queue: an item with its length in bytes.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    pub(crate) item: T,
    pub(crate) len: usize,
    pub(crate) since: Duration,
}

/// A first-in first-out queue with limits.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    limits: QueueLimits,
    waiting: VecDeque<Waiting<T>>,
    bytes: usize,
    control: Control,
}

/// CoDel's state between two dequeues, in the RFC's words.
#[derive(Debug, Default)]
struct Control {
    first_above: Option<Duration>,
    dropping: bool,
    drop_next: Duration,
    count: u32,
    last_count: u32,
}

impl<T> Queue<T> {
    pub(crate) fn new(limits: QueueLimits) -> Self {
        Self {
            limits,
            waiting: VecDeque::new(),
            bytes: 0,
            control: Control::default(),
        }
    }

    pub(crate) fn packets(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends an item, or returns it if it does not fit.
    pub(crate) fn push(&mut self, now: Duration, item: T, len: usize) -> Result<(), T> {
        let full = self
            .limits
            .packets
            .is_some_and(|max| self.waiting.len() >= max)
            || self.limits.bytes.is_some_and(|max| self.bytes + len > max);
        if full {
            return Err(item);
        }
        self.bytes += len;
        self.waiting.push_back(Waiting {
            item,
            len,
            since: now,
        });
        Ok(())
    }

    /// Takes the next packet to send at `now`; `dropped` sees those that CoDel gives up on.
    pub(crate) fn pop(
        &mut self,
        now: Duration,
        mut dropped: impl FnMut(Waiting<T>),
    ) -> Option<Waiting<T>> {
        let Some(codel) = self.limits.codel else {
            return self.take();
        };
        let (mut head, mut droppable) = self.look(now, codel);
        if self.control.dropping {
            self.control.dropping &= droppable;
            while self.control.dropping && now >= self.control.drop_next {
                head.into_iter().for_each(&mut dropped);
                self.control.count = self.control.count.saturating_add(1);
                (head, droppable) = self.look(now, codel);
                self.control.dropping = droppable;
                if droppable {
                    self.control.drop_next =
                        control_law(self.control.drop_next, codel, self.control.count);
                }
            }
        } else if droppable {
            head.into_iter().for_each(&mut dropped);
            (head, _) = self.look(now, codel);
            self.begin_dropping(now, codel);
        }
        head
    }

    /// RFC 8289 section 5.5: a new dropping state soon after the last one resumes near its drop
    /// rate.
    fn begin_dropping(&mut self, now: Duration, codel: CoDel) {
        let control = &mut self.control;
        let delta = control.count.saturating_sub(control.last_count);
        let recent = now.saturating_sub(control.drop_next) < codel.interval * 16;
        control.count = if delta > 1 && recent { delta } else { 1 };
        control.drop_next = control_law(now, codel, control.count);
        control.last_count = control.count;
        control.dropping = true;
    }

    /// RFC 8289 section 5.6 (`dodequeue`): the head, and whether its wait has been too long for too
    /// long.
    fn look(&mut self, now: Duration, codel: CoDel) -> (Option<Waiting<T>>, bool) {
        let Some(head) = self.take() else {
            self.control.first_above = None;
            return (None, false);
        };
        let waited = now.saturating_sub(head.since);
        if waited < codel.target || self.bytes <= crate::rate::OPPORTUNITY {
            self.control.first_above = None;
            return (Some(head), false);
        }
        let first_above = *self.control.first_above.get_or_insert(now + codel.interval);
        (Some(head), now >= first_above)
    }

    fn take(&mut self) -> Option<Waiting<T>> {
        let head = self.waiting.pop_front()?;
        self.bytes -= head.len;
        Some(head)
    }
}

/// Drops come closer together with the square root of their number.
fn control_law(from: Duration, codel: CoDel, count: u32) -> Duration {
    from + codel.interval.div_f64(f64::from(count.max(1)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn parses() {
        let limits = |packets, bytes, codel| QueueLimits {
            packets,
            bytes,
            codel,
        };
        assert_eq!("256".parse(), Ok(limits(Some(256), None, None)));
        assert_eq!("64kB".parse(), Ok(limits(None, Some(64_000), None)));
        assert_eq!("unlimited".parse(), Ok(limits(None, None, None)));
        assert_eq!(
            "500,codel".parse(),
            Ok(limits(Some(500), None, Some(CoDel::default())))
        );
        let slow = CoDel {
            target: 20 * MS,
            interval: 400 * MS,
        };
        assert_eq!(
            "codel:20ms:400ms".parse(),
            Ok(limits(None, None, Some(slow)))
        );
        for text in ["", "0", "many", "codel:5ms", "codel:5ms:0", "codelx"] {
            text.parse::<QueueLimits>().expect_err(text);
        }
    }

    #[test]
    fn limits_count_packets_and_bytes() {
        let mut queue = Queue::new(QueueLimits {
            packets: Some(2),
            bytes: Some(100),
            codel: None,
        });
        assert!(queue.push(MS, 'a', 60).is_ok());
        assert_eq!(queue.push(MS, 'b', 41), Err('b'));
        assert!(queue.push(MS, 'c', 40).is_ok());
        assert_eq!(queue.push(MS, 'd', 0), Err('d'));
        assert_eq!(queue.pop(MS, |_| {}).map(|w| w.item), Some('a'));
        assert_eq!((queue.packets(), queue.bytes()), (1, 40));
    }

    /// Feeds a packet each millisecond into a queue served each `service`; returns drops and the
    /// waits seen.
    fn run(service: Duration, seconds: u32) -> (Vec<Duration>, Vec<Duration>) {
        let mut queue = Queue::new(QueueLimits {
            packets: None,
            bytes: None,
            codel: Some(CoDel::default()),
        });
        let (mut drops, mut waits, mut next) = (Vec::new(), Vec::new(), Duration::ZERO);
        for ms in 0..seconds * 1000 {
            let now = MS * ms;
            assert!(queue.push(now, (), 1500).is_ok());
            while next <= now {
                let taken = queue.pop(next.max(now), |_| drops.push(now));
                waits.extend(taken.map(|w| now - w.since));
                next += service;
            }
        }
        (drops, waits)
    }

    #[test]
    fn codel_leaves_a_fast_queue_alone() {
        let (drops, _) = run(MS, 10);
        assert_eq!(drops, []);
    }

    #[test]
    fn codel_drops_ever_faster_after_an_interval() {
        let (drops, _) = run(Duration::from_micros(1100), 3);
        // 1 ms of service missing in 10: 5 ms of wait after about 55 ms, the first drop an interval
        // later.
        let first = drops[0].as_millis();
        assert!((145..=170).contains(&first), "{first}");
        let gap = |n: usize| (drops[n + 1] - drops[n]).as_millis() as f64;
        for n in 0..4 {
            let expected = 100.0 / ((n + 1) as f64).sqrt();
            assert!(
                (gap(n) - expected).abs() <= 4.0,
                "gap {n}: {} against {expected}",
                gap(n)
            );
        }
    }

    #[test]
    fn codel_brings_an_overload_down() {
        let (drops, waits) = run(Duration::from_micros(1050), 60);
        let late = &waits[waits.len() / 2..];
        let mean = late.iter().sum::<Duration>() / late.len() as u32;
        assert!(
            mean < 60 * MS,
            "mean wait {mean:?}, unmanaged it would be seconds"
        );
        assert!(
            drops.len() > 2000,
            "5 % of 60000 must go, {} did",
            drops.len()
        );
    }
}
