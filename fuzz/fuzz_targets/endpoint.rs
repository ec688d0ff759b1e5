//! Endpoints in any text give an error, or a value that is parsed again from its display. So do the
//! ports of onion services in the configuration of tor.
#![no_main]

use std::fmt::{Debug, Display};
use std::str::FromStr;

use libfuzzer_sys::fuzz_target;
use tandem::back::policy::AllowDest;
use tandem::config::gateway::ModeOption;
use tandem::config::gateways::RouteOption;
use tandem::config::onion_ports::{OnionTarget, onion_ports};
use tandem::config::units::{Rate, Size, Span};
use tandem::endpoint::{Endpoint, Via, split_authority};
use tandem::hosts::HostPattern;
use tandem::transport::tor::Exit;

fuzz_target!(|text: &str| {
    same::<Endpoint>(text);
    same::<Via>(text);
    same::<ModeOption>(text);
    same::<AllowDest>(text);
    same::<HostPattern>(text);
    same::<RouteOption>(text);
    let _ = text.parse::<Exit>();
    if let Ok((host, port)) = split_authority(text, Some(1)) {
        let written = if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        };
        assert_eq!(split_authority(&written, None), Ok((host, port)));
    }
    // Units are written rounded, so it is the second writing that must be the first.
    rounded::<Span>(text);
    rounded::<Size>(text);
    rounded::<Rate>(text);
    for port in onion_ports(text) {
        assert_ne!(port.port, 0);
        if let OnionTarget::Address(target) = port.target {
            let written = format!("HiddenServicePort {} {target}", port.port);
            assert_eq!(onion_ports(&written), [port]);
        }
    }
});

fn same<T: FromStr + Display + Debug + PartialEq>(text: &str) {
    let Ok(value) = text.parse::<T>() else { return };
    match value.to_string().parse::<T>() {
        Ok(again) => assert_eq!(again, value),
        Err(_) => panic!("{value} is not read again"),
    }
}

fn rounded<T: FromStr + Display>(text: &str) {
    let Ok(value) = text.parse::<T>() else { return };
    let written = value.to_string();
    match written.parse::<T>() {
        Ok(again) => assert_eq!(again.to_string(), written),
        Err(_) => panic!("{written} is not read again"),
    }
}
