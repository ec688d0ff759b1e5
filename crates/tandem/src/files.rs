//! Files that are replaced as a whole.

use std::collections::hash_map::RandomState;
use std::fs::OpenOptions;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Returns the file's path with `end` appended to the name.
pub(crate) fn beside(file: &Path, end: &str) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(end);
    file.with_file_name(name)
}

/// Writes a file so that a reader finds either the old content or the new, even after a crash. The
/// content goes to `new`, opened with `options`, which then gets the name of the file.
pub(crate) fn replace(
    file: &Path,
    new: &Path,
    options: &OpenOptions,
    content: &[u8],
) -> std::io::Result<()> {
    let written = (|| {
        let mut out = options.open(new)?;
        out.write_all(content)?;
        out.sync_all()?;
        std::fs::rename(new, file)
    })();
    if written.is_err() {
        // The incomplete file is useless, and the first error is the one to report.
        let _ = std::fs::remove_file(new);
    }
    written
}

/// Replaces a file as [`replace`] does. Only this user can read the new one.
pub(crate) fn replace_private(file: &Path, content: &[u8]) -> std::io::Result<()> {
    // A fixed name would be shared by two writes, of this process or of another one.
    let number = RandomState::new().build_hasher().finish();
    let new = beside(file, &format!(".{number:016x}.new"));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    replace(file, &new, &options, content)
}
