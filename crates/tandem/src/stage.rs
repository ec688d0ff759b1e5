//! The one interface between `front`, `middle` and `back`: an exchange goes in, its reply comes
//! back.

use crate::exchange::{Exchange, Reply};

/// A step of the pipeline, or a connected session. A stage changes the exchange on its way in,
/// watches or changes the parts on their way back, or answers by itself.
pub trait Stage {
    /// Takes the exchange; never blocks, never fails but through the reply.
    fn call(&self, exchange: Exchange) -> Reply;
}

impl<F: Fn(Exchange) -> Reply> Stage for F {
    fn call(&self, exchange: Exchange) -> Reply {
        self(exchange)
    }
}
