//! Configuration files: the examples, and the errors that `check-config` and `explain` name.

use crate::process::{file, run};
use crate::submission_server::Files;

#[test]
fn example_files_contain_the_defaults() {
    let text = &example("client");
    let parsed: tandem::config::File = toml::from_str(text).unwrap();
    let client = parsed.client.expect("[client]");
    let needed = tandem::config::ClientOptions {
        gateway: client.gateway.clone(),
        via: client.via.clone(),
        ..Default::default()
    };
    for via in ["", "socks5://127.0.0.1:9050", "tor://127.0.0.1:9051"] {
        // These are the values that a user fills in, following the file's comments.
        let via = (!via.is_empty()).then(|| via.parse().unwrap());
        let (client, needed) = (client.clone(), needed.clone());
        let filled = tandem::config::ClientOptions {
            via: via.clone(),
            ..client
        };
        let needed = tandem::config::ClientOptions { via, ..needed };
        assert_eq!(
            format!("{:?}", filled.typed().unwrap()),
            format!("{:?}", needed.typed().unwrap())
        );
    }
    assert_covers(
        text,
        "client",
        &serde_json::to_value(tandem::config::ClientOptions::default()).unwrap(),
    );

    let text = &example("gateway");
    let parsed: tandem::config::File = toml::from_str(text).unwrap();
    let gateway = parsed.gateway.expect("[gateway]");
    let needed = tandem::config::GatewayOptions {
        listen: gateway.listen.clone(),
        open: gateway.open,
        ..Default::default()
    };
    assert_eq!(
        format!("{:?}", gateway.clone().typed().unwrap()),
        format!("{:?}", needed.typed().unwrap())
    );
    assert_covers(
        text,
        "gateway",
        &serde_json::to_value(tandem::config::GatewayOptions::default()).unwrap(),
    );

    let text = &example("relay");
    let parsed: tandem::config::File = toml::from_str(text).unwrap();
    let relay = parsed.relay.expect("[relay]");
    let needed = tandem::config::RelayOptions {
        listen: relay.listen.clone(),
        gateway: relay.gateway.clone(),
        open: relay.open,
        ..Default::default()
    };
    let typed = |options: tandem::config::RelayOptions| {
        let transports = tandem::transport::registry::Transports::default();
        format!("{:?}", options.typed_with(&transports).unwrap())
    };
    assert_eq!(typed(relay), typed(needed));
    assert_covers(
        text,
        "relay",
        &serde_json::to_value(tandem::config::RelayOptions::default()).unwrap(),
    );

    let text = &example("issuer");
    let parsed: tandem::config::File = toml::from_str(text).unwrap();
    let accounts = format!(
        "[[client]]\nname = \"a\"\ntoken-sha256 = \"{}\"\n",
        "0".repeat(64)
    );
    let accounts = file("accounts.toml", &accounts);
    let issuer = tandem::config::IssuerOptions {
        accounts: Some(accounts.display().to_string()),
        ..parsed.issuer.expect("[issuer]")
    };
    let needed = tandem::config::IssuerOptions {
        listen: issuer.listen.clone(),
        accounts: issuer.accounts.clone(),
        keys: issuer.keys.clone(),
        ..Default::default()
    };
    let typed = |options: tandem::config::IssuerOptions| {
        let transports = tandem::transport::registry::Transports::default();
        format!("{:?}", options.typed_with(&transports).unwrap())
    };
    assert_eq!(typed(issuer), typed(needed));
    assert_covers(
        text,
        "issuer",
        &serde_json::to_value(tandem::config::IssuerOptions::default()).unwrap(),
    );

    let text = &example("bridge");
    let parsed: tandem::config::File = toml::from_str(text).unwrap();
    let bridge = parsed.bridge.expect("[bridge]");
    let needed = tandem::config::BridgeOptions {
        listen: bridge.listen.clone(),
        open: bridge.open,
        ..Default::default()
    };
    assert_eq!(
        format!("{:?}", bridge.clone().typed().unwrap()),
        format!("{:?}", needed.typed().unwrap())
    );
    assert_covers(
        text,
        "bridge",
        &serde_json::to_value(tandem::config::BridgeOptions::default()).unwrap(),
    );
}

fn example(role: &str) -> String {
    std::fs::read_to_string(format!(
        "{}/../../packaging/{role}.toml",
        env!("CARGO_MANIFEST_DIR")
    ))
    .unwrap()
}

/// Checks that every key is in the example, at least in a comment.
fn assert_covers(text: &str, role: &str, keys: &serde_json::Value) {
    for key in keys.as_object().unwrap().keys() {
        let written = text.lines().any(|line| {
            line.trim_start_matches(['#', ' '])
                .starts_with(&format!("{key} ="))
        });
        assert!(written, "{role}: the example does not show {key}");
    }
}

#[test]
fn check_config_names_the_error() {
    let good = file(
        "good.toml",
        "[client]\ngateway = [\"h2+tcp://127.0.0.1:1\"]\n",
    );
    let (ok, out, _) = run(&["check-config", good.to_str().unwrap()]);
    assert!(ok && out.contains("good"), "{out}");
    for (name, text, part) in [
        ("unknown.toml", "[client]\ngatway = []\n", "gatway"),
        ("type.toml", "[client]\ngateway = 5\n", "gateway"),
        (
            "unit.toml",
            "[client]\ngateway = [\"h2+tcp://127.0.0.1:1\"]\nmax-age = \"10 parsecs\"\n",
            "10 parsecs",
        ),
        ("nothing.toml", "", "it has no table of a role"),
        (
            "bridge.toml",
            "[bridge]\nlisten = [\"http://127.0.0.1:1\"]\n",
            "the bridge would let no one in",
        ),
        (
            "back.toml",
            "[bridge]\nopen = true\nlisten = [\"http://127.0.0.1:1\"]\nback = \"h2\"\nmode = \"reverse=http://127.0.0.1:2\"\n",
            "back: needs --mode forward",
        ),
        (
            "noone.toml",
            "[gateway]\nlisten = [\"h2+tcp://127.0.0.1:1\"]\n",
            "let no one in",
        ),
        (
            "never.toml",
            "[client]\ngateway = [\"h2+tcp://127.0.0.1:1\"]\nhead-timeout = \"0s\"\n",
            "head-timeout: must be",
        ),
        (
            "answer.toml",
            "[gateway]\nopen = true\nlisten = [\"h2+tcp://127.0.0.1:1\"]\nresponse-timeout = \"0s\"\n",
            "response-timeout: must be",
        ),
        (
            "host.toml",
            "[gateway]\nopen = true\nlisten = [\"h2+tcp://127.0.0.1:1\"]\nallow-host = [\"a.example\"]\n",
            "allow-host: needs --mode reverse=URL",
        ),
        (
            "level.toml",
            "[gateway]\nopen = true\nlog = \"verbos\"\nlisten = [\"h2+tcp://127.0.0.1:1\"]\n",
            "level.toml: line 3: log: \"verbos\" is no level: write error",
        ),
        (
            "lines.toml",
            "# A comment\n[gateway]\nlisten = [\"h2+tcp://127.0.0.1:1\"]\nmode = \"forward\"\n\
             open = true\nallow-host = [\"a.example\"]\n",
            "lines.toml: line 6: allow-host: needs",
        ),
        (
            "port.toml",
            "[gateway]\nopen = true\nlisten = [\"h2+tcp://127.0.0.1:1\"]\nallow-host = [\"a.example:80\"]\n",
            "a.example:80",
        ),
        (
            "cert.toml",
            "[gateway]\nopen = true\nlisten = [\"h2+tls://127.0.0.1:1?cert=/nonexistent&key=/nonexistent\"]\n",
            "/nonexistent",
        ),
    ] {
        let path = file(name, text);
        let (ok, _, error) = run(&["check-config", path.to_str().unwrap()]);
        assert!(!ok && error.contains(part), "{name}: {error}");
        assert!(!error.contains("panicked"));
        std::fs::remove_file(path).unwrap();
    }
    std::fs::remove_file(good).unwrap();
    let (ok, _, error) = run(&["check-config", "/nonexistent.toml"]);
    assert!(!ok && error.contains("/nonexistent.toml"), "{error}");
}

#[test]
fn check_config_warns_of_a_name_without_addresses() {
    let named = file(
        "named.toml",
        "[client]\ngateway = [\"h2+tls://gw.invalid:443?resolve=system\"]\n",
    );
    let (ok, out, error) = run(&["check-config", named.to_str().unwrap()]);
    assert!(ok && out.contains("with 1 warning"), "{out}{error}");
    let warning = "warning: h2+tls://gw.invalid:443?resolve=system: ";
    assert!(out.contains(warning), "{out}");
    assert!(out.contains("check the name and the network"), "{out}");
    std::fs::remove_file(named).unwrap();
}

#[test]
fn explain_reads_routes_of_a_file() {
    let routes = file(
        "routes.toml",
        "[[route]]\nhosts = [\"*.a.test\"]\ngateway = \"h2+tls://gw.test:443?resolve=system\"\n\
         [client]\ngateway = [\"h2+tcp://127.0.0.1:1\"]\n",
    );
    let path = routes.to_str().unwrap();
    // The name of the gateway cannot be resolved, and no step needs its address.
    let (ok, out, error) = run(&["explain", "-c", path, "http://www.a.test/x"]);
    assert!(
        ok && out.contains("gateway h2+tls://gw.test:443"),
        "{out}{error}"
    );
    assert!(out.contains("the route for *.a.test"), "{out}");
    let (ok, out, _) = run(&["explain", "-c", path, "https://a.test/"]);
    assert!(ok && out.contains("gateway h2+tcp://127.0.0.1:1"), "{out}");
    std::fs::remove_file(routes).unwrap();
    let wrong = file(
        "wrong-route.toml",
        "[[route]]\nhost = [\"a.test\"]\ngateway = \"h2+tcp://127.0.0.1:1\"\n",
    );
    let (ok, _, error) = run(&["explain", "-c", wrong.to_str().unwrap(), "a.test"]);
    assert!(!ok && error.contains("did you mean `hosts`?"), "{error}");
    std::fs::remove_file(wrong).unwrap();
}

#[test]
fn check_config_creates_no_keys_of_an_issuer() {
    let account = format!(
        "[[client]]\nname = \"carol\"\ntoken-sha256 = \"{}\"\n",
        "0".repeat(64)
    );
    let accounts = file("checked-accounts.toml", &account);
    let keys = accounts.with_file_name("keys-of-issuer");
    let text = format!(
        "[issuer]\nlisten = [\"h2+tcp://127.0.0.1:0\"]\naccounts = {accounts:?}\nkeys = {keys:?}\n"
    );
    let path = file("checked-issuer.toml", &text);
    let (ok, out, error) = run(&["check-config", path.to_str().unwrap()]);
    assert!(ok && out.contains("issuer: listens on"), "{out}{error}");
    assert!(!keys.exists());
    let path = file("checked-issuer.toml", &text.replace("keys = ", "keyz = "));
    let (ok, _, error) = run(&["check-config", path.to_str().unwrap()]);
    assert!(!ok && error.contains("did you mean `keys`?"), "{error}");
}

#[test]
fn check_config_creates_no_store_of_submissions() {
    let files = Files::new("checked-store", "");
    let (rights, key) = (files.path("rights.toml"), files.path("key.pem"));
    let text = format!(
        "[gateway]\nlisten = [\"h2+tcp://127.0.0.1:0\"]\nmode = \"submit=http://127.0.0.1:1/in\"\n\
         submit-rights = {rights:?}\nsubmit-key = {key:?}\nsubmit-store = {:?}\n",
        files.store()
    );
    let path = file("checked-submissions.toml", &text);
    let before = std::fs::read_dir(files.directory()).unwrap().count();
    let (ok, out, error) = run(&["check-config", path.to_str().unwrap()]);
    assert!(ok && out.contains("gateway: listens on"), "{out}{error}");
    let (_, out, _) = run(&["doctor", "gateway", "-c", path.to_str().unwrap()]);
    assert!(
        out.contains("every certificate and its key can be used"),
        "{out}"
    );
    let after = std::fs::read_dir(files.directory()).unwrap().count();
    assert_eq!(before, after, "the checks open no store");
}

#[test]
fn check_config_opens_no_predictor() {
    let text = "[gateway]\nopen = true\nlisten = [\"h2+tcp://127.0.0.1:1\"]\npredict-state = \"/nonexistent/state\"\n";
    let path = file("predictor.toml", text);
    let (ok, out, error) = run(&["check-config", path.to_str().unwrap()]);
    assert!(ok, "{error}");
    // The machine of the service may have the directory.
    let warning = "warning: predict-state: there is no directory /nonexistent on this machine";
    assert!(out.contains(warning), "{out}");
    let (ok, _, error) = run(&["gateway", "-c", path.to_str().unwrap()]);
    assert!(
        !ok && error.contains("predict-state: /nonexistent/state"),
        "{error}"
    );
}

#[test]
fn check_config_refuses_scripts_without_a_predictor() {
    for (predict, is_accepted) in [(true, true), (false, false)] {
        let text = format!(
            "[gateway]\nopen = true\nlisten = [\"h2+tcp://127.0.0.1:1\"]\npredict = {predict}\n\
             predict-scripts = true\n"
        );
        let path = file(&format!("scripts-{predict}.toml"), &text);
        let (ok, _, error) = run(&["check-config", path.to_str().unwrap()]);
        assert_eq!(ok, is_accepted, "{error}");
        assert_eq!(
            error.contains("predict-scripts: needs predict"),
            !is_accepted
        );
    }
}

#[test]
fn file_of_secrets_is_told_without_its_text() {
    let secret = "s3cret-s3cret-s3cret-s3cret";
    let token = file("given-as-configuration", secret);
    for command in ["client", "gateway"] {
        let (success, _, problem) = run(&[command, "-c", token.to_str().unwrap()]);
        assert!(
            !success && problem.contains("line 1: this is no TOML"),
            "{problem}"
        );
        assert!(!problem.contains("s3cret"), "{problem}");
    }
    let gateway = file("of-a-gateway.toml", "[gateway]\nopen = true\n");
    let (success, _, problem) = run(&["client", "-c", gateway.to_str().unwrap()]);
    assert!(
        !success && problem.contains("it has no table [client]"),
        "{problem}"
    );
    for path in [token, gateway] {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn log_of_an_unknown_level_is_refused() {
    let (success, _, problem) = run(&["gateway", "--open", "--log", "verbose"]);
    assert!(
        !success && problem.contains("\"verbose\" is no level"),
        "{problem}"
    );
}
