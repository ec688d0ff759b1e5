//! Two ends of a tunnel over emulated links, in virtual time.

mod closed;
mod exact;
mod fair;
mod faults;
mod first_flight;
mod late;
mod memory;
mod offers;
mod opening;
mod outages;
mod path;
mod rates;
mod repairs;
mod resume;
