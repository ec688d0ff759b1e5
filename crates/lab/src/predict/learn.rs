//! `tandem predict learn`: learns from logs with `auto`, and keeps its state in a file.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tandem_predict::{Auto, AutoConfig};
use tandem_replay::log::AccessLog;
use tandem_replay::{AutoReplay, Options, Sessions, replay};

use super::input::load;
use super::{AimArg, LearnArgs, PredictError, milliseconds};

pub(super) fn run(args: &LearnArgs) -> Result<(), PredictError> {
    let config = args.auto.config(0.5, AimArg::Transfers);
    let state = without_links(&args.predict_state)?;
    let mut auto = match read_state(&state, config.clone()) {
        Err(PredictError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Auto::new(config.clone())
        }
        other => other?,
    };
    for path in &args.merge {
        auto.merge(&read_state(path, config.clone())?);
    }
    for path in &args.input.logs {
        let log = load(path, String::new(), &args.input, AccessLog::finish)?.log;
        let options = Options::default();
        let sessions = Sessions::cut(
            &log,
            &log.records,
            milliseconds(args.sessions.session_timeout),
            false,
        );
        let mut watching = AutoReplay::new(&log, &options, auto);
        replay(&log, &log.records, &sessions, &mut watching, |_| {});
        // The learned state carries over, but sessions do not continue from one log to the next.
        auto = watching.into_auto();
    }
    write_state(&state, &auto.save())
}

/// Returns the path of a state file without links, so that a link to it stays one. A link to a
/// missing file is an error.
fn without_links(path: &Path) -> Result<PathBuf, PredictError> {
    match fs::canonicalize(path) {
        Err(error)
            if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_err() =>
        {
            Ok(path.to_owned())
        }
        found => found.map_err(|source| PredictError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Reads a state file.
pub(super) fn read_state(path: &Path, config: AutoConfig) -> Result<Auto, PredictError> {
    let file = File::open(path);
    let bytes = file.and_then(|file| tandem_predict::read_state(file, &config));
    let bytes = bytes.map_err(|source| PredictError::Read {
        path: path.to_owned(),
        source,
    })?;
    Auto::load(&bytes, config).map_err(|source| PredictError::State {
        path: path.to_owned(),
        source,
    })
}

/// Replaces a state file in one step: whoever reads it, even after a crash, finds the old state or
/// the new one.
fn write_state(path: &Path, bytes: &[u8]) -> Result<(), PredictError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let beside: PathBuf = path.with_file_name(name);
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().map_err(|source| {
        // The failure to tell is the first one.
        let _ = fs::remove_file(&beside);
        PredictError::Write {
            path: path.to_owned(),
            source,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_to_a_state_file_leads_to_the_file() {
        let folder = std::env::temp_dir().join(format!("tandem-learn-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, link) = (folder.join("state"), folder.join("link"));
        assert_eq!(without_links(&file).unwrap(), file, "it is created");
        std::os::unix::fs::symlink("state", &link).unwrap();
        assert!(without_links(&link).is_err(), "the link leads nowhere");
        fs::write(&file, "").unwrap();
        let target = without_links(&link).unwrap();
        assert_eq!(target, fs::canonicalize(&file).unwrap());
        write_state(&target, b"content").unwrap();
        assert_eq!(fs::read(&link).unwrap(), b"content");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn endless_file_is_no_state() {
        let found = read_state(Path::new("/dev/zero"), AutoConfig::default());
        assert!(matches!(found, Err(PredictError::State { .. })));
    }
}
