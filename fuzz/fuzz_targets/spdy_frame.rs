//! SPDY frames from any bytes, cut anywhere: each frame is written back as it was read.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use tandem_spdy::frame::{Frame, FrameReader, Piece};

fuzz_target!(|bytes: &[u8]| {
    let Some((&cut, bytes)) = bytes.split_first() else {
        return;
    };
    let mut reader = FrameReader::new(4096);
    for mut chunk in bytes.chunks(usize::from(cut).max(1)) {
        while let Some(piece) = reader.next(&mut chunk) {
            match piece {
                Piece::Control(kind, head, payload) => {
                    if let Ok(frame) = Frame::load(kind, head.flags, payload.as_ref()) {
                        comes_back(&frame);
                    }
                }
                Piece::TooLarge(_) => return,
                Piece::Unknown(_) | Piece::DataHead(_) | Piece::Data(..) => {}
            }
        }
    }
});

fn comes_back(frame: &Frame<'_>) {
    let mut dst = BytesMut::new();
    match frame {
        Frame::SynStream(frame) => frame.encode(&mut dst),
        Frame::SynReply(frame) => frame.encode(&mut dst),
        Frame::RstStream(frame) => frame.encode(&mut dst),
        Frame::Settings(frame) => frame.encode(&mut dst),
        Frame::Ping(frame) => frame.encode(&mut dst),
        Frame::GoAway(frame) => frame.encode(&mut dst),
        Frame::Headers(frame) => frame.encode(&mut dst),
        Frame::WindowUpdate(frame) => frame.encode(&mut dst),
    }
    let mut reader = FrameReader::new(8192);
    let Some(Piece::Control(kind, head, payload)) = reader.next(&mut &dst[..]) else {
        panic!("one whole frame")
    };
    assert_eq!(
        Frame::load(kind, head.flags, payload.as_ref()).as_ref(),
        Ok(frame)
    );
}
