//! Runs with whole programs: a run resumes after a stop, reports missing programs, and leaves no
//! processes behind.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tandem_lab::experiment::results;
use tandem_lab::experiment::results::Record;
use tandem_net::emulator::sys;

use crate::lab::{LAB, run};
use crate::programs::{self, Scratch, output, require, wait};
use crate::reports::well_formed;
use crate::{TINY, measured, records};

#[test]
fn runs_reports_and_goes_on_where_it_stopped() {
    require(&[("nghttpx", "nghttp2-proxy")]);
    let scratch = Scratch::new("experiment-run");
    let (file, out) = (scratch.file("tiny.toml"), scratch.file("out"));
    std::fs::write(&file, TINY).expect("room");
    output(&mut run(&file, &out, &["--quiet"]));
    let all = records(&out);
    assert_eq!(all.len(), 12);
    for record in &all {
        let measured = measured(record);
        assert_eq!(measured.requests, 6, "{}", record.setup);
        assert!(
            measured.body_bytes >= 12_000 && measured.down.bytes > measured.body_bytes,
            "{}",
            record.setup
        );
        // At the very least there and back once.
        assert!(
            measured.page_load_ms >= 10.0,
            "{}: {}",
            record.setup,
            measured.page_load_ms
        );
        assert_eq!(measured.lost, 0);
    }
    let visited = all
        .iter()
        .find(|record| record.setup == "visited")
        .map(measured)
        .expect("measured");
    let push = visited.push.expect("counters of the client");
    assert!(push.received >= push.used && push.used > 0, "{push:?}");
    assert!(
        all.iter()
            .map(measured)
            .all(|measured| measured.served_bytes >= measured.body_bytes)
    );

    // Nothing is left to be done, and nothing is done.
    let before = std::fs::read(out.join(results::RESULTS)).expect("results");
    output(&mut run(&file, &out, &["--quiet"]));
    assert_eq!(
        std::fs::read(out.join(results::RESULTS)).expect("results"),
        before
    );

    // A killed run: the last result is there in part, the one before not at all.
    let text = String::from_utf8(before).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    let (kept, broken) = (lines[..11].join("\n"), &lines[12][..40]);
    std::fs::write(out.join(results::RESULTS), format!("{kept}\n{broken}")).expect("room");
    output(&mut run(&file, &out, &["--quiet"]));
    let again = records(&out);
    let keys = |records: &[Record]| {
        let mut keys: Vec<String> = records.iter().map(|record| record.key.clone()).collect();
        keys.sort();
        keys
    };
    assert_eq!(keys(&again), keys(&all));

    output(Command::new(LAB).arg("report").arg(&out));
    let html = std::fs::read_to_string(out.join("report.html")).expect("a report");
    well_formed(&html);
    for part in [
        "Small &amp; &lt;quick&gt;",
        "HTTPS, 2 connections",
        "<svg",
        "81.1 %",
        "--quiet",
        "pushed",
    ] {
        assert!(html.contains(part), "no {part:?} in the report");
    }
    assert!(!html.contains("<script") && !html.contains("not explained"));
}

/// A client that returns to its gateway over QUIC, and programs by their commands, on a link with a
/// trace and gaps, beside downloads. The trial fails unless the session resumes.
#[test]
fn returning_client_resumes_beside_downloads() {
    require(&[]);
    let scratch = Scratch::new("experiment-resume");
    let (file, out) = (scratch.file("tiny.toml"), scratch.file("out"));
    let program = programs::tandem();
    let other = format!(
        "way = \"other\"\nnear = \"{0} client --listen http://$PROXY --gateway h2+tcp://$GATEWAY\"\n\
         far = \"{0} gateway --open --listen h2+tcp://$GATEWAY --listen h2+tcp://$READY \
         --hold-out 0 --allow-dest 10.77.0.2/32\"",
        program.display()
    );
    let text = TINY
        .replace("way = \"h2\"", &other)
        .replace(
            "tls = true\nwarm = true",
            "session = \"h3+quic\"\nresume = true",
        )
        .replace(
            "x = \"shards\"",
            "x = \"shards\"\nsetups = [\"http2\", \"h2\", \"pair\"]\n\
             base = { bulk = 2, rate = \"trace:steps\", gaps = \"2s:10ms-50ms\" }",
        );
    std::fs::write(&file, text).expect("room");
    let only = ["--quiet", "--only", "shards=1"];
    let error = run(&file, &out, &only).output().expect("it starts").stderr;
    let error = String::from_utf8_lossy(&error);
    assert!(error.contains("trace steps: No such file"), "{error}");
    std::fs::write(scratch.file("steps"), "1s 20mbit\n300ms 10mbit\n").expect("room");
    output(&mut run(&file, &out, &only));
    let all = records(&out);
    assert_eq!(all.len(), 3);
    for measured in all.iter().map(measured) {
        let bulk = measured.bulk_mbit.expect("downloads");
        // Bytes that waited in sockets before the load can exceed the rate of the link.
        assert!((0.1..30.0).contains(&bulk), "{bulk}");
    }
}

/// A program of other people that is missing costs the loads of its set-up only. The run fails and
/// tells the remedy, and goes on with these loads once the program is there.
#[test]
fn run_leaves_out_missing_programs_of_other_people() {
    require(&[]);
    let scratch = Scratch::new("experiment-missing");
    let (file, out) = (scratch.file("tiny.toml"), scratch.file("out"));
    let program = scratch.file("other-end");
    let program = program.display();
    let other = format!(
        "way = \"other\"\ninstall = \"make other-end\"\n\
         near = \"{program} client --listen http://$PROXY --gateway h2+tcp://$GATEWAY\"\n\
         far = \"{program} gateway --open --listen h2+tcp://$GATEWAY --listen h2+tcp://$READY \
         --hold-out 0 --allow-dest 10.77.0.2/32\""
    );
    std::fs::write(&file, TINY.replace("way = \"h2\"", &other)).expect("room");
    let only = [
        "--quiet", "--only", "shards=1", "--only", "http2", "--only", "h2",
    ];
    let ended = run(&file, &out, &only).output().expect("it starts");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{said}");
    let expected = format!("h2 is left out: {program} is not on the search path: make other-end");
    assert!(
        said.contains(&expected) && said.contains("1 left out"),
        "{said}"
    );
    assert_eq!(records(&out).len(), 1);
    std::os::unix::fs::symlink(programs::tandem(), scratch.file("other-end")).expect("room");
    output(&mut run(&file, &out, &only));
    let all = records(&out);
    assert_eq!(all.len(), 2);
    assert!(all.iter().all(|record| measured(record).requests > 0));
}

/// Two passes of one seed: the same packets are lost, and both the run and the report say how far
/// the times differ.
#[test]
fn repeated_passes_are_alike_and_their_spread_is_said() {
    require(&[]);
    let scratch = Scratch::new("experiment-repeat");
    let (file, out) = (scratch.file("tiny.toml"), scratch.file("out"));
    let text = TINY
        .replace("passes = 1", "passes = 2\nsame-seed = true")
        .replace("loss = \"0\"", "loss = \"every:10/0\"");
    std::fs::write(&file, text).expect("room");
    let ended = run(&file, &out, &["--only", "http2", "--only", "shards=1"])
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.success() && said.contains("1 set-ups at points, 2 passes each"),
        "{said}"
    );
    let all = records(&out);
    assert_eq!(all.len(), 2);
    assert!(
        all.iter().all(|record| measured(record).lost > 0),
        "the same packets were lost in both"
    );
    output(Command::new(LAB).arg("report").arg(&out));
    let html = std::fs::read_to_string(out.join("report.html")).expect("a report");
    well_formed(&html);
    assert!(
        html.contains("How far passes differ")
            && html.contains("All passes of a page have one seed"),
        "{html}"
    );
}

/// A run that is told to end takes its programs and files with it. One that is killed cannot: the
/// kernel ends its programs, the next run removes its files and goes on.
#[test]
fn a_stopped_run_leaves_nothing() {
    require(&[]);
    let scratch = Scratch::new("experiment-stop");
    let (file, out, temporary) = (
        scratch.file("slow.toml"),
        scratch.file("out"),
        scratch.file("tmp"),
    );
    std::fs::create_dir(&temporary).expect("room");
    let slow = TINY
        .replace("20mbit", "20kbit")
        .replace("deadline = \"60s\"", "deadline = \"600s\"");
    std::fs::write(&file, slow).expect("room");
    let mut command = run(&file, &out, &["--only", "visited"]);
    command
        .env("TMPDIR", &temporary)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut running = crate::programs::Running(command.spawn().expect("the program starts"));
    let ours = || programs_under(&temporary);
    let limit = Duration::from_secs(60);
    wait("gateway and client", limit, || {
        (ours().len() >= 2).then_some(())
    });
    sys::kill(running.0.id(), 15).expect("it runs");
    wait("the end", limit, || {
        running.0.try_wait().expect("ours").map(drop)
    });
    assert_eq!(ours(), Vec::<String>::new());
    assert_eq!(std::fs::read_dir(&temporary).expect("there").count(), 0);

    let mut running = crate::programs::Running(command.spawn().expect("the program starts"));
    wait("gateway and client", limit, || {
        (ours().len() >= 2).then_some(())
    });
    sys::kill(running.0.id(), libc::SIGKILL).expect("it runs");
    running.0.wait().expect("ours");
    wait("the end of the programs", limit, || {
        ours().is_empty().then_some(())
    });
    std::fs::write(&file, TINY).expect("room");
    output(run(&file, &out, &["--quiet", "--only", "visited"]).env("TMPDIR", &temporary));
    assert_eq!(std::fs::read_dir(&temporary).expect("there").count(), 0);
}

/// Returns the command lines of programs that have their logs in a directory.
fn programs_under(directory: &Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").expect("procfs").flatten();
    let is_ours = |process: &PathBuf| {
        std::fs::read_link(process.join("fd/1")).is_ok_and(|log| log.starts_with(directory))
    };
    let line =
        |process: PathBuf| std::fs::read_to_string(process.join("cmdline")).unwrap_or_default();
    processes
        .map(|entry| entry.path())
        .filter(is_ours)
        .map(line)
        .collect()
}

#[test]
fn missing_programs_are_named() {
    require(&[]);
    let scratch = Scratch::new("experiment-missing");
    let (file, out) = (scratch.file("tiny.toml"), scratch.file("out"));
    std::fs::write(&file, TINY).expect("room");
    let failure = |command: &mut Command| {
        let Output { status, stderr, .. } = command
            .stdin(Stdio::null())
            .output()
            .expect("the program starts");
        assert!(!status.success());
        String::from_utf8_lossy(&stderr).into_owned()
    };
    // Root without the capability to make namespaces.
    let mut bound = Command::new("setpriv");
    bound.args([
        "--bounding-set=-sys_admin,-net_admin",
        "--inh-caps=-sys_admin,-net_admin",
    ]);
    let inner = run(&file, &out, &["--quiet"]);
    bound.arg(inner.get_program()).args(inner.get_args());
    let error = failure(&mut bound);
    assert!(
        error.contains("network namespace") && error.contains("needs root or CAP_NET_ADMIN"),
        "{error}"
    );

    // A disk with room for the file of the experiment and nothing more.
    let disk = scratch.file("disk");
    std::fs::create_dir(&disk).expect("room");
    let mut full = Command::new("unshare");
    full.args([
        "-m",
        "/bin/sh",
        "-c",
        "mount -t tmpfs -o size=4k none \"$0\" && exec \"$@\"",
    ])
    .arg(&disk);
    let inner = run(&file, &disk, &["--quiet", "--only", "http2"]);
    full.arg(inner.get_program()).args(inner.get_args());
    let error = failure(&mut full);
    assert!(
        error.contains("cannot write") && error.contains("results.jsonl: No space left"),
        "{error}"
    );

    std::fs::write(
        &file,
        TINY.replace("congestion = \"cubic\"", "congestion = \"unheard-of\""),
    )
    .expect("room");
    let error = failure(&mut run(&file, &out, &["--quiet"]));
    assert!(
        error.contains("no congestion control \"unheard-of\""),
        "{error}"
    );

    std::fs::write(&file, TINY.replace("gallery:5x2000", "absent.json")).expect("room");
    let error = failure(&mut run(&file, &out, &["--quiet"]));
    assert!(error.contains("page \"absent.json\""), "{error}");

    std::fs::write(&file, TINY.replace("way = \"h2\"", "way = \"h4\"")).expect("room");
    let error = failure(&mut run(&file, &out, &["--quiet"]));
    assert!(
        error.contains("tiny.toml") && error.contains("way = \"h4\""),
        "{error}"
    );
    let error = failure(&mut run(&file.with_file_name("none.toml"), &out, &[]));
    assert!(
        error.contains("cannot read") && error.contains("none.toml"),
        "{error}"
    );
    let error = failure(Command::new(LAB).arg("report").arg(scratch.file("nothing")));
    assert!(
        error.contains("nothing: `tandem-lab run` writes them"),
        "{error}"
    );
}
