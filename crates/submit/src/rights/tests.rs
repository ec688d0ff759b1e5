//! Tests of the rights of clients.

use proptest::prelude::*;

use super::*;

const TOKEN: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

fn client(more: &str) -> Client {
    let text = format!("[[client]]\nname = \"a\"\ntoken-sha256 = \"{TOKEN}\"\n{more}");
    let rights = Rights::parse(&text).unwrap_or_else(|error| panic!("{error}"));
    let hash = sha256_of(TOKEN).expect("64 digits");
    rights.by_token(&hash).expect("the client").clone()
}

#[test]
fn clients_are_found_by_their_credentials() {
    let text = format!(
        "[[client]]\nname = \"a\"\ntoken-sha256 = \"{TOKEN}\"\n\
         [[client]]\nname = \"b\"\ncertificate-sha256 = \"{}\"\n",
        "AB:".repeat(31) + "AB"
    );
    let rights = Rights::parse(&text).expect("valid");
    let hash = sha256_of(TOKEN).expect("64 digits");
    assert_eq!(rights.by_token(&hash).expect("a token").name, "a");
    assert!(rights.by_certificate(&hash).is_none() && rights.has_certificates());
    assert_eq!(rights.by_certificate(&[0xab; 32]).expect("b").name, "b");
    assert!(rights.by_token(&[0xab; 32]).is_none());
}

#[test]
fn rights_errors_count_clients_and_lines() {
    let wrong = |text: &str| Rights::parse(text).expect_err(text).to_string();
    assert_eq!(wrong(""), "the file has no [[client]]");
    assert!(wrong("[[client]]\nname = \"a\"\n").contains("client 1: give token-sha256"));
    assert_eq!(
        wrong("[[client]]\nnames = \"a\"\n"),
        "line 2: unknown field"
    );
    let entry = format!("[[client]]\nname = \"a\"\ntoken-sha256 = \"{TOKEN}\"\n");
    assert!(wrong(&entry.repeat(2)).contains("client 2: the name or a credential is given twice"));
    for (line, key) in [
        ("paths = [\"x\"]", "paths"),
        ("paths = [\"/a/../b\"]", "paths"),
        ("paths = [\"/a;b\"]", "paths"),
        ("types = [\"json\"]", "types"),
        ("types = [\"image/png, text/html\"]", "types"),
        ("types = [\"*/*\"]", "types"),
        ("max-bytes = 0", "max-bytes"),
        ("max-bytes = 67108865", "max-bytes"),
        ("max-bytes = \"1MiB\"", "line 4: max-bytes: invalid type"),
    ] {
        assert!(wrong(&format!("{entry}{line}")).contains(key), "{line}");
    }
    let short = entry.replace("9f86", "");
    assert!(wrong(&short).contains("token-sha256: must be 64"));
}

#[test]
fn rights_errors_hide_the_text_of_the_file() {
    let entry = format!("[[client]]\nname = \"carol\"\ntoken-sha256 = \"{TOKEN}\"\n");
    for line in [
        "token-sha256 = carol-s-token",
        "carol-s-token",
        "\"carol-s-token\" = 1",
        "max-bytes = \"carol-s-token\"",
        "per-day = 'carol-s-token'",
        "paths = [\"carol-s-token\"]",
        "[[client]]\nname = \"carol\"\ntoken-sha256 = \"carol-s-token\"",
        "[[client]]\nname = \"carol\"",
        "[[carol-s-token]]",
        "[carol-s-token",
        "name = \"carol\"",
    ] {
        let error = Rights::parse(&format!("{entry}{line}")).expect_err(line);
        let text = format!("{error}");
        assert!(
            !text.contains("carol") && !text.contains("s-token"),
            "{text}"
        );
        assert!(text.contains("line ") || text.contains("client "), "{text}");
    }
}

#[test]
fn client_check_applies_each_right() {
    let client = client(
        "paths = [\"/reports\", \"/a/\"]\ntypes = [\"image/*\", \"Application/JSON\"]\n\
         max-bytes = 100",
    );
    let check = |path: &str, kind: &str, length| client.check(path, Some(kind.as_bytes()), length);
    for path in [
        "/reports",
        "/reports/",
        "/reports/caf%c3%a9.x",
        "/a",
        "/a/b:(c)'d'@e",
    ] {
        assert_eq!(check(path, "image/png", Some(100)), Ok(()), "{path}");
    }
    for path in [
        "",
        "/",
        "/reportsx",
        "/reports/../x",
        "/reports/%2E%2e/x",
        "/reports/a%2fb",
        "/reports/..;/admin",
        "/reports/..;x=1/admin",
        "/reports/a;b",
        "/reports/%252e%252e%252fadmin",
        "/reports/a%00",
        "/reports/a%3bb",
        "/reports/a%5Cb",
        "/reports//a",
        "/reports/a%2",
        "/reports/a%zz",
        "/reports/caf\u{e9}",
        "/reports/a b",
        "/reports/a\"b",
    ] {
        let problem = check(path, "image/png", None);
        assert_eq!(problem, Err(Problem::PathNotAllowed), "{path}");
    }
    assert_eq!(check("/a", "application/json; charset=utf-8", None), Ok(()));
    for kind in [
        "text/plain",
        "",
        "imagex/png",
        "*/*",
        "image/*",
        "image/png, text/html",
        "image/png; a=\"b\", text/html",
        "image/png text/html",
        "application/json;text/html",
    ] {
        let problem = check("/a", kind, None);
        assert_eq!(problem, Err(Problem::TypeNotAllowed), "{kind}");
    }
    assert_eq!(check("/a", "image/png", Some(101)), Err(Problem::TooLarge));
}

#[test]
fn client_without_limits_sends_anywhere() {
    let client = client("");
    assert_eq!(client.check("", None, Some(DEFAULT_MAX_BYTES)), Ok(()));
    assert_eq!(client.check("/x/y", None, None), Ok(()));
    assert_eq!(
        client.check("/x/./y", None, None),
        Err(Problem::PathNotAllowed)
    );
    assert!(client.quota.allows(u64::MAX, u64::MAX));
}

#[test]
fn quota_compares_totals() {
    let quota = Quota {
        submissions: Some(2),
        bytes: Some(10),
    };
    assert!(quota.allows(2, 10) && !quota.allows(3, 0) && !quota.allows(0, 11));
}

/// Decodes the percent-encoded characters once.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut decoded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part
            .get(..2)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match digits {
            Some(byte) => decoded.push_str(&format!("{}{}", char::from(byte), &part[2..])),
            None => decoded.push_str(&format!("%{part}")),
        }
    }
    decoded
}

/// Resolves a path as the most liberal servers do: they remove parameters, decode twice, take
/// backslashes for slashes, merge slashes, and resolve dot segments.
fn resolved(path: &str) -> String {
    let mut text = path.to_owned();
    for _ in 0..3 {
        let segments = text.split('/').map(|segment| segment.split(';').next());
        let segments: Vec<_> = segments.map(Option::unwrap_or_default).collect();
        text = decoded(&segments.join("/")).replace('\\', "/");
    }
    let mut segments = Vec::new();
    for segment in text.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    format!("/{}", segments.join("/"))
}

proptest! {
    #[test]
    fn granted_paths_stay_below_their_prefix(path in "(/a)?[/a%2e.f5c3b;\\\\]{0,16}") {
        let client = client("paths = [\"/a\"]");
        if client.check(&path, None, None).is_ok() {
            let resolved = resolved(&path);
            prop_assert!(resolved == "/a" || resolved.starts_with("/a/"), "{resolved}");
        }
    }

    #[test]
    fn rights_parser_survives_any_text(text in "\\PC{0,200}") {
        let _ = Rights::parse(&text);
    }
}
