//! The body of a companion gives the same reports however it is cut, and each has five bytes or
//! more. The values of the fields about pushes are written as they were read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_push::wire::{Report, ReportReader, RequestHashes, Treatment};

fuzz_target!(|data: &[u8]| {
    let Some((&step, data)) = data.split_first() else {
        return;
    };
    let whole = read(data, data.len().max(1));
    assert_eq!(whole, read(data, usize::from(step) + 1));
    assert!(whole.len() <= data.len() / 5);
    let mut written = Vec::new();
    for report in &whole {
        report.encode(&mut written);
    }
    assert_eq!(read(&written, 7), whole);
    if let Some(treatment) = Treatment::parse(data) {
        assert_eq!(treatment.as_str().as_bytes(), data);
    }
    if let Some(hashes) = RequestHashes::parse(data) {
        assert_eq!(hashes.encode().as_bytes(), data.to_ascii_lowercase());
    }
});

fn read(data: &[u8], step: usize) -> Vec<Report> {
    let (mut reports, mut found) = (ReportReader::default(), Vec::new());
    for piece in data.chunks(step) {
        reports.read(piece, |report| found.push(report));
    }
    found
}
