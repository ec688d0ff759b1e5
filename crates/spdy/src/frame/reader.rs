//! Cuts the byte stream into frames: control frames whole, data as it arrives, unknown frames not
//! at all. Draft section 2.2.
//!
//! Holds at most one control frame, no longer than the limit that it was made with, and copies none
//! that arrives in one piece.

use bytes::Bytes;

use super::{ControlHead, Data, FrameType, HEAD_LEN, Head};

/// The position of the reader within a frame.
#[derive(Debug)]
enum State {
    Head,
    Control(FrameType, ControlHead),
    Data { left: u32 },
    Skip { left: u32 },
}

/// Cuts bytes into frames.
#[derive(Debug)]
pub struct FrameReader {
    state: State,
    held: Vec<u8>,
    max_control: usize,
}

/// A piece of the input.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A whole control frame of a known type.
    Control(FrameType, ControlHead, Payload<'a>),
    /// A control frame longer than the limit begins: nothing after it can be understood.
    TooLarge(ControlHead),
    /// A control frame of a type that means nothing: its payload is skipped.
    Unknown(ControlHead),
    /// A data frame begins.
    DataHead(Data),
    /// Payload of that frame. `last`: all of it has come.
    Data(&'a [u8], bool),
}

/// The payload of a control frame: a slice of the input, or a buffer joined from several inputs.
#[derive(Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// Lies in the input.
    Input(&'a [u8]),
    /// Was gathered.
    Gathered(Bytes),
}

impl AsRef<[u8]> for Payload<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Input(bytes) => bytes,
            Self::Gathered(bytes) => bytes,
        }
    }
}

impl FrameReader {
    /// Takes control frames of up to `max_control` bytes of payload.
    pub const fn new(max_control: usize) -> Self {
        Self {
            state: State::Head,
            held: Vec::new(),
            max_control,
        }
    }

    /// Cuts the next piece off the front of `input`; `None` when all of it is used up.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<Piece<'a>> {
        loop {
            match self.state {
                State::Head => {
                    let head = self.take_head(input)?;
                    if let Some(piece) = self.start(head) {
                        return Some(piece);
                    }
                }
                State::Control(kind, head) => {
                    let payload = self.gather(input, head.len as usize)?;
                    self.state = State::Head;
                    return Some(Piece::Control(kind, head, payload));
                }
                State::Data { left } => {
                    let part = take_up_to(input, left)?;
                    let left = left - part.len() as u32;
                    self.state = if left == 0 {
                        State::Head
                    } else {
                        State::Data { left }
                    };
                    return Some(Piece::Data(part, left == 0));
                }
                State::Skip { left } => {
                    let left = left - take_up_to(input, left)?.len() as u32;
                    self.state = if left == 0 {
                        State::Head
                    } else {
                        State::Skip { left }
                    };
                }
            }
        }
    }

    /// Chooses the state that follows a head. An expected control frame yields no piece yet.
    fn start(&mut self, head: Head) -> Option<Piece<'static>> {
        match head {
            Head::Data(data) => {
                if data.len > 0 {
                    self.state = State::Data { left: data.len };
                }
                Some(Piece::DataHead(data))
            }
            Head::Control(head) => match FrameType::from_wire(head.number) {
                Some(_) if head.len as usize > self.max_control => Some(Piece::TooLarge(head)),
                Some(kind) => {
                    self.state = State::Control(kind, head);
                    None
                }
                None => {
                    if head.len > 0 {
                        self.state = State::Skip { left: head.len };
                    }
                    Some(Piece::Unknown(head))
                }
            },
        }
    }

    fn take_head(&mut self, input: &mut &[u8]) -> Option<Head> {
        let payload = self.gather(input, HEAD_LEN)?;
        payload.as_ref().first_chunk().map(Head::load)
    }

    /// `len` bytes in a row, once they have come.
    fn gather<'a>(&mut self, input: &mut &'a [u8], len: usize) -> Option<Payload<'a>> {
        if self.held.is_empty()
            && let Some((whole, rest)) = input.split_at_checked(len)
        {
            *input = rest;
            return Some(Payload::Input(whole));
        }
        let (part, rest) = input.split_at(input.len().min(len - self.held.len()));
        *input = rest;
        self.held.extend_from_slice(part);
        (self.held.len() == len).then(|| Payload::Gathered(std::mem::take(&mut self.held).into()))
    }
}

fn take_up_to<'a>(input: &mut &'a [u8], count: u32) -> Option<&'a [u8]> {
    let (part, rest) = input.split_at(input.len().min(count as usize));
    *input = rest;
    (!part.is_empty()).then_some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING: [u8; 12] = [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1];

    fn kinds(chunks: &[&[u8]]) -> Vec<String> {
        let mut reader = FrameReader::new(64);
        let mut seen = Vec::new();
        for chunk in chunks {
            let mut input = *chunk;
            while let Some(piece) = reader.next(&mut input) {
                seen.push(match piece {
                    Piece::Control(kind, _, payload) => format!("{kind:?} {:?}", payload.as_ref()),
                    Piece::TooLarge(_) => "too large".into(),
                    Piece::Unknown(head) => format!("unknown {}", head.number),
                    Piece::DataHead(data) => format!("data of {}", data.len),
                    Piece::Data(part, last) => format!("{part:?} {last}"),
                });
            }
        }
        seen
    }

    #[test]
    fn whole_and_bytewise_agree_on_control_frames() {
        let whole = kinds(&[&PING, &PING]);
        let bytes: Vec<&[u8]> = PING.iter().chain(&PING).map(std::slice::from_ref).collect();
        assert_eq!(whole, kinds(&bytes));
        assert_eq!(whole, ["Ping [0, 0, 0, 1]", "Ping [0, 0, 0, 1]"]);
    }

    #[test]
    fn data_comes_in_parts_and_unknown_frames_vanish() {
        let data = [0, 0, 0, 1, 1, 0, 0, 3, 7, 8, 9];
        let unknown = [0x80, 3, 0, 10, 0, 0, 0, 2, 1, 1];
        let seen = kinds(&[&unknown[..9], &unknown[9..], &data[..9], &data[9..]]);
        assert_eq!(
            seen,
            ["unknown 10", "data of 3", "[7] false", "[8, 9] true"]
        );
    }

    #[test]
    fn a_frame_above_the_limit_is_told_at_its_head() {
        assert_eq!(kinds(&[&[0x80, 3, 0, 4, 0, 0, 0, 65]]), ["too large"]);
    }
}
