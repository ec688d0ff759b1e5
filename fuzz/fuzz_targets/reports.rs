//! A companion's body of any bytes says the same however it is cut, and is read in reports of five
//! bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem::companion::{Reports, Said, Treatment, write_holds, write_report};

fuzz_target!(|data: &[u8]| {
    let Some((&step, data)) = data.split_first() else {
        return;
    };
    let whole = read(data, data.len().max(1));
    assert_eq!(whole, read(data, usize::from(step) + 1));
    assert!(whole.len() <= data.len() / 5);
    let mut written = Vec::new();
    for said in &whole {
        match said {
            Said::Became(fate, url) => write_report(*fate, *url, &mut written),
            Said::Holds(url) => write_holds(*url, &mut written),
        }
    }
    assert_eq!(read(&written, 7), whole);
    if let Some(treatment) = Treatment::parse(data) {
        assert_eq!(treatment.as_str().as_bytes(), data);
    }
});

fn read(data: &[u8], step: usize) -> Vec<Said> {
    let (mut reports, mut found) = (Reports::default(), Vec::new());
    for piece in data.chunks(step) {
        reports.read(piece, |said| found.push(said));
    }
    found
}
