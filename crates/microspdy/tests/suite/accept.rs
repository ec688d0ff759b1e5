//! A daemon without free descriptors.

use std::process::Command;

use crate::build::{Language, SANITIZED, compile, must};

#[test]
fn listener_pauses_without_descriptors() {
    let program = compile("tests/c/accept.c", Language::C99, &SANITIZED, "accept");
    must(&mut Command::new(program), "");
}
