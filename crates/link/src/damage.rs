//! Packets that arrive, but not as they were sent: a wrong bit, or a TCP segment turned into a
//! reset.

use std::fmt;
use std::str::FromStr;

use crate::config::ConfigError;
use crate::random::Random;
use crate::text;

const TCP: u8 = 6;
const RST: u8 = 0x04;

/// An attacker in the path that sets RST on TCP segments. As text: `PORT`, `PORT:after=1000`,
/// `PORT:after=1000,p=1%`; port 0 means every port.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reset {
    /// Destination port attacked; 0 for all.
    pub port: u16,
    /// Segments to that port let through before the attack begins.
    pub after: u64,
    /// Probability of each later segment to become a reset.
    pub probability: f64,
}

impl fmt::Display for Reset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:after={},p={}",
            self.port, self.after, self.probability
        )
    }
}

impl FromStr for Reset {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let wrong = || ConfigError::Text {
            what: "reset",
            text: text.into(),
            expected: "PORT[:after=N][,p=PROBABILITY], e.g. 443:after=1000",
        };
        let (port, options) = text.split_once(':').unwrap_or((text, ""));
        let port = port.trim().parse().map_err(|_| wrong())?;
        let mut reset = Self {
            port,
            after: 0,
            probability: 1.0,
        };
        for option in options.split(',').map(str::trim).filter(|o| !o.is_empty()) {
            match option.split_once('=') {
                Some(("after", n)) => reset.after = n.parse().map_err(|_| wrong())?,
                Some(("p", p)) => reset.probability = text::probability(p)?,
                _ => return Err(wrong()),
            }
        }
        Ok(reset)
    }
}

/// Inverts one bit of a packet, any but those of the IP header's first byte, so that it stays an IP
/// packet.
pub(crate) fn corrupt(packet: &mut [u8], random: &mut Random) {
    let bits = (packet.len() as u64).saturating_sub(1) * 8;
    if bits > 0 {
        let bit = random.below(bits);
        packet[1 + (bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

/// Returns the offset of the TCP header in an unfragmented IPv4 or IPv6 packet that contains the
/// whole header.
fn tcp_header(packet: &[u8]) -> Option<usize> {
    let start = match packet.first()? >> 4 {
        4 if packet.get(9) == Some(&TCP) && packet.get(6..8)? == [packet[6] & 0x40, 0] => {
            usize::from(packet[0] & 15) * 4
        }
        6 if packet.get(6) == Some(&TCP) => 40,
        _ => return None,
    };
    (start >= 20 && packet.len() >= start + 20).then_some(start)
}

/// Destination port of a TCP segment.
pub(crate) fn tcp_destination(packet: &[u8]) -> Option<u16> {
    let start = tcp_header(packet)?;
    Some(u16::from_be_bytes([packet[start + 2], packet[start + 3]]))
}

/// Sets RST and mends the checksum (RFC 1624, equation 3). Its sequence number is the segment's
/// own: the receiver believes it when the segment is the next one expected.
pub(crate) fn set_rst(packet: &mut [u8]) {
    let Some(start) = tcp_header(packet) else {
        return;
    };
    let flags = start + 13;
    let word = |p: &[u8]| u32::from(u16::from_be_bytes([p[flags - 1], p[flags]]));
    let old = word(packet);
    packet[flags] |= RST;
    let new = word(packet);
    let sum = u32::from(!u16::from_be_bytes([
        packet[start + 16],
        packet[start + 17],
    ])) + (!old & 0xffff)
        + new;
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    packet[start + 16..start + 18].copy_from_slice(&(!folded as u16).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Purpose;

    /// A TCP segment 10.0.0.1:1234 -> 10.0.0.2:`port` with payload, checksums right.
    fn segment(port: u16, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![
            0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        packet.extend_from_slice(&1234u16.to_be_bytes());
        packet.extend_from_slice(&port.to_be_bytes());
        packet.extend_from_slice(&[0, 0, 0, 9, 0, 0, 0, 7, 0x50, 0x18, 0x20, 0, 0, 0, 0, 0]);
        packet.extend_from_slice(payload);
        let len = packet.len() as u16;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        let sum = !tcp_sum(&packet);
        packet[36..38].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    /// Returns the ones' complement sum over pseudo-header and segment: 0xffff when the checksum is
    /// right.
    fn tcp_sum(packet: &[u8]) -> u16 {
        let word =
            |pair: &[u8]| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        let addresses_and_segment: u32 = packet[12..].chunks(2).map(word).sum();
        let mut sum = addresses_and_segment + u32::from(TCP) + (packet.len() - 20) as u32;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn a_reset_keeps_the_checksum_right() {
        for payload in [&b""[..], b"x", b"GET / HTTP/1.1\r\n\r\n"] {
            let mut packet = segment(443, payload);
            assert_eq!(tcp_sum(&packet), 0xffff);
            set_rst(&mut packet);
            assert_eq!(packet[33], 0x1c);
            assert_eq!(tcp_sum(&packet), 0xffff);
        }
    }

    #[test]
    fn only_whole_tcp_headers_are_read() {
        let whole = segment(80, b"hello");
        assert_eq!(tcp_destination(&whole), Some(80));
        for len in 0..40 {
            assert_eq!(tcp_destination(&whole[..len]), None, "{len}");
        }
        let mut fragment = whole.clone();
        fragment[7] = 1;
        assert_eq!(tcp_destination(&fragment), None);
        let mut udp = whole;
        udp[9] = 17;
        assert_eq!(tcp_destination(&udp), None);
    }

    #[test]
    fn corruption_changes_one_bit_and_spares_the_version() {
        for n in 0..1000 {
            let before = segment(80, b"payload");
            let mut after = before.clone();
            corrupt(&mut after, &mut Random::of(1, Purpose::Corrupt, n));
            let bits: u32 = before
                .iter()
                .zip(&after)
                .map(|(a, b)| (a ^ b).count_ones())
                .sum();
            assert_eq!((bits, before[0]), (1, after[0]));
        }
        corrupt(&mut [], &mut Random::of(1, Purpose::Corrupt, 0));
        corrupt(&mut [0x45], &mut Random::of(1, Purpose::Corrupt, 0));
    }

    #[test]
    fn parses() {
        assert_eq!(
            "443:after=1000".parse(),
            Ok(Reset {
                port: 443,
                after: 1000,
                probability: 1.0
            })
        );
        assert_eq!(
            "0:p=1%".parse(),
            Ok(Reset {
                port: 0,
                after: 0,
                probability: 0.01
            })
        );
        for text in ["", "http", "70000", "443:later=1", "443:after=", "443:p=2"] {
            text.parse::<Reset>().expect_err(text);
        }
    }
}
