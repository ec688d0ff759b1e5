//! Exchanges between two HTTP/2 cores, whatever way their bytes are cut.

mod ends;
mod flow;
mod messages;
mod plans;
mod pushes;
mod unread;

use tandem_http::{Event, Priority, RequestHead};

const NORMAL: Priority = Priority(3);

fn request(events: &[Event]) -> (u32, &RequestHead, bool, Priority) {
    let found = events.iter().find_map(|e| match e {
        Event::Request {
            id,
            head,
            end,
            priority,
        } => Some((*id, head, *end, *priority)),
        _ => None,
    });
    found.expect("a request")
}
