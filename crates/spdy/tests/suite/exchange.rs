//! Two of our sessions with each other.

mod ends;
mod flow;
mod messages;
mod plans;
mod pushes;

use bytes::Bytes;
use tandem_http::{Event, Mux as _, RequestHead};
use tandem_spdy::Version;

use crate::support::Pair;

const BOTH: [Version; 2] = [Version::V3, Version::V31];

fn request_of(events: &[Event]) -> (u32, &RequestHead) {
    events
        .iter()
        .find_map(|event| match event {
            Event::Request { id, head, .. } => Some((*id, head)),
            _ => None,
        })
        .expect("a request")
}

/// The body of a stream among these events, and whether it ended.
fn body_of(events: &[Event], stream: u32) -> (Vec<u8>, bool) {
    let mut whole = Vec::new();
    let mut ended = false;
    for event in events {
        if let Event::Data { id, data, end } = event
            && *id == stream
        {
            whole.extend_from_slice(data);
            ended |= end;
        }
    }
    (whole, ended)
}

/// Pumps bodies of both ends until no more bytes move, and releases received data.
fn pump(
    pair: &mut Pair,
    mut up: Vec<(u32, Bytes)>,
    mut down: Vec<(u32, Bytes)>,
) -> (Vec<Event>, Vec<Event>) {
    let (mut at_client, mut at_server) = (Vec::new(), Vec::new());
    loop {
        feed(&mut pair.client, &mut up);
        feed(&mut pair.server, &mut down);
        let moved = pair.step(16 << 10);
        for event in pair.take_client() {
            if let Event::Data { id, data, .. } = &event {
                pair.client.release(*id, data.len());
            }
            at_client.push(event);
        }
        for event in pair.take_server() {
            if let Event::Data { id, data, .. } = &event {
                pair.server.release(*id, data.len());
            }
            at_server.push(event);
        }
        if !moved {
            return (at_client, at_server);
        }
    }
}

fn feed(session: &mut tandem_spdy::Connection, bodies: &mut Vec<(u32, Bytes)>) {
    bodies.retain_mut(|(id, left)| {
        let part = left.split_to(left.len().min(session.send_room(*id)));
        let end = left.is_empty();
        if !part.is_empty() || end {
            session.send_data(*id, part, end);
        }
        !end
    });
}
