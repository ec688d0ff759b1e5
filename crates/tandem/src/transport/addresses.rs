//! The way to a gateway at any of its addresses, of which the first to answer is used (RFC 8305
//! section 5).
//!
//! The next address is tried once an attempt fails, or is silent for two seconds. The address that
//! answered last comes first in later dials. If another program answers, no further address is
//! tried, except the one that answered before the last look-up. The error is returned, unless a
//! dial that is under way succeeds.
//!
//! A name without a known address is looked up first. It is looked up again once all of its
//! addresses have failed or are silent, and new addresses are tried in the same dial.

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use super::names::Addresses;
use super::{CarrierFuture, Dial, LocalBoxFuture, Target};
use crate::carrier::Carrier;
use crate::error::{Error, Kind, Side};
use crate::exchange::Isolation;
use crate::path::Path;

/// The time that an address may be silent before the next one is tried too. Handshakes over slow
/// paths take less, so that they rarely cause a second one.
pub(crate) const NEXT_ADDRESS: Duration = Duration::from_secs(2);

/// The transport to a gateway that is dialled without a proxy.
pub struct AnyAddress {
    addresses: Addresses,
    below: Rc<dyn Dial>,
    /// The address to try first, unless the gateway's addresses have changed since. Their number of
    /// changes is kept with it.
    first: Cell<Option<(SocketAddr, u64)>>,
}

impl AnyAddress {
    /// Creates the way to a gateway at any of its addresses. The transport `below` dials the
    /// address of its target.
    pub const fn new(addresses: Addresses, below: Rc<dyn Dial>) -> Self {
        Self {
            addresses,
            below,
            first: Cell::new(None),
        }
    }

    /// Returns addresses in the order of their attempts.
    fn in_order(&self, mut addresses: Vec<SocketAddr>) -> VecDeque<SocketAddr> {
        let changes = self.addresses.changes();
        let is_first = |it: &SocketAddr| self.first.get() == Some((*it, changes));
        let first = addresses.iter().position(is_first);
        addresses.rotate_left(first.unwrap_or(0));
        addresses.into()
    }

    async fn first_to_answer(
        &self,
        target: &Target,
        isolation: &Isolation,
    ) -> Result<Carrier, Error> {
        self.addresses.refresh(NEXT_ADDRESS).await;
        let known = self.addresses.known();
        // An address that the user gave stays the same.
        let mut may_renew = self.addresses.as_given().is_none() && !known.is_empty();
        let mut rest = self.in_order(match known.is_empty() {
            true => self.addresses.look_up().await?,
            false => known,
        });
        // None of them is new, even if another program has kept it from its turn.
        let before = rest.clone();
        let mut renewal: Option<Renewal<'_>> = None;
        let (mut dials, mut failures, mut wrong) = (Vec::new(), Vec::new(), None);
        loop {
            if let Some(address) = rest.pop_front() {
                dials.push((address, self.dial_one(address, target, isolation)));
            }
            let mut renews = false;
            tokio::select! {
                biased;
                (address, dialled) = any(&mut dials), if !dials.is_empty() => match dialled {
                    Ok(carrier) => {
                        self.answered(address, &carrier);
                        return Ok(carrier);
                    }
                    Err(error) if may_answer_elsewhere(error.kind) => {
                        failures.push((address, error));
                    }
                    Err(error) => {
                        rest.retain(|it| self.addresses.is_former(*it));
                        wrong = wrong.or(Some(error));
                    }
                },
                found = ended(&mut renewal) => {
                    renewal = None;
                    let found = found.unwrap_or_default().into_iter();
                    rest.extend(found.filter(|it| !before.contains(it)));
                }
                () = tokio::time::sleep(NEXT_ADDRESS), if may_renew || !rest.is_empty() => {
                    renews = rest.is_empty();
                }
            }
            let have_failed = dials.is_empty() && rest.is_empty() && renewal.is_none();
            if may_renew && (renews || have_failed) {
                may_renew = false;
                renewal = Some(Box::pin(self.addresses.look_up()));
            } else if have_failed {
                return Err(wrong.unwrap_or_else(|| joined(failures)));
            }
        }
    }

    /// Lets later dials begin with an address. Before the end of a handshake with early data,
    /// nothing has answered there.
    fn answered(&self, address: SocketAddr, carrier: &Carrier) {
        self.first.set(Some((address, self.addresses.changes())));
        match carrier {
            Carrier::Streams(streams) if !streams.is_confirmed() => {}
            _ => self.addresses.answered(address),
        }
    }

    /// Dials one address of the target.
    fn dial_one<'a>(
        &'a self,
        address: SocketAddr,
        target: &Target,
        isolation: &'a Isolation,
    ) -> CarrierFuture<'a> {
        let target = Target {
            address: Some(address),
            ..target.clone()
        };
        Box::pin(async move { self.below.carrier(&target, isolation).await })
    }
}

impl Dial for AnyAddress {
    fn below(&self) -> Option<&dyn Dial> {
        Some(&*self.below)
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

    fn failed(&self, isolation: &Isolation) {
        self.below.failed(isolation);
        let mut in_order = self.in_order(self.addresses.known());
        in_order.rotate_left(1.min(in_order.len()));
        let changes = self.addresses.changes();
        self.first.set(in_order.front().map(|it| (*it, changes)));
        self.addresses.renew();
    }
}

/// A look-up that is under way.
type Renewal<'a> = LocalBoxFuture<'a, Result<Vec<SocketAddr>, Error>>;

/// Waits for the end of a look-up.
async fn ended(renewal: &mut Option<Renewal<'_>>) -> Result<Vec<SocketAddr>, Error> {
    match renewal {
        Some(renewal) => renewal.await,
        None => std::future::pending().await,
    }
}

/// A dial that is under way, with its address.
type Attempt<'a> = (SocketAddr, CarrierFuture<'a>);

/// Waits for the first dial that ends, and removes it.
async fn any(dials: &mut Vec<Attempt<'_>>) -> (SocketAddr, Result<Carrier, Error>) {
    std::future::poll_fn(|cx| {
        for index in 0..dials.len() {
            let (address, dial) = &mut dials[index];
            if let Poll::Ready(result) = dial.as_mut().poll(cx) {
                let address = *address;
                drop(dials.swap_remove(index));
                return Poll::Ready((address, result));
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
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::error::Retry;
    use crate::transport::doubles::AddressDial;
    use crate::transport::names::Names;

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

    /// A gateway at addresses with these answers, and the result of its name's next look-ups.
    struct Scene {
        way: AnyAddress,
        /// The numbers of the addresses in the order of their dials.
        dials: Rc<RefCell<Vec<usize>>>,
        record: Arc<Mutex<Vec<usize>>>,
        names: Names,
    }

    impl Scene {
        /// Creates the gateway. Its name has the addresses with the numbers of `record`.
        fn new(answers: &[Answer], record: &[usize]) -> Self {
            let dials = Rc::<RefCell<Vec<usize>>>::default();
            let (dialled, answers) = (Rc::clone(&dials), answers.to_vec());
            let below = AddressDial(move |to: SocketAddr| {
                let number = (0..answers.len()).find(|number| address(*number) == to);
                let number = number.expect("an address of the scene");
                dialled.borrow_mut().push(number);
                answers[number].give()
            });
            let record = Arc::new(Mutex::new(record.to_vec()));
            let known = Arc::clone(&record);
            let names = Names::new(move |_| {
                let known = known.lock().expect("no panic");
                match known.is_empty() {
                    true => Err(std::io::Error::other("no such name")),
                    false => Ok(known.iter().map(|number| address(*number)).collect()),
                }
            });
            let addresses = names.addresses("gw.example", 443);
            Self {
                way: AnyAddress::new(addresses, Rc::new(below)),
                dials,
                record,
                names,
            }
        }

        fn change_record(&self, numbers: &[usize]) {
            *self.record.lock().expect("no panic") = numbers.to_vec();
        }
    }

    /// Creates the way to addresses with these answers, and the list of its dials.
    fn way(answers: &[Answer]) -> (AnyAddress, Rc<RefCell<Vec<usize>>>) {
        let all: Vec<usize> = (0..answers.len()).collect();
        let scene = Scene::new(answers, &all);
        (scene.way, scene.dials)
    }

    async fn dial(way: &AnyAddress) -> Result<(), Error> {
        let target = Target::new("gw.example".into(), 443);
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
    async fn wrong_end_ends_later_dials_too() {
        let (way, dials) = way(&[Answer::Fails(Kind::Tls), Answer::Good]);
        for pause in [0, 60] {
            tokio::time::sleep(Duration::from_secs(pause)).await;
            dials.borrow_mut().clear();
            let error = dial(&way).await.expect_err("another program answers");
            assert_eq!(error.kind, Kind::Tls);
            assert_eq!(*dials.borrow(), [0]);
        }
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

    #[tokio::test(start_paused = true)]
    async fn dial_looks_up_a_name_that_has_no_address_yet() {
        let scene = Scene::new(&[Answer::Good], &[]);
        let error = dial(&scene.way).await.expect_err("no address");
        assert_eq!((error.kind, error.side), (Kind::Dns, Side::Peer));
        assert_eq!(error.retry, Retry::Safe);
        scene.change_record(&[0]);
        let error = dial(&scene.way).await.expect_err("the pause");
        assert_eq!(error.kind, Kind::Dns);
        tokio::time::sleep(Duration::from_secs(1)).await;
        dial(&scene.way).await.expect("the name has an address now");
        assert_eq!(*scene.dials.borrow(), [0]);
    }

    #[tokio::test(start_paused = true)]
    async fn dial_finds_the_new_address_of_a_name() {
        for old in [REFUSED, Answer::Silent, Answer::Fails(Kind::Tls)] {
            let scene = Scene::new(&[old, Answer::Good], &[0]);
            assert_eq!(
                scene.way.addresses.look_up().await.ok(),
                Some(vec![address(0)])
            );
            tokio::time::sleep(Duration::from_secs(1)).await;
            scene.change_record(&[1]);
            dial(&scene.way).await.expect("the new address answers");
            assert_eq!(*scene.dials.borrow(), [0, 1]);
            dial(&scene.way).await.expect("it is known");
            assert_eq!(*scene.dials.borrow(), [0, 1, 1]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn same_address_is_dialled_once() {
        let scene = Scene::new(&[REFUSED], &[0]);
        for dials in 1..4 {
            let error = dial(&scene.way).await.expect_err("it refuses");
            assert_eq!(error.kind, Kind::ConnectionRefused);
            assert_eq!(scene.dials.borrow().len(), dials);
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failed_look_up_keeps_the_known_address() {
        let scene = Scene::new(&[Answer::Slow(5)], &[0]);
        dial(&scene.way).await.expect("it answers late");
        scene.change_record(&[]);
        tokio::time::sleep(Duration::from_secs(60)).await;
        dial(&scene.way).await.expect("it answers late again");
        assert_eq!(scene.way.addresses.known(), [address(0)]);
    }

    #[tokio::test(start_paused = true)]
    async fn failed_path_renews_the_addresses() {
        let scene = Scene::new(&[Answer::Good, Answer::Good], &[0]);
        dial(&scene.way).await.expect("it answers");
        tokio::time::sleep(Duration::from_secs(1)).await;
        scene.change_record(&[1]);
        scene.way.failed(&Isolation::none());
        // A dial joins the look-up only if it needs it.
        scene.way.addresses.look_up().await.expect("an address");
        dial(&scene.way).await.expect("the new address answers");
        assert_eq!(*scene.dials.borrow(), [0, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_record_keeps_the_address_that_answered_last() {
        for wrong in [Answer::Fails(Kind::Tls), REFUSED, Answer::Silent] {
            let scene = Scene::new(&[Answer::Good, wrong], &[0]);
            dial(&scene.way).await.expect("it answers");
            tokio::time::sleep(Duration::from_secs(1)).await;
            // The portal of a network answers for every name.
            scene.change_record(&[1]);
            scene.way.addresses.look_up().await.expect("an address");
            assert_eq!(scene.way.addresses.known(), [address(1), address(0)]);
            dial(&scene.way).await.expect("the former address answers");
            assert_eq!(*scene.dials.borrow(), [0, 1, 0]);
            dial(&scene.way).await.expect("it is the first now");
            assert_eq!(*scene.dials.borrow(), [0, 1, 0, 0]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn configuration_read_again_renews_the_addresses() {
        let scene = Scene::new(&[Answer::Good, Answer::Good], &[0]);
        dial(&scene.way).await.expect("it answers");
        scene.change_record(&[1]);
        dial(&scene.way).await.expect("it answers still");
        assert_eq!(*scene.dials.borrow(), [0, 0], "no look-up is needed");
        let _again = scene.names.addresses("gw.example", 443);
        dial(&scene.way).await.expect("the new address answers");
        dial(&scene.way).await.expect("it answers again");
        assert_eq!(*scene.dials.borrow(), [0, 0, 1, 1]);
        assert_eq!(scene.way.addresses.known(), [address(1)]);
        // A failed look-up changes nothing.
        scene.change_record(&[]);
        let _again = scene.names.addresses("gw.example", 443);
        dial(&scene.way).await.expect("it is known");
        assert_eq!(scene.way.addresses.known(), [address(1)]);
        // Later dials look up nothing.
        scene.change_record(&[0]);
        tokio::time::sleep(Duration::from_secs(60)).await;
        dial(&scene.way).await.expect("it is known");
        assert_eq!(scene.way.addresses.known(), [address(1)]);
    }

    #[tokio::test]
    async fn given_address_is_never_looked_up() {
        let below = AddressDial(|_| REFUSED.give());
        let way = AnyAddress::new(Addresses::given(address(7)), Rc::new(below));
        let error = dial(&way).await.expect_err("it refuses");
        assert_eq!(error.kind, Kind::ConnectionRefused);
        way.failed(&Isolation::none());
        assert_eq!(way.first.get(), Some((address(7), 0)));
    }
}
