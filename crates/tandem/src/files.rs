//! Files that are replaced as a whole.

use std::fs::OpenOptions;
use std::io::Write as _;
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
