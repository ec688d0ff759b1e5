//! The sans-IO core of one end of a session.

use std::cell::RefCell;
use std::rc::Rc;

use tandem_http::{ByteMux, Mux, MuxConfig, Role, h2, h3};
use tandem_spdy::Version;

use super::{Multiplexed, MuxSession};

/// The most unread bytes of one stream of HTTP/3 in this process, beyond those in the windows of
/// the carrier.
const H3_HELD: u32 = 256 << 10;

/// The core of one end of a session, which depends on the kind of carrier.
pub(super) enum Core {
    /// HTTP/2 or SPDY, over one byte stream.
    Bytes(Rc<RefCell<dyn ByteMux>>),
    /// HTTP/3, over many streams.
    Streams(Rc<RefCell<h3::Connection>>),
}

impl Core {
    /// Returns the core as the exchanges see it.
    pub(super) fn mux(&self) -> Rc<RefCell<dyn Mux>> {
        match self {
            Self::Bytes(core) => Rc::clone(core) as _,
            Self::Streams(core) => Rc::clone(core) as _,
        }
    }
}

impl MuxSession {
    /// Returns a core for one end of a session.
    pub(super) fn new_core(&self, role: Role) -> Core {
        let mut config = MuxConfig {
            role,
            ..self.config.clone()
        };
        // The peer's limit, which SPDY does not tell.
        let mut written = self.response_list;
        if role == Role::Client {
            std::mem::swap(&mut config.max_header_list, &mut written);
        }
        match self.protocol {
            Multiplexed::H2 => Core::Bytes(Rc::new(RefCell::new(h2::Connection::new(config)))),
            Multiplexed::H3 => {
                // The carrier has windows too. Data that is not read stays in them.
                config.stream_window = config.stream_window.min(H3_HELD);
                Core::Streams(Rc::new(RefCell::new(h3::Connection::new(config))))
            }
            Multiplexed::Spdy(version) => self.new_spdy(config, version, written),
        }
    }

    fn new_spdy(&self, config: MuxConfig, version: Version, written: usize) -> Core {
        // The other end is the gateway to all origins, so a push may come from any of them.
        let config = tandem_spdy::Config {
            header_compression: self.header_compression,
            same_origin_push: false,
            max_written_list: Some(written),
            ..tandem_spdy::Config::new(config, version)
        };
        Core::Bytes(Rc::new(RefCell::new(tandem_spdy::Connection::new(config))))
    }
}
