//! `tandem open`: opens the dashboard of a running client or gateway in a browser.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use super::Failure;
use super::ask::{ProcessArgs, ROOT, ask, own_user};
use crate::admin::control::ControlResponse;

const EXAMPLES: &str = "Examples:
  tandem open -c client.toml
      Open the dashboard of the client with this file
  tandem open --control /run/tandem-gateway/control --print
      Print its address, which is valid once within a minute";

/// The time for which a failure of the browser's start is waited for.
const START_TIMEOUT: Duration = Duration::from_secs(2);

/// Arguments of `tandem open`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct OpenArgs {
    #[command(flatten)]
    process: ProcessArgs,
    /// Print the address and open no browser
    #[arg(long)]
    print: bool,
}

pub(super) fn run(args: &OpenArgs) -> Result<(), Failure> {
    let url = match ask(&args.process.control()?, "open")? {
        ControlResponse::Url(url) if is_dashboard(&url) => url,
        ControlResponse::Url(_) => {
            return Err("the process named no dashboard of this machine".into());
        }
        ControlResponse::Error(problem) => return Err(problem.into()),
        _ => return Err("the process answered another question".into()),
    };
    if args.print {
        return Ok(super::print(&url)?);
    }
    super::tell(&url);
    if own_user()? == ROOT {
        super::note("tandem: root opens no browser: open the address above as another user");
        return Ok(());
    }
    open(&url)
}

/// Returns whether a URL is that of a dashboard: a loopback address, and a code of plain letters.
fn is_dashboard(url: &str) -> bool {
    let parts = url
        .strip_prefix("http://")
        .and_then(|rest| rest.split_once("/#"));
    parts.is_some_and(|(address, code)| {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let address = address.parse::<SocketAddr>();
        address.is_ok_and(|address| address.ip().is_loopback()) && code.bytes().all(is_letter)
    })
}

/// Opens a URL in the user's browser. A browser that stays in the foreground is not waited for.
fn open(url: &str) -> Result<(), Failure> {
    let failed = "xdg-open did not open a browser: open the address above by hand";
    let mut opening = Command::new("xdg-open")
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|_| failed)?;
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || ended.send(opening.wait()));
    match end.recv_timeout(START_TIMEOUT) {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(_) => Err(failed.into()),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_that_of_a_local_dashboard() {
        for url in ["http://127.0.0.1:8117/#aZ-_09", "http://[::1]:8117/#a"] {
            assert!(is_dashboard(url), "{url}");
        }
        for url in [
            "file:///etc/passwd",
            "--help",
            "https://127.0.0.1:8117/#a",
            "http://attacker.example:80/#a",
            "http://192.0.2.1:80/#a",
            "http://127.0.0.1:8117/other#a",
            "http://127.0.0.1:8117@attacker.example/#a",
            "http://127.0.0.1:8117/#a\x1b[2J",
            "http://127.0.0.1:8117/#a b",
        ] {
            assert!(!is_dashboard(url), "{url}");
        }
    }
}
