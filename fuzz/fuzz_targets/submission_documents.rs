//! Any problem document, state, key directory, list of stored fields, or file of rights: refused,
//! or read again as it was written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_submit::problem::Document;
use tandem_submit::rights::Rights;
use tandem_submit::submission::{StateDocument, SubmissionId};
use tandem_submit::{directory, fields};

fuzz_target!(|input: &[u8]| {
    if let Some(document) = Document::read(input) {
        if let Some(problem) = document.problem() {
            assert!(document.kind.ends_with(problem.slug()));
        }
    }
    if let Some(document) = StateDocument::read(input) {
        assert!(StateDocument::read(document.json().as_bytes()) == Some(document));
    }
    if let Ok(keys) = directory::read(input, |_| [0; 32]) {
        let written = directory::write(&keys);
        assert!(directory::read(written.as_bytes(), |_| [0; 32]).ok() == Some(keys));
    }
    let read = fields::read(input);
    assert!(fields::read(&fields::write(&read)) == read);
    if let Ok(text) = std::str::from_utf8(input) {
        if let Some(id) = SubmissionId::parse(text) {
            assert!(id.to_string() == text);
        }
        let _ = tandem_submit::issuers::parse(text);
        if let Ok(rights) = Rights::parse(text) {
            let _ = rights.has_certificates();
        }
    }
});
