//! Records that several gateways of one operator share through a store that they do not trust, and
//! responses on a disk.
//!
//! A gateway appends records to a log, and reads those of the others. The store of the log sees
//! neither names nor counts, and cannot make, change or repeat a record:
//!
//! - [`key`] derives all keys from a file that only the gateways have.
//! - [`record`] encrypts records and checks them (AEAD, RFC 8439).
//! - [`inbox`] accepts each record of another gateway once, whatever the order of the log.
//! - [`sightings`] counts the users that know a name, without the names.
//! - [`response`] encrypts responses for the names of their targets, and [`lent_responses`] bounds
//!   them.
//!
//! The crate has no socket, clock or thread. The times are those of the caller, in seconds since
//! 1970, and random identifiers come from the caller as well.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod inbox;
pub mod key;
pub mod lent_responses;
pub mod record;
pub mod response;
pub mod sightings;

pub use inbox::{Inbox, Refusal};
pub use key::{FleetKey, KeyError, NameKey, TargetKey, UserKey};
pub use lent_responses::LentResponses;
pub use record::{Content, GatewayId, Record, RecordError, Sealer};
pub use response::{Keeper, ResponseSealer};
pub use sightings::{Heard, NameHash, Sighting, Sightings};
