//! Keys and fingerprints, which all nodes must know of each other before any can be configured.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::TornetError;
use super::layout::{Node, Role};
use super::torrc::{DIR_PORT, data_directory};

/// Public identities of all relays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identities {
    /// RSA fingerprint by node name, 40 upper-case hexadecimal digits.
    pub fingerprints: HashMap<String, String>,
    /// Identity of each authority's voting key by node name.
    pub v3: HashMap<String, String>,
}

/// Programs of the package `tor`.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The daemon.
    pub tor: std::path::PathBuf,
    /// Makes authorities' voting keys.
    pub gencert: std::path::PathBuf,
}

/// Makes the keys of one relay, and learns its identity.
pub fn make(
    programs: &Programs,
    root: &Path,
    node: &Node,
    identities: &mut Identities,
) -> Result<(), TornetError> {
    let data = data_directory(root, node);
    if node.role == Role::Authority {
        let v3 = make_voting_key(programs, &data.join("keys"), node)?;
        identities.v3.insert(node.name.clone(), v3);
    }
    let fingerprint = make_identity(programs, &data, node)?;
    identities
        .fingerprints
        .insert(node.name.clone(), fingerprint);
    Ok(())
}

fn make_voting_key(programs: &Programs, keys: &Path, node: &Node) -> Result<String, TornetError> {
    let mut command = Command::new(&programs.gencert);
    command.args([
        "--create-identity-key",
        "--passphrase-fd",
        "0",
        "-m",
        "12",
        "-a",
    ]);
    command.arg(format!("{}:{DIR_PORT}", node.address));
    for (flag, file) in [
        ("-i", "authority_identity_key"),
        ("-s", "authority_signing_key"),
        ("-c", "authority_certificate"),
    ] {
        command.arg(flag).arg(keys.join(file));
    }
    let passphrase: &[u8] = b"only a test network\n";
    run(&mut command, passphrase)?;
    let certificate = read(&keys.join("authority_certificate"))?;
    let line = certificate
        .lines()
        .find_map(|line| line.strip_prefix("fingerprint "));
    line.map(str::to_owned).ok_or_else(|| TornetError::Program {
        program: "tor-gencert".into(),
        output: "its certificate has no fingerprint".into(),
    })
}

fn make_identity(programs: &Programs, data: &Path, node: &Node) -> Result<String, TornetError> {
    let mut command = Command::new(&programs.tor);
    command.args([
        "--defaults-torrc",
        "/dev/null",
        "-f",
        "/dev/null",
        "--ignore-missing-torrc",
    ]);
    command.args(["--list-fingerprint", "--orport", "1"]);
    // A configured authority keeps the program from contacting the public network's; this one is
    // never contacted.
    command.args([
        "--dirserver",
        "x 127.0.0.1:1 ffffffffffffffffffffffffffffffffffffffff",
        "--nickname",
        &node.name,
    ]);
    command.arg("--datadirectory").arg(data);
    run(&mut command, b"")?;
    let file = read(&data.join("fingerprint"))?;
    let fingerprint = file.split_whitespace().nth(1).filter(|hex| hex.len() == 40);
    fingerprint
        .map(str::to_owned)
        .ok_or_else(|| TornetError::Program {
            program: "tor".into(),
            output: format!("a fingerprint file that cannot be read: {file}"),
        })
}

fn read(file: &Path) -> Result<String, TornetError> {
    fs::read_to_string(file).map_err(TornetError::of(format!("read {}", file.display())))
}

/// Runs a program to its end; a failure carries the end of its output.
pub(crate) fn run(command: &mut Command, input: &[u8]) -> Result<Output, TornetError> {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default()
        .display()
        .to_string();
    let feed = |command: &mut Command| -> io::Result<Output> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input)?;
        }
        child.wait_with_output()
    };
    let output = feed(command).map_err(TornetError::of(format!("run {program}")))?;
    if output.status.success() {
        return Ok(output);
    }
    let said =
        String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
    let tail: Vec<&str> = said.lines().rev().take(5).collect();
    Err(TornetError::Program {
        program,
        output: tail.into_iter().rev().collect::<Vec<_>>().join("; "),
    })
}
