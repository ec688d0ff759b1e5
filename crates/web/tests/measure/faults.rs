//! Faults, deadlines, and browsers that leave nothing behind.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tandem_web::browser::{Browser, BrowserError, Kind, Settings};
use tandem_web::measure::{Client, MeasureError, Served};
use tandem_web::page::{Page, Site};

use crate::programs::wait;
use crate::{MEASURE, listen};

#[tokio::test]
async fn faults_of_a_load_are_reported() {
    // The served page is not the model's: different resources are faults, and absent ones are
    // missing.
    let served = Served::start(Page::gallery(4, 700), &listen(1, None))
        .await
        .expect("serves");
    let mut other = Page::gallery(5, 700);
    other.resources[2].size = 900;
    other.resources[3].status = 500;
    let model = Site::new(other, served.site().authorities()).expect("valid");
    let chromium = Client::Browser(Settings::default());
    let outcome = chromium.load(&model).await.expect("loads");
    assert_eq!(
        (outcome.failed, outcome.missing, outcome.is_complete()),
        (2, 1, false)
    );
    let faults = outcome.faults.join("\n");
    for fault in [
        "0001.png: 700 of 900 bytes",
        "0002.png: status 200 instead of 500",
        "0004.png: not asked for",
    ] {
        assert!(faults.contains(fault), "{faults}");
    }
    // No origin, no proxy, no document.
    let nowhere = served.site().clone();
    drop(served);
    let error = chromium.load(&nowhere).await.expect_err("nobody listens");
    assert!(
        matches!(&error, MeasureError::Browser(BrowserError::Navigation { why, .. }) if why.contains("REFUSED")),
        "{error}"
    );
    let proxy = Some("http://127.0.0.1:1".to_owned());
    let error = Client::Browser(Settings {
        proxy,
        ..Settings::default()
    })
    .load(&nowhere)
    .await
    .expect_err("no proxy");
    assert!(
        error.to_string().contains("ERR_PROXY_CONNECTION_FAILED"),
        "{error}"
    );
    let list = Site::new(Page::uniform(2, 100), &["127.0.0.1:9"]).expect("valid");
    assert!(matches!(
        chromium.load(&list).await,
        Err(MeasureError::Page(_))
    ));
    // The program is absent, and then it is no Chromium.
    let with = |program: &str| Settings {
        program: Some(program.into()),
        ..Settings::default()
    };
    let error = Browser::start(&with("/nonexistent"))
        .await
        .expect_err("there is none");
    assert!(
        error.to_string().contains("apt-get install chromium"),
        "{error}"
    );
    let error = Browser::start(&with("/bin/false"))
        .await
        .expect_err("it is none");
    assert!(matches!(error, BrowserError::Ended { .. }), "{error}");
    let again = Settings {
        kind: Kind::Firefox,
        earlier: 1,
        ..Settings::default()
    };
    let error = Browser::start(&again)
        .await
        .expect_err("it keeps its cache");
    assert!(error.to_string().contains("use Chromium"), "{error}");
}

/// A response that never comes is awaited until the deadline. Nothing is left of the browser then.
#[tokio::test]
async fn deadlines() {
    let served = Served::start(Page::gallery(1, 700), &listen(1, None))
        .await
        .expect("serves");
    let url = format!("http://{}/?delay=600000", served.addresses()[0]);
    let mut browser = Browser::start(&Settings::default()).await.expect("starts");
    // A paused clock passes over all waiting, however slow the start of Chromium was.
    let pause = async {
        while served.counts().requests == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Chromium reports the request on another channel.
        tokio::time::sleep(Duration::from_secs(2)).await;
        tokio::time::pause();
        std::future::pending::<()>().await;
    };
    let wanted = HashSet::new();
    let error = tokio::select! {
        loaded = browser.load(&url, &wanted) => loaded.expect_err("too late"),
        () = pause => unreachable!("it is pending"),
    };
    assert!(
        matches!(
            error,
            BrowserError::Deadline {
                done: 0,
                open: 1,
                loaded: false,
                ..
            }
        ),
        "{error}"
    );
    let profile = browser.profile().to_owned();
    assert!(profile.exists());
    drop(browser);
    assert!(!profile.exists());
}

/// Profiles of a process's browsers.
fn profiles(process: u32) -> Vec<PathBuf> {
    let start = format!("tandem-browser-{process}-");
    let entries = std::fs::read_dir(std::env::temp_dir()).expect("a temporary directory");
    let entries = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&start));
    entries.map(|entry| entry.path()).collect()
}

/// Returns the number of processes that have this text in their command line.
pub(super) fn processes(text: &str) -> usize {
    let lines = std::fs::read_dir("/proc").expect("procfs").flatten();
    let lines = lines.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .filter(|line| String::from_utf8_lossy(line).contains(text))
        .count()
}

/// However it ends, nothing stays: neither the browser nor its profile.
#[test]
fn nothing_is_left() {
    let signals = [libc::SIGTERM, libc::SIGKILL];
    for (browser, file) in [("chromium", "Default"), ("firefox", "cert9.db")] {
        for signal in signals {
            nothing_is_left_of(browser, file, signal);
        }
    }
}

/// Kills the program once the browser has made this file in its profile.
fn nothing_is_left_of(browser: &str, file: &str, signal: i32) {
    let mut command = Command::new(MEASURE);
    command
        .args(["page", "thesis", "--browser", browser, "--loads", "100"])
        .stdout(Stdio::null());
    let mut program = crate::programs::Running(command.spawn().expect("the program starts"));
    let id = program.0.id();
    let profile = wait("a running browser", Duration::from_secs(60), || {
        profiles(id)
            .pop()
            .filter(|profile| profile.join(file).exists())
    });
    let name = profile
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    assert!(processes(&name) > 0);
    tandem_net::emulator::sys::kill(id, signal).expect("it runs");
    program.0.wait().expect("a child");
    wait("the end of the browser", Duration::from_secs(60), || {
        (processes(&name) == 0).then_some(())
    });
    wait("the end of its profile", Duration::from_secs(60), || {
        (!profile.exists()).then_some(())
    });
}

#[test]
fn failures_of_the_program() {
    let mut none = Command::new(MEASURE);
    none.args(["page", "twitter", "--browser", "chromium"])
        .env("TANDEM_CHROMIUM", "/bin/false")
        .stderr(Stdio::piped());
    let child = none.spawn().expect("the program starts");
    let id = child.id();
    let out = child.wait_with_output().expect("a child");
    assert!(
        !out.status.success() && String::from_utf8_lossy(&out.stderr).contains("the browser ended")
    );
    assert!(profiles(id).is_empty());
    let full = ["page", "twitter", "--quiet", "--json", "/dev/full"];
    let out = Command::new(MEASURE).args(full).output().expect("starts");
    assert!(
        !out.status.success()
            && String::from_utf8_lossy(&out.stderr).contains("cannot write /dev/full")
    );
    let out = Command::new(MEASURE)
        .args(["load", "twitter", "--authority", "127.0.0.1:1"])
        .output()
        .expect("starts");
    assert!(
        !out.status.success()
            && String::from_utf8_lossy(&out.stderr).contains("cannot connect to 127.0.0.1:1")
    );
}
