//! The output of the laboratory's programs. Its reader may end before it, as `head` does.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write as _};

/// Writes text to standard output, and the end of its last line. `println!` would panic if this
/// fails.
///
/// # Errors
/// Returns the error of standard output.
pub fn print(text: impl Display) -> io::Result<()> {
    let mut text = text.to_string();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    io::stdout().write_all(text.as_bytes())
}

/// Writes text to standard error. Text that cannot be written is lost.
pub fn note(text: impl Display) {
    let _ = io::stderr().write_all(text.to_string().as_bytes());
}

/// Writes the line of a program's failure, unless the reader of its output has seen enough.
pub fn report(program: &str, error: &(dyn Error + 'static)) {
    if !is_broken_pipe(error) {
        note(format_args!("{program}: {error}\n"));
    }
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_the_reader_is_no_failure_to_report() {
        let error = |kind: io::ErrorKind| Box::<dyn Error>::from(io::Error::from(kind));
        assert!(is_broken_pipe(&*error(io::ErrorKind::BrokenPipe)));
        assert!(!is_broken_pipe(&*error(io::ErrorKind::StorageFull)));
        assert!(!is_broken_pipe(&*Box::<dyn Error>::from("Broken pipe")));
    }
}
