//! The set-ups for which each option of `tandem init` has a meaning. The others refuse it: a client
//! that leaves out `--via` silently would connect without the proxy.

use clap::ValueEnum as _;

use super::{InitArgs, SetUp};

/// An option, and what it is for.
struct Fit {
    flag: &'static str,
    is_given: fn(&InitArgs) -> bool,
    roles: &'static [SetUp],
}

const FITS: [Fit; 8] = [
    Fit {
        flag: "--address",
        is_given: |args| args.address.is_some(),
        roles: &[SetUp::OwnGateway, SetUp::Exit],
    },
    Fit {
        flag: "--ip",
        is_given: |args| args.ip.is_some(),
        roles: &[SetUp::OwnGateway],
    },
    Fit {
        flag: "--port",
        is_given: |args| args.port.is_some(),
        roles: &[SetUp::OwnGateway, SetUp::OnionOperator, SetUp::Exit],
    },
    Fit {
        flag: "--cert",
        is_given: |args| args.cert.is_some(),
        roles: &[SetUp::OwnGateway],
    },
    Fit {
        flag: "--key",
        is_given: |args| args.key.is_some(),
        roles: &[SetUp::OwnGateway],
    },
    Fit {
        flag: "--onion",
        is_given: |args| args.onion.is_some(),
        roles: &[SetUp::OnionOperator],
    },
    Fit {
        flag: "--origin",
        is_given: |args| args.origin.is_some(),
        roles: &[SetUp::OnionOperator],
    },
    Fit {
        flag: "--gateway",
        is_given: |args| args.gateway.is_some(),
        roles: &[SetUp::TorUser],
    },
];

/// Checks that each given option fits the set-up; `None` stands for that of `--from`. The options
/// that are not listed, such as `--via`, fit each.
pub(super) fn check(args: &InitArgs, role: Option<SetUp>) -> Result<(), String> {
    let fits = |fit: &Fit| role.is_some_and(|role| fit.roles.contains(&role));
    let wrong = FITS.iter().find(|fit| (fit.is_given)(args) && !fits(fit));
    let Some(wrong) = wrong else {
        return Ok(());
    };
    let names: Vec<_> = wrong.roles.iter().map(|role| name(*role)).collect();
    let names = match names.as_slice() {
        [others @ .., last] if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        names => names.concat(),
    };
    let given = match role {
        None => "with --from".to_owned(),
        Some(role) => format!("for {}", name(role)),
    };
    let flag = wrong.flag;
    Err(format!("{flag} is for {names}, not {given}: leave it out"))
}

/// Returns the name of a set-up on the command line.
pub(super) fn name(role: SetUp) -> String {
    let value = role.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{planned, text_of};

    /// The set-ups with the options that each of them needs.
    const ROLES: [&[&str]; 6] = [
        &["own-gateway", "--address", "gw.example"],
        &["onion-operator"],
        &["tor-user"],
        &["exit"],
        &["no-gateway"],
        &["--from", "tandem://gw.example:443?ip=203.0.113.5"],
    ];

    #[test]
    fn option_that_does_not_fit_the_set_up_is_refused() {
        let onion = format!("{}.onion", "a".repeat(56));
        // An option, a value, and the set-ups that it fits.
        for (flag, value, fitting) in [
            ("--address", "192.0.2.80", "exit"),
            ("--ip", "203.0.113.5", "own-gateway"),
            ("--port", "8443", "own-gateway onion-operator exit"),
            ("--onion", &onion, "onion-operator"),
            ("--origin", "http://127.0.0.1:81", "onion-operator"),
            ("--gateway", "sites", "tor-user"),
        ] {
            for role in ROLES {
                if role.contains(&flag) {
                    continue;
                }
                let mut given = [role, &[flag, value]].concat();
                if role[0] == "onion-operator" && flag != "--onion" {
                    given.extend(["--onion", &onion]);
                }
                let plan = planned(&given);
                if fitting.split(' ').any(|fits| fits == role[0]) {
                    assert!(plan.is_ok(), "{given:?}: {:?}", plan.err());
                    continue;
                }
                let error = plan.err().unwrap_or_else(|| panic!("{given:?}"));
                let named = error.starts_with(&format!("{flag} is for "));
                let roles = fitting.split(' ').all(|role| error.contains(role));
                assert!(named && roles && error.contains(role[0]), "{error}");
            }
        }
        let error = planned(&["no-gateway", "--port", "1"]).err();
        let expected = "--port is for own-gateway, onion-operator and exit, not for no-gateway: \
                        leave it out";
        assert_eq!(error.as_deref(), Some(expected));
    }

    #[test]
    fn proxy_is_used_by_the_client_of_each_set_up() {
        let onion = format!("{}.onion", "a".repeat(56));
        for role in ROLES {
            let scheme = match role[0] {
                "exit" => "tor://127.0.0.1:9999",
                _ => "socks5://127.0.0.1:9999",
            };
            let mut given = [role, &["--via", scheme]].concat();
            if role[0] == "onion-operator" {
                given.extend(["--onion", &onion]);
            }
            let plan = planned(&given).expect("a plan");
            let text = text_of(&plan, "client/client.toml");
            assert!(text.contains(&format!("via = \"{scheme}\"")), "{text}");
            assert!(
                !text.contains("\"direct\"") && !text.contains("resolve="),
                "{text}"
            );
            assert!(plan.direct.is_none() && plan.address.is_none(), "{role:?}");
            let file: crate::config::File = toml::from_str(text).expect("valid TOML");
            let client = file.client.expect("a client");
            // The certificate and the token are not written yet.
            if client.token_file.is_some() {
                continue;
            }
            let client = client.typed().expect("a valid client");
            assert!(client.via.is_some(), "{role:?}");
            assert!(role[0] != "no-gateway" || !client.discover, "{text}");
        }
        let wrong = planned(&["exit", "--via", "socks5://127.0.0.1:9050"]).err();
        let wrong = wrong.expect("no control port");
        assert!(
            wrong.starts_with("--via: ") && wrong.contains("tor://"),
            "{wrong}"
        );
    }

    #[test]
    fn address_of_an_address_is_refused() {
        let plan = |ip| planned(&["own-gateway", "--address", "192.0.2.1", "--ip", ip]);
        assert!(plan("192.0.2.1").is_ok());
        let error = plan("203.0.113.5").err().expect("another address");
        let names = ["--ip", "--address", "192.0.2.1", "203.0.113.5"];
        assert!(names.iter().all(|name| error.contains(name)), "{error}");
    }
}
