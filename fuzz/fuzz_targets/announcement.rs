//! An announcement in any bytes gives an error, or ways to the host of its own site within the
//! bounds, which are parsed again from their display. The first byte is the kind of the site, and
//! the next two are the age of the response.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tandem::announcement::{Announcement, MAX_LIFETIME, MAX_MEMBERS, Site};
use tandem_http::Scheme;

fuzz_target!(|input: (u8, u16, &[u8])| {
    let (kind, age, value) = input;
    let (scheme, host) = match kind % 4 {
        0 => (Scheme::Http, "a.onion"),
        1 => (Scheme::Https, "a.onion"),
        2 => (Scheme::Https, "a.example"),
        _ => (Scheme::Http, "a.example"),
    };
    let site = Site {
        scheme,
        host: host.to_owned(),
        port: 80,
    };
    let age = Duration::from_secs(age.into());
    let Ok(announcement) = Announcement::parse(&site, value, age) else {
        return;
    };
    assert!(site.is_vouched_for());
    let Announcement::Ways(ways) = &announcement else {
        return;
    };
    assert!(!ways.is_empty() && ways.len() <= MAX_MEMBERS);
    for way in ways {
        assert_eq!(way.endpoint.host, site.host);
        assert!(way.endpoint.port != 0 && way.endpoint.options(&[]).is_ok());
        assert!(scheme == Scheme::Http || way.endpoint.transport != "tcp");
        assert!(!way.lifetime.is_zero() && way.lifetime <= MAX_LIFETIME);
    }
    let text = announcement.to_string();
    let again = Announcement::parse(&site, text.as_bytes(), Duration::ZERO);
    assert_eq!(again, Ok(announcement));
});
