//! The study of Reardon's thesis (2008, section 8.1.8), in virtual time: do relays end the
//! transport on each hop, or only forward its datagrams between the ends of the chain?
//!
//! ```text
//!  hop   client ═══ relay ═══ relay ═══ server      a tunnel for each hop
//!  end   client ─── relay ─── relay ─── server      one tunnel, and relays that forward datagrams
//!        ╚════════════════════════════════╝
//! ```
//!
//! The tunnels are those of `tandem-tunnel`, and the links those of `tandem-link`. No socket and no
//! clock takes part, so that a seed gives the same figures on each machine.
//!
//! - [`mod@file`]: the experiments' files. [`chain`]: tunnels and links. [`trial`]: the measurement
//!   of one chain. [`table`]: the figures as text.

pub mod chain;
pub mod file;
pub mod table;
pub mod trial;

pub use file::ForwardStudy;
