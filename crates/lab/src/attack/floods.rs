//! Floods of frames against a gateway, over HTTP/2 and SPDY. Each must end its session within the
//! bounds of the flood budget (`tandem_http::flood`).

use super::wire::{
    SpdyBlocks, WireProtocol, control, frame, h2, literal, pair, request_block, spdy, spdy_data,
};

/// Makes the frames of one session.
#[derive(Debug)]
pub struct Maker {
    /// The authority of an origin that answers.
    pub authority: String,
    blocks: SpdyBlocks,
}

impl Maker {
    /// A maker for a fresh session.
    pub fn new(authority: &str) -> Self {
        Self {
            authority: authority.to_owned(),
            blocks: SpdyBlocks::default(),
        }
    }

    fn get(&self, id: u32) -> Vec<u8> {
        let block = request_block("GET", &self.authority, "/");
        frame(h2::HEADERS, h2::END_HEADERS | h2::END_STREAM, id, &block)
    }

    fn post(&self, id: u32, fields: &[u8]) -> Vec<u8> {
        let block = [&request_block("POST", &self.authority, "/")[..], fields].concat();
        frame(h2::HEADERS, h2::END_HEADERS, id, &block)
    }

    fn syn(&mut self, id: u32, fin: bool) -> Vec<u8> {
        let method = if fin { "GET" } else { "POST" };
        self.blocks.request(id, fin, method, &self.authority, "/")
    }
}

/// A kind of flood.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    /// The name on the command line.
    pub name: &'static str,
    /// The published flaw that it repeats, or the defect of this project.
    pub source: &'static str,
    /// The protocol.
    pub protocol: WireProtocol,
    /// Frames before the flood; stream 1 is used here.
    pub first: fn(&mut Maker) -> Vec<u8>,
    /// The frames of one turn, on a stream that is new in each turn.
    pub turn: fn(&mut Maker, u32) -> Vec<u8>,
    /// Frames in a turn.
    pub frames: usize,
}

const CANCEL: [u8; 4] = [0, 0, 0, 8];

fn none(_: &mut Maker) -> Vec<u8> {
    Vec::new()
}

fn upload(maker: &mut Maker) -> Vec<u8> {
    maker.post(1, &[])
}

/// A request that the gateway resets, since a length is wrong.
fn reset_by_gateway(maker: &mut Maker) -> Vec<u8> {
    let request = maker.post(1, &literal(0, "content-length", "1"));
    [request, frame(h2::DATA, 0, 1, &[0; 9])].concat()
}

const fn over_h2(
    name: &'static str,
    source: &'static str,
    frames: usize,
    turn: fn(&mut Maker, u32) -> Vec<u8>,
) -> Flood {
    Flood {
        name,
        source,
        protocol: WireProtocol::H2,
        first: none,
        turn,
        frames,
    }
}

const fn over_spdy(
    name: &'static str,
    frames: usize,
    turn: fn(&mut Maker, u32) -> Vec<u8>,
) -> Flood {
    Flood {
        protocol: WireProtocol::Spdy,
        ..over_h2(name, "defects 5 and 6", frames, turn)
    }
}

const fn after(first: fn(&mut Maker) -> Vec<u8>, flood: Flood) -> Flood {
    Flood { first, ..flood }
}

/// All floods over HTTP/2.
pub const H2: &[Flood] = &[
    over_h2("rapid-reset", "CVE-2023-44487", 2, |maker, id| {
        [maker.get(id), frame(h2::RST_STREAM, 0, id, &CANCEL)].concat()
    }),
    over_h2("reset-after-data", "defect 5", 3, |maker, id| {
        let data = frame(h2::DATA, 0, id, &[0; 1100]);
        [
            maker.post(id, &[]),
            data,
            frame(h2::RST_STREAM, 0, id, &CANCEL),
        ]
        .concat()
    }),
    over_h2("made-reset-increment", "CVE-2025-8671", 2, |maker, id| {
        [maker.get(id), frame(h2::WINDOW_UPDATE, 0, id, &[0; 4])].concat()
    }),
    over_h2("made-reset-overflow", "CVE-2025-8671", 2, |maker, id| {
        let most = 0x7fff_ffff_u32.to_be_bytes();
        [maker.get(id), frame(h2::WINDOW_UPDATE, 0, id, &most)].concat()
    }),
    over_h2("made-reset-headers", "CVE-2025-8671", 2, |maker, id| {
        let more = frame(h2::HEADERS, h2::END_HEADERS, id, &literal(0, "x", "y"));
        [maker.get(id), more].concat()
    }),
    over_h2("made-reset-data", "CVE-2025-8671", 2, |maker, id| {
        [maker.get(id), frame(h2::DATA, 0, id, &[0; 100])].concat()
    }),
    over_h2("made-reset-length", "CVE-2025-8671", 2, |maker, id| {
        let request = maker.post(id, &literal(0, "content-length", "1"));
        [request, frame(h2::DATA, 0, id, &[0; 100])].concat()
    }),
    over_h2("made-reset-dependency", "CVE-2025-8671", 1, |_, id| {
        frame(h2::PRIORITY, 0, id, &[&id.to_be_bytes()[..], &[1]].concat())
    }),
    over_h2("reset-flood", "CVE-2019-9514", 1, |_, id| {
        frame(h2::HEADERS, h2::END_HEADERS, id, &[0x82])
    }),
    over_h2("ping", "CVE-2019-9512", 1, |_, _| {
        frame(h2::PING, 0, 0, &[0; 8])
    }),
    over_h2("resource-loop", "CVE-2019-9513", 1, |_, id| {
        frame(h2::PRIORITY, 0, id, &[0, 0, 0, 0, 7])
    }),
    over_h2("settings", "CVE-2019-9515", 1, |_, _| {
        frame(h2::SETTINGS, 0, 0, &[])
    }),
    over_h2("large-settings", "CVE-2020-11080", 1, |_, _| {
        frame(h2::SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 9].repeat(2000))
    }),
    over_h2("settings-windows", "CVE-2019-9517", 2, |_, _| {
        let small = frame(h2::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]);
        [small, frame(h2::SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])].concat()
    }),
    over_h2("empty-headers", "CVE-2019-9516", 1, |maker, id| {
        maker.post(id, &literal(0, "", "").repeat(50))
    }),
    after(
        upload,
        over_h2("empty-data", "CVE-2019-9518", 1, |_, _| {
            frame(h2::DATA, 0, 1, &[])
        }),
    ),
    over_h2("empty-continuations", "CVE-2024-27919", 60, |maker, id| {
        let block = request_block("GET", &maker.authority, "/");
        let mut all = frame(h2::HEADERS, h2::END_STREAM, id, &block);
        all.extend(frame(h2::CONTINUATION, 0, id, &[]).repeat(58));
        all.extend(frame(h2::CONTINUATION, h2::END_HEADERS, id, &[]));
        all
    }),
    over_h2(
        "continuation",
        "CVE-2024-28182, CVE-2024-30255",
        1000,
        |_, id| {
            let first = frame(h2::HEADERS, h2::END_STREAM, id, &[0x82]);
            [
                first,
                frame(h2::CONTINUATION, 0, id, &literal(0, "x", "y")).repeat(999),
            ]
            .concat()
        },
    ),
    over_h2("table-bomb", "CVE-2016-1544", 1, |maker, id| {
        let mut block = request_block("GET", &maker.authority, "/");
        block.extend([&[0x40, 1, b'x', 0x7f, 0xb9, 0x16][..], &[b'v'; 3000]].concat());
        block.extend([0xbe; 12_000]);
        frame(h2::HEADERS, h2::END_HEADERS | h2::END_STREAM, id, &block)
    }),
    after(
        reset_by_gateway,
        over_h2("headers-after-reset", "defect 5", 1, |_, _| {
            frame(
                h2::HEADERS,
                h2::END_HEADERS | h2::END_STREAM,
                1,
                &literal(0, "x", "y"),
            )
        }),
    ),
    after(
        reset_by_gateway,
        over_h2("data-after-reset", "defect 5", 1, |_, _| {
            frame(h2::DATA, 0, 1, &[0; 50])
        }),
    ),
    after(
        reset_by_gateway,
        over_h2("credit-after-reset", "defect 5", 1, |_, _| {
            frame(h2::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])
        }),
    ),
    over_h2("priority-update", "CVE-2019-9513", 1, |_, _| {
        frame(h2::PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1")
    }),
    over_h2("goaway", "CVE-2023-35945", 1, |_, _| {
        frame(h2::GOAWAY, 0, 0, &pair(0, 0))
    }),
    over_h2("unknown", "RFC 9113 section 10.5", 1, |_, _| {
        frame(0x77, 0, 0, &[0; 30])
    }),
    over_h2("expect-continue", "100-continue flood", 2, |maker, id| {
        let request = maker.post(id, &literal(0, "expect", "100-continue"));
        [request, frame(h2::RST_STREAM, 0, id, &CANCEL)].concat()
    }),
];

fn spdy_upload(maker: &mut Maker) -> Vec<u8> {
    maker.syn(1, false)
}

/// A request that is not complete: the gateway answers 400 and discards its body.
fn spdy_discarded(maker: &mut Maker) -> Vec<u8> {
    let block = maker.blocks.block(&[(":method", "POST")]);
    control(
        spdy::SYN_STREAM,
        0,
        &[&pair(1, 0)[..], &[0, 0], &block].concat(),
    )
}

/// All floods over SPDY.
pub const SPDY: &[Flood] = &[
    over_spdy("spdy-rapid-reset", 2, |maker, id| {
        [
            maker.syn(id, true),
            control(spdy::RST_STREAM, 0, &pair(id, 5)),
        ]
        .concat()
    }),
    over_spdy("spdy-reset-after-data", 3, |maker, id| {
        let data = spdy_data(id, 0, &[0; 1100]);
        [
            maker.syn(id, false),
            data,
            control(spdy::RST_STREAM, 0, &pair(id, 5)),
        ]
        .concat()
    }),
    over_spdy("spdy-made-reset", 2, |maker, id| {
        [
            maker.syn(id, false),
            control(spdy::WINDOW_UPDATE, 0, &pair(id, 0)),
        ]
        .concat()
    }),
    over_spdy("spdy-incomplete", 1, |maker, id| {
        let block = maker.blocks.block(&[(":method", "GET")]);
        control(
            spdy::SYN_STREAM,
            spdy::FIN,
            &[&pair(id, 0)[..], &[0, 0], &block].concat(),
        )
    }),
    over_spdy("spdy-window-update", 1, |_, _| {
        control(spdy::WINDOW_UPDATE, 0, &pair(0, 1))
    }),
    over_spdy("spdy-goaway", 1, |_, _| {
        control(spdy::GOAWAY, 0, &pair(0, 0))
    }),
    over_spdy("spdy-settings", 1, |_, _| {
        control(
            spdy::SETTINGS,
            0,
            &[&1u32.to_be_bytes()[..], &pair(7, 10)].concat(),
        )
    }),
    over_spdy("spdy-ping", 1, |_, id| {
        control(spdy::PING, 0, &id.to_be_bytes())
    }),
    over_spdy("spdy-noop", 1, |_, _| control(spdy::NOOP, 0, &[])),
    over_spdy("spdy-reset-of-none", 1, |_, id| {
        control(spdy::RST_STREAM, 0, &pair(id, 5))
    }),
    over_spdy("spdy-data-of-none", 1, |_, id| spdy_data(id, 0, b"x")),
    after(
        spdy_upload,
        over_spdy("spdy-headers", 1, |maker, _| {
            maker.blocks.headers(spdy::HEADERS, 1, false, &[])
        }),
    ),
    after(
        spdy_upload,
        over_spdy("spdy-empty-data", 1, |_, _| spdy_data(1, 0, &[])),
    ),
    after(
        spdy_discarded,
        over_spdy("spdy-discarded-data", 1, |_, _| spdy_data(1, 0, &[0; 50])),
    ),
    over_spdy("spdy-zlib-bomb", 1, |maker, id| {
        let bomb = "x".repeat(1 << 20);
        let block = maker.blocks.block(&[(":method", "GET"), ("x", &bomb)]);
        control(
            spdy::SYN_STREAM,
            spdy::FIN,
            &[&pair(id, 0)[..], &[0, 0], &block].concat(),
        )
    }),
];
