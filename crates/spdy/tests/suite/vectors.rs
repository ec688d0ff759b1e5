//! Frames written by other people's programs: libspdylay and moby/spdystream.

use crate::support::{Seen, Wire};
use bytes::BytesMut;
use data_encoding::HEXLOWER;
use serde_json::Value;
use tandem_spdy::frame::{
    Data, FLAG_FIN, GoAway, Ping, RstStream, Setting, Settings, SynStream, WindowUpdate,
};
use tandem_spdy::header_block::{Block, DICTIONARY, Decoder, Encoder, HeaderCompression};

const VECTORS: &str = include_str!("../../../../vectors/spdy/spdylay-spdystream.json");

fn unhex(text: &str) -> Vec<u8> {
    HEXLOWER.decode(text.as_bytes()).expect("hexadecimal")
}

fn number(frame: &Value, key: &str) -> u32 {
    frame[key]
        .as_u64()
        .and_then(|number| u32::try_from(number).ok())
        .unwrap_or_else(|| panic!("{key} in {frame}"))
}

fn text<'a>(frame: &'a Value, key: &str) -> &'a str {
    frame[key]
        .as_str()
        .unwrap_or_else(|| panic!("{key} in {frame}"))
}

fn pairs(frame: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    frame["headers"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|pair| (text(&pair[0]), text(&pair[1])))
        .collect()
}

/// Returns the frame that the file describes.
fn expected(frame: &Value) -> Seen {
    let flags = number(frame, "flags");
    let fin = flags & u32::from(FLAG_FIN) != 0;
    match text(frame, "type") {
        "SYN_STREAM" => Seen::SynStream {
            id: number(frame, "stream_id"),
            associated: number(frame, "associated_stream_id"),
            priority: number(frame, "priority") as u8,
            fin,
            unidirectional: flags & 2 != 0,
            pairs: pairs(frame),
        },
        "SYN_REPLY" => Seen::SynReply {
            id: number(frame, "stream_id"),
            fin,
            pairs: pairs(frame),
        },
        "HEADERS" => Seen::Headers {
            id: number(frame, "stream_id"),
            fin,
            pairs: pairs(frame),
        },
        "RST_STREAM" => Seen::Rst {
            id: number(frame, "stream_id"),
            status: number(frame, "status_code"),
        },
        "SETTINGS" => {
            let entries = frame["entries"].as_array().expect("a list");
            Seen::Settings(
                entries
                    .iter()
                    .map(|entry| (number(entry, "id"), number(entry, "value")))
                    .collect(),
            )
        }
        "PING" => Seen::Ping(number(frame, "ping_id")),
        "GOAWAY" => Seen::GoAway {
            last: number(frame, "last_good_stream_id"),
            status: number(frame, "status_code"),
        },
        "WINDOW_UPDATE" => Seen::WindowUpdate {
            id: number(frame, "stream_id"),
            delta: number(frame, "delta_window_size"),
        },
        "DATA" => Seen::Data {
            id: number(frame, "stream_id"),
            fin,
            bytes: unhex(text(frame, "payload_hex")),
        },
        other => panic!("{other}"),
    }
}

/// Our encoding of a frame without a header block.
fn encode_plain(frame: &Value) -> Option<BytesMut> {
    let mut dst = BytesMut::new();
    match expected(frame) {
        Seen::Rst { id, status } => RstStream { stream: id, status }.encode(&mut dst),
        Seen::Ping(id) => Ping { id }.encode(&mut dst),
        Seen::GoAway { last, status } => GoAway { last, status }.encode(&mut dst),
        Seen::WindowUpdate { id, delta } => WindowUpdate { stream: id, delta }.encode(&mut dst),
        Seen::Settings(_) => {
            let entry = |entry: &Value| Setting {
                flags: number(entry, "flags") as u8,
                id: number(entry, "id"),
                value: number(entry, "value"),
            };
            let entries = frame["entries"]
                .as_array()
                .expect("a list")
                .iter()
                .map(entry)
                .collect();
            Settings {
                clear: number(frame, "flags") == 1,
                entries,
            }
            .encode(&mut dst);
        }
        Seen::Data { id, fin, bytes } => {
            Data {
                stream: id,
                fin,
                len: bytes.len() as u32,
            }
            .encode(&mut dst);
            dst.extend_from_slice(&bytes);
        }
        Seen::SynStream { .. } | Seen::SynReply { .. } | Seen::Headers { .. } => return None,
    }
    Some(dst)
}

fn each_sequence(mut check: impl FnMut(&str, &[Value])) {
    let file: Value = serde_json::from_str(VECTORS).expect("JSON");
    let sequences = file["sequences"].as_array().expect("a list");
    assert_eq!(sequences.len(), 6);
    for sequence in sequences {
        check(
            text(sequence, "name"),
            sequence["frames"].as_array().expect("a list"),
        );
    }
}

#[test]
fn the_dictionary_is_the_drafts() {
    let file: Value = serde_json::from_str(VECTORS).expect("JSON");
    assert_eq!(unhex(text(&file["dictionary"], "hex")), DICTIONARY);
}

#[test]
fn every_frame_reads_as_described() {
    each_sequence(|name, frames| {
        let mut wire = Wire::default();
        for frame in frames {
            let seen = wire.read(&unhex(text(frame, "hex")));
            assert_eq!(seen, [expected(&frame["decoded"])], "{name}");
        }
    });
}

#[test]
fn every_frame_reads_the_same_cut_at_any_byte() {
    each_sequence(|name, frames| {
        let mut wire = Wire::default();
        let bytes: Vec<u8> = frames
            .iter()
            .flat_map(|frame| unhex(text(frame, "hex")))
            .collect();
        let seen: Vec<_> = bytes
            .iter()
            .flat_map(|byte| wire.read(std::slice::from_ref(byte)))
            .collect();
        assert_eq!(
            seen,
            frames
                .iter()
                .map(|frame| expected(&frame["decoded"]))
                .collect::<Vec<_>>(),
            "{name}"
        );
    });
}

#[test]
fn frames_without_a_block_are_written_alike() {
    each_sequence(|name, frames| {
        for frame in frames {
            if let Some(ours) = encode_plain(&frame["decoded"]) {
                assert_eq!(ours, unhex(text(frame, "hex")), "{name}");
            }
        }
    });
}

#[test]
fn a_syn_stream_is_written_alike_around_its_block() {
    each_sequence(|name, frames| {
        for frame in frames {
            let hex = unhex(text(frame, "hex"));
            let Seen::SynStream {
                id,
                associated,
                priority,
                fin,
                unidirectional,
                ..
            } = expected(&frame["decoded"])
            else {
                continue;
            };
            let slot = number(&frame["decoded"], "slot") as u8;
            let ours = SynStream {
                stream: id,
                associated,
                priority,
                slot,
                fin,
                unidirectional,
                block: &hex[18..],
            };
            let mut dst = BytesMut::new();
            ours.encode(&mut dst);
            assert_eq!(dst, hex, "{name}");
        }
    });
}

#[test]
fn their_pairs_survive_our_compressor() {
    for setting in [
        HeaderCompression::Full,
        HeaderCompression::Safe,
        HeaderCompression::Off,
    ] {
        each_sequence(|name, frames| {
            let mut encoder = Encoder::new(setting);
            let mut decoder = Decoder::new(1 << 20);
            for frame in frames
                .iter()
                .filter(|frame| frame["decoded"]["headers"].is_array())
            {
                let theirs = pairs(&frame["decoded"]);
                let mut block = Block::new();
                for (pair_name, value) in &theirs {
                    block.push(pair_name.as_bytes(), &[value.as_bytes()], 0, false);
                }
                let mut wire = Vec::new();
                encoder.encode(&block, &mut wire);
                let ours = decoder.decode(&wire).expect("in step").expect("legal");
                assert!(
                    ours.iter().eq(theirs
                        .iter()
                        .map(|(name, value)| (name.as_bytes(), value.as_bytes()))),
                    "{name} {setting:?}"
                );
            }
        });
    }
}
