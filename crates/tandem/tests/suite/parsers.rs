//! Property tests of the parsers of user input: a value survives a round trip through its text or
//! is refused with a message, and no input panics.

use std::fmt::Display;
use std::str::FromStr;

use proptest::prelude::*;
use tandem::back::policy::AllowDest;
use tandem::config::File;
use tandem::config::gateway::ModeOption;
use tandem::config::units::{Rate, Size, Span};
use tandem::endpoint::{Endpoint, Via};
use tandem::transport::tor::Exit;

fn stable<T: FromStr<Err: Display> + Display + PartialEq + std::fmt::Debug>(text: &str) {
    match text.parse::<T>() {
        Ok(value) => {
            let again = value
                .to_string()
                .parse::<T>()
                .map_err(|error| error.to_string());
            assert_eq!(
                again.as_ref(),
                Ok(&value),
                "{text:?} was written as {value}"
            );
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

proptest! {
    #[test]
    fn parsers_accept_or_refuse_any_text(text in "\\PC{0,60}") {
        stable::<Endpoint>(&text);
        stable::<Via>(&text);
        stable::<AllowDest>(&text);
        stable::<ModeOption>(&text);
        let _ = text.parse::<Exit>();
        let _ = toml::from_str::<File>(&text);
    }

    #[test]
    fn parsers_accept_or_refuse_plausible_text(
        session in "h2|http|socks5|spdy3|spdy3.1|x",
        transport in "|\\+tcp|\\+tls|\\+x",
        host in "[a-z0-9.:\\[\\]%-]{0,20}",
        port in "[0-9]{0,6}",
        query in "(\\?([a-z]{0,4}=?[a-z]{0,4}&?){0,3})?",
    ) {
        stable::<Endpoint>(&format!("{session}{transport}://{host}:{port}{query}"));
        stable::<Via>(&format!("socks5://{host}:{port}"));
        stable::<Via>(&format!("tor://{host}:{port}"));
        stable::<ModeOption>(&format!("reverse=http://{host}:{port}"));
        stable::<AllowDest>(&format!("{host}:{port}"));
    }

    #[test]
    fn units_survive_formatting_and_parsing(number in 0.0f64..1e6, unit in "ms|s|m|h|B|kB|KiB|MiB|bit|kbit|mbit|gbit|x") {
        let text = format!("{number:.3}{unit}");
        if let Ok(span) = text.parse::<Span>() {
            // The text has whole milliseconds, and is parsed through a float.
            let again: Span = span.to_string().parse().unwrap();
            prop_assert!(span.0.abs_diff(again.0) < std::time::Duration::from_millis(2));
        }
        stable::<Size>(&text);
        stable::<Rate>(&text);
    }
}
