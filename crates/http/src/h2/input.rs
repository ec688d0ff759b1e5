//! Cutting the peer's bytes into frames. DATA goes on piece by piece as it arrives; other payloads
//! are gathered, which costs nothing when they arrive in one piece.

use super::connection::KEEP;
use super::frame::{HEAD_LEN, Head, Kind, MAX_PAYLOAD, PREFACE, flag, frame_size, protocol};
use crate::{Role, SessionError, StreamId};

/// The position in the input.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// The number of bytes of the client's preface that have arrived.
    Preface(usize),
    Head,
    Payload(Head),
    /// Before the pad length of DATA.
    Pad(Head),
    Data(DataRun),
    Skip(usize),
}

/// The rest of a DATA frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DataRun {
    pub(super) id: StreamId,
    left: usize,
    pad: usize,
    end: bool,
}

/// Something complete enough to be handled.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// A frame other than DATA.
    Frame(Head, &'a [u8]),
    /// A DATA frame begins: of `len` bytes of payload, `skip` of which are padding.
    Begin {
        /// The stream identifier.
        id: StreamId,
        /// All of its payload, which flow control counts.
        len: usize,
        /// Padding and its length.
        skip: usize,
        /// END_STREAM.
        end: bool,
    },
    /// Content of the DATA frame that began; not empty unless `end`.
    Data {
        /// The stream identifier.
        id: StreamId,
        /// The bytes of the payload that have arrived.
        bytes: &'a [u8],
        /// END_STREAM, with the last of it.
        end: bool,
    },
}

/// The state between two calls with bytes.
#[derive(Debug)]
pub(super) struct Input {
    place: Place,
    /// The incomplete input at `place`.
    partial: Vec<u8>,
    /// Payload that was gathered and is being handled.
    gathered: Vec<u8>,
    /// The peer's preface ends with SETTINGS (RFC 9113 section 3.4).
    began: bool,
    /// The stream of an unfinished header block: no other frame may come (RFC 9113 section 4.3).
    continues: Option<StreamId>,
}

impl Input {
    pub(super) fn new(role: Role) -> Self {
        let place = if role == Role::Server {
            Place::Preface(0)
        } else {
            Place::Head
        };
        Self {
            place,
            partial: Vec::new(),
            gathered: Vec::new(),
            began: false,
            continues: None,
        }
    }

    /// Gives large buffers back that nothing waits in.
    pub(super) fn shrink(&mut self) {
        if self.gathered.capacity() > KEEP {
            self.gathered = Vec::new();
        }
        if self.partial.is_empty() && self.partial.capacity() > KEEP {
            self.partial = Vec::new();
        }
    }

    /// Takes bytes off the front of `bytes` until they make a piece; `None` when they are used up.
    pub(super) fn next<'a, 'b: 'a>(
        &'a mut self,
        bytes: &mut &'b [u8],
    ) -> Result<Option<Piece<'a>>, SessionError> {
        loop {
            match self.place {
                Place::Preface(seen) => {
                    let count = bytes.len().min(PREFACE.len() - seen);
                    if take(bytes, count) != &PREFACE[seen..seen + count] {
                        return Err(protocol("not an HTTP/2 preface"));
                    }
                    let done = seen + count == PREFACE.len();
                    self.place = if done {
                        Place::Head
                    } else {
                        Place::Preface(seen + count)
                    };
                    if !done {
                        return Ok(None);
                    }
                }
                Place::Head => {
                    let Some(head) = self.head(bytes) else {
                        return Ok(None);
                    };
                    self.check(head)?;
                    self.place = match head.kind {
                        Kind::Data if head.has(flag::PADDED) => Place::Pad(head),
                        Kind::Data => return Ok(Some(self.begin(head, None)?)),
                        _ => Place::Payload(head),
                    };
                }
                Place::Payload(head) => return Ok(self.payload(head, bytes)),
                Place::Pad(head) => {
                    if head.len == 0 {
                        return Err(frame_size("no room for the pad length"));
                    }
                    let Some((&pad, rest)) = bytes.split_first() else {
                        return Ok(None);
                    };
                    *bytes = rest;
                    return Ok(Some(self.begin(head, Some(pad))?));
                }
                Place::Data(run) => {
                    if let Some(piece) = self.data(run, bytes) {
                        return Ok(Some(piece));
                    }
                    if bytes.is_empty() && matches!(self.place, Place::Data(_)) {
                        return Ok(None);
                    }
                }
                Place::Skip(left) => {
                    let count = left.min(bytes.len());
                    take(bytes, count);
                    if count < left {
                        self.place = Place::Skip(left - count);
                        return Ok(None);
                    }
                    self.place = Place::Head;
                }
            }
        }
    }

    fn head(&mut self, bytes: &mut &[u8]) -> Option<Head> {
        if self.partial.is_empty()
            && let Some((head, rest)) = bytes.split_first_chunk::<HEAD_LEN>()
        {
            *bytes = rest;
            return Some(Head::parse(head));
        }
        let count = bytes.len().min(HEAD_LEN - self.partial.len());
        self.partial.extend_from_slice(take(bytes, count));
        let head = Head::parse(self.partial.first_chunk::<HEAD_LEN>()?);
        self.partial.clear();
        Some(head)
    }

    /// Checks the rules that apply to every frame.
    fn check(&mut self, head: Head) -> Result<(), SessionError> {
        if !self.began && (head.kind != Kind::Settings || head.has(flag::ACK)) {
            return Err(protocol("the first frame is not SETTINGS"));
        }
        self.began = true;
        if head.len > MAX_PAYLOAD {
            return Err(frame_size("frame larger than allowed"));
        }
        match self.continues {
            Some(id) if head.kind != Kind::Continuation || head.id != id => {
                Err(protocol("another frame within a header block"))
            }
            None if head.kind == Kind::Continuation => Err(protocol("CONTINUATION of nothing")),
            _ => {
                let block = matches!(
                    head.kind,
                    Kind::Headers | Kind::PushPromise | Kind::Continuation
                );
                self.continues = (block && !head.has(flag::END_HEADERS)).then_some(head.id);
                Ok(())
            }
        }
    }

    fn begin(&mut self, head: Head, pad: Option<u8>) -> Result<Piece<'static>, SessionError> {
        let skip = pad.map_or(0, |pad| usize::from(pad) + 1);
        let left = head
            .len
            .checked_sub(skip)
            .ok_or_else(|| protocol("padding longer than the frame"))?;
        let end = head.has(flag::END_STREAM);
        self.place = Place::Data(DataRun {
            id: head.id,
            left,
            pad: skip.saturating_sub(1),
            end,
        });
        Ok(Piece::Begin {
            id: head.id,
            len: head.len,
            skip,
            end,
        })
    }

    /// The next content of a DATA frame. An empty frame gives a piece only when it ends the stream.
    fn data<'a>(&mut self, run: DataRun, bytes: &mut &'a [u8]) -> Option<Piece<'a>> {
        let count = run.left.min(bytes.len());
        if count < run.left {
            if count == 0 {
                return None;
            }
            self.place = Place::Data(DataRun {
                left: run.left - count,
                ..run
            });
            return Some(Piece::Data {
                id: run.id,
                bytes: take(bytes, count),
                end: false,
            });
        }
        self.place = if run.pad > 0 {
            Place::Skip(run.pad)
        } else {
            Place::Head
        };
        (count > 0 || run.end).then(|| Piece::Data {
            id: run.id,
            bytes: take(bytes, count),
            end: run.end,
        })
    }

    fn payload<'a, 'b: 'a>(&'a mut self, head: Head, bytes: &mut &'b [u8]) -> Option<Piece<'a>> {
        if self.partial.is_empty() && bytes.len() >= head.len {
            self.place = Place::Head;
            return Some(Piece::Frame(head, take(bytes, head.len)));
        }
        let count = bytes.len().min(head.len - self.partial.len());
        self.partial.extend_from_slice(take(bytes, count));
        if self.partial.len() < head.len {
            return None;
        }
        self.place = Place::Head;
        self.gathered = std::mem::take(&mut self.partial);
        Some(Piece::Frame(head, &self.gathered))
    }
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    taken
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Pieces of `wire` given in parts of the sizes in `cuts`, DATA of one frame joined.
    fn pieces(wire: &[u8], cuts: &[usize]) -> Vec<(u8, u32, Vec<u8>, bool)> {
        let mut input = Input::new(Role::Client);
        let mut all: Vec<(u8, u32, Vec<u8>, bool)> = Vec::new();
        let (mut rest, mut cuts) = (wire, cuts.iter().cycle());
        while !rest.is_empty() {
            let count = cuts.next().map_or(1, |&c| c.clamp(1, rest.len()));
            let mut part = take(&mut rest, count);
            while let Some(piece) = input.next(&mut part).expect("good frames") {
                match piece {
                    Piece::Frame(head, payload) => {
                        all.push((head.flags, head.id, payload.to_vec(), false))
                    }
                    Piece::Begin { id, .. } => all.push((0xff, id, Vec::new(), false)),
                    Piece::Data { bytes, end, .. } => {
                        let last = all.last_mut().expect("data follows its beginning");
                        last.2.extend_from_slice(bytes);
                        last.3 |= end;
                    }
                }
            }
        }
        all
    }

    #[test]
    fn frames_come_out_the_same_however_cut() {
        let mut wire = Vec::new();
        wire.extend_from_slice(&Head::new(Kind::Settings, 0, 0, 6).encode());
        wire.extend_from_slice(&[0, 4, 0, 0, 1, 0]);
        wire.extend_from_slice(
            &Head::new(Kind::Data, flag::PADDED | flag::END_STREAM, 1, 6).encode(),
        );
        wire.extend_from_slice(&[2, b'a', b'b', b'c', 0, 0]);
        wire.extend_from_slice(&Head::new(Kind::Data, 0, 3, 0).encode());
        wire.extend_from_slice(&Head::new(Kind::Data, flag::END_STREAM, 3, 0).encode());
        wire.extend_from_slice(&Head::new(Kind::Ping, 0, 0, 8).encode());
        wire.extend_from_slice(&[7; 8]);
        let whole = pieces(&wire, &[wire.len()]);
        assert_eq!(whole.len(), 5);
        assert_eq!(whole[1], (0xff, 1, b"abc".to_vec(), true));
        assert_eq!((whole[2].3, whole[3].3), (false, true));
        for size in 1..wire.len() {
            assert_eq!(pieces(&wire, &[size]), whole, "cut every {size} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_order(wire: Vec<u8>, cut in 1usize..9) {
            let mut input = Input::new(Role::Client);
            for mut part in wire.chunks(cut) {
                loop {
                    match input.next(&mut part) {
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(_) => return Ok(()),
                    }
                }
                prop_assert!(part.is_empty());
            }
        }
    }
}
