//! Files of digests, in a directory of the test.

use std::os::unix::fs::PermissionsExt as _;

use tandem_http::Scheme;
use tandem_push::wire::url_hash;

use super::*;

/// A directory that ends with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("tandem-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        Self(directory)
    }

    fn file(&self) -> PathBuf {
        self.0.join("digests")
    }

    fn open(&self) -> Result<Arc<DigestFile>, DigestFileError> {
        DigestFile::open(self.file()).map(Arc::new)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // The system cleans the temporary directory as well.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn get(path: &str) -> RequestHead {
    RequestHead::get(Scheme::Http, "site.example", path)
}

fn note(digest: &SharedDigest, path: &str, control: &str) {
    let head = ResponseHead {
        fields: [("cache-control", control)].into_iter().collect(),
        ..ResponseHead::new(200)
    };
    digest.note(Instant::now(), &get(path), &head);
}

/// Returns the hashes of the URLs in a digest.
fn urls(digest: &SharedDigest) -> Vec<u32> {
    let fresh = lock(&digest.digest).fresh(Instant::now());
    fresh.into_iter().map(|(url, _)| url).collect()
}

#[test]
fn file_gives_each_gateway_its_own_digest() {
    let directory = Directory::new("digest-owners");
    let file = directory.open().expect("a new file");
    for (owner, path) in [(&b"one"[..], "/a"), (b"two", "/b")] {
        note(&file.digest_of(owner), path, "max-age=600");
    }
    assert!(file.digest_of(b"one").is_same(&file.digest_of(b"one")));
    file.save().expect("it is written");
    let mode = std::fs::metadata(directory.file())
        .expect("a file")
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let bytes = std::fs::read(directory.file()).expect("a file");
    for path in ["/a", "/b"] {
        let hash = url_hash(&get(path)).to_be_bytes();
        assert!(
            !bytes.windows(4).any(|found| found == hash),
            "{path} is sealed"
        );
    }

    // A process that uses one gateway keeps the section of the other.
    let file = directory.open().expect("its own file");
    assert_eq!(urls(&file.digest_of(b"one")), [url_hash(&get("/a"))]);
    assert!(urls(&file.digest_of(b"three")).is_empty());
    file.save().expect("it is written");
    let file = directory.open().expect("its own file");
    assert_eq!(urls(&file.digest_of(b"two")), [url_hash(&get("/b"))]);
}

#[test]
fn foreign_file_prevents_the_start_and_stays() {
    let directory = Directory::new("digest-foreign");
    for content in [&b"[client]"[..], b"x", &vec![b'y'; 2 * MAX_FILE]] {
        std::fs::write(directory.file(), content).expect("a file");
        let error = directory.open().expect_err("it is foreign").to_string();
        assert!(
            error.contains("not written as a file of digests"),
            "{error}"
        );
        assert_eq!(std::fs::read(directory.file()).expect("a file"), content);
    }
    let error = DigestFile::open(directory.0.clone()).expect_err("a directory");
    assert!(error.to_string().contains("no regular file"), "{error}");
    let error = DigestFile::open(directory.0.join("none/digests")).expect_err("no directory");
    assert!(matches!(error, DigestFileError::File { .. }), "{error}");
}

#[test]
fn damaged_file_begins_anew() {
    let directory = Directory::new("digest-damaged");
    let file = directory.open().expect("a new file");
    note(&file.digest_of(b"one"), "/a", "max-age=600");
    file.save().expect("it is written");
    let whole = std::fs::read(directory.file()).expect("a file");
    let middle = whole.len() / 2;
    let changed = whole.iter().enumerate();
    let changed: Vec<u8> = changed
        .map(|(at, byte)| byte ^ u8::from(at == middle))
        .collect();
    let longer = [&whole[..], &vec![0; MAX_FILE]].concat();
    for content in [
        &whole[..whole.len() - 1],
        &whole[..20],
        b"",
        &changed,
        &longer,
    ] {
        std::fs::write(directory.file(), content).expect("a file");
        let file = directory.open().expect("no digest is needed");
        assert!(urls(&file.digest_of(b"one")).is_empty());
        note(&file.digest_of(b"one"), "/b", "max-age=600");
        file.save().expect("it is replaced");
        let file = directory.open().expect("its own file");
        assert_eq!(urls(&file.digest_of(b"one")), [url_hash(&get("/b"))]);
    }
}

#[test]
fn lifetimes_go_on_between_processes() {
    let directory = Directory::new("digest-lifetimes");
    let file = directory.open().expect("a new file");
    let digest = file.digest_of(b"one");
    note(&digest, "/short", "max-age=60");
    note(&digest, "/long", "max-age=31536000");
    let key = SectionKey::derive(&lock(&file.content).salt, b"one");
    let now = Instant::now();
    let bytes = lock(&file.content)
        .written(now, 1_000_000)
        .expect("random numbers");
    let (_, sections) = sealed::parse(&bytes).expect("its own form");
    let later = Content {
        sections,
        ..Content::of(lock(&file.content).salt)
    };
    let [short, long] = ["/short", "/long"].map(|path| url_hash(&get(path)));
    let month = LONGEST.as_secs() as i64;
    for (age, expected) in [
        (0, &[short, long][..]),
        (61, &[long]),
        (month - 2, &[long]),
        (month, &[]),
        (-1, &[]),
    ] {
        let digest = later.restored(&key, (now, 1_000_000_u64.saturating_add_signed(age)));
        let found: Vec<u32> = digest.fresh(now).into_iter().map(|(url, _)| url).collect();
        assert_eq!(found, expected, "after {age} s");
    }
}

/// Each process uses the section, and writes it again.
#[test]
fn response_ends_after_a_month_whatever_its_lifetime() {
    let directory = Directory::new("digest-month");
    let file = directory.open().expect("a new file");
    let digest = file.digest_of(b"one");
    note(&digest, "/long", "max-age=31536000");
    let salt = lock(&file.content).salt;
    let key = SectionKey::derive(&salt, b"one");
    let (now, day) = (Instant::now(), 86_400);
    let mut sections = vec![
        key.seal(0, lock(&digest.digest).fresh(now).into_iter())
            .expect("random numbers"),
    ];
    for (days, count) in [(20, 1), (29, 1), (31, 0), (40, 0)] {
        let content = Content {
            sections,
            ..Content::of(salt)
        };
        let fresh = content.restored(&key, (now, days * day)).fresh(now);
        assert_eq!(fresh.len(), count, "after {days} days");
        let section = key.seal(days * day, fresh.into_iter());
        sections = vec![section.expect("random numbers")];
    }
}

#[test]
fn linked_file_is_replaced_where_it_is() {
    let directory = Directory::new("digest-link");
    let place = directory.0.join("volume");
    std::fs::create_dir_all(&place).expect("a directory");
    std::os::unix::fs::symlink(place.join("kept"), directory.file()).expect("a link");
    let error = directory.open().expect_err("its file is missing");
    assert!(matches!(error, DigestFileError::File { .. }), "{error}");
    std::fs::write(place.join("kept"), b"").expect("a file");
    let file = directory.open().expect("it is empty");
    assert_eq!(file.path(), directory.file());
    file.save().expect("it is written");
    let kind = std::fs::symlink_metadata(directory.file()).expect("a link");
    assert!(kind.is_symlink());
    let written = std::fs::read(place.join("kept")).expect("a file");
    assert!(sealed::parse(&written).is_ok_and(|(_, sections)| sections.is_empty()));
}

#[test]
fn save_leaves_the_new_file_of_another_process() {
    let directory = Directory::new("digest-new");
    let other = crate::files::beside(&directory.file(), ".new");
    std::fs::write(&other, b"another").expect("a file");
    let file = directory.open().expect("a new file");
    file.save().expect("it is written");
    assert_eq!(std::fs::read(&other).expect("it stays"), b"another");
    let names = std::fs::read_dir(&directory.0).expect("a directory");
    assert_eq!(names.count(), 2, "no other file is left");
}

#[test]
fn file_keeps_the_latest_sections() {
    let directory = Directory::new("digest-sections");
    let file = directory.open().expect("a new file");
    let salt = lock(&file.content).salt;
    let mut content = Content::of(salt);
    for number in 0..30_u8 {
        let key = SectionKey::derive(&salt, &[number]);
        let time = 1_000_000 + u64::from(number);
        let section = key.seal(time, [(1, Duration::from_secs(60))].into_iter());
        content.sections.push(section.expect("random numbers"));
    }
    let bytes = content
        .written(Instant::now(), 1_000_020)
        .expect("random numbers");
    let (_, sections) = sealed::parse(&bytes).expect("its own form");
    let times: Vec<u64> = sections.iter().map(|section| section.time).collect();
    let expected: Vec<u64> = (0..MAX_SECTIONS as u64)
        .map(|age| 1_000_020 - age)
        .collect();
    assert_eq!(
        times, expected,
        "none of the future, and the latest of the others"
    );
}
