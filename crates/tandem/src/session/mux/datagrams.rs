//! The datagrams of a session over a carrier that has them (RFC 9297 section 2.1).

use std::task::{Context, Poll};
use std::time::Instant;

use super::InputTime;
use super::driver::Owner;
use super::over_streams::StreamsDriver;
use crate::error::Error;

/// The number of datagrams that are moved in each direction before streams are served.
const BATCH: usize = 64;

impl<O: Owner> StreamsDriver<O> {
    /// Moves datagrams in both directions. Without a tunnel, they are read and dropped, so that
    /// none waits for a later tunnel.
    pub(super) fn datagrams(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        let Some(most) = self.carrier.max_datagram() else {
            return Ok(());
        };
        for moved in 0.. {
            let Poll::Ready(Some(datagram)) = self.carrier.poll_datagram(cx) else {
                break;
            };
            self.shared.heard.set(Some(InputTime::at(Instant::now())));
            let taken = self.core.borrow_mut().handle_datagram(datagram);
            taken.map_err(|error| self.broken(&error))?;
            if moved == BATCH {
                cx.waker().wake_by_ref();
                break;
            }
        }
        if !self.core.borrow().has_datagrams() {
            return Ok(());
        }
        self.core.borrow_mut().set_max_datagram(most);
        while self.carrier.poll_datagram_room(cx).is_ready() {
            let Some(datagram) = self.core.borrow_mut().poll_datagram() else {
                break;
            };
            // A path that has become narrower loses the datagram.
            self.carrier.send_datagram(datagram);
        }
        Ok(())
    }
}
