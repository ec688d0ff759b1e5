//! Tests of deliveries with a server that is slow, and with late claims.

use std::sync::Arc;

use tandem_http::{Fields, Scheme};
use tandem_submit::rights::{Quota, Rights};
use tandem_submit::store::{Admission, Content, NewSubmission};
use tandem_submit::submission::{IdempotencyKey, SubmissionId};

use super::*;
use crate::exchange::Reply;
use crate::middle::submit::signer::{Signer, tests::PEM};
use crate::middle::submit::{SubmissionServer, SubmissionTimes};
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

fn submissions(store: &str) -> Rc<Submissions> {
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
        (tandem_store::open(store).expect("a store"), u64::MAX),
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
