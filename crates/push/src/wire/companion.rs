//! The names that belong to the pair of proxies, and the request that opens a companion.

use tandem_http::{Method, RequestHead, Scheme};

use super::next_push::{NEXT_FIELD, NextPush};

/// The authority of the companion: a name that no origin can have (RFC 6761 section 6.4).
const COMPANION: &str = "push.tandem.invalid";

/// The domain of names that belong to the pair of proxies.
const RESERVED: &str = "tandem.invalid";

/// The field of a companion whose client takes promises of HEAD.
const CHECKS_FIELD: &str = "tandem-checks";

/// The field of a companion whose client takes promises of conditional requests.
const CONDITIONAL_CHECKS_FIELD: &str = "tandem-conditional-checks";

/// The field of a companion whose client takes references to pushes.
const CROSSINGS_FIELD: &str = "tandem-crossings";

/// The field of a companion whose client gives one push to several requests, and marks requests
/// that must not get a reference.
const SECOND_CROSSINGS_FIELD: &str = "tandem-second-crossings";

/// The field of a request that had a reference, but found no push. It must get a response.
pub const ASKED_AGAIN_FIELD: &str = "tandem-asked-again";

/// The field of a reference: a push that is on its way answers the request.
pub const CROSSED_FIELD: &str = "tandem-crossed";

/// Returns the request that opens a companion. If `takes_checks` is true, the client takes promises
/// of HEAD and of conditional requests, and the session's protocol can carry them. It takes the
/// pushes of `next` too.
pub fn companion_request(takes_checks: bool, next: NextPush) -> RequestHead {
    let mut request = RequestHead {
        method: Method::Post,
        ..RequestHead::get(Scheme::Http, COMPANION, "/")
    };
    if takes_checks {
        request.fields.push(CHECKS_FIELD, "1");
        request.fields.push(CONDITIONAL_CHECKS_FIELD, "1");
    }
    request.fields.push(CROSSINGS_FIELD, "1");
    request.fields.push(SECOND_CROSSINGS_FIELD, "1");
    if let Some(next) = next.as_str() {
        request.fields.push(NEXT_FIELD, next);
    }
    request
}

/// Returns whether the client of a companion takes references to pushes.
pub fn takes_references(companion: &RequestHead) -> bool {
    companion.fields.get(CROSSINGS_FIELD) == Some(b"1")
}

/// Returns whether several requests may be referred to one push.
pub fn takes_second_references(companion: &RequestHead) -> bool {
    companion.fields.get(SECOND_CROSSINGS_FIELD) == Some(b"1")
}

/// Returns whether the client of a companion takes promises of HEAD.
pub fn takes_checks(companion: &RequestHead) -> bool {
    companion.fields.get(CHECKS_FIELD) == Some(b"1")
}

/// Returns whether the client of a companion takes promises of conditional requests.
pub fn takes_conditional_checks(companion: &RequestHead) -> bool {
    companion.fields.get(CONDITIONAL_CHECKS_FIELD) == Some(b"1")
}

/// Returns whether a request opens a companion.
pub fn is_companion(request: &RequestHead) -> bool {
    request.method == Method::Post && request.authority == COMPANION
}

/// Returns whether an authority, with or without a port, belongs to the pair of proxies. No page
/// may reach it.
pub fn is_reserved(authority: &str) -> bool {
    // Each request is checked, and a search for a character costs several times as much.
    let colon = authority.bytes().rposition(|byte| byte == b':');
    let host = authority[..colon.unwrap_or(authority.len())].trim_end_matches('.');
    let Some(at) = host.len().checked_sub(RESERVED.len()) else {
        return false;
    };
    host.is_char_boundary(at)
        && host[at..].eq_ignore_ascii_case(RESERVED)
        && (at == 0 || host.as_bytes()[at - 1] == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn companion_is_a_post_to_its_authority() {
        assert!(is_companion(&companion_request(false, NextPush::Off)));
        assert!(is_companion(&companion_request(true, NextPush::Off)));
        let get = RequestHead::get(Scheme::Http, COMPANION, "/");
        assert!(!is_companion(&get));
        let elsewhere = RequestHead {
            authority: "push.example".to_owned(),
            ..companion_request(false, NextPush::Off)
        };
        assert!(!is_companion(&elsewhere));
        assert_eq!(companion_request(false, NextPush::Off).path, "/");
    }

    #[test]
    fn companion_tells_whether_checks_are_taken() {
        for taken in [false, true] {
            let companion = companion_request(taken, NextPush::Off);
            assert_eq!(takes_checks(&companion), taken);
            assert!(takes_references(&companion) && takes_second_references(&companion));
        }
    }

    #[test]
    fn companion_tells_which_next_pages_are_taken() {
        for next in [NextPush::Off, NextPush::Validators, NextPush::Bodies] {
            let mut companion = companion_request(true, next);
            assert_eq!(NextPush::of_companion(&companion), next);
            companion.fields.set(NEXT_FIELD, "everything");
            assert_eq!(NextPush::of_companion(&companion), NextPush::Off);
        }
    }

    #[test]
    fn reserved_names_are_the_domain_and_below() {
        for own in [
            COMPANION,
            "Push.Tandem.Invalid.:80",
            "tandem.invalid",
            "warm-up.tandem.invalid:8080",
        ] {
            assert!(is_reserved(own), "{own}");
        }
        for other in [
            "xtandem.invalid",
            "tandem.invalid.example",
            "invalid",
            "",
            "\u{e9}andem.invalid",
        ] {
            assert!(!is_reserved(other), "{other}");
        }
    }
}
