//! The file server of the examples, met by clients.

use tandem_spdy::Version;

use crate::build::{Language, SANITIZED, Server, compile, scratch};
use crate::client::{Client, get, pattern, post};

/// Starts the file server under sanitizers, with files in its directory.
pub(crate) fn file_server(test: &str, mode: &[&str]) -> Server {
    server_with(&SANITIZED, test, mode)
}

fn server_with(flags: &[&str], test: &str, mode: &[&str]) -> Server {
    let name = format!("file-server-{test}");
    let program = compile("examples/file_server.c", Language::C99, flags, &name);
    let directory = scratch(test);
    for len in [0, 1000, 100_000, 1_000_000] {
        std::fs::write(directory.join(format!("{len}")), pattern(len)).expect("a new directory");
    }
    let root = directory.display().to_string();
    let mut arguments = vec![root.as_str(), "0"];
    arguments.extend(mode);
    Server::start(&program, &arguments)
}

#[test]
fn file_server_serves_files_of_all_sizes() {
    for (mode, version) in [("raw", Version::V3), ("raw3.1", Version::V31)] {
        let server = file_server("files", &[mode]);
        let mut client = Client::connect(server.port, version);
        for len in [0, 1000, 100_000, 1_000_000] {
            let answer = client.fetch(&get(&format!("/{len}")));
            assert_eq!(answer.status, 200);
            assert!(answer.body == pattern(len), "{len} bytes");
            let length = ("content-length".to_owned(), len.to_string());
            assert!(answer.fields.contains(&length), "{:?}", answer.fields);
        }
        for path in ["/missing", "/../files/1000", "/."] {
            assert_eq!(client.fetch(&get(path)).status, 404, "{path}");
        }
        let upload = client.upload(&post("/"), pattern(300_000));
        assert_eq!(client.finish(upload).body, b"300000 bytes\n");
        server.stop();
    }
}

#[test]
fn file_server_interleaves_many_streams() {
    let server = file_server("many", &["raw3.1"]);
    let mut client = Client::connect(server.port, Version::V31);
    let streams: Vec<_> = (0..100).map(|_| client.ask(&get("/100000"), 3)).collect();
    for stream in streams {
        assert!(client.finish(stream).body == pattern(100_000));
    }
    server.stop();
}

#[test]
fn uploads_need_no_credit_behind_unread_responses() {
    const LENGTH: usize = 3_000_000;
    let server = file_server("unread", &["raw"]);
    let mut client = Client::connect(server.port, Version::V3);
    // More than the buffers of both sockets, so that no WINDOW_UPDATE arrives before it is read.
    let unread: Vec<_> = (0..30).map(|_| client.ask(&get("/1000000"), 7)).collect();
    let upload = client.upload_in_parts(&post("/"));
    client.flush();
    client.send_unasked(upload, &pattern(LENGTH));
    let answer = client.finish(upload);
    assert_eq!(answer.reset, None);
    assert_eq!(answer.body, format!("{LENGTH} bytes\n").as_bytes());
    for stream in unread {
        assert_eq!(client.finish(stream).body.len(), 1_000_000);
    }
    server.stop();
}

/// Returns the memory of one idle session in bytes, as the mean of 200.
fn memory_of_idle_session() -> u64 {
    const SESSIONS: u64 = 200;
    // The sanitizers keep memory that was freed.
    let server = server_with(&[], "idle", &["raw"]);
    let session = || {
        let mut client = Client::connect(server.port, Version::V3);
        assert_eq!(client.fetch(&get("/1000")).body, pattern(1000));
        client
    };
    let first = session();
    let before = server.memory();
    let clients: Vec<_> = (0..SESSIONS).map(|_| session()).collect();
    let used = server.memory().saturating_sub(before) / SESSIONS;
    drop((first, clients));
    server.stop();
    used
}

/// The gaps between blocks of the C library depend on the times of the threads: single servers
/// take 9 to 19 kB for a session.
#[test]
fn idle_session_uses_at_most_16_kb() {
    let mut used = [(); 3].map(|()| memory_of_idle_session());
    used.sort_unstable();
    assert!((1..=16 << 10).contains(&used[1]), "{used:?} bytes");
}

#[test]
fn abandoned_uploads_leave_no_memory() {
    const SESSIONS: u64 = 10;
    const UPLOADS: u64 = 100;
    const FIELD: u64 = 50_000;
    // The sanitizers keep memory that was freed.
    let server = server_with(&[], "abandoned", &["raw"]);
    let mut head = post("/");
    head.fields.push("x-long", "x".repeat(FIELD as usize));
    let session = || {
        let mut client = Client::connect(server.port, Version::V3);
        for at in 0..UPLOADS {
            let upload = client.upload_in_parts(&head);
            // The response shows that the program has the upload.
            assert_eq!(client.fetch(&get("/1000")).status, 200);
            if at % 2 == 0 {
                client.cancel(upload);
            }
        }
    };
    session();
    let before = server.memory();
    (0..SESSIONS).for_each(|_| session());
    let kept = server.memory().saturating_sub(before);
    let sent = SESSIONS * UPLOADS * FIELD;
    assert!(kept < sent / 4, "{kept} bytes remain of {sent}");
    server.stop();
}
