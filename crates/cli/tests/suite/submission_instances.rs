//! Three gateways with one store in PostgreSQL: each submission is delivered once, while gateways
//! are killed, the database crashes, and a gateway is cut off from it.
//!
//! `TANDEM_TEST_SUBMISSIONS=10000 cargo test --release -p tandem-cli --test suite -- --nocapture
//! instances_deliver` runs the same with more submissions, and prints figures.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::harness::Answer;
use crate::process::Process;
use crate::submission_server::{Files, SubmissionServer};
use crate::submissions::{arguments, ask, assert_processed_once, await_answer, post};
use crate::test_database::Database;

/// The number of submissions, unless the environment has another one.
const SUBMISSIONS: usize = 300;

/// The number of clients that send at the same time.
const CLIENTS: usize = 6;

/// The way of one gateway to the socket of the database, which can be cut.
struct Link {
    address: SocketAddr,
    is_cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Link {
    fn new(socket: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_cut = Arc::<AtomicBool>::default();
        let open = Arc::<Mutex<Vec<TcpStream>>>::default();
        let link = Self {
            address,
            is_cut: Arc::clone(&is_cut),
            open: Arc::clone(&open),
        };
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let mut open = open.lock().unwrap();
                if is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                // The database may be down.
                if let Ok(far) = UnixStream::connect(&socket) {
                    open.push(near.try_clone().unwrap());
                    carry(near, far);
                }
            }
        });
        link
    }

    fn url(&self) -> String {
        format!("postgres://tandem@{}/postgres", self.address)
    }

    /// Ends all connections, and refuses new ones.
    fn cut(&self) {
        let mut open = self.open.lock().unwrap();
        self.is_cut.store(true, Ordering::SeqCst);
        for stream in open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn mend(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }
}

/// Carries bytes in both directions until one end closes.
fn carry(near: TcpStream, far: UnixStream) {
    let (mut from_near, mut to_far) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    let (mut from_far, mut to_near) = (far, near);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from_near, &mut to_far);
        let _ = to_far.shutdown(Shutdown::Both);
    });
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from_far, &mut to_near);
        let _ = to_near.shutdown(Shutdown::Both);
    });
}

/// A gateway that can be killed and started again.
struct Instance {
    arguments: Vec<String>,
    process: Mutex<Process>,
}

impl Instance {
    fn new(files: &Files, server: &SubmissionServer, store: String) -> Self {
        let mut arguments = arguments(files, server);
        *arguments.last_mut().unwrap() = store;
        // The lease of a killed gateway ends three seconds after the beginning of the attempt.
        for argument in ["--response-timeout", "2s", "--submit-wait", "2s"] {
            arguments.push(argument.to_owned());
        }
        Self {
            process: Mutex::new(Self::start(&arguments)),
            arguments,
        }
    }

    fn start(arguments: &[String]) -> Process {
        Process::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn kill(&self) {
        self.process.lock().unwrap().kill();
    }

    fn restart(&self) {
        let started = Self::start(&self.arguments);
        *self.process.lock().unwrap() = started;
    }
}

/// Sends a request to one gateway after the other, until one of them responds to it.
fn insist(instances: &[Instance], first: usize, request: &str) -> Answer {
    for instance in instances.iter().cycle().skip(first) {
        match ask(&instance.process, request) {
            Some(answer) if answer.status != 503 => return answer,
            // The gateway is down, or it cannot reach the database.
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    unreachable!("the instances repeat without end")
}

#[test]
fn instances_deliver_each_submission_once() {
    let count =
        std::env::var("TANDEM_TEST_SUBMISSIONS").map_or(SUBMISSIONS, |it| it.parse().unwrap());
    let database = Database::start();
    // Some attempts fail, so that submissions wait in the store.
    let server = SubmissionServer::failing_first(vec![503; 20]);
    let files = Files::new("submit-instances", "");
    let links = [(); 3].map(|()| Link::new(database.directory().join(".s.PGSQL.5432")));
    let instances = links
        .each_ref()
        .map(|link| Instance::new(&files, &server, link.url()));
    let accepted = AtomicUsize::new(0);
    let numbers = AtomicUsize::new(0);
    let answers = Mutex::new(Vec::new());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = numbers.fetch_add(1, Ordering::SeqCst);
                    if number >= count {
                        return;
                    }
                    let answer = insist(&instances, number, &post(number));
                    assert!(matches!(answer.status, 201 | 202), "{}", answer.status);
                    let location = answer.field("location").unwrap().to_owned();
                    accepted.fetch_add(1, Ordering::SeqCst);
                    // Another gateway knows the same request.
                    let again = insist(&instances, number + 1, &post(number));
                    assert_eq!(again.field("location"), Some(location.as_str()));
                    if answer.status == 201 {
                        assert_eq!((again.status, &again.body), (201, &answer.body));
                    }
                    answers.lock().unwrap().push((number, location));
                }
            });
        }
        let reach = |sixths: usize| {
            while accepted.load(Ordering::SeqCst) < count * sixths / 6 {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        reach(1);
        instances[0].kill();
        reach(2);
        instances[0].restart();
        links[1].cut();
        reach(3);
        links[1].mend();
        instances[2].kill();
        database.control(&["-m", "immediate", "restart"]);
        instances[2].restart();
        reach(4);
        links[0].cut();
        instances[1].kill();
        reach(5);
        instances[1].restart();
        links[0].mend();
    });
    let sent = begun.elapsed();
    // Each accepted submission gets its answer, and each gateway knows it.
    let answers = answers.into_inner().unwrap();
    assert_eq!(answers.len(), count);
    for (number, location) in answers {
        await_answer(&location, number, |request| {
            insist(&instances, number + 2, request)
        });
    }
    assert_processed_once(&server, count);
    eprintln!(
        "{count} submissions sent twice in {sent:?}, all answered after {:?}, {} requests to the \
         server, {} rows",
        begun.elapsed(),
        server.requests(),
        database
            .sql("SELECT count(*) FROM tandem.submissions")
            .trim()
    );
}
