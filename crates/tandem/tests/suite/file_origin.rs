//! An origin of one file, of which it also sends the ranges that a request asks for.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::harness::{Asked, Client, PATIENCE, Scene, request};

/// The behaviour of the origin.
#[derive(Clone, Copy)]
pub(crate) struct FileRules {
    /// The length of the file in bytes.
    pub(crate) size: usize,
    /// True if the entity tag is a strong one.
    pub(crate) is_strong: bool,
    /// True if the origin sends ranges.
    pub(crate) takes_ranges: bool,
    /// True if the file is text, which the gateway compresses.
    pub(crate) is_text: bool,
}

impl Default for FileRules {
    fn default() -> Self {
        Self {
            size: 1 << 20,
            is_strong: true,
            takes_ranges: true,
            is_text: false,
        }
    }
}

pub(crate) struct FileOrigin {
    rules: FileRules,
    scene: Scene,
    state: Arc<FileState>,
    /// The ranges of the requests so far.
    asked: mpsc::Receiver<Option<String>>,
}

#[derive(Default)]
struct FileState {
    requests: AtomicUsize,
    version: AtomicUsize,
    /// True if the first response breaks off.
    breaks: AtomicBool,
}

impl FileOrigin {
    /// Starts an origin. The first half of the first response arrives at once, and its second half
    /// takes ten seconds or more. Other responses arrive at once.
    pub(crate) fn start(rules: FileRules) -> Self {
        let state = Arc::<FileState>::default();
        let (tell, asked) = mpsc::channel();
        let shared = Arc::clone(&state);
        let scene = Scene::new(move |_, mut client| {
            while let Some(request) = client.request() {
                // The test may be over.
                let _ = tell.send(request.field("range").map(str::to_owned));
                if rules.answer(&mut client, &request, &shared).is_err() {
                    return;
                }
            }
        });
        Self {
            rules,
            scene,
            state,
            asked,
        }
    }

    pub(crate) fn url(&self) -> String {
        self.scene.url("/file")
    }

    /// Requests the file of a client, and reads its first half.
    pub(crate) fn begin(&self, http: SocketAddr) -> Client {
        let mut browser = Client::to(http);
        browser.send(request("GET", &self.url(), ""));
        assert_eq!(browser.head().unwrap().status, 200);
        let (file, half) = (self.file(), self.rules.size / 2);
        assert!(browser.read_exact(half) == file[..half]);
        browser
    }

    /// Replaces the file.
    pub(crate) fn change(&self) {
        self.state.version.store(1, Ordering::SeqCst);
    }

    /// Ends the connection of the first response.
    pub(crate) fn break_off(&self) {
        self.state.breaks.store(true, Ordering::SeqCst);
    }

    /// Returns the bytes of the first file.
    pub(crate) fn file(&self) -> Vec<u8> {
        self.rules.file(0)
    }

    /// Returns the range of the next request.
    pub(crate) fn range(&self) -> Option<String> {
        self.asked.recv_timeout(PATIENCE).expect("a request")
    }

    /// Returns true if there was no other request.
    pub(crate) fn is_done(&self) -> bool {
        self.asked.try_recv().is_err()
    }
}

impl FileRules {
    /// Returns the bytes of a version. No two pieces are alike.
    fn file(&self, version: usize) -> Vec<u8> {
        let byte = |at: usize| {
            let hash = (at as u32 ^ version as u32).wrapping_mul(0x9e37_79b9) >> 24;
            // Text has few different bytes.
            if self.is_text {
                b'a' + (hash % 16) as u8
            } else {
                hash as u8
            }
        };
        (0..self.size).map(byte).collect()
    }

    /// Sends a response. Fails if the connection has ended.
    fn answer(&self, client: &mut Client, request: &Asked, state: &FileState) -> io::Result<()> {
        let version = state.version.load(Ordering::SeqCst);
        let is_first = state.requests.fetch_add(1, Ordering::SeqCst) == 0;
        let file = self.file(version);
        let tag = format!("\"{version}\"");
        let is_same = request.field("if-range").is_none_or(|wanted| wanted == tag);
        let range = request
            .field("range")
            .filter(|_| is_same && self.takes_ranges);
        let range = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        let (status, place, part) = match range {
            None => ("200 OK", String::new(), &file[..]),
            Some((first, last)) => {
                let first: usize = first.parse().unwrap();
                let last = last.parse().unwrap_or(self.size - 1);
                let place = format!("Content-Range: bytes {first}-{last}/{}\r\n", self.size);
                ("206 Partial Content", place, &file[first..=last])
            }
        };
        let weak = if self.is_strong { "" } else { "W/" };
        let kind = if self.is_text {
            "text/plain"
        } else {
            "application/zip"
        };
        let stream = client.stream.get_mut();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nETag: {weak}{tag}\r\nContent-Type: {kind}\r\n{place}\
             Content-Length: {}\r\n\r\n",
            part.len()
        )?;
        if !is_first {
            return stream.write_all(part);
        }
        let (now, later) = part.split_at(part.len() / 2);
        stream.write_all(now)?;
        for piece in later.chunks(self.size / 1024) {
            if state.breaks.load(Ordering::SeqCst) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            std::thread::sleep(Duration::from_millis(20));
            stream.write_all(piece)?;
        }
        Ok(())
    }
}

/// Returns the position of the first byte of a range to the end.
pub(crate) fn start_of(range: Option<String>) -> usize {
    let range = range.expect("a range");
    let first = range
        .strip_prefix("bytes=")
        .and_then(|it| it.strip_suffix('-'));
    first.expect("bytes to the end").parse().unwrap()
}
