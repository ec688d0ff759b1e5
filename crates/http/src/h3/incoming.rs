//! Input of the carrier's streams: their types, and the choice of the code that reads them (RFC
//! 9114 section 6).

use super::Command;
use super::Direction;
use super::code::{Code, Fault};
use super::connection::{Connection, MAX_ID};
use super::stream::{
    CLOSED_CRITICAL, CRITICAL_TYPES, Incoming, PUSH_TYPE, SendingStream, Source, Wait,
};
use crate::Role;
use crate::qpack::QpackError;

/// The unidirectional streams beside pushes that may exist without a type.
const MAX_UNTYPED: usize = 64;

/// The further life of a stream's receiving half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Keep,
    Drop,
}

impl Connection {
    pub(super) fn accepted(&mut self, carrier: u64, direction: Direction) -> Result<(), Fault> {
        let source = match direction {
            Direction::Unidirectional => {
                self.flood.charge_idle();
                if self.untyped >= self.max_untyped() {
                    return Err(Fault::new(Code::EXCESSIVE_LOAD, "streams without a type"));
                }
                self.untyped += 1;
                Source::Untyped
            }
            Direction::Bidirectional if self.config.role == Role::Client => {
                let detail = "a server opened a bidirectional stream";
                return Err(Fault::new(Code::STREAM_CREATION_ERROR, detail));
            }
            Direction::Bidirectional => {
                self.highest_request = Some(self.highest_request.unwrap_or(0).max(carrier));
                let full = self.peer_active + self.arriving >= self.config.max_streams;
                let exhausted = self.next_id > MAX_ID;
                if full || exhausted || self.our_goodbye.is_some() {
                    self.reject(carrier, Code::REQUEST_REJECTED);
                    return Ok(());
                }
                self.arriving += 1;
                Source::NewRequest
            }
        };
        self.incoming.insert(carrier, Incoming::new(source));
        Ok(())
    }

    /// Returns the number of streams that may exist without a type or the number of their push. The
    /// first bytes of all permitted pushes can be late or lost while their streams are known.
    fn max_untyped(&self) -> usize {
        let takes_pushes = self.is_client() && self.config.push;
        let pushes = if takes_pushes {
            self.config.max_streams as usize
        } else {
            0
        };
        MAX_UNTYPED + pushes
    }

    /// Ends a stream on which the peer broke a rule or exceeded a limit, before a request on it.
    pub(super) fn reject(&mut self, stream: u64, code: Code) {
        self.flood.charge_reset();
        self.commands.push_back(Command::Reset { stream, code });
        self.commands.push_back(Command::Stop { stream, code });
    }

    pub(super) fn received(&mut self, carrier: u64, input: &[u8], end: bool) -> Result<(), Fault> {
        let Some(mut incoming) = self.incoming.remove(&carrier) else {
            return Ok(());
        };
        let was_untyped = incoming.is_untyped();
        let fate = if incoming.wait.is_some() {
            incoming.pending.extend_from_slice(input);
            incoming.ended |= end;
            Fate::Keep
        } else {
            match self.process(carrier, &mut incoming, input, end)? {
                Fate::Keep => self.check_gathered(carrier, &incoming)?,
                Fate::Drop => Fate::Drop,
            }
        };
        if was_untyped && (fate == Fate::Drop || !incoming.is_untyped()) {
            self.untyped -= 1;
        }
        if fate == Fate::Keep {
            self.incoming.insert(carrier, incoming);
        } else if incoming.source == Source::NewRequest {
            self.arriving -= 1;
        }
        Ok(())
    }

    /// Continues a stream whose input has waited.
    pub(super) fn resume(&mut self, carrier: u64) -> Result<(), Fault> {
        let Some(incoming) = self.incoming.get_mut(&carrier) else {
            return Ok(());
        };
        let wait = incoming.wait.take();
        let (input, end) = (std::mem::take(&mut incoming.pending), incoming.ended);
        if let Some(Wait::Insertions(use_, payload)) = wait {
            let Some(mut incoming) = self.incoming.remove(&carrier) else {
                return Ok(());
            };
            let was_new = incoming.source == Source::NewRequest;
            let fate = self.section(carrier, &mut incoming, use_, payload)?;
            if fate == Fate::Drop {
                self.arriving -= u32::from(was_new && incoming.source == Source::NewRequest);
                return Ok(());
            }
            self.incoming.insert(carrier, incoming);
        }
        self.resumed.push_back(carrier);
        self.received(carrier, &input, end)
    }

    fn process(
        &mut self,
        carrier: u64,
        incoming: &mut Incoming,
        mut input: &[u8],
        end: bool,
    ) -> Result<Fate, Fault> {
        loop {
            if incoming.wait.is_some() {
                incoming.pending = input.to_vec();
                incoming.ended = end;
                return Ok(Fate::Keep);
            }
            match self.step(carrier, incoming, &mut input)? {
                Some(Fate::Keep) => {}
                Some(Fate::Drop) => return Ok(Fate::Drop),
                None => break,
            }
        }
        if !end {
            return Ok(Fate::Keep);
        }
        if incoming.is_critical() {
            return Err(CLOSED_CRITICAL);
        }
        self.message_end(carrier, incoming)?;
        Ok(Fate::Drop)
    }

    /// Takes one number or one piece of a frame from the input of a stream. Returns `None` once the
    /// input is used up.
    fn step(
        &mut self,
        carrier: u64,
        incoming: &mut Incoming,
        input: &mut &[u8],
    ) -> Result<Option<Fate>, Fault> {
        match incoming.source {
            Source::Untyped | Source::UnnamedPush => match incoming.number.take(input) {
                None => Ok(None),
                Some(number) => self.numbered(carrier, incoming, number).map(Some),
            },
            Source::Encoder => {
                self.encoder_stream(input)?;
                Ok(None)
            }
            Source::Decoder => {
                let taken = self.encoder.handle_decoder_stream(input);
                taken.map_err(|_| {
                    Fault::new(
                        Code::QPACK_DECODER_STREAM_ERROR,
                        "bad QPACK acknowledgement",
                    )
                })?;
                Ok(None)
            }
            Source::Control | Source::NewRequest | Source::Message(_) | Source::Push(_) => {
                let limit = self.max_section();
                let Some(piece) = incoming.reader.next(input, limit)? else {
                    return Ok(None);
                };
                if incoming.source == Source::Control {
                    self.control_piece(piece)?;
                } else if self.message_piece(carrier, incoming, piece)? == Fate::Drop {
                    return Ok(Some(Fate::Drop));
                }
                self.flood.check()?;
                Ok(Some(Fate::Keep))
            }
        }
    }

    /// Handles the number at the front of a unidirectional stream: the type of the stream, or the
    /// identifier of a push.
    fn numbered(
        &mut self,
        carrier: u64,
        incoming: &mut Incoming,
        number: u64,
    ) -> Result<Fate, Fault> {
        if incoming.source == Source::UnnamedPush {
            return self.push_arrived(carrier, incoming, number);
        }
        Ok(match self.typed(carrier, number)? {
            Some(source) => {
                incoming.source = source;
                Fate::Keep
            }
            None => Fate::Drop,
        })
    }

    /// Takes instructions of the peer's encoder, and continues the streams that waited for them.
    fn encoder_stream(&mut self, input: &[u8]) -> Result<(), Fault> {
        self.decoder.handle_encoder_stream(input).map_err(fault)?;
        while let Some(blocked) = self.decoder.poll_unblocked() {
            self.resume(blocked)?;
            self.decoder.handle_encoder_stream(&[]).map_err(fault)?;
        }
        Ok(())
    }

    /// The largest payload of a frame with a field section. No list within our limit needs more.
    pub(super) fn max_section(&self) -> usize {
        2 * self.config.max_header_list + (16 << 10)
    }

    /// Decides on a unidirectional stream by its type. `None` means that the stream is not read.
    fn typed(&mut self, carrier: u64, kind: u64) -> Result<Option<Source>, Fault> {
        let creation = |detail| Fault::new(Code::STREAM_CREATION_ERROR, detail);
        if kind == PUSH_TYPE {
            return if self.config.role == Role::Client {
                Ok(Some(Source::UnnamedPush))
            } else {
                Err(creation("a client opened a push stream"))
            };
        }
        let Some(index) = CRITICAL_TYPES
            .iter()
            .position(|known| u64::from(*known) == kind)
        else {
            let code = Code::STREAM_CREATION_ERROR;
            self.commands.push_back(Command::Stop {
                stream: carrier,
                code,
            });
            return Ok(None);
        };
        if std::mem::replace(&mut self.seen_critical[index], true) {
            return Err(creation("a second critical stream of one type"));
        }
        Ok(Some(
            [Source::Control, Source::Encoder, Source::Decoder][index],
        ))
    }

    pub(super) fn was_reset(&mut self, carrier: u64, code: Code) -> Result<(), Fault> {
        let Some(incoming) = self.incoming.remove(&carrier) else {
            return Ok(());
        };
        if incoming.is_critical() {
            return Err(CLOSED_CRITICAL);
        }
        self.flood.charge_reset();
        match incoming.source {
            Source::NewRequest => {
                self.arriving -= 1;
                self.decoder.cancel(carrier);
                let code = Code::REQUEST_CANCELLED;
                self.commands.push_back(Command::Reset {
                    stream: carrier,
                    code,
                });
            }
            Source::Message(id) => {
                // The entry stays until the stream is abandoned, which cancels its sections.
                self.incoming.insert(carrier, incoming);
                self.end_stream(id, Code::REQUEST_CANCELLED, false);
                self.abandon(id, Some(code.reason()));
            }
            Source::Push(push) => {
                self.decoder.cancel(carrier);
                self.push_ended_early(push, code);
            }
            Source::UnnamedPush | Source::Untyped => self.untyped -= 1,
            Source::Control | Source::Encoder | Source::Decoder => return Err(CLOSED_CRITICAL),
        }
        Ok(())
    }

    pub(super) fn was_stopped(&mut self, carrier: u64, code: Code) -> Result<(), Fault> {
        match self.senders.get(&carrier) {
            None => {
                // The stream has no request yet, or its end is already out.
                if self
                    .incoming
                    .get(&carrier)
                    .is_some_and(|i| i.source == Source::NewRequest)
                {
                    self.incoming.remove(&carrier);
                    self.arriving -= 1;
                    self.reject(carrier, Code::REQUEST_CANCELLED);
                }
            }
            Some(SendingStream::Critical(_)) => return Err(CLOSED_CRITICAL),
            Some(&SendingStream::Stream(id)) if self.config.role == Role::Server => {
                self.flood.charge_reset();
                self.end_stream(id, Code::REQUEST_CANCELLED, true);
                self.abandon(id, Some(code.reason()));
            }
            Some(&SendingStream::Stream(id)) => {
                // A server may respond without the rest of the request (RFC 9114 section 4.1).
                self.commands.push_back(Command::Reset {
                    stream: carrier,
                    code,
                });
                self.stop_sending(id);
            }
        }
        Ok(())
    }
}

pub(super) fn fault(error: QpackError) -> Fault {
    match error {
        QpackError::Section(detail) => Fault::new(Code::QPACK_DECOMPRESSION_FAILED, detail),
        QpackError::EncoderStream(detail) => Fault::new(Code::QPACK_ENCODER_STREAM_ERROR, detail),
    }
}
