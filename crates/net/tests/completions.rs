//! A test of `tandem-link completions`.

use std::process::Command;

#[test]
fn program_writes_completions() {
    for (shell, part) in [("bash", "complete -F"), ("fish", "complete -c tandem-link")] {
        let written = Command::new(env!("CARGO_BIN_EXE_tandem-link"))
            .args(["completions", shell])
            .output();
        let written = written.expect("it starts");
        let text = String::from_utf8(written.stdout).expect("text");
        assert!(written.status.success() && text.contains(part), "{shell}");
        assert!(text.contains("profiles") && text.contains("mtu"), "{shell}");
    }
}
