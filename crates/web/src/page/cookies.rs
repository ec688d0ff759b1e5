//! The cookies of a recorded page: the `Set-Cookie` fields that a first visit gets.

use tandem_http::cache::unix_seconds;

/// The largest number of cookies of one response.
const MAX_COOKIES: usize = 8;
/// The length in bytes above which a recorded field is left out.
const MAX_LENGTH: usize = 1024;
/// The begin of the year 2000. An earlier `Expires` deletes a cookie in every recording.
const DELETED: u64 = 946_684_800;

/// Returns the cookies that a recorded response set. Lifetimes are left out, since recordings are
/// old, and so are the attributes that plain HTTP excludes.
pub(super) fn recorded(fields: &[(String, String)]) -> Vec<String> {
    fields
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie"))
        // HAR recorders join several fields by line ends.
        .flat_map(|(_, value)| value.split('\n'))
        .filter_map(cookie)
        .take(MAX_COOKIES)
        .collect()
}

/// Returns true if a response can have this field.
pub(super) fn is_valid(cookie: &str) -> bool {
    cookie.len() <= MAX_LENGTH
        && cookie.bytes().all(|b| b == b' ' || b.is_ascii_graphic())
        && name(cookie).is_some()
}

/// Returns the name of a cookie.
pub(crate) fn name(cookie: &str) -> Option<&str> {
    let (name, _) = cookie.split_once('=')?;
    Some(name.trim()).filter(|name| !name.is_empty() && !name.contains(';'))
}

/// Reduces a recorded field to name, value, domain and path. Returns `None` for a deletion.
fn cookie(field: &str) -> Option<String> {
    let mut parts = field.split(';').map(str::trim);
    let mut kept = parts.next()?.to_owned();
    for part in parts {
        let (attribute, value) = part.split_once('=').unwrap_or((part, ""));
        match attribute.to_ascii_lowercase().as_str() {
            "domain" | "path" => {
                kept.push_str("; ");
                kept.push_str(part);
            }
            "max-age" if value.starts_with(['0', '-']) => return None,
            "expires" if unix_seconds(value.replace('-', " ").as_bytes())? < DELETED => {
                return None;
            }
            _ => {}
        }
    }
    is_valid(&kept).then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(fields: &[&str]) -> Vec<String> {
        let fields: Vec<_> = fields
            .iter()
            .map(|value| ("Set-Cookie".to_owned(), (*value).to_owned()))
            .collect();
        recorded(&fields)
    }

    #[test]
    fn recorded_cookies_keep_value_domain_and_path() {
        assert_eq!(
            of(&["a=1; Expires=Wed, 28-Dec-2016 14:42:45 GMT; path=/; domain=.a.test; Secure"]),
            ["a=1; path=/; domain=.a.test"]
        );
        assert_eq!(of(&["a=1; HttpOnly\nb=2"]), ["a=1", "b=2"]);
        let deleted = [
            "a=x; Max-Age=0",
            "a=x; expires=Thu, 01 Jan 1970 00:00:00 GMT",
            "=x",
            "a",
            "a=\u{e9}",
        ];
        assert!(of(&deleted).is_empty());
        assert_eq!(of(&["a=1"; 20]).len(), MAX_COOKIES);
        assert!(of(&[&format!("a={}", "x".repeat(MAX_LENGTH))]).is_empty());
    }
}
