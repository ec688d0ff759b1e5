//! Windows for streams that the peer will open, and those that the peer gives in the same way.

use super::Tunnel;
use crate::stream::StreamId;

impl Tunnel {
    /// Offers the first window to more streams of the peer once many of the offered ones are open,
    /// as far as the memory permits.
    pub(super) fn top_up_offers(&mut self) {
        if !self.offers.has_few() {
            return;
        }
        while let Some(index) = self.offers.next_index() {
            let id = StreamId::new(self.side.other(), index);
            let is_used = self.peer_ids.has_seen(id);
            let reserved = if is_used {
                self.open_as_offered(id)
            } else {
                self.pool.set_aside(self.offers.reserve())
            };
            if !reserved {
                return;
            }
            self.offers.add(is_used);
        }
    }

    /// Gives a stream that opened before its offer the window of the offer. Returns false if there
    /// is no memory.
    fn open_as_offered(&mut self, id: StreamId) -> bool {
        match self.streams.get_mut(&id.0) {
            Some(stream) if stream.resetting.is_none() => {
                let limit = self.offers.window();
                let is_open = stream.recv.open_whole(limit, &mut self.pool);
                self.update_ack(id.0);
                is_open
            }
            // Data of a stream that has ended are not taken.
            _ => true,
        }
    }

    /// Takes an offer of the peer, which also concerns streams that are open already.
    pub(super) fn on_offer(&mut self, window: u16, below: u32) {
        let Some(raised) = self.allowed.raise(window, below) else {
            return;
        };
        let ids = self
            .streams
            .range(StreamId::new(self.side, raised.start).0..);
        let ids = ids.map(|(id, _)| StreamId(*id));
        let ids = ids.take_while(|id| id.index() < raised.end);
        let own: Vec<_> = ids.filter(|id| id.opener() == self.side).collect();
        for id in own {
            let limit = self.allowed.window(id.index());
            if let Some(stream) = self.streams.get_mut(&id.0)
                && stream.send.on_window(limit)
            {
                self.clear_persist(id.0);
                self.update_ready(id.0);
            }
        }
    }
}
