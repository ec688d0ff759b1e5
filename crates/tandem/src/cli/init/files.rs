//! The files that `tandem init` writes. Each file appears complete or not at all, and secrets are
//! never readable for others.

use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::cli::Failure;
use crate::files::{beside, replace};

/// A file to write.
pub(super) struct NewFile {
    /// The path inside the directory of the set-up.
    pub(super) path: &'static str,
    pub(super) text: String,
    pub(super) is_secret: bool,
}

impl NewFile {
    pub(super) fn public(path: &'static str, text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            path,
            text,
            is_secret: false,
        }
    }

    pub(super) fn secret(path: &'static str, text: impl Into<String>) -> Self {
        Self {
            is_secret: true,
            ..Self::public(path, text)
        }
    }
}

/// Returns the paths of the files that exist already.
pub(super) fn existing(directory: &Path, files: &[NewFile]) -> Vec<PathBuf> {
    let paths = files.iter().map(|file| directory.join(file.path));
    paths
        .filter(|path| path.symlink_metadata().is_ok())
        .collect()
}

/// Writes the files and returns their paths. New directories are open to this user only.
pub(super) fn write(directory: &Path, files: &[NewFile]) -> Result<Vec<PathBuf>, Failure> {
    let mut written = Vec::new();
    for file in files {
        let path = directory.join(file.path);
        write_one(&path, file).map_err(|error| format!("{}: {error}", path.display()))?;
        written.push(path);
    }
    Ok(written)
}

/// Writes a new file and gives it the name of the old one, so that the mode is right too.
fn write_one(path: &Path, file: &NewFile) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)?;
    }
    let mode = if file.is_secret { 0o600 } else { 0o644 };
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    let new = beside(path, &format!(".{}.new", std::process::id()));
    replace(path, &new, &options, file.text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn write_replaces_files_with_the_right_mode() {
        let name = format!("tandem-init-files-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let files = [
            NewFile::secret("a/token", "new"),
            NewFile::public("a/cert.pem", "public"),
        ];
        assert!(existing(&directory, &files).is_empty());
        write(&directory, &files[1..]).expect("written");
        let token = directory.join("a/token");
        std::fs::write(&token, "old").expect("written");
        assert_eq!(existing(&directory, &files).len(), 2);
        assert_eq!(write(&directory, &files).expect("written")[0], token);
        assert_eq!(std::fs::read_to_string(&token).expect("read"), "new");
        let mode = |path: &Path| {
            let metadata = std::fs::metadata(path).expect("a file");
            metadata.permissions().mode() & 0o777
        };
        assert_eq!(mode(&token), 0o600);
        assert_eq!(mode(&directory), 0o700);
        let names = std::fs::read_dir(directory.join("a")).expect("a directory");
        assert_eq!(names.count(), 2, "no other file is left");
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}
