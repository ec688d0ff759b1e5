//! Tests of deliveries with a server that is slow, and with late claims.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tandem_http::{Fields, Scheme};
use tandem_submit::batch::Rule;
use tandem_submit::rights::{Quota, Rights};
use tandem_submit::store::{
    Admission, Content, Epoch, Inquiry, Lease, NewSubmission, Pending, Prospect, Record, Store,
    StoreError, Waiting,
};
use tandem_submit::submission::{IdempotencyKey, SubmissionId};

use super::*;
use crate::exchange::Reply;
use crate::middle::submit::signer::{Signer, tests::PEM};
use crate::middle::submit::{StorePlace, SubmissionServer, SubmissionTimes};
use crate::renewal::Renewable;
use crate::stage::Stage;

/// A server that takes the body, and answers two minutes later.
struct Slow;

impl Stage for Slow {
    fn call(&self, exchange: Exchange) -> Reply {
        Reply::generate(|mut sink| async move {
            let mut body = exchange.body.share();
            while let Some(chunk) = std::future::poll_fn(|cx| body.poll_chunk(cx)).await {
                assert!(matches!(chunk, Ok(Chunk::Data(data)) if data.len() <= PIECE));
            }
            tokio::time::sleep(Duration::from_secs(120)).await;
            sink.send(Part::Head(ResponseHead::new(201))).await;
            Ok(())
        })
    }
}

/// A store that can be switched off.
#[derive(Debug)]
struct Switched {
    store: Arc<dyn Store>,
    is_off: AtomicBool,
}

/// Implements [`Store`] by methods that fail while the store is switched off.
macro_rules! switched {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        impl Store for Switched {
            $(fn $name(&self, $($argument: $kind),*) -> Pending<$result> {
                if self.is_off.load(Ordering::SeqCst) {
                    return Box::pin(std::future::ready(Err(StoreError("it is off".into()))));
                }
                self.store.$name($($argument),*)
            })*
        }
    };
}
switched! {
    admit(new: NewSubmission) -> Admission;
    inquire(inquiry: Inquiry) -> Prospect;
    find(id: SubmissionId) -> Option<Record>;
    state(id: SubmissionId) -> Option<Record>;
    claim(claim: Claim) -> tandem_submit::store::Claimed;
    answer(id: SubmissionId, answer: Answer, now: Millis) -> ();
    postpone(lease: Lease, due: Millis, now: Millis) -> ();
    release(server: String, rule: Rule, now: Millis) -> u64;
    give_up(lease: Lease, status: Option<u16>, now: Millis) -> ();
    forget(now: Millis, keep: Millis) -> u64;
    end_epochs(first: Epoch) -> ();
    spent(first: Epoch) -> Vec<(Epoch, u64)>;
    waiting(server: String, now: Millis) -> Waiting;
}

fn submissions(store: &str) -> Rc<Submissions> {
    submissions_in(tandem_store::open(store).expect("a store"))
}

fn submissions_in(store: Arc<dyn Store>) -> Rc<Submissions> {
    let rights = format!(
        "[[client]]\nname = \"a\"\ntoken-sha256 = \"{}\"",
        "0".repeat(64)
    );
    let rights = Renewable::new("rights".to_owned(), Vec::new(), move || {
        Rights::parse(&rights)
    });
    let server = SubmissionServer {
        scheme: Scheme::Http,
        authority: "server".to_owned(),
        base: String::new(),
    };
    let minute = Duration::from_secs(60);
    let times = SubmissionTimes {
        wait: minute,
        attempt: minute,
        retry: minute,
        keep: minute,
        pause: minute,
    };
    Submissions::new(
        server,
        times,
        Arc::new(rights.expect("rights")),
        Arc::new(Signer::from_pem(PEM).expect("a key")),
        StorePlace {
            store,
            max_stored: u64::MAX,
            faults: Arc::default(),
        },
        Rc::new(Slow),
        None,
    )
}

/// A file of a store, which is removed when the test ends.
struct File(std::path::PathBuf);

impl File {
    fn new(name: &str) -> Self {
        let name = format!("tandem-deliver-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn submissions(&self) -> Rc<Submissions> {
        submissions(&format!("sqlite:{}", self.0.display()))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        for end in ["", "-wal"] {
            let _ = std::fs::remove_file(format!("{}{end}", self.0.display()));
        }
    }
}

fn content(length: usize) -> Content {
    Content {
        path: String::new(),
        fields: Fields::new(),
        body: vec![0; length].into(),
        digest: [0; 32],
    }
}

fn delivery(length: usize) -> Delivery {
    Delivery {
        id: SubmissionId([0; 16]),
        content: content(length),
        accepted: 0,
        attempts: 0,
        lease_end: 0,
    }
}

#[tokio::test(start_paused = true)]
async fn attempt_has_time_for_a_large_body() {
    let file = File::new("large");
    let deliver = async {
        let submissions = file.submissions();
        let attempt = async |length: usize| {
            let answer = submissions.deliver(delivery(length)).await;
            answer.map(|answer| answer.status)
        };
        (attempt(0).await, attempt(2 << 20).await)
    };
    let answers = tokio::task::LocalSet::new().run_until(deliver).await;
    assert_eq!(answers, (None, Some(201)));
}

#[tokio::test(start_paused = true)]
async fn late_claims_start_no_attempt() {
    let file = File::new("late");
    let started = async {
        let (submissions, claimed) = (file.submissions(), Rc::<Claimed>::default());
        let now = Instant::now();
        // The reserve of the lease is half of a minute.
        [30_001, 30_000].map(|late| {
            let claimed_at = now - Duration::from_millis(late);
            submissions.start_deliveries(vec![delivery(9)], claimed_at, &claimed);
            claimed.count.get()
        })
    };
    let started = tokio::task::LocalSet::new().run_until(started).await;
    assert_eq!(started, [0, 1]);
}

#[tokio::test]
async fn batches_of_other_gateways_are_not_hastened() {
    let file = File::new("other");
    let claimed = async {
        let (submissions, claimed) = (file.submissions(), Rc::<Claimed>::default());
        let now = now();
        let new = NewSubmission {
            id: SubmissionId([1; 16]),
            key: IdempotencyKey([1; 32]),
            client: "a".to_owned(),
            fingerprint: [1; 32],
            content: content(9),
            now,
            leased_until: now + LONGEST_BATCH_WAIT + BATCH_RESERVE,
            quota: Quota::default(),
            server: submissions.server.url(),
            spent: None,
            is_collected: false,
            max_stored: u64::MAX,
        };
        let admitted = submissions.store.admit(new).await;
        assert!(matches!(admitted, Ok(Admission::Stored)));
        submissions.deliver_due(&claimed).await;
        claimed.count.get()
    };
    let claimed = tokio::task::LocalSet::new().run_until(claimed).await;
    assert_eq!(claimed, 0);
}

#[tokio::test]
async fn store_that_cannot_be_used_is_a_fault_until_it_can() {
    let file = File::new("off");
    let store = tandem_store::open(&format!("sqlite:{}", file.0.display())).expect("a store");
    let switched = Arc::new(Switched {
        store,
        is_off: AtomicBool::new(false),
    });
    let look = async {
        let submissions = submissions_in(Arc::clone(&switched) as _);
        let mut seen = Vec::new();
        for is_off in [false, true, false] {
            switched.is_off.store(is_off, Ordering::SeqCst);
            submissions.count_waiting().await;
            seen.push(submissions.faults.list());
        }
        seen
    };
    let seen = tokio::task::LocalSet::new().run_until(look).await;
    assert!(seen[0].is_empty() && seen[2].is_empty(), "{seen:?}");
    let fault = seen[1].concat();
    let start = "the store of submissions cannot be used (it is off)";
    assert!(fault.starts_with(start), "{fault}");
}

#[test]
fn pauses_double_up_to_five_minutes() {
    assert_eq!(
        [0, 1, 2].map(|attempts| pause(attempts, 1.0)),
        [1000, 2000, 4000]
    );
    assert_eq!(pause(0, 0.0), 500);
    assert_eq!(pause(u32::MAX, 1.0), LONGEST_PAUSE);
}

#[test]
fn many_attempts_precede_the_end() {
    assert_eq!([0, 999, 1000, 3000].map(fewest_attempts), [1, 1, 2, 3]);
    assert_eq!(fewest_attempts(Millis::MAX), MANY_ATTEMPTS);
}

#[test]
fn refusal_of_a_redirect_names_the_remedy() {
    assert!(refusal(307).contains("--mode submit="));
    assert!(!refusal(503).contains("--mode"));
}

#[test]
fn targets_begin_with_a_slash() {
    assert_eq!(target("", ""), "/");
    assert_eq!(target("", "?a"), "/?a");
    assert_eq!(target("", "/x"), "/x");
    assert_eq!(target("/in", "/x?a=b"), "/in/x?a=b");
    assert_eq!(target("/in", ""), "/in");
}
