//! Two ends of a tunnel over emulated links, in virtual time.

mod exact;
mod faults;
mod opening;
mod late;
mod path;
mod rates;
mod resume;
