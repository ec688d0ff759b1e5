//! Two parsers of opened HTTPS, for any bytes. A list of hosts covers only hosts that it names, and
//! an OCSP response of a handshake tells of a revocation only after its first 20 bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem::transport::tls::stapled::tells_revocation;
use tandem_push::wire::{MAX_OPENED_LIST, OpenedList};

fuzz_target!(|input: (&[u8], &str, &[u8])| {
    let (value, authority, response) = input;
    assert!(!tells_revocation(&response[..response.len().min(20)]));
    tells_revocation(response);
    let list = OpenedList::parse(value);
    let is_covered = |authority: &str| {
        let covers = list.covers(authority);
        if covers {
            assert!(value.len() <= MAX_OPENED_LIST);
            let host = match authority.rsplit_once(':') {
                Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
                _ => authority,
            };
            let names = std::str::from_utf8(value).expect("the list covers a host");
            let is_named = |name: &str| match name.strip_prefix("*.") {
                Some(suffix) => host.ends_with(suffix) && host.len() > suffix.len() + 1,
                None => name == host,
            };
            assert!(names.split_ascii_whitespace().any(is_named), "{authority}");
        }
        covers
    };
    is_covered(authority);
    let text = String::from_utf8_lossy(value);
    for token in text.split_ascii_whitespace() {
        let name = token.trim_start_matches(['!', ':']);
        is_covered(name);
        is_covered(&name.replacen('*', "x", 1));
    }
    let again = OpenedList::parse(value);
    assert!(
        again == list && (value.len() > MAX_OPENED_LIST || !value.is_ascii() || list.is_of(value))
    );
});
