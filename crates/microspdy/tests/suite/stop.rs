//! Stops of daemons by other threads, and by callbacks.

use std::process::Command;

use crate::build::{Language, SANITIZED, compile, must};

#[test]
fn no_callback_follows_a_stop() {
    let flags = [&SANITIZED[..], &["-pthread"]].concat();
    let program = compile("tests/c/stop.c", Language::C99, &flags, "stop");
    must(&mut Command::new(program), "");
}
