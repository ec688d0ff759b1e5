//! Tests of [`super`]: places, large pages, and bodies whose places are used again while sockets
//! hold them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::*;

fn region(pages: u64) -> &'static Region {
    let region = Region::new(pages * PAGE, pages * PAGE);
    Box::leak(Box::new(region.expect("a file in memory")))
}

fn kept(region: &'static Region, byte: u8, length: usize) -> Option<Bytes> {
    let body = Bytes::from(vec![byte; length]);
    let pieces = [body.slice(..length / 3), body.slice(length / 3..)];
    region.keep(&pieces, length)
}

#[test]
fn body_is_kept_at_a_place_of_its_own() {
    let region = region(16);
    let bodies: Vec<_> = (0..5)
        .map(|byte| kept(region, byte, 3 * 4096 - 5).expect("a place"))
        .collect();
    assert!(kept(region, 9, 4097).is_none(), "one page is left");
    for (byte, body) in (0..5).zip(&bodies) {
        assert!(body.len() == 3 * 4096 - 5 && body.iter().all(|at| *at == byte));
    }
}

#[test]
fn place_is_free_once_its_last_reader_has_left() {
    let region = region(4);
    for byte in 0..100 {
        let body = kept(region, byte, 4 * 4096).expect("a place");
        let reader = body.slice(5..9000);
        drop(body);
        assert!(kept(region, 9, 9000).is_none(), "a reader is left");
        assert!(reader.iter().all(|at| *at == byte));
    }
    assert!(region.places().used.is_empty());
}

#[test]
fn region_without_a_body_has_no_memory() {
    let region = region(1 << 10);
    let blocks = || rustix::fs::fstat(&region.file).expect("a file").st_blocks;
    let body = kept(region, 1, 1 << 20);
    assert!(blocks() >= 1 << 11, "{} blocks", blocks());
    drop(body);
    assert_eq!(blocks(), 0);
}

#[test]
fn body_in_a_socket_does_not_change_with_its_place() {
    let region = region(4);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut far = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
    let (near, _) = listener.accept().expect("accepts");
    for byte in 0..8 {
        let body = kept(region, byte, 4 * 4096).expect("a place");
        let tail = region.tail(&[IoSlice::new(&body)]).expect("in the file");
        let mut offset = tail.offset;
        let sent = rustix::fs::sendfile(&near, tail.file, Some(&mut offset), tail.length);
        assert_eq!(sent, Ok(4 * 4096), "the socket has room for all");
    }
    drop(near);
    let mut read = Vec::new();
    far.read_to_end(&mut read).expect("an end");
    assert!((0..8 * 4 * 4096).all(|at| read[at] == (at / (4 * 4096)) as u8));
}

#[test]
fn region_finds_the_slices_at_the_end_only() {
    let region = region(16);
    let body = kept(region, 1, 20_000).expect("a place");
    let other = kept(region, 1, 9_000).expect("a place");
    let head = [0; 9];
    let slices = [
        IoSlice::new(&head),
        IoSlice::new(&body[100..8000]),
        IoSlice::new(&body[8000..19_000]),
        IoSlice::new(&other),
        IoSlice::new(&head),
    ];
    let tail = region.tail(&slices[..3]).expect("the body");
    assert_eq!((tail.first, tail.offset, tail.length), (1, 100, 18_900));
    assert_eq!(region.tail(&slices[2..3]).expect("a piece").first, 0);
    assert!(region.tail(&slices[..4]).is_none(), "no neighbours");
    assert!(region.tail(&slices[3..]).is_none(), "not the end");
    assert!(region.tail(&slices[..1]).is_none(), "ordinary memory");
}

#[test]
fn region_has_a_limit_of_memory() {
    let region = Box::leak(Box::new(Region::new(16 * PAGE, 4 * PAGE).expect("a file")));
    let body = kept(region, 1, 3 * 4096).expect("a place");
    assert!(kept(region, 2, 4097).is_none(), "one page is left");
    drop(body);
    assert!(kept(region, 3, 4 * 4096).is_some());
}

#[test]
fn place_with_pages_is_never_used() {
    let region = region(8);
    rustix::io::pwrite(&region.file, b"old", 2 * PAGE).expect("memory");
    assert!(kept(region, 1, 3 * 4096).is_none());
    let body = kept(region, 2, 5 * 4096).expect("the place after it");
    assert_eq!(region.places().used.get(&(3 * PAGE)), Some(&(5 * PAGE)));
    assert!(body.iter().all(|byte| *byte == 2));
}

/// A process with a `tmpfs` in a namespace of its own.
struct OtherMount {
    shell: Child,
    out: BufReader<ChildStdout>,
}

impl OtherMount {
    fn start(large_pages: &str) -> Self {
        let script = "mount -t tmpfs -o huge=$0 none /tmp && : >/tmp/bodies && echo done
            while read -r mode; do mount -o remount,huge=$mode /tmp && echo done; done";
        let mut shell = Command::new("unshare")
            .args(["-rm", "sh", "-c", script, large_pages])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("util-linux");
        let out = BufReader::new(shell.stdout.take().expect("a pipe"));
        Self { shell, out }
    }

    /// Waits until a mount is done.
    fn expect_done(&mut self) {
        let mut line = String::new();
        let read = self.out.read_line(&mut line);
        assert!(
            read.is_ok() && line == "done\n",
            "`unshare -rm mount -t tmpfs -o huge=always` failed: run the test as root, or permit \
             user namespaces (sysctl kernel.unprivileged_userns_clone=1)"
        );
    }

    fn change(&mut self, large_pages: &str) {
        let stdin = self.shell.stdin.as_mut().expect("a pipe");
        writeln!(stdin, "{large_pages}").expect("it reads");
        self.expect_done();
    }

    fn file(&self) -> OwnedFd {
        let process = self.shell.id().to_string();
        let path: std::path::PathBuf = ["/proc", &process, "root", "tmp/bodies"].iter().collect();
        let file = std::fs::File::options().read(true).write(true).open(path);
        file.expect("its file").into()
    }
}

impl Drop for OtherMount {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

#[test]
fn region_uses_no_large_pages() {
    for mode in ["always", "within_size"] {
        let mut mount = OtherMount::start(mode);
        mount.expect_done();
        let refused = Region::over(mount.file(), 8 << 20, 8 << 20).map_err(|error| error.kind());
        assert_eq!(refused.err(), Some(io::ErrorKind::Unsupported), "{mode}");
    }
}

#[test]
fn region_takes_no_body_after_a_change_to_large_pages() {
    let mut mount = OtherMount::start("never");
    mount.expect_done();
    let region = Region::over(mount.file(), 8 << 20, 8 << 20).expect("small pages");
    let region: &'static Region = Box::leak(Box::new(region));
    let body = kept(region, 1, 20_000).expect("a place");
    mount.change("always");
    assert!(kept(region, 2, 20_000).is_none());
    mount.change("never");
    assert!(kept(region, 3, 20_000).is_some());
    assert!(body.iter().all(|byte| *byte == 1));
}

/// Returns a body whose bytes depend on its number and their place.
fn numbered(number: u32, length: usize) -> Vec<u8> {
    let words = (0..length as u32 / 4).flat_map(|at| (number << 20 | at).to_be_bytes());
    words.collect()
}

/// Reads with pauses, so that the sockets are mostly full.
fn read_slowly(mut far: TcpStream, seed: u64) -> Vec<u8> {
    let mut read = Vec::new();
    let mut piece = vec![0; 50_000];
    let mut pause = seed;
    loop {
        let count = far.read(&mut piece).expect("bytes");
        if count == 0 {
            return read;
        }
        read.extend_from_slice(&piece[..count]);
        pause = (pause * 7 + 3) % 11;
        std::thread::sleep(Duration::from_micros(pause * 100));
    }
}

#[test]
fn slow_readers_get_right_bytes_of_reused_places() {
    const BODIES: u32 = 200;
    let region = region(200);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let length = |seed: u32, number: u32| 4 * (4_000 + (number * 7_919 + seed * 13) % 21_000);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let far = TcpStream::connect(address).expect("connects");
            let (near, _) = listener.accept().expect("accepts");
            scope.spawn(move || {
                for number in 0..BODIES {
                    let text = Bytes::from(numbered(number, length(seed, number) as usize));
                    // The four bodies that are being sent always leave a place.
                    let body = region
                        .keep(std::slice::from_ref(&text), text.len())
                        .expect("a place");
                    let mut sent = 0;
                    while sent < body.len() {
                        let tail = region.tail(&[IoSlice::new(&body[sent..])]);
                        let tail = tail.expect("in the file");
                        let mut at = tail.offset;
                        let count =
                            rustix::fs::sendfile(&near, tail.file, Some(&mut at), tail.length);
                        sent += count.expect("sent");
                    }
                    // The socket still has the end of the body, which leaves its place now.
                }
            });
            scope.spawn(move || {
                let read = read_slowly(far, u64::from(seed));
                let mut rest = &read[..];
                for number in 0..BODIES {
                    let text = numbered(number, length(seed, number) as usize);
                    assert!(rest.starts_with(&text), "body {number} of reader {seed}");
                    rest = &rest[text.len()..];
                }
                assert!(rest.is_empty());
            });
        }
    });
    assert!(region.places().used.is_empty() && region.places().bytes == 0);
}
