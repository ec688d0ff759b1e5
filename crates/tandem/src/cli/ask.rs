//! Questions to a running process over its control socket.
//!
//! A path may name the socket of another user, who then gives the answers. Only the own user and
//! root are believed, and a text from the process cannot control the terminal.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::{Failure, serve};
use crate::admin::control::{ControlResponse, REQUEST_TIMEOUT};
use crate::secret::unreadable;

/// The user who administers the machine.
pub(super) const ROOT: u32 = 0;

/// The limit of an answer in bytes: every point with a full sample fits several times.
const MAX_ANSWER: u64 = 64 << 20;

/// Sends one line to the control socket at `control`, and returns the answer.
///
/// # Errors
/// Fails if no process of this user or of root listens there, or if its answer cannot be read.
pub fn ask(control: &Path, line: &str) -> Result<ControlResponse, Failure> {
    let failed = |error: io::Error| match error.kind() {
        // The names of the end of a time limit.
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!(
            "{}: the process did not answer in {} s",
            control.display(),
            REQUEST_TIMEOUT.as_secs()
        ),
        _ => format!("{}: {error}", control.display()),
    };
    let mut stream = UnixStream::connect(control).map_err(|error| {
        let problem = unreadable(control, &error);
        format!("{}: {problem}: {}", control.display(), remedy(&error))
    })?;
    let peer = peer_user(&stream).map_err(failed)?;
    if !is_trusted(own_user().map_err(failed)?, peer) {
        let problem = "the process there belongs to another user";
        return Err(format!("{}: {problem}", control.display()).into());
    }
    stream
        .set_read_timeout(Some(REQUEST_TIMEOUT))
        .map_err(failed)?;
    stream
        .set_write_timeout(Some(REQUEST_TIMEOUT))
        .map_err(failed)?;
    stream
        .write_all(format!("{line}\n").as_bytes())
        .map_err(failed)?;
    stream.shutdown(Shutdown::Write).map_err(failed)?;
    let mut text = Vec::new();
    stream
        .take(MAX_ANSWER)
        .read_to_end(&mut text)
        .map_err(failed)?;
    let answer = serde_json::from_slice(&text).map_err(|_| {
        format!(
            "{}: that is not the control socket of a tandem",
            control.display()
        )
    })?;
    Ok(match answer {
        ControlResponse::Error(problem) => ControlResponse::Error(plain(&problem)),
        answer => answer,
    })
}

/// Returns what the user can do if nothing answers at a control socket.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        // Its mode is 0600.
        io::ErrorKind::PermissionDenied => {
            "the socket belongs to another user: run this command as that user or as root"
        }
        _ => "start a client or gateway with this control socket (--control)",
    }
}

/// Returns whether a user takes the answers of a process of user `peer`. Root asks the services,
/// which have users of their own.
const fn is_trusted(own: u32, peer: u32) -> bool {
    own == ROOT || peer == ROOT || own == peer
}

/// Returns the user of this process.
pub(super) fn own_user() -> io::Result<u32> {
    peer_user(&UnixStream::pair()?.0)
}

/// Returns the user of the process at the other end of a connection.
fn peer_user(stream: &UnixStream) -> io::Result<u32> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let _entered = runtime.enter();
    // Both descriptors share the mode.
    stream.set_nonblocking(true)?;
    let copy = tokio::net::UnixStream::from_std(stream.try_clone()?)?;
    let credentials = copy.peer_cred();
    stream.set_nonblocking(false)?;
    credentials.map(|credentials| credentials.uid())
}

/// Returns a text without the characters that control a terminal or change the direction of its
/// text. URLs and problems are data of others.
pub fn plain(text: &str) -> String {
    let is_format = |c: char| {
        matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
    };
    let kept = text.chars().filter(|c| !c.is_control() && !is_format(*c));
    kept.collect()
}

/// The process to ask: by its control socket, or by the file that names the socket.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub struct ProcessArgs {
    /// The configuration file of the running client or gateway
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Path of the control socket of the running client or gateway
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

impl ProcessArgs {
    /// Returns the path of the control socket.
    ///
    /// # Errors
    /// Fails if the file cannot be read or names no control socket.
    pub fn control(&self) -> Result<PathBuf, Failure> {
        if let Some(control) = &self.control {
            return Ok(control.clone());
        }
        let file = serve::read(self.config.as_deref())?;
        let of_client = file.client.and_then(|options| options.control);
        let of_gateway = file.gateway.and_then(|options| options.control);
        of_client
            .or(of_gateway)
            .ok_or_else(|| "the file names no control socket: add control = \"PATH\"".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_cannot_control_a_terminal() {
        let hostile = "a\x1b[2J\u{9b}b\u{202e}c\u{200b}\u{2066}d\u{feff}\u{e0041}é\n";
        assert_eq!(plain(hostile), "a[2Jbcdé");
    }

    #[test]
    fn answers_of_other_users_are_not_taken() {
        let (own, other) = (1000, 1001);
        assert!(is_trusted(own, own) && is_trusted(own, ROOT) && is_trusted(ROOT, other));
        assert!(!is_trusted(own, other));
    }

    #[test]
    fn socket_of_another_user_has_a_remedy_of_its_own() {
        for (kind, words) in [
            (io::ErrorKind::PermissionDenied, "as that user or as root"),
            (io::ErrorKind::NotFound, "(--control)"),
            (io::ErrorKind::ConnectionRefused, "(--control)"),
        ] {
            let remedy = remedy(&kind.into());
            assert!(remedy.ends_with(words), "{kind}: {remedy}");
        }
    }

    #[test]
    fn user_of_a_connection_is_known() {
        let (near, far) = UnixStream::pair().expect("a pair");
        let own = own_user().expect("a user");
        assert_eq!(peer_user(&near).expect("credentials"), own);
        (&far).write_all(b"x").expect("room");
        let mut byte = [0];
        (&near).read_exact(&mut byte).expect("it still blocks");
    }
}
