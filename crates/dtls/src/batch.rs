//! Datagrams that leave together: those of equal size to one address share a system call, and the
//! kernel cuts them up (generic segmentation offload).

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;

use quinn_udp::{EcnCodepoint, Transmit};

/// The bytes of one system call at most, which fit the length field of UDP over IPv4 and IPv6.
const MAX_CALL: usize = 64_000;

/// A datagram at the end of the bytes before it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    to: SocketAddr,
    /// True if routers may mark the datagram in place of a loss (RFC 3168).
    permits_marks: bool,
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
    /// The datagrams that the kernel has taken.
    sent: u64,
}

impl Batch {
    /// Ends the datagram whose bytes were appended.
    pub(crate) fn end(&mut self, to: SocketAddr, permits_marks: bool) {
        self.entries.push(Entry {
            to,
            permits_marks,
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
        self.next = 0;
        std::mem::take(&mut self.sent)
    }

    /// Sends the datagrams that are left by `call`, at most `segments` in each call. If the system
    /// refuses to cut datagrams up, each has its own call from then on. After another error than
    /// `WouldBlock`, the datagrams of that call count as lost.
    ///
    /// # Errors
    /// The error of a call. A later call of this function sends the datagrams after it.
    pub(crate) fn send(
        &mut self,
        segments: &Cell<usize>,
        mut call: impl FnMut(&Transmit<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        while let Some((transmit, count)) = self.run(segments.get()) {
            match call(&transmit) {
                Ok(()) => self.sent += count as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                Err(error) if count > 1 && is_refusal(&error) => {
                    segments.set(1);
                    continue;
                }
                Err(error) => {
                    self.next += count;
                    return Err(error);
                }
            }
            self.next += count;
        }
        Ok(())
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
        for entry in self.entries[self.next + 1..].iter().take(most.max(1) - 1) {
            let size = entry.end - end;
            let same = entry.to == first.to && entry.permits_marks == first.permits_marks;
            if !same || size > segment || entry.end - start > MAX_CALL {
                break;
            }
            (end, count) = (entry.end, count + 1);
            if size < segment {
                break;
            }
        }
        let transmit = Transmit {
            destination: first.to,
            ecn: first.permits_marks.then_some(EcnCodepoint::Ect0),
            contents: &self.bytes[start..end],
            segment_size: (count > 1).then_some(segment),
            src_ip: None,
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
    use super::*;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 443))
    }

    fn batch(datagrams: &[(u8, usize, bool)]) -> Batch {
        let mut batch = Batch::default();
        for (at, (to, size, permits_marks)) in datagrams.iter().enumerate() {
            let end = batch.bytes.len() + size;
            batch.bytes.resize(end, at as u8);
            batch.end(address(*to), *permits_marks);
        }
        batch
    }

    /// Returns the destination, the segment size and all bytes of each call.
    fn calls(batch: &mut Batch, most: usize) -> Vec<(SocketAddr, Option<usize>, usize)> {
        let mut calls = Vec::new();
        batch
            .send(&Cell::new(most), |transmit| {
                calls.push((
                    transmit.destination,
                    transmit.segment_size,
                    transmit.contents.len(),
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
            (address(1), Some(1400), 3100),
            (address(1), None, 1400),
            (address(2), None, 1400),
            (address(2), None, 1401),
            (address(2), None, 1401),
        ];
        assert_eq!(calls(&mut batch, 64), expected);
        assert_eq!(batch.clear(), 7);
    }

    #[test]
    fn call_has_bounds_of_segments_and_bytes() {
        let many = [(1, 1400, false); 60];
        let lengths = |most| -> Vec<usize> {
            let calls = calls(&mut batch(&many), most);
            calls.iter().map(|(_, _, bytes)| bytes / 1400).collect()
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
