//! The bound on the heads of pushes that wait for their reader (RFC 9113 section 10.5).
//!
//! A promise and a short answer need few bytes of wire, because header compression replaces long
//! fields by references. A push that ends with its head leaves the count of open streams at once.
//! The bytes of its heads are therefore counted until the reader takes them. A session core counts
//! the heads among its events ([`EventQueue`]). Its user counts those that it keeps, with
//! [`weight_of_promise`] and [`weight_of_fields`].
//!
//! A push above the bound is reset. The session and the answers to requests go on.

use std::collections::VecDeque;

use crate::flood::FloodBudget;
use crate::{Event, Fields, RequestHead, StreamId};

/// The largest weight of the heads of pushes that wait for their reader.
///
/// It holds some 1,900 promises with their answers, more than a page of 1,315 resources needs in
/// one turn of its reader.
pub const MAX_WAITING: usize = 6 << 20;

/// The weight of a head in addition to its text: the entries in tables and queues.
const OVERHEAD: usize = 512;
/// The weight of a field in addition to its text.
const FIELD: usize = 16;

/// Returns true if a stream of a client's session is a push. All cores give pushes even numbers.
pub const fn is_pushed(id: StreamId) -> bool {
    id.is_multiple_of(2)
}

/// Returns the weight of the fields of a pushed response, or of its trailers.
pub fn weight_of_fields(fields: &Fields) -> usize {
    OVERHEAD + fields.text_len() + FIELD * fields.len()
}

/// Returns the weight of a promised request.
pub fn weight_of_promise(request: &RequestHead) -> usize {
    // The promise also has an entry in the reader's table of streams.
    OVERHEAD + weight_of_fields(&request.fields) + request.authority.len() + request.path.len()
}

fn weight(event: &Event) -> usize {
    match event {
        Event::Push { request, .. } => weight_of_promise(request),
        Event::Response { id, head, .. } | Event::Informational { id, head } if is_pushed(*id) => {
            weight_of_fields(&head.fields)
        }
        Event::Trailers { id, fields } if is_pushed(*id) => weight_of_fields(fields),
        _ => 0,
    }
}

/// The events of a session core, with the weight of the pushed heads among them.
#[derive(Debug, Default)]
pub struct EventQueue {
    events: VecDeque<Event>,
    waiting: usize,
}

impl EventQueue {
    /// Adds an event.
    pub fn push_back(&mut self, event: Event) {
        self.waiting += weight(&event);
        self.events.push_back(event);
    }

    /// Takes the oldest event.
    pub fn pop_front(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.waiting -= weight(&event);
        Some(event)
    }

    /// Charges a promise or the head of a pushed response of `size` bytes. Returns false if too
    /// many wait for their reader.
    pub(crate) fn admits_head(&self, size: usize, flood: &mut FloodBudget) -> bool {
        flood.charge_pushed_head(size);
        self.has_room(0)
    }

    /// Returns true if another head of a push may wait beside `others`, the weight of those that
    /// the core keeps elsewhere.
    pub const fn has_room(&self, others: usize) -> bool {
        self.waiting + others < MAX_WAITING
    }

    /// Returns true if the queue has no event.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Returns the number of events that fit into the queue's memory.
    pub fn capacity(&self) -> usize {
        self.events.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ResponseHead, Scheme};

    #[test]
    fn queue_weighs_the_heads_of_pushes_only() {
        let mut queue = EventQueue::default();
        let mut head = ResponseHead::new(200);
        head.fields.push("x", "y".repeat(MAX_WAITING));
        queue.push_back(Event::Response {
            id: 1,
            head: head.clone(),
            end: true,
        });
        assert!(queue.has_room(0));
        queue.push_back(Event::Response {
            id: 2,
            head,
            end: true,
        });
        assert!(!queue.has_room(0));
        while queue.pop_front().is_some() {}
        assert!(queue.has_room(MAX_WAITING - 1) && !queue.has_room(MAX_WAITING));
        assert!(queue.is_empty());
    }

    #[test]
    fn page_of_1315_resources_fits() {
        let mut request = RequestHead::get(Scheme::Https, "static.site.example", "/");
        request.path = "/".repeat(80);
        let mut answer = Fields::new();
        for (list, fields, text) in [(&mut request.fields, 12, 60), (&mut answer, 10, 30)] {
            for _ in 0..fields {
                list.push("field-name", "v".repeat(text));
            }
        }
        let push = weight_of_promise(&request) + weight_of_fields(&answer);
        assert!(push * 1315 < MAX_WAITING, "{push}");
    }
}
