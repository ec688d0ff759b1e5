//! The control socket: a Unix socket through which the observation points are listed, switched and
//! dumped, and the status is read, while the program runs.
//!
//! ```text
//!   list│on│off│dump  all│FAMILY│FAMILY.NAME \n   ─▶   one JSON document, then the end
//!   status│overview [REVISION]│open \n           ─▶   the same
//! ```
//!
//! Only the owner of the process may connect. The socket serves at most [`MAX_CLIENTS`] connections
//! at a time. Each carries one request of at most [`MAX_REQUEST`] bytes and ends after
//! [`REQUEST_TIMEOUT`].

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use super::door::Door;
use super::overview::{Overview, OverviewSource};
use crate::descriptors::{self, Spare};
use crate::log_limit::LogLimit;
use crate::probe::snapshot::{Distribution, PointState};
use crate::probe::{POINTS, Point};
use crate::status::Status;

/// The greatest length of a request in bytes, with its line end.
pub const MAX_REQUEST: usize = 128;

/// The bytes after a request that are read and ignored, so that the response arrives.
const MAX_IGNORED: u64 = 64 << 10;

/// The number of connections at a time. Others wait.
pub const MAX_CLIENTS: usize = 8;

/// The time for one request and its response.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The operation that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Lists points with their state.
    List,
    /// Switches points on.
    On,
    /// Switches points off.
    Off,
    /// Returns the values that were kept.
    Dump,
}

impl Verb {
    /// Returns the name in a request.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::On => "on",
            Self::Off => "off",
            Self::Dump => "dump",
        }
    }
}

/// A request that cannot be met.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    /// The line is too long.
    #[error("a request is one line of at most {MAX_REQUEST} bytes")]
    TooLong,
    /// The line has another form.
    #[error("a request is one of list, on, off and dump, and a point, a family or all")]
    Form,
    /// No point or family has this name.
    #[error("no point or family is called {0:?}; `list all` names the points")]
    Unknown(String),
}

/// Parses a request into its operation and the points that it names.
pub fn parse(line: &[u8]) -> Result<(Verb, Vec<&'static Point>), BadRequest> {
    if line.len() > MAX_REQUEST {
        return Err(BadRequest::TooLong);
    }
    let text = std::str::from_utf8(line).map_err(|_| BadRequest::Form)?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let (verb, of) = text.split_once(' ').ok_or(BadRequest::Form)?;
    let verbs = [Verb::List, Verb::On, Verb::Off, Verb::Dump];
    let verb = verbs
        .into_iter()
        .find(|known| known.as_str() == verb)
        .ok_or(BadRequest::Form)?;
    let chosen: Vec<_> = POINTS
        .iter()
        .copied()
        .filter(|point| is_chosen(point, of))
        .collect();
    if chosen.is_empty() {
        Err(BadRequest::Unknown(of.to_owned()))
    } else {
        Ok((verb, chosen))
    }
}

fn is_chosen(point: &Point, of: &str) -> bool {
    of == "all"
        || of == point.family()
        || of.split_once('.') == Some((point.family(), point.name()))
}

/// The response to a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControlResponse {
    /// The state of the points after the request, unless that was `dump`.
    Points(Vec<PointState>),
    /// The distributions of the points, after `dump`.
    Distributions(Vec<Distribution>),
    /// The snapshot of the process, after `status`.
    Status(Status),
    /// The overview of the process, after `overview`.
    Overview(Box<Overview>),
    /// A URL that opens the dashboard once, after `open`.
    Url(String),
    /// The reason for which the request was refused.
    Error(String),
}

/// Carries out a request about points.
pub fn answer(line: &[u8]) -> ControlResponse {
    let (verb, points) = match parse(line) {
        Ok(parsed) => parsed,
        Err(error) => return ControlResponse::Error(error.to_string()),
    };
    match verb {
        Verb::Dump => {
            return ControlResponse::Distributions(
                points.into_iter().filter_map(Point::dumped).collect(),
            );
        }
        Verb::On => points.iter().for_each(|point| point.switch(true)),
        Verb::Off => points.iter().for_each(|point| point.switch(false)),
        Verb::List => {}
    }
    ControlResponse::Points(points.into_iter().map(Point::state).collect())
}

/// The reason for which the control socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// A file that is no socket has that name.
    #[error("control: {0} exists and is no socket: give another path")]
    NotASocket(String),
    /// Another process listens on that socket.
    #[error("control: another process listens on {0}")]
    InUse(String),
    /// The operating system refused.
    #[error("control: cannot listen on {path}: {error}")]
    System {
        /// The path of the socket.
        path: String,
        /// The error of the system.
        error: io::Error,
    },
}

/// The listening socket. Dropping it removes the file.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    /// The device and inode of the file, so that no other file is removed.
    identity: (u64, u64),
    task: tokio::task::JoinHandle<()>,
}

impl ControlSocket {
    /// Listens at `path`, in a task of the current runtime. `door` is that of the dashboard. The
    /// socket of a process that has ended is replaced.
    ///
    /// # Errors
    /// Fails if another file has that name, another process listens there, or the system refuses.
    pub fn listen(
        path: &Path,
        source: OverviewSource,
        door: Option<Arc<Door>>,
    ) -> Result<Self, ControlError> {
        let shown = path.display().to_string();
        make_way(path, &shown)?;
        let failed = |error| ControlError::System {
            path: shown.clone(),
            error,
        };
        let listener = bind(path).map_err(failed)?;
        let failed = |error| ControlError::System {
            path: shown.clone(),
            error,
        };
        let named = fs::symlink_metadata(path).map_err(failed)?;
        let task = tokio::spawn(serve(listener, source, door));
        Ok(Self {
            path: path.to_owned(),
            identity: (named.dev(), named.ino()),
            task,
        })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.task.abort();
        if fs::symlink_metadata(&self.path)
            .is_ok_and(|named| (named.dev(), named.ino()) == self.identity)
        {
            // A file that cannot be removed is left behind, and the next process replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn make_way(path: &Path, shown: &str) -> Result<(), ControlError> {
    let failed = |error| ControlError::System {
        path: shown.to_owned(),
        error,
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(named) if !named.file_type().is_socket() => {
            return Err(ControlError::NotASocket(shown.to_owned()));
        }
        Ok(_) => {}
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(ControlError::InUse(shown.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    // Linux gives the file the mode of the socket, so other users cannot connect at any time.
    let file = File::from(OwnedFd::from(socket));
    file.set_permissions(Permissions::from_mode(0o600))?;
    let socket = socket2::Socket::from(OwnedFd::from(file));
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    socket.set_nonblocking(true)?;
    socket.listen(16)?;
    UnixListener::from_std(OwnedFd::from(socket).into())
}

static ACCEPT_FAILURES: LogLimit = LogLimit::new();

async fn serve(listener: UnixListener, source: OverviewSource, door: Option<Arc<Door>>) {
    let mut clients = JoinSet::new();
    let mut spare = Spare::default();
    spare.keep();
    loop {
        tokio::select! {
            accepted = listener.accept(), if clients.len() < MAX_CLIENTS => match accepted {
                Ok((stream, _)) => {
                    let served = converse(stream, source.clone(), door.clone());
                    clients.spawn(tokio::time::timeout(REQUEST_TIMEOUT, served));
                }
                // The state of a process is wanted most when it has no descriptor left.
                Err(error) if descriptors::ask(&error) && spare.release() => {}
                Err(error) => {
                    if let Some(held_back) = ACCEPT_FAILURES.admit() {
                        tracing::warn!(
                            %error,
                            "cannot accept on the control socket ({held_back} more since the last \
                             line)"
                        );
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    spare.keep();
                }
            },
            Some(_) = clients.join_next() => spare.keep(),
        }
    }
}

/// Reads one request and writes its response.
async fn converse(
    mut stream: UnixStream,
    source: OverviewSource,
    door: Option<Arc<Door>>,
) -> io::Result<()> {
    let mut line = Vec::with_capacity(MAX_REQUEST + 1);
    while line.len() <= MAX_REQUEST && !line.ends_with(b"\n") {
        let room = (MAX_REQUEST + 1 - line.len()) as u64;
        if (&mut stream).take(room).read_buf(&mut line).await? == 0 {
            break;
        }
    }
    let answer = match line.trim_ascii_end() {
        b"status" => ControlResponse::Status(source.status().snapshot().await),
        b"overview" => ControlResponse::Overview(Box::new(source.take(0).await)),
        line if line.starts_with(b"overview ") => match revision(line) {
            Some(known) => ControlResponse::Overview(Box::new(source.take(known).await)),
            None => ControlResponse::Error("the revision of an overview is a number".into()),
        },
        b"open" => match &door {
            Some(door) => ControlResponse::Url(door.url_for_once(Instant::now())?),
            None => ControlResponse::Error(
                "the dashboard is off: start the program with --admin".into(),
            ),
        },
        _ => answer(&line),
    };
    let text = serde_json::to_vec(&answer).map_err(io::Error::other)?;
    stream.write_all(&text).await?;
    stream.shutdown().await?;
    // Closing a socket with unread bytes would reset the connection and lose the response.
    tokio::io::copy(&mut stream.take(MAX_IGNORED), &mut tokio::io::sink()).await?;
    Ok(())
}

/// Returns the revision in a request for an overview.
fn revision(line: &[u8]) -> Option<u64> {
    let number = line.strip_prefix(b"overview ")?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::status::StatusSource;

    fn listen(path: &Path) -> Result<ControlSocket, ControlError> {
        let status = StatusSource::new(Vec::new);
        let source =
            OverviewSource::new(crate::role_name::RoleName::Client, status, Arc::default());
        let door = Door::new(([127, 0, 0, 1], 8117).into()).expect("a door");
        ControlSocket::listen(path, source, Some(Arc::new(door)))
    }

    #[test]
    fn parse_selects_points_by_name_family_and_all() {
        let (verb, points) = parse(b"on queue.core\n").expect("a request");
        assert_eq!(
            (verb, points.len(), points[0].full_name()),
            (Verb::On, 1, "queue.core".into())
        );
        let (verb, points) = parse(b"dump queue").expect("a request");
        assert_eq!((verb, points.len()), (Verb::Dump, 3));
        assert_eq!(
            parse(b"list all\n").expect("a request").1.len(),
            POINTS.len()
        );
    }

    #[test]
    fn request_errors_name_the_problem() {
        for line in [
            "", "\n", "list", "on", "On all", " on all", "off\tall", "dump-all",
        ] {
            assert_eq!(
                parse(line.as_bytes()).unwrap_err(),
                BadRequest::Form,
                "{line:?}"
            );
        }
        for of in [
            "",
            "queue.",
            ".core",
            "core",
            "queue.core.",
            "all\r",
            "ALL",
            "queue core",
            " all",
            "all\n",
        ] {
            let error = parse(format!("on {of}\n").as_bytes()).unwrap_err();
            assert_eq!(error, BadRequest::Unknown(of.into()));
        }
        assert_eq!(parse(b"on \xff\n").unwrap_err(), BadRequest::Form);
        assert_eq!(
            parse(&[b'x'; MAX_REQUEST + 1]).unwrap_err(),
            BadRequest::TooLong
        );
        let ControlResponse::Error(text) = answer(b"on nothing\n") else {
            panic!("an error");
        };
        assert!(text.contains("\"nothing\""));
    }

    proptest! {
        /// Any line gets a response, and an accepted request is parsed the same when it is written.
        #[test]
        fn control_answers_any_line(line in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..200),
            "(list|on|off|dump|o)[ .]?(all|queue|queue\\.core|flow\\.x|[a-z.]{0,9})\n?".prop_map(String::into_bytes),
        ]) {
            if let Ok((verb, points)) = parse(&line) {
                prop_assert!(!points.is_empty() && line.len() <= MAX_REQUEST);
                prop_assert!(line.starts_with(verb.as_str().as_bytes()));
                for point in points {
                    let again = format!("{} {}\n", verb.as_str(), point.full_name());
                    let (same, one) = parse(again.as_bytes()).expect("a point's own name");
                    prop_assert!(same == verb && one.len() == 1 && one[0].full_name() == point.full_name());
                }
            }
        }
    }

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("tandem-control-{name}-{}", std::process::id()))
    }

    #[tokio::test]
    async fn control_admits_its_owner_and_removes_its_file() {
        let path = scratch("mode");
        let control = listen(&path).expect("listens");
        let named = fs::symlink_metadata(&path).expect("there");
        assert!(
            named.file_type().is_socket() && named.mode() & 0o777 == 0o600,
            "{:o}",
            named.mode()
        );
        let second = listen(&path).expect_err("in use");
        assert!(
            matches!(second, ControlError::InUse(_))
                && second.to_string().contains("tandem-control-mode")
        );
        drop(control);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn control_replaces_only_the_socket_of_a_dead_process() {
        let path = scratch("left");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("binds"));
        drop(listen(&path).expect("nobody listens there"));
        fs::write(&path, "precious").expect("writable");
        assert!(matches!(listen(&path), Err(ControlError::NotASocket(_))));
        assert_eq!(fs::read(&path).expect("still there"), b"precious");
        fs::remove_file(&path).expect("ours");
        let nowhere = listen(&path.join("deeper"))
            .expect_err("no such directory")
            .to_string();
        assert!(
            nowhere.starts_with("control: cannot listen on"),
            "{nowhere}"
        );
        let long = listen(Path::new(&"x".repeat(200)))
            .expect_err("longer than a socket's name")
            .to_string();
        assert!(long.contains("xxx"), "{long}");
    }

    #[tokio::test]
    async fn control_keeps_a_file_that_replaced_its_socket() {
        let path = scratch("moved");
        let control = listen(&path).expect("listens");
        fs::remove_file(&path).expect("ours");
        fs::write(&path, "another's").expect("writable");
        drop(control);
        assert_eq!(fs::read(&path).expect("still there"), b"another's");
        fs::remove_file(&path).expect("ours");
    }

    async fn ask(path: &Path, request: &[u8]) -> String {
        let mut stream = UnixStream::connect(path).await.expect("listens");
        stream.write_all(request).await.expect("takes it");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("answers");
        text
    }

    #[tokio::test]
    async fn control_refuses_long_lines() {
        let path = scratch("lines");
        let _control = listen(&path).expect("listens");
        let silent: Vec<_> = (0..MAX_CLIENTS - 1)
            .map(|_| std::os::unix::net::UnixStream::connect(&path))
            .collect();
        assert!(
            ask(&path, b"list front.handshake\n")
                .await
                .contains("\"point\":\"front.handshake\"")
        );
        assert!(
            ask(&path, &[b'x'; 50_000])
                .await
                .contains("at most 128 bytes")
        );
        assert!(ask(&path, b"\0\xff\n").await.starts_with("{\"error\":"));
        let status = ask(&path, b"status\n").await;
        assert!(status.starts_with("{\"status\":{\"uptime\":"), "{status}");
        for request in [&b"overview\n"[..], b"overview 17\n"] {
            let overview = ask(&path, request).await;
            assert!(overview.starts_with("{\"overview\":{\"role\":"));
        }
        let refused = ask(&path, b"overview all\n").await;
        assert!(refused.contains("is a number"), "{refused}");
        drop(silent);
    }
}
