//! Datagrams that leave together: those of equal size and with the same ends share a system call,
//! and the kernel cuts them up (generic segmentation offload).

use std::cell::Cell;
use std::io;

use quinn_udp::{EcnCodepoint, Transmit};

use crate::ends::Ends;

/// The bytes of one system call at most, which fit the length field of UDP over IPv4 and IPv6.
const MAX_CALL: usize = 64_000;

/// A datagram at the end of the bytes before it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    to: Ends,
    /// True if routers may mark the datagram in place of a loss (RFC 3168).
    permits_marks: bool,
    /// True if the datagram has a call of its own.
    is_alone: bool,
    end: usize,
}

/// Datagrams in the order in which they leave.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// The bytes of all datagrams. A caller appends those of the next one.
    pub(crate) bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// The first datagram that was not sent.
    next: usize,
    /// The datagrams from `next` on that have a call of their own, after one for all has failed.
    alone: usize,
    /// True if the system seems to have refused to cut those up.
    refused: bool,
    /// The datagrams that the kernel has taken.
    sent: u64,
}

impl Batch {
    /// Ends the datagram whose bytes were appended.
    pub(crate) fn end(&mut self, to: Ends, permits_marks: bool) {
        self.entries.push(Entry {
            to,
            permits_marks,
            is_alone: false,
            end: self.bytes.len(),
        });
    }

    /// Ends a datagram that may be too large for the path, so that it leaves with no other.
    pub(crate) fn end_alone(&mut self, to: Ends) {
        self.entries.push(Entry {
            to,
            permits_marks: false,
            is_alone: true,
            end: self.bytes.len(),
        });
    }

    /// Returns the number of datagrams.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Removes all datagrams. Returns the number of those that the kernel has taken.
    pub(crate) fn clear(&mut self) -> u64 {
        self.bytes.clear();
        self.entries.clear();
        (self.next, self.alone, self.refused) = (0, 0, false);
        std::mem::take(&mut self.sent)
    }

    /// Returns a value that differs after a call of [`Self::send`] that tried a datagram.
    pub(crate) const fn progress(&self) -> (usize, usize) {
        (self.next, self.alone)
    }

    /// Sends the datagrams that are left by `call`, at most `segments` in each call. Those of a
    /// call that has failed are sent again, each with its own call. If that succeeds where the
    /// system may have refused to cut them up, `segments` becomes 1. After another error than
    /// `WouldBlock`, a datagram with its own call counts as lost.
    ///
    /// # Errors
    /// The error of a call. A later call of this function goes on after it.
    pub(crate) fn send(
        &mut self,
        segments: &Cell<usize>,
        mut call: impl FnMut(&Transmit<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        loop {
            let most = if self.alone > 0 { 1 } else { segments.get() };
            let Some((transmit, count)) = self.run(most) else {
                return Ok(());
            };
            let result = call(&transmit);
            match &result {
                Ok(()) => self.sent += count as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return result,
                Err(error) if count > 1 => {
                    (self.alone, self.refused) = (count, is_refusal(error));
                    if self.refused {
                        continue;
                    }
                    return result;
                }
                Err(_) => self.refused = false,
            }
            self.advance(count, segments);
            result?;
        }
    }

    /// Notes that the first `count` datagrams were tried.
    fn advance(&mut self, count: usize, segments: &Cell<usize>) {
        self.next += count;
        if self.alone > 0 {
            self.alone -= 1;
            if self.alone == 0 && std::mem::take(&mut self.refused) {
                segments.set(1);
            }
        }
    }

    /// Returns the datagrams of the next call, and their number. All but the last have the same
    /// size, and the last is not larger.
    fn run(&self, most: usize) -> Option<(Transmit<'_>, usize)> {
        let first = *self.entries.get(self.next)?;
        let start = self
            .next
            .checked_sub(1)
            .map_or(0, |last| self.entries[last].end);
        let segment = first.end - start;
        let (mut end, mut count) = (first.end, 1);
        let most = if first.is_alone { 1 } else { most.max(1) };
        for entry in self.entries[self.next + 1..].iter().take(most - 1) {
            let size = entry.end - end;
            let same = entry.to == first.to && entry.permits_marks == first.permits_marks;
            if !same || entry.is_alone || size > segment || entry.end - start > MAX_CALL {
                break;
            }
            (end, count) = (entry.end, count + 1);
            if size < segment {
                break;
            }
        }
        let transmit = Transmit {
            destination: first.to.peer,
            ecn: first.permits_marks.then_some(EcnCodepoint::Ect0),
            contents: &self.bytes[start..end],
            segment_size: (count > 1).then_some(segment),
            src_ip: first.to.own,
        };
        Some((transmit, count))
    }
}

/// Returns true if the system or a network card may have refused to cut datagrams up: EIO or
/// EINVAL.
fn is_refusal(error: &io::Error) -> bool {
    const EIO: i32 = 5;
    error.raw_os_error() == Some(EIO) || error.kind() == io::ErrorKind::InvalidInput
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 443))
    }

    fn batch(datagrams: &[(u8, usize, bool)]) -> Batch {
        let mut batch = Batch::default();
        for (at, (to, size, permits_marks)) in datagrams.iter().enumerate() {
            let end = batch.bytes.len() + size;
            batch.bytes.resize(end, at as u8);
            batch.end(address(*to).into(), *permits_marks);
        }
        batch
    }

    /// Returns the destination, the segment size, all bytes and the mark's permission of each call.
    fn calls(batch: &mut Batch, most: usize) -> Vec<(SocketAddr, Option<usize>, usize, bool)> {
        let mut calls = Vec::new();
        batch
            .send(&Cell::new(most), |transmit| {
                calls.push((
                    transmit.destination,
                    transmit.segment_size,
                    transmit.contents.len(),
                    transmit.ecn == Some(EcnCodepoint::Ect0),
                ));
                Ok(())
            })
            .expect("no error");
        calls
    }

    #[test]
    fn datagrams_of_one_size_and_address_share_a_call() {
        let mut batch = batch(&[
            (1, 1400, true),
            (1, 1400, true),
            (1, 300, true),
            (1, 1400, true),
            (2, 1400, true),
            (2, 1401, true),
            (2, 1401, false),
        ]);
        let expected = [
            (address(1), Some(1400), 3100, true),
            (address(1), None, 1400, true),
            (address(2), None, 1400, true),
            (address(2), None, 1401, true),
            (address(2), None, 1401, false),
        ];
        assert_eq!(calls(&mut batch, 64), expected);
        assert_eq!(batch.clear(), 7);
    }

    #[test]
    fn datagrams_from_two_addresses_share_no_call() {
        let own = [None, Some(2), Some(2), Some(3), None].map(|last| {
            let ip = |last| SocketAddr::ip(&address(last));
            last.map(ip)
        });
        let mut batch = Batch::default();
        for own in own {
            batch.bytes.resize(batch.bytes.len() + 100, 7);
            let peer = address(1);
            batch.end(Ends { peer, own }, false);
        }
        let mut calls = Vec::new();
        batch
            .send(&Cell::new(64), |transmit| {
                calls.push((transmit.src_ip, transmit.contents.len()));
                Ok(())
            })
            .expect("no error");
        let expected = [(own[0], 100), (own[1], 200), (own[3], 100), (own[4], 100)];
        assert_eq!(calls, expected);
    }

    #[test]
    fn path_probe_has_its_own_call() {
        let mut batch = batch(&[(1, 1400, false)]);
        for size in [1400, 1400, 300] {
            batch.bytes.resize(batch.bytes.len() + size, 9);
            match batch.len() {
                1 => batch.end_alone(address(1).into()),
                _ => batch.end(address(1).into(), false),
            }
        }
        let calls = calls(&mut batch, 64);
        let sizes: Vec<_> = calls.iter().map(|(_, _, bytes, _)| *bytes).collect();
        assert_eq!(sizes, [1400, 1400, 1700]);
    }

    #[test]
    fn batch_call_has_bounds_of_segments_and_bytes() {
        let many = [(1, 1400, false); 60];
        let lengths = |most| -> Vec<usize> {
            let calls = calls(&mut batch(&many), most);
            calls.iter().map(|(_, _, bytes, _)| bytes / 1400).collect()
        };
        assert_eq!(lengths(64), [45, 15]);
        assert_eq!(lengths(25), [25, 25, 10]);
        assert_eq!(lengths(1), [1; 60]);
    }

    #[test]
    fn refused_segmentation_sends_each_datagram_alone() {
        for code in [5, 22] {
            let mut batch = batch(&[(1, 1400, false); 4]);
            let (segments, mut sizes) = (Cell::new(64), Vec::new());
            batch
                .send(&segments, |transmit| {
                    sizes.push(transmit.contents.len());
                    match transmit.segment_size {
                        Some(_) => Err(io::Error::from_raw_os_error(code)),
                        None => Ok(()),
                    }
                })
                .expect("each is sent alone");
            assert_eq!(
                (sizes, segments.get()),
                (vec![5600, 1400, 1400, 1400, 1400], 1)
            );
            assert_eq!(batch.clear(), 4);
        }
    }

    #[test]
    fn refused_address_leaves_segmentation_on() {
        let mut batch = batch(&[(1, 100, false), (1, 100, false), (2, 100, true)]);
        let (segments, mut calls) = (Cell::new(64), 0);
        let mut errors = 0;
        while batch
            .send(&segments, |transmit| {
                calls += 1;
                match transmit.destination == address(1) {
                    true => Err(io::Error::from_raw_os_error(22)),
                    false => Ok(()),
                }
            })
            .is_err()
        {
            errors += 1;
        }
        assert_eq!((calls, errors, segments.get()), (4, 2, 64));
        assert_eq!(batch.clear(), 1);
    }

    /// A socket with an earlier error fails once, and a path with a small MTU for one size.
    #[test]
    fn datagrams_of_a_failed_call_are_sent_alone() {
        for (code, most_bytes, lost) in [(111, 2000, 0), (90, 1300, 1)] {
            let mut batch = batch(&[(1, 1400, false), (1, 300, false)]);
            let (segments, mut pending) = (Cell::new(64), true);
            let mut send = |transmit: &Transmit<'_>| {
                let fails = std::mem::take(&mut pending);
                let size = transmit.segment_size.unwrap_or(transmit.contents.len());
                if fails || size > most_bytes {
                    return Err(io::Error::from_raw_os_error(code));
                }
                Ok(())
            };
            let mut errors = 0;
            while batch.send(&segments, &mut send).is_err() {
                errors += 1;
            }
            assert_eq!((errors, segments.get()), (1 + lost, 64));
            assert_eq!(batch.clear(), 2 - lost);
        }
    }

    #[test]
    fn failed_call_loses_its_datagrams_only() {
        let mut batch = batch(&[(1, 1400, false), (2, 100, false), (1, 1400, false)]);
        let (segments, mut full) = (Cell::new(64), true);
        let mut send = |transmit: &Transmit<'_>| {
            if std::mem::take(&mut full) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            if transmit.destination == address(2) {
                return Err(io::ErrorKind::HostUnreachable.into());
            }
            Ok(())
        };
        let kinds: Vec<_> = (0..3)
            .map(|_| {
                batch
                    .send(&segments, &mut send)
                    .map_err(|error| error.kind())
            })
            .collect();
        let expected = [
            Err(io::ErrorKind::WouldBlock),
            Err(io::ErrorKind::HostUnreachable),
            Ok(()),
        ];
        assert_eq!(kinds, expected);
        assert_eq!(batch.clear(), 2);
    }
}
