//! The transport of the tests: a function answers its dials.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use super::{Dial, LocalBoxFuture, Target};
use crate::error::Error;
use crate::exchange::Isolation;
use crate::path::Path;

/// A transport that calls a function for each dial, with the isolation key.
pub(crate) struct FakeDial<F> {
    answer: F,
    dials: Cell<usize>,
}

impl<F, R> FakeDial<F>
where
    F: Fn(Isolation) -> R,
    R: Future<Output = Result<Path, Error>> + 'static,
{
    pub(crate) fn new(answer: F) -> Rc<Self> {
        let dials = Cell::new(0);
        Rc::new(Self { answer, dials })
    }

    /// Returns the number of dials that have begun.
    pub(crate) fn dials(&self) -> usize {
        self.dials.get()
    }
}

impl<F, R> Dial for FakeDial<F>
where
    F: Fn(Isolation) -> R,
    R: Future<Output = Result<Path, Error>> + 'static,
{
    fn below(&self) -> Option<&dyn Dial> {
        None
    }

    fn dial<'a>(
        &'a self,
        _: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        self.dials.set(self.dials.get() + 1);
        Box::pin((self.answer)(isolation.clone()))
    }
}

/// A transport that calls a function for each dial, with the address of the target.
pub(crate) struct AddressDial<F>(pub(crate) F);

impl<F, R> Dial for AddressDial<F>
where
    F: Fn(SocketAddr) -> R,
    R: Future<Output = Result<Path, Error>> + 'static,
{
    fn below(&self) -> Option<&dyn Dial> {
        None
    }

    fn dial<'a>(
        &'a self,
        target: &'a Target,
        _: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        let address = target.direct_address().expect("a known address");
        Box::pin((self.0)(address))
    }
}

/// Returns the near end of a path whose far end a task serves.
pub(crate) fn served<R: Future + 'static>(serve: impl FnOnce(Path) -> R) -> Path {
    let (near, far) = Path::pair(1 << 16);
    let serving = serve(far);
    tokio::task::spawn_local(async move {
        // The tests look at the near end only: a client that leaves breaks the connection.
        let _ = serving.await;
    });
    near
}
