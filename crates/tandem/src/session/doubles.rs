//! The protocol of the tests of listeners that accept no connection.

use std::rc::Rc;

use super::{Drain, Serve};
use crate::carrier::{Carrier, LocalBoxFuture};
use crate::error::Error;
use crate::exchange::Peer;
use crate::stage::Stage;

/// A protocol that is never served.
pub(crate) struct Unserved;

impl Serve for Unserved {
    fn serve(
        &self,
        _: Carrier,
        _: Peer,
        _: Rc<dyn Stage>,
        _: Drain,
    ) -> LocalBoxFuture<'static, Result<(), Error>> {
        unreachable!("no connection is accepted")
    }
}
