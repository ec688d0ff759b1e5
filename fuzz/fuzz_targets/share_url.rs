//! A URL of `tandem share` in any text gives an error, or a value that is parsed again from its
//! display. Its gateway names no file of this machine.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem::config::share_url::{CA_FILE, ShareUrl};

fuzz_target!(|text: &str| {
    let Ok(url) = text.parse::<ShareUrl>() else {
        return;
    };
    assert_eq!(url.to_string().parse(), Ok(url.clone()));
    let endpoint = url.endpoint().expect("a checked endpoint");
    for option in ["cert", "key"] {
        assert_eq!(endpoint.option(option), None);
    }
    assert_eq!(endpoint.option("ca"), url.ca().map(|_| CA_FILE));
});
