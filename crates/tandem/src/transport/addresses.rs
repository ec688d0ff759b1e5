//! A gateway whose name has several addresses: the transports to them, of which the first to answer
//! is used (RFC 8305 section 5).
//!
//! The next address is tried once an attempt fails, or is silent for two seconds. The address that
//! answered last comes first in later dials. If another program answers, no further address is
//! tried. Its error is returned, unless a dial that is under way succeeds.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use super::{CarrierFuture, Dial, LocalBoxFuture, Target};
use crate::carrier::Carrier;
use crate::error::{Error, Kind, Side};
use crate::exchange::Isolation;
use crate::path::Path;

/// The time that an address may be silent before the next one is tried too. Handshakes over slow
/// paths take less, so that they rarely cause a second one.
const NEXT_ADDRESS: Duration = Duration::from_secs(2);

/// The transports to the addresses of one gateway.
pub struct AnyAddress {
    all: Vec<(SocketAddr, Rc<dyn Dial>)>,
    /// The number of the address to try first.
    first: Cell<usize>,
}

impl AnyAddress {
    /// Creates the way to a gateway over any of its addresses, each with its transport. The order
    /// is that of the first dial. There is at least one address.
    pub const fn new(all: Vec<(SocketAddr, Rc<dyn Dial>)>) -> Self {
        Self {
            all,
            first: Cell::new(0),
        }
    }

    async fn first_to_answer(
        &self,
        target: &Target,
        isolation: &Isolation,
    ) -> Result<Carrier, Error> {
        let (first, count) = (self.first.get(), self.all.len());
        let mut rest = (0..count).map(|number| (first + number) % count);
        let mut dials = Vec::new();
        let mut failures = Vec::new();
        let mut wrong = None;
        loop {
            if wrong.is_none()
                && let Some(number) = rest.next()
            {
                dials.push((number, self.all[number].1.carrier(target, isolation)));
            }
            let has_more = wrong.is_none() && rest.len() > 0;
            let (number, dialled) = tokio::select! {
                biased;
                ended = any(&mut dials) => ended,
                () = tokio::time::sleep(NEXT_ADDRESS), if has_more => continue,
            };
            match dialled {
                Ok(carrier) => {
                    self.first.set(number);
                    return Ok(carrier);
                }
                Err(error) if may_answer_elsewhere(error.kind) => {
                    failures.push((self.all[number].0, error));
                }
                Err(error) => wrong = wrong.or(Some(error)),
            }
            if dials.is_empty() && (wrong.is_some() || !has_more) {
                return Err(wrong.unwrap_or_else(|| joined(failures)));
            }
        }
    }
}

impl Dial for AnyAddress {
    fn below(&self) -> Option<&dyn Dial> {
        let preferred = self.all.get(self.first.get());
        preferred.map(|(_, transport)| &**transport)
    }

    fn dial<'a>(
        &'a self,
        target: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(async move { self.carrier(target, isolation).await?.into_bytes() })
    }

    fn carrier<'a>(&'a self, target: &'a Target, isolation: &'a Isolation) -> CarrierFuture<'a> {
        Box::pin(self.first_to_answer(target, isolation))
    }

    fn forget(&self, isolation: &Isolation) {
        for (_, transport) in &self.all {
            transport.forget(isolation);
        }
    }

    fn failed(&self, isolation: &Isolation) {
        if let Some(below) = self.below() {
            below.failed(isolation);
        }
        self.first.set((self.first.get() + 1) % self.all.len());
    }
}

/// A dial that is under way, with the number of its address.
type Attempt<'a> = (usize, CarrierFuture<'a>);

/// Waits for the first dial that ends, and removes it.
async fn any(dials: &mut Vec<Attempt<'_>>) -> (usize, Result<Carrier, Error>) {
    std::future::poll_fn(|cx| {
        for index in 0..dials.len() {
            let (number, dial) = &mut dials[index];
            if let Poll::Ready(result) = dial.as_mut().poll(cx) {
                let number = *number;
                drop(dials.swap_remove(index));
                return Poll::Ready((number, result));
            }
        }
        Poll::Pending
    })
    .await
}

/// Returns true if the gateway may answer at another address although a dial failed: nothing
/// answered, or a process that drains.
pub(crate) const fn may_answer_elsewhere(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::ConnectionRefused
            | Kind::Timeout
            | Kind::Unreachable
            | Kind::Reset
            | Kind::Truncated
            | Kind::Busy
    )
}

/// Returns the error for a gateway of which no address answers. It names all addresses with the
/// same kind of failure as the last one.
fn joined(failures: Vec<(SocketAddr, Error)>) -> Error {
    let retry = failures.iter().map(|(_, error)| error.retry).min();
    let Some((_, last)) = failures.last().cloned() else {
        let detail = "the gateway's name has no address";
        return Error::new(Kind::Dns, Side::Local, detail);
    };
    let alike = failures.iter().filter(|(_, it)| it.kind == last.kind);
    let addresses: Vec<_> = alike.map(|(address, _)| address.to_string()).collect();
    let retry = retry.unwrap_or(last.retry);
    last.with_retry(retry).with_address(addresses.join(", "))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::error::Retry;
    use crate::transport::doubles::FakeDial;

    /// The result of dials to an address.
    #[derive(Clone, Copy)]
    enum Answer {
        Good,
        /// The address answers after this number of seconds.
        Slow(u64),
        Silent,
        Fails(Kind),
    }

    impl Answer {
        async fn give(self) -> Result<Path, Error> {
            match self {
                Self::Good => {}
                Self::Slow(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
                Self::Silent => std::future::pending().await,
                Self::Fails(kind) => {
                    return Err(Error::new(kind, Side::Peer, "no").with_retry(Retry::Safe));
                }
            }
            Ok(Path::pair(1).0)
        }
    }

    fn address(number: usize) -> SocketAddr {
        let last = u8::try_from(number).expect("few addresses");
        ([203, 0, 113, last], 443).into()
    }

    /// Creates the way to addresses with these answers, and the list of its dials.
    fn way(answers: &[Answer]) -> (AnyAddress, Rc<RefCell<Vec<usize>>>) {
        let dials = Rc::<RefCell<Vec<usize>>>::default();
        let all = answers.iter().enumerate().map(|(number, answer)| {
            let (answer, dials) = (*answer, Rc::clone(&dials));
            let transport: Rc<dyn Dial> = FakeDial::new(move |_| {
                dials.borrow_mut().push(number);
                answer.give()
            });
            (address(number), transport)
        });
        (AnyAddress::new(all.collect()), dials)
    }

    async fn dial(way: &AnyAddress) -> Result<(), Error> {
        let target = Target {
            host: "gw.example".into(),
            port: 443,
        };
        way.dial(&target, &Isolation::none()).await.map(drop)
    }

    const REFUSED: Answer = Answer::Fails(Kind::ConnectionRefused);

    #[tokio::test(start_paused = true)]
    async fn refused_address_gives_way_at_once() {
        let (way, dials) = way(&[REFUSED, Answer::Good]);
        let begun = tokio::time::Instant::now();
        dial(&way).await.expect("the second address answers");
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(*dials.borrow(), [0, 1]);
        dial(&way).await.expect("it answers again");
        assert_eq!(*dials.borrow(), [0, 1, 1], "the one that answered is first");
    }

    #[tokio::test(start_paused = true)]
    async fn silent_address_gives_way_to_the_next_one() {
        let (way, dials) = way(&[Answer::Silent, REFUSED, Answer::Good]);
        let begun = tokio::time::Instant::now();
        dial(&way).await.expect("the third address answers");
        assert_eq!(begun.elapsed(), NEXT_ADDRESS);
        assert_eq!(*dials.borrow(), [0, 1, 2]);
    }

    #[tokio::test]
    async fn wrong_end_is_reported() {
        let (way, dials) = way(&[Answer::Fails(Kind::Tls), Answer::Good]);
        let error = dial(&way).await.expect_err("another program answers");
        assert_eq!(error.kind, Kind::Tls);
        assert_eq!(*dials.borrow(), [0]);
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_end_does_not_end_a_slow_dial() {
        let wrong = Answer::Fails(Kind::Tls);
        let (slow, dials) = way(&[Answer::Slow(3), wrong, Answer::Good]);
        dial(&slow).await.expect("the first address answers late");
        assert_eq!(*dials.borrow(), [0, 1], "no further address is tried");
        let (silent, _) = way(&[wrong, Answer::Good]);
        assert!(dial(&silent).await.is_err());
    }

    #[tokio::test]
    async fn draining_process_gives_way_to_another_address() {
        let (way, _) = way(&[Answer::Fails(Kind::Busy), Answer::Good]);
        dial(&way).await.expect("the second address answers");
    }

    #[tokio::test]
    async fn error_names_the_addresses_that_failed_alike() {
        let unreachable = Answer::Fails(Kind::Unreachable);
        let (way, dials) = way(&[REFUSED, unreachable, REFUSED]);
        let error = dial(&way).await.expect_err("none answers");
        assert_eq!(error.kind, Kind::ConnectionRefused);
        let named = error.address.as_deref();
        assert_eq!(named, Some("203.0.113.0:443, 203.0.113.2:443"));
        assert_eq!(error.retry, Retry::Safe);
        assert_eq!(*dials.borrow(), [0, 1, 2], "each is tried once");
    }

    #[tokio::test]
    async fn failed_path_makes_the_next_address_first() {
        let (way, dials) = way(&[Answer::Good, Answer::Good]);
        dial(&way).await.expect("the first address answers");
        way.failed(&Isolation::none());
        dial(&way).await.expect("the second address answers");
        assert_eq!(*dials.borrow(), [0, 1]);
    }
}
