//! `tandem-lab coding`: the bytes of texts as they cross the path, beside those of gzip.
//!
//! The command reads files of a site, and files of an older state of the same site. It codes each
//! file as the gateway does: alone for a first visit, and with the older file as the dictionary for
//! a changed one. The body of each response counts, without its head.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tandem_coding::dictionary::may_keep;
use tandem_coding::rule::MIN_LENGTH;
use tandem_coding::{CodingError, Encoder, LEVELS};

/// The extensions of text files, with the kind of each.
const KINDS: [(&str, &str); 8] = [
    ("html", "HTML"),
    ("htm", "HTML"),
    ("css", "CSS"),
    ("js", "scripts"),
    ("mjs", "scripts"),
    ("json", "data"),
    ("xml", "data"),
    ("svg", "data"),
];

/// The name of the row for HTML, CSS and scripts together.
const TOGETHER: &str = "HTML, CSS, scripts";

/// An error of the measurement.
#[derive(Debug, thiserror::Error)]
pub enum CodingStudyError {
    /// A file or directory cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The path.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A body cannot be coded.
    #[error("{path}: {source}")]
    Coding {
        /// The path.
        path: String,
        /// The cause.
        source: CodingError,
    },
    /// The directory has no text file.
    #[error("{0}: no file ends in html, htm, css, js, mjs, json, xml or svg")]
    Empty(String),
}

/// The sums over several files, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sums {
    /// The number of files.
    pub files: usize,
    /// The files as they are.
    pub plain: usize,
    /// The files with gzip, level 6.
    pub gzip: usize,
    /// The files on the path, by the level of zstd.
    pub coded: BTreeMap<i32, usize>,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.plain += other.plain;
        self.gzip += other.gzip;
        for (level, bytes) in &other.coded {
            *self.coded.entry(*level).or_default() += bytes;
        }
    }

    /// Returns the bytes on the path over those of gzip, for a level of zstd.
    pub fn ratio(&self, level: i32) -> Option<f64> {
        let coded = *self.coded.get(&level)?;
        (self.gzip > 0).then(|| coded as f64 / self.gzip as f64)
    }
}

/// The figures of one kind of text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Visits {
    /// All files, each coded alone.
    pub first: Sums,
    /// The files with another content than before, each coded as a difference.
    pub changed: Sums,
}

/// The greatest ratios that the project accepts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bars {
    /// The ratio for first visits.
    pub first: f64,
    /// The ratio for changed files.
    pub changed: f64,
}

/// The figures of a site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CodingStudy {
    /// The bars.
    pub bars: Bars,
    /// The figures by kind of text.
    pub kinds: BTreeMap<String, Visits>,
}

/// Measures the text files of `directory`. `before` has the older state of the same files.
///
/// # Errors
/// Fails if a file cannot be read, or if there is no text file.
pub fn measure(directory: &Path, before: Option<&Path>) -> Result<CodingStudy, CodingStudyError> {
    let mut kinds: BTreeMap<String, Visits> = BTreeMap::new();
    for (path, kind) in text_files(directory)? {
        let body = read(&directory.join(&path))?;
        if body.len() < MIN_LENGTH {
            continue;
        }
        let coding = |source| CodingStudyError::Coding {
            path: path.display().to_string(),
            source,
        };
        let mut visits = Visits {
            first: sums(&body, &[]).map_err(coding)?,
            ..Visits::default()
        };
        let old = before.map(|before| before.join(&path));
        if let Some(old) = old.filter(|old| old.is_file()) {
            let old = read(&old)?;
            if old != body {
                let dictionary = if may_keep(old.len()) { &old[..] } else { &[] };
                visits.changed = sums(&body, dictionary).map_err(coding)?;
            }
        }
        let together = (kind != "data").then_some(TOGETHER);
        for name in [kind].into_iter().chain(together) {
            let sums = kinds.entry(name.to_owned()).or_default();
            sums.first.add(&visits.first);
            sums.changed.add(&visits.changed);
        }
    }
    if kinds.is_empty() {
        return Err(CodingStudyError::Empty(directory.display().to_string()));
    }
    let bars = Bars {
        first: 0.70,
        changed: 0.35,
    };
    Ok(CodingStudy { bars, kinds })
}

/// Codes one body at each level.
fn sums(body: &[u8], dictionary: &[u8]) -> Result<Sums, CodingError> {
    let mut coded = BTreeMap::new();
    for level in LEVELS {
        let length = Some(body.len() as u64);
        let mut encoder = Encoder::with_dictionary(level, length, dictionary)?;
        encoder.write(body)?;
        encoder.finish()?;
        coded.insert(level, encoder.ready());
    }
    Ok(Sums {
        files: 1,
        plain: body.len(),
        gzip: gzip(body),
        coded,
    })
}

/// Returns the length of a body with gzip, level 6.
fn gzip(body: &[u8]) -> usize {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    // Writing to a vector does not fail.
    let written = encoder.write_all(body).and_then(|()| encoder.finish());
    written.map_or(body.len(), |gzip| gzip.len())
}

/// Returns the text files below a directory with their kinds, in order. Links are not followed.
fn text_files(directory: &Path) -> Result<Vec<(PathBuf, &'static str)>, CodingStudyError> {
    let mut files = Vec::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(below) = directories.pop() {
        let path = directory.join(&below);
        for entry in std::fs::read_dir(&path).map_err(failed(&path))? {
            let entry = entry.map_err(failed(&path))?;
            let (kind, name) = (entry.file_type().map_err(failed(&path))?, entry.file_name());
            let path = below.join(name);
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_file()
                && let Some(kind) = kind_of(&path)
            {
                files.push((path, kind));
            }
        }
    }
    files.sort();
    Ok(files)
}

fn kind_of(path: &Path) -> Option<&'static str> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    let found = KINDS.iter().find(|(name, _)| *name == extension);
    found.map(|(_, kind)| *kind)
}

fn read(path: &Path) -> Result<Vec<u8>, CodingStudyError> {
    std::fs::read(path).map_err(failed(path))
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> CodingStudyError {
    let path = path.display().to_string();
    move |source| CodingStudyError::File { path, source }
}

impl CodingStudy {
    /// Returns the figures as a table.
    pub fn table(&self) -> String {
        let mut text =
            String::from("kind                visit    files       gzip   level  ratio   bar\n");
        for (kind, visits) in &self.kinds {
            for (visit, sums, bar) in [
                ("first", &visits.first, self.bars.first),
                ("changed", &visits.changed, self.bars.changed),
            ] {
                for level in LEVELS {
                    let Some(ratio) = sums.ratio(level) else {
                        continue;
                    };
                    // Writing to a string does not fail.
                    let _ = writeln!(
                        text,
                        "{kind:<19} {visit:<8} {:>5} {:>10} {level:>7} {ratio:>6.3} {bar:>5.2}",
                        sums.files, sums.gzip
                    );
                }
            }
        }
        text
    }

    /// Writes the figures to a file as JSON.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), CodingStudyError> {
        let json = serde_json::to_vec_pretty(self).map_err(std::io::Error::from);
        let parent = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        parent
            .and(json)
            .and_then(|json| std::fs::write(path, json))
            .map_err(failed(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with files, which disappears with it.
    struct Site(PathBuf);

    impl Site {
        fn new(name: &str, files: &[(&str, String)]) -> Self {
            let name = format!("tandem-coding-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            for (file, text) in files {
                let file = path.join(file);
                std::fs::create_dir_all(file.parent().expect("below the directory"))
                    .expect("a directory");
                std::fs::write(file, text).expect("a file");
            }
            Self(path)
        }
    }

    impl Drop for Site {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn page(from: u32) -> String {
        let line = |n: u32| format!("<p id={:x}>{}</p>\n", n.wrapping_mul(0x9e37_79b9), n * n);
        (from..from + 500).map(line).collect()
    }

    #[test]
    fn changed_files_cost_their_difference() {
        let site = |name, from| {
            let files = [
                ("a.html", page(from)),
                ("b/same.html", page(7)),
                ("b/c.CSS", page(from + 9)),
                ("data.json", page(3)),
                ("short.js", "x".repeat(MIN_LENGTH - 1)),
                ("image.png", page(1)),
            ];
            Site::new(name, &files)
        };
        let (old, new) = (site("old", 1), site("new", 2));
        let study = measure(&new.0, Some(&old.0)).expect("texts");
        let names: Vec<_> = study.kinds.keys().map(String::as_str).collect();
        assert_eq!(names, ["CSS", "HTML", TOGETHER, "data"]);
        let html = &study.kinds["HTML"];
        assert_eq!((html.first.files, html.changed.files), (2, 1));
        assert_eq!(html.first.plain, page(2).len() + page(7).len());
        let together = &study.kinds[TOGETHER];
        assert_eq!((together.first.files, together.changed.files), (3, 2));
        for level in LEVELS {
            let ratio = together.changed.ratio(level).expect("changed files");
            assert!(ratio < study.bars.changed, "{level}: {ratio}");
            let ratio = together.first.ratio(level).expect("files");
            assert!((0.5..1.2).contains(&ratio), "{level}: {ratio}");
        }
        assert_eq!(study.table().lines().count(), 1 + 3 * 6 + 3);
        let file = new.0.join("results/coding.json");
        study.write(&file).expect("written");
        let json = std::fs::read(file).expect("a file");
        let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
        assert_eq!(json["kinds"]["HTML"]["first"]["files"], 2);
    }

    #[test]
    fn directory_without_texts_is_refused() {
        let site = Site::new("empty", &[("a.png", page(1))]);
        assert!(matches!(
            measure(&site.0, None),
            Err(CodingStudyError::Empty(_))
        ));
        let missing = site.0.join("missing");
        assert!(matches!(
            measure(&missing, None),
            Err(CodingStudyError::File { .. })
        ));
    }
}
