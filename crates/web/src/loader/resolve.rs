//! Configured addresses for names that no resolver knows: the same rules as Chromium's
//! `--host-resolver-rules`.

/// Returns true if a name matches a pattern, in which `*` stands for any text.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern.eq_ignore_ascii_case(name),
        Some((start, rest)) => {
            let begins = name
                .get(..start.len())
                .is_some_and(|begin| begin.eq_ignore_ascii_case(start));
            begins
                && (start.len()..=name.len())
                    .any(|at| name.get(at..).is_some_and(|end| fits(rest, end)))
        }
    }
}

/// The address to connect to for a name and port: of the first rule that fits, else as they are.
pub(super) fn address(rules: &[(String, String)], name: &str, port: u16) -> String {
    match rules.iter().find(|(pattern, _)| fits(pattern, name)) {
        None => format!("{name}:{port}"),
        Some((_, to)) => {
            let bare = to
                .rsplit_once(':')
                .is_none_or(|(_, end)| end.parse::<u16>().is_err() || end.ends_with(']'));
            if bare {
                format!("{to}:{port}")
            } else {
                to.clone()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules() {
        let rules = [
            ("*.test", "10.0.0.1"),
            ("a*c", "[::1]"),
            ("*", "127.0.0.1:99"),
        ];
        let rules = rules.map(|(name, to)| (name.to_owned(), to.to_owned()));
        for (name, to) in [
            ("x.test", "10.0.0.1:80"),
            ("ABC", "[::1]:80"),
            ("ac", "[::1]:80"),
            ("b", "127.0.0.1:99"),
        ] {
            assert_eq!(address(&rules, name, 80), to);
        }
        assert_eq!(address(&rules[..1], "test", 80), "test:80");
        assert_eq!(address(&[], "[::1]", 81), "[::1]:81");
    }
}
