//! Files of visited pages, in a directory of the test.

use std::os::unix::fs::symlink;
use std::sync::LazyLock;

use super::*;

/// A directory that ends with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let name = format!("tandem-visits-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory");
        Self(directory)
    }

    fn file(&self) -> PathBuf {
        self.0.join("visits")
    }

    /// Writes the file in place of a process before.
    fn put(&self, content: impl AsRef<[u8]>) {
        std::fs::write(self.file(), content).expect("a file");
    }

    fn content(&self) -> String {
        std::fs::read_to_string(self.file()).expect("a file")
    }

    fn open(&self) -> Result<Arc<VisitFile>, VisitFileError> {
        VisitFile::open(self.file()).map(Arc::new)
    }

    fn names(&self) -> usize {
        std::fs::read_dir(&self.0).expect("a directory").count()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // The system cleans the temporary directory as well.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the text with a page of each of these hosts, which was visited at `time`.
fn text_at(time: u64, hosts: &[&str]) -> String {
    let page = |host: &&str| {
        format!(
            "page none {time} http://{host}/\n\
             need image 4 - - - - - http://{host}/i.png\n"
        )
    };
    let pages: String = hosts.iter().map(page).collect();
    format!("tandem visits 1\n{pages}end\n")
}

/// The time of the visits in [`text`], the same for all of them.
static RECENTLY: LazyLock<u64> = LazyLock::new(|| unix_time() - 1_000);

fn text(hosts: &[&str]) -> String {
    text_at(*RECENTLY, hosts)
}

fn mode(file: &Path) -> u32 {
    let found = std::fs::metadata(file).expect("a file");
    found.permissions().mode() & 0o777
}

#[test]
fn process_finds_the_pages_of_the_one_before() {
    let directory = Directory::new("kept");
    let file = directory.open().expect("a new file");
    assert_eq!(
        (directory.content().as_str(), mode(&directory.file())),
        ("", 0o600)
    );
    file.save().expect("nothing is to be written");
    assert_eq!(directory.content(), "");
    file.close().expect("it is closed");
    assert_eq!(file.path(), None);

    let written = text(&["a.test", "b.test"]);
    directory.put(&written);
    let file = directory.open().expect("its own file");
    assert_eq!(file.visits().to_text(), written);
    let place = std::fs::metadata(directory.file()).expect("a file").ino();
    file.save().expect("nothing has changed");
    let same = std::fs::metadata(directory.file()).expect("a file").ino();
    assert_eq!(place, same);
    file.visits().note_unsaved();
    file.save().expect("it is replaced");
    assert_eq!(directory.content(), written);
    assert_eq!((mode(&directory.file()), directory.names()), (0o600, 1));
}

#[test]
fn one_process_has_the_file() {
    let directory = Directory::new("locked");
    let first = directory.open().expect("a new file");
    let is_taken = || {
        let error = directory.open().expect_err("it is locked");
        assert!(
            error.to_string().contains("another process uses it"),
            "{error}"
        );
    };
    is_taken();
    for _ in 0..2 {
        first.visits().note_unsaved();
        first.save().expect("it is replaced");
        is_taken();
    }
    first.close().expect("it is written");
    let second = directory.open().expect("it is free");
    first.visits().note_unsaved();
    first.save().expect("nothing is written after the end");
    second.visits().note_unsaved();
    second.save().expect("it is the second's");
}

#[test]
fn damaged_file_begins_anew() {
    let directory = Directory::new("damaged");
    let whole = text(&["a.test"]);
    let longer = whole.clone() + &"x".repeat(MAX_VISITS);
    let binary = whole.replace("a.test", "\u{e4}.test");
    for content in [
        &whole[..whole.len() - 4],
        &whole[..60],
        &whole[..16],
        &whole.replace("visits 1", "visits 0"),
        &longer,
        &binary,
    ] {
        directory.put(content);
        let file = directory.open().expect("no page is needed");
        assert_eq!(file.visits().to_text(), text(&[]), "{content:.80}");
        file.save().expect("nothing is to be written");
        assert_eq!(directory.content(), content);
        file.visits().note_unsaved();
        file.close().expect("it is replaced");
        assert_eq!(directory.content(), text(&[]));
    }
}

#[test]
fn foreign_file_stays_as_it_is() {
    let directory = Directory::new("foreign");
    for content in [
        &b"[client]\n"[..],
        b"x",
        b"\xff",
        &vec![b'y'; 2 * MAX_VISITS],
        text(&["a.test"]).replace("visits 1", "visits 2").as_bytes(),
    ] {
        directory.put(content);
        std::fs::set_permissions(directory.file(), Permissions::from_mode(0o644)).expect("a file");
        let file = directory.open().expect("the client learns in memory");
        file.visits().note_unsaved();
        file.save().expect("nothing is written");
        file.close().expect("nothing is written");
        assert_eq!(std::fs::read(directory.file()).expect("a file"), content);
        assert_eq!((mode(&directory.file()), directory.names()), (0o644, 1));
        assert_eq!(file.path(), None, "a reload tries again");
    }
}

#[test]
fn only_regular_files_are_opened() {
    let directory = Directory::new("kinds");
    let pipe = directory.0.join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    for path in [directory.0.clone(), pipe] {
        let error = VisitFile::open(path).expect_err("it is no file");
        assert!(error.to_string().contains("no regular file"), "{error}");
    }
    let error = VisitFile::open(directory.0.join("none/visits")).expect_err("no directory");
    assert!(matches!(error, VisitFileError::File { .. }), "{error}");
    // The volume of the file may not be mounted.
    symlink(directory.0.join("none"), directory.file()).expect("a link");
    let error = directory.open().expect_err("its file is missing");
    assert!(matches!(error, VisitFileError::File { .. }), "{error}");
}

#[test]
fn linked_file_is_replaced_where_it_is() {
    let directory = Directory::new("link");
    let place = directory.0.join("volume");
    std::fs::create_dir_all(&place).expect("a directory");
    std::fs::write(place.join("kept"), text(&["a.test"])).expect("a file");
    std::fs::set_permissions(place.join("kept"), Permissions::from_mode(0o644)).expect("a file");
    symlink(place.join("kept"), directory.file()).expect("a link");
    let file = directory.open().expect("its own file");
    assert_eq!(file.path(), Some(&*directory.file()));
    assert_eq!(
        mode(&place.join("kept")),
        0o600,
        "only its owner can read it"
    );
    file.visits().retain(|_| false);
    file.save().expect("it is written");
    let kind = std::fs::symlink_metadata(directory.file()).expect("a link");
    assert!(kind.is_symlink());
    assert_eq!(directory.content(), text(&[]));
}

#[test]
fn excepted_hosts_leave_the_file() {
    let directory = Directory::new("except");
    let other = "need image 4 - - - - - http://img.off.test:8080/i.png\nend\n";
    directory.put(text(&["off.test", "a.test"]).replace("end\n", other));
    let file = directory.open().expect("its own file");
    let except: Vec<HostPattern> = ["off.test", "*.off.test"]
        .map(|name| name.parse().expect("a pattern"))
        .to_vec();
    assert!(file.except(except.clone()).is_empty());
    file.save().expect("it is written");
    assert_eq!(directory.content(), text(&["a.test"]));
    // The option does not hold any more, and the pages stay forgotten.
    assert_eq!(file.except(Vec::new()), except);
    assert_eq!(file.visits().to_text(), text(&["a.test"]));
    file.close().expect("it is closed");

    directory.put(text(&["a.test", "off.test"]));
    let file = directory.open().expect("its own file");
    file.state.lock().expect("no panic").except = except;
    file.save().expect("it is written");
    assert_eq!(
        directory.content(),
        text(&["a.test"]),
        "each write leaves them out"
    );
}

#[test]
fn page_leaves_the_file_after_a_month() {
    let directory = Directory::new("month");
    let month = 30 * 86_400;
    let old = text_at(unix_time() - month - 60, &["a.test"]).replace("end\n", "");
    let new = text_at(unix_time() - month + 600, &["b.test"]);
    directory.put(old + new.split_once('\n').expect("a line").1);
    let file = directory.open().expect("its own file");
    assert_eq!(file.visits().to_text(), new);
    file.save().expect("it is written");
    assert_eq!(directory.content(), new);
    let now = unix_time() + 700;
    file.write(&mut lock(&file.state), now)
        .expect("it is written");
    assert_eq!(directory.content(), text(&[]), "a long process does so too");
}

#[test]
fn deleted_file_takes_the_pages_along() {
    let directory = Directory::new("deleted");
    directory.put(text(&["a.test"]));
    let file = directory.open().expect("its own file");
    std::fs::remove_file(directory.file()).expect("a file");
    file.save().expect("it is made again");
    assert_eq!(directory.content(), text(&[]));
    assert_eq!(
        (file.visits().to_text(), mode(&directory.file())),
        (text(&[]), 0o600)
    );
    let error = directory.open().expect_err("it is locked");
    assert!(matches!(error, VisitFileError::Taken(_)), "{error}");
}

#[test]
fn deleted_file_without_pages_is_made_again() {
    let directory = Directory::new("deleted-empty");
    let file = directory.open().expect("a new file");
    std::fs::remove_file(directory.file()).expect("a file");
    file.save().expect("it is made again");
    assert_eq!(directory.content(), text(&[]));
    let error = directory.open().expect_err("it is locked");
    assert!(matches!(error, VisitFileError::Taken(_)), "{error}");
}

#[test]
fn unfinished_files_are_removed_at_the_start() {
    let directory = Directory::new("unfinished");
    directory.put(text(&["a.test"]));
    let left = directory.0.join("visits.0123456789abcdef.new");
    let others = [
        "visits.0123456789abcdef",
        "visits.0123456789abcdeg.new",
        "visits.0123.new",
        "other.0123456789abcdef.new",
    ];
    for name in others {
        std::fs::write(directory.0.join(name), "mine").expect("a file");
    }
    std::fs::write(&left, "tandem vis").expect("a file");
    let file = directory.open().expect("its own file");
    assert!(!left.exists());
    assert_eq!(directory.names(), 1 + others.len());

    std::fs::write(&left, "tandem vis").expect("a file");
    directory.open().expect_err("it is locked");
    assert!(left.exists(), "another process may be writing it");
    drop(file);
    directory.put("mine");
    directory.open().expect("the client learns in memory");
    assert!(left.exists(), "nothing beside a foreign file is touched");
}

#[test]
fn other_file_in_its_place_stays() {
    let directory = Directory::new("replaced");
    let file = directory.open().expect("a new file");
    std::fs::write(directory.0.join("other"), "mine").expect("a file");
    std::fs::rename(directory.0.join("other"), directory.file()).expect("a file");
    file.visits().note_unsaved();
    let error = file.save().expect_err("it is not its own");
    assert!(matches!(error, VisitFileError::Replaced(_)), "{error}");
    assert_eq!(directory.content(), "mine");
}

#[test]
fn pages_that_were_not_saved_are_saved_later() {
    let directory = Directory::new("failed");
    let place = directory.0.join("volume");
    std::fs::create_dir_all(&place).expect("a directory");
    std::fs::write(place.join("visits"), text(&["a.test", "b.test"])).expect("a file");
    let file = VisitFile::open(place.join("visits")).expect("its own file");
    std::fs::rename(&place, directory.0.join("moved")).expect("a directory");
    file.visits().retain(|url| !url.contains("a.test"));
    file.save().expect_err("no directory");
    std::fs::rename(directory.0.join("moved"), &place).expect("a directory");
    file.save().expect("it is written");
    let content = std::fs::read_to_string(place.join("visits")).expect("a file");
    assert_eq!(content, text(&["b.test"]));
}

#[test]
fn file_is_written_every_ten_minutes() {
    let directory = Directory::new("due");
    directory.put(text(&["a.test"]));
    let file = directory.open().expect("its own file");
    file.visits().retain(|_| false);
    let opened = lock(&file.state).saved;
    file.save_if_due(opened + SAVE_EVERY - Duration::from_secs(1));
    assert_eq!(directory.content(), text(&["a.test"]));
    file.save_if_due(opened + SAVE_EVERY);
    let end = Instant::now() + Duration::from_secs(60);
    while directory.content() != text(&[]) {
        assert!(Instant::now() < end, "it is not written");
        std::thread::sleep(Duration::from_millis(5));
    }
}
