//! An HTTP/1.1 connection of the origin: requests one after the other, responses in order (RFC 9112
//! section 9).

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Buf, Bytes, BytesMut};
use tandem_http::h1::{
    Decoder, Framing, Limits, Request, Version, parse_request, reason_phrase, write_chunk_head,
    write_last_chunk, write_response,
};
use tandem_http::{ResponseHead, Scheme};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::Shared;
use super::answer::{AnswerBody, OriginAnswer, answer, finish};
use super::target::{Target, What};

/// Unwritten bytes above which writing comes before reading the next request of a pipeline.
const GATHER: usize = 64 << 10;
/// Body bytes above which copying them to the head would cost more than another write.
const COPY: usize = 16 << 10;
const READ: usize = 16 << 10;

/// Serves a connection until either side ends it; `input` was read from it already. Failures are
/// the client's to see.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    input: BytesMut,
    shared: Arc<Shared>,
) {
    let mut connection = OriginConnection {
        stream,
        shared,
        input,
        output: BytesMut::new(),
    };
    // An error here is a connection that the client broke, or that was cut as it had asked.
    let _ = connection.run().await;
}

struct OriginConnection<S> {
    stream: S,
    shared: Arc<Shared>,
    input: BytesMut,
    output: BytesMut,
}

impl<S: AsyncRead + AsyncWrite + Unpin> OriginConnection<S> {
    async fn run(&mut self) -> io::Result<()> {
        while let Some(request) = self.request().await? {
            self.shared.requests.fetch_add(1, Ordering::Relaxed);
            if !self.respond(&request).await? {
                break;
            }
            if self.output.len() >= GATHER {
                self.flush().await?;
            }
        }
        self.flush().await?;
        self.stream.shutdown().await
    }

    /// Returns the next request's head, or `None` at the end of the connection or after the idle
    /// time limit. Flushes pending output before it waits.
    async fn request(&mut self) -> io::Result<Option<Request>> {
        loop {
            match parse_request(&self.input, Scheme::Http, &Limits::default()) {
                Ok(Some((request, used))) => {
                    self.input.advance(used);
                    return Ok(Some(request));
                }
                Ok(None) => {}
                Err(bad) => {
                    self.refuse(bad.status());
                    return Ok(None);
                }
            }
            let idle = self.shared.idle;
            let Ok(read) = timeout(idle, self.fill()).await else {
                return Ok(None);
            };
            if read? == 0 {
                return Ok(None);
            }
        }
    }

    fn refuse(&mut self, status: u16) {
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
        let mut head = ResponseHead::new(status);
        head.fields.push("content-type", "text/plain");
        let text = reason_phrase(status);
        write_response(
            &mut self.output,
            &head,
            Version::Http11,
            Framing::Length(text.len() as u64),
            false,
            None,
        );
        self.output.extend_from_slice(text.as_bytes());
    }

    /// Reads more input; 0 at its end.
    async fn fill(&mut self) -> io::Result<usize> {
        self.flush().await?;
        self.input.reserve(READ);
        self.stream.read_buf(&mut self.input).await
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all_buf(&mut self.output).await?;
        self.stream.flush().await
    }

    /// Answers; false when the connection must end.
    async fn respond(&mut self, request: &Request) -> io::Result<bool> {
        let shared = Arc::clone(&self.shared);
        let target = Target::parse(&request.head.path, &shared);
        if request.expect_continue {
            write_response(
                &mut self.output,
                &ResponseHead::new(100),
                request.version,
                Framing::None,
                true,
                None,
            );
        }
        let Some(answer) = answer(&shared, request, &target) else {
            return match target.what {
                What::Echo => self.echo(request, &target).await,
                _ => self.sink(request, &target).await,
            };
        };
        let mut body = Decoder::new(request.framing);
        if self.drain(&mut body).await?.is_none() {
            return Ok(false);
        }
        self.wait(&target).await?;
        self.send(answer, &target).await
    }

    async fn wait(&mut self, target: &Target) -> io::Result<()> {
        if !target.delay.is_zero() {
            self.flush().await?;
            tokio::time::sleep(target.delay).await;
        }
        Ok(())
    }

    /// Reads a request's body and forgets it; gives its length, or `None` when it was refused.
    async fn drain(&mut self, body: &mut Decoder) -> io::Result<Option<u64>> {
        let mut len = 0;
        while let Some(piece) = self.body_piece(body).await? {
            let Some(piece) = piece else { return Ok(None) };
            len += piece.len() as u64;
        }
        Ok(Some(len))
    }

    /// The next piece of a request's body; `None` after its end, `Some(None)` when it was refused.
    async fn body_piece(&mut self, body: &mut Decoder) -> io::Result<Option<Option<Bytes>>> {
        while !body.is_done() {
            let Ok(decoded) = body.decode(&self.input) else {
                self.refuse(400);
                return Ok(Some(None));
            };
            if decoded.consumed == 0 {
                if self.fill().await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                continue;
            }
            let piece = self
                .input
                .split_to(decoded.consumed)
                .freeze()
                .slice(decoded.data);
            if !piece.is_empty() {
                return Ok(Some(Some(piece)));
            }
        }
        Ok(None)
    }

    /// `/sink`: says how much came.
    async fn sink(&mut self, request: &Request, target: &Target) -> io::Result<bool> {
        let mut body = Decoder::new(request.framing);
        let Some(len) = self.drain(&mut body).await? else {
            return Ok(false);
        };
        self.wait(target).await?;
        let mut head = ResponseHead::new(200);
        head.fields.push("content-type", "application/json");
        let answer = finish(
            request,
            target,
            head,
            AnswerBody::Whole(format!("{{\"bytes\":{len}}}\n").into()),
        );
        self.send(answer, target).await
    }

    /// `/echo`: gives every byte back as it comes, in the framing it came in, trailers too.
    async fn echo(&mut self, request: &Request, target: &Target) -> io::Result<bool> {
        self.wait(target).await?;
        let mut head = ResponseHead::new(target.status.unwrap_or(200));
        if let Some(kind) = request.head.fields.get("content-type") {
            head.fields.push("content-type", kind);
        }
        let framing = match request.framing {
            Framing::None => Framing::Length(0),
            framing => framing,
        };
        write_response(
            &mut self.output,
            &head,
            request.version,
            framing,
            request.keep_alive,
            None,
        );
        let mut body = Decoder::new(request.framing);
        while let Some(piece) = self.body_piece(&mut body).await? {
            // The head is out: only the end of the connection can report the failure.
            let Some(piece) = piece else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            self.put(&piece, framing == Framing::Chunked);
            if self.output.len() >= GATHER {
                self.flush().await?;
            }
        }
        if framing == Framing::Chunked {
            write_last_chunk(&mut self.output, body.trailers().as_ref());
        }
        Ok(request.keep_alive)
    }

    fn put(&mut self, piece: &[u8], chunked: bool) {
        if chunked {
            write_chunk_head(&mut self.output, piece.len());
        }
        self.output.extend_from_slice(piece);
        if chunked {
            self.output.extend_from_slice(b"\r\n");
        }
        self.shared
            .body_bytes
            .fetch_add(piece.len() as u64, Ordering::Relaxed);
    }

    async fn send(&mut self, answer: OriginAnswer, target: &Target) -> io::Result<bool> {
        self.output.extend_from_slice(&answer.head);
        let chunked = answer.framing == Framing::Chunked;
        let mut left = target.cut.unwrap_or(u64::MAX);
        let filler = self.shared.answers.filler.clone();
        let mut body = answer.body;
        while left > 0 {
            let Some(mut piece) = next_piece(&mut body, &filler) else {
                break;
            };
            piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            left -= piece.len() as u64;
            if chunked || piece.len() <= COPY {
                self.put(&piece, chunked);
            } else {
                self.flush().await?;
                self.shared
                    .body_bytes
                    .fetch_add(piece.len() as u64, Ordering::Relaxed);
                self.stream.write_all(&piece).await?;
            }
            if self.output.len() >= GATHER {
                self.flush().await?;
            }
        }
        if left == 0 {
            return self.cut().await;
        }
        if chunked {
            write_last_chunk(&mut self.output, None);
        }
        Ok(answer.keep_alive)
    }

    /// Ends the connection within an answer, as asked for.
    async fn cut(&mut self) -> io::Result<bool> {
        self.flush().await?;
        Ok(false)
    }
}

/// The next piece of an answer's body: whole where it is in memory, in blocks where it is made.
pub(super) fn next_piece(body: &mut AnswerBody, filler: &Bytes) -> Option<Bytes> {
    match std::mem::replace(body, AnswerBody::None) {
        AnswerBody::None => None,
        AnswerBody::Whole(bytes) => (!bytes.is_empty()).then_some(bytes),
        AnswerBody::Filler(0) => None,
        AnswerBody::Filler(left) => {
            let piece = filler.slice(..clamp(left, filler.len()));
            *body = AnswerBody::Filler(left - piece.len() as u64);
            Some(piece)
        }
    }
}

fn clamp(left: u64, most: usize) -> usize {
    usize::try_from(left).map_or(most, |left| left.min(most))
}
