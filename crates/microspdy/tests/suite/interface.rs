//! The interface as C programs see it: exported symbols, headers, values.

use std::process::Command;

use crate::build::{Language, SANITIZED, compile, library_directory, must, root};

/// All functions: the 32 of libmicrospdy, and ours.
const EXPORTS: [&str; 37] = [
    "SPDYX_get_version",
    "SPDYX_push_response",
    "SPDYX_set_priority",
    "SPDYX_set_request_ended_callback",
    "SPDYX_takes_push",
    "SPDY_build_response",
    "SPDY_build_response_with_callback",
    "SPDY_close_session",
    "SPDY_deinit",
    "SPDY_destroy_request",
    "SPDY_destroy_response",
    "SPDY_get_cls_from_request",
    "SPDY_get_cls_from_session",
    "SPDY_get_fdset",
    "SPDY_get_remote_addr",
    "SPDY_get_session_for_request",
    "SPDY_get_timeout",
    "SPDY_init",
    "SPDY_name_value_add",
    "SPDY_name_value_create",
    "SPDY_name_value_destroy",
    "SPDY_name_value_iterate",
    "SPDY_name_value_lookup",
    "SPDY_queue_response",
    "SPDY_run",
    "SPDY_send_ping",
    "SPDY_send_settings",
    "SPDY_set_cls_to_request",
    "SPDY_set_cls_to_session",
    "SPDY_set_panic_func",
    "SPDY_settings_add",
    "SPDY_settings_create",
    "SPDY_settings_destroy",
    "SPDY_settings_iterate",
    "SPDY_settings_lookup",
    "SPDY_start_daemon",
    "SPDY_stop_daemon",
];

#[test]
fn library_exports_its_functions_only() {
    let library = library_directory().join("libmicrospdy.so");
    let listed = must(
        Command::new("nm")
            .args(["--dynamic", "--defined-only", "--format=posix"])
            .arg(&library),
        "binutils",
    );
    let mut names: Vec<_> = listed
        .lines()
        .filter_map(|line| line.split(' ').next())
        // Statics of the unwinder and of the standard library.
        .filter(|name| !name.starts_with("rust_eh_personality"))
        .collect();
    names.sort_unstable();
    assert_eq!(names, EXPORTS);
    let head = must(Command::new("readelf").arg("-d").arg(&library), "binutils");
    assert!(head.contains("[libmicrospdy.so.0]"), "{head}");
}

#[test]
fn headers_declare_each_export() {
    let text = |name: &str| {
        std::fs::read_to_string(root().join("include").join(name)).expect("a header of the crate")
    };
    let headers = text("microspdy.h") + &text("microspdy_push.h");
    for name in EXPORTS {
        let declared = [format!("{name} ("), format!("({name}) (")];
        assert!(
            declared.iter().any(|text| headers.contains(text)),
            "{name} is not declared"
        );
    }
}

#[test]
fn values_hold_in_c() {
    let program = compile("tests/c/values.c", Language::C99, &[], "values-c");
    must(&mut Command::new(program), "");
}

#[test]
fn values_hold_in_cpp() {
    let program = compile("tests/c/values.c", Language::Cpp, &[], "values-cpp");
    must(&mut Command::new(program), "");
}

#[test]
fn values_hold_under_sanitizers() {
    let program = compile("tests/c/values.c", Language::C99, &SANITIZED, "values-asan");
    must(&mut Command::new(program), "");
}
