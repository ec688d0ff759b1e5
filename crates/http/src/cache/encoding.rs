//! The check that a request accepts the content codings of a response (RFC 9110 section 12.5.3).

use crate::Fields;

/// Returns true if a request with the fields `asked` can read a response with the fields `answer`.
///
/// A request without `Accept-Encoding` accepts no coding here. RFC 9110 lets a server choose any
/// coding for it, but such a client decodes nothing.
pub fn accepts_content_encoding(asked: &Fields, answer: &Fields) -> bool {
    let codings = answer.get_all("content-encoding").flat_map(list);
    let mut codings = codings.filter(|coding| !coding.eq_ignore_ascii_case(b"identity"));
    codings.all(|coding| accepts(asked, coding))
}

fn accepts(asked: &Fields, coding: &[u8]) -> bool {
    let weight_of = |name: &[u8]| {
        let mut listed = asked.get_all("accept-encoding").flat_map(list).map(member);
        listed.find_map(|(listed, is_accepted)| {
            canonical(listed)
                .eq_ignore_ascii_case(canonical(name))
                .then_some(is_accepted)
        })
    };
    weight_of(coding).or_else(|| weight_of(b"*")) == Some(true)
}

/// Returns the current name of a coding (RFC 9110 section 8.4.1).
fn canonical(coding: &[u8]) -> &[u8] {
    match coding {
        b"x-gzip" => b"gzip",
        b"x-compress" => b"compress",
        other => other,
    }
}

fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let members = value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    members.filter(|member| !member.is_empty())
}

/// Returns the coding of a list member, and true if its weight is above zero. A malformed weight is
/// zero.
fn member(member: &[u8]) -> (&[u8], bool) {
    let mut parts = member.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
    let coding = parts.next().unwrap_or_default();
    let is_accepted = parts.all(|parameter| {
        let weight = parameter
            .strip_prefix(b"q=")
            .or_else(|| parameter.strip_prefix(b"Q="));
        let number = weight.and_then(|weight| std::str::from_utf8(weight).ok()?.parse().ok());
        number.is_some_and(|number: f32| number > 0.0)
    });
    (coding, is_accepted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_is_accepted_by_name_weight_and_wildcard() {
        for (accepts, coded, expected) in [
            ("gzip, deflate", "gzip", true),
            ("GZIP;q=0.5", "gzip", true),
            ("gzip", "x-gzip", true),
            ("x-gzip", "GZIP", true),
            ("gzip; q=0", "gzip", false),
            ("gzip;q=0.000, *", "gzip", false),
            ("gzip;q=", "gzip", false),
            ("gzip;level=9", "gzip", false),
            ("*", "br", true),
            ("*;q=0", "br", false),
            ("deflate", "gzip", false),
            ("", "gzip", false),
            ("identity", "gzip", false),
            ("gzip", "identity", true),
            ("gzip", "", true),
            ("gzip", "gzip, br", false),
            ("gzip, br", "gzip, br", true),
        ] {
            let asked = [("accept-encoding", accepts)].into_iter().collect();
            let answer = [("content-encoding", coded)].into_iter().collect();
            let found = accepts_content_encoding(&asked, &answer);
            assert_eq!(found, expected, "{accepts} | {coded}");
        }
        let gzip = [("content-encoding", "gzip")].into_iter().collect();
        assert!(!accepts_content_encoding(&Fields::new(), &gzip));
        assert!(accepts_content_encoding(&Fields::new(), &Fields::new()));
    }

    proptest::proptest! {
        #[test]
        fn encoding_takes_any_bytes(accepts: Vec<u8>, coded: Vec<u8>) {
            let asked = [("accept-encoding", accepts)].into_iter().collect();
            accepts_content_encoding(&asked, &[("content-encoding", coded)].into_iter().collect());
        }
    }
}
