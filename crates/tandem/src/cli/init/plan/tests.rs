//! Tests of the files of each role.

use super::*;
use crate::config::File;
use crate::config::client::{Fallback, SoloMode};

fn read(plan: &Plan, path: &str) -> File {
    let file = plan.files.iter().find(|file| file.path == path);
    toml::from_str(&file.expect("a file").text).expect("valid TOML")
}

fn gateway_of(plan: &Plan) -> String {
    let client = read(plan, "client/client.toml").client.expect("a client");
    client.gateway[0].to_string()
}

#[test]
fn own_gateway_listens_where_clients_connect() {
    for (host, ip, listen, gateway) in [
        (
            "gw.example",
            None,
            &["0.0.0.0", "[::]"][..],
            "gw.example:443?ca=gateway.pem&resolve=system",
        ),
        (
            "gw.example",
            Some("2001:db8::5"),
            &["[::]"],
            "gw.example:443?ca=gateway.pem&ip=2001:db8::5",
        ),
        (
            "203.0.113.5",
            None,
            &["0.0.0.0"],
            "203.0.113.5:443?ca=gateway.pem",
        ),
        (
            "2001:db8::5",
            None,
            &["[::]"],
            "[2001:db8::5]:443?ca=gateway.pem",
        ),
        (
            "127.0.0.9",
            None,
            &["127.0.0.9"],
            "127.0.0.9:443?ca=gateway.pem",
        ),
    ] {
        let own = OwnGatewayPlan {
            host: host.into(),
            ip: ip.map(|ip| ip.parse().expect("an address")),
            port: 443,
            identity: None,
            via: None,
        };
        let plan = own.plan(SystemTime::now()).expect("a plan");
        assert_eq!(gateway_of(&plan), format!("h2+tls://{gateway}"));
        let options = read(&plan, "gateway/gateway.toml").gateway;
        let options = options.expect("a gateway");
        assert_eq!(options.predict_users, Some(1));
        let endpoints: Vec<_> = options.listen.iter().map(Endpoint::to_string).collect();
        let expected: Vec<_> = listen
            .iter()
            .map(|ip| format!("h2+tls://{ip}:443?cert=cert.pem&key=key.pem"))
            .collect();
        assert_eq!(endpoints, expected);
        let secrets = plan.files.iter().filter(|file| file.is_secret);
        let secrets: Vec<_> = secrets.map(|file| file.path).collect();
        assert_eq!(
            secrets,
            ["gateway/token", "client/token", "gateway/key.pem"]
        );
        assert_eq!(plan.files[0].text, plan.files[1].text, "one token for both");
    }
}

#[test]
fn own_gateway_uses_a_given_certificate() {
    let own = OwnGatewayPlan {
        host: "gw.example".into(),
        ip: Some(IpAddr::from([203, 0, 113, 5])),
        port: 8443,
        identity: Some(["/etc/a.pem".into(), "/etc/a.key".into()]),
        via: None,
    };
    let plan = own.plan(SystemTime::now()).expect("a plan");
    assert_eq!(gateway_of(&plan), "h2+tls://gw.example:8443?ip=203.0.113.5");
    assert_eq!(plan.files.len(), 4, "no certificate is made");
}

#[test]
fn plans_for_tor_are_valid_configurations() {
    let host = format!("{}.onion", "a".repeat(56));
    let plan = onion(&host, "http://127.0.0.1:8080", 9980, None);
    let typed = |plan: &Plan| {
        let client = read(plan, "client/client.toml").client.expect("a client");
        client.typed().expect("a valid client");
        read(plan, "gateway/gateway.toml").gateway
    };
    let gateway = typed(&plan).expect("a gateway");
    gateway.typed().expect("a valid gateway");
    let plan = exit([192, 0, 2, 80].into(), 9980, None);
    let gateway = typed(&plan).expect("a gateway");
    gateway.typed().expect("a valid gateway");
    assert_eq!(gateway_of(&plan), "h2+tcp://192.0.2.80:9980?exit=auto");
    let client = read(&plan, "client/client.toml").client.expect("a client");
    assert_eq!(client.fallback, Some(Fallback::Via), "for onion services");
}

#[test]
fn gateway_of_an_onion_service_gets_its_requests_only() {
    let host = format!("{}.onion", "a".repeat(56));
    let via: Via = "socks5://127.0.0.1:9050".parse().expect("a proxy");
    let gateway = format!("h2+tcp://www.{host}:9980");
    let gateway: Endpoint = gateway.parse().expect("an endpoint");
    let url = |token: Option<&str>| {
        let token = token.map(str::to_owned);
        let url = ShareUrl::new(&gateway, token, None).expect("a URL");
        let plan = shared(&url, Some(&via)).expect("a plan");
        read(&plan, "client/client.toml").client
    };
    let operator = onion(&host, "http://127.0.0.1:8080", 9980, None);
    let served = read(&operator, "gateway/gateway.toml").gateway;
    let served = served.expect("a gateway").allow_host;
    let visitor = site(&gateway, &via);
    let clients = [&operator, &visitor].map(|plan| read(plan, "client/client.toml").client);
    for client in clients.into_iter().chain([url(None)]) {
        let client = client.expect("a client").typed().expect("a valid client");
        assert!(client.gateways.is_empty() && client.discover && client.solo.is_some());
        for (host, expected) in [
            (host.as_str(), true),
            (&format!("www.{host}"), true),
            ("other.onion", false),
            ("site.example", false),
        ] {
            assert_eq!(client.route_map.find(host).is_some(), expected, "{host}");
            let is_served = served.iter().any(|pattern| pattern.covers(host));
            assert_eq!(is_served, expected, "{host}: no request gets status 421");
        }
    }
    let own = url(Some("correct-horse-battery")).expect("a client");
    assert_eq!(
        own.gateway.len(),
        1,
        "a gateway with a token is the user's own"
    );
}

#[test]
fn client_of_sites_discovers_gateways() {
    let plan = sites(&Via::Socks(([127, 0, 0, 1], 9050).into()));
    let client = read(&plan, "client/client.toml").client.expect("a client");
    assert!(client.typed().expect("a valid client").discover);
}

#[test]
fn client_without_gateway_is_a_valid_configuration() {
    let client = read(&direct(), "client/client.toml").client;
    let client = client.expect("a client").typed().expect("a valid client");
    assert!(client.gateways.is_empty() && client.via.is_none());
    assert_eq!(client.solo.map(|solo| solo.mode), Some(SoloMode::Direct));
}

#[test]
fn client_of_tor_browser_leaves_its_port_free() {
    let gateway: Endpoint = "h2+tcp://example.onion:9980".parse().expect("an endpoint");
    let listen = |via: &str| {
        let via = via.parse().expect("a proxy");
        let plan = forward(&gateway, &via);
        let client = read(&plan, "client/client.toml").client.expect("a client");
        let last = client.listen.last().map(ToString::to_string);
        (plan.socks, last.unwrap_or_default())
    };
    for (via, port, listener) in [
        ("socks5://127.0.0.1:9050", 9150, ""),
        ("socks5://127.0.0.1:9150", 9250, "socks5://127.0.0.1:9250"),
        ("tor://127.0.0.1:9051", 9150, ""),
        ("tor://127.0.0.1:9151", 9250, "socks5://127.0.0.1:9250"),
    ] {
        assert_eq!(listen(via), (Some(port), listener.to_owned()), "{via}");
    }
}

#[test]
fn shared_url_becomes_three_files() {
    let made = self_signed("gw.example", SystemTime::now()).expect("a certificate");
    let endpoint = "h2+tls://gw.example:443?ip=203.0.113.5".parse();
    let token = Some("correct-horse-battery".to_owned());
    let der = made.der.clone();
    let url = ShareUrl::new(&endpoint.expect("an endpoint"), token, Some(der));
    let plan = shared(&url.expect("a URL"), None).expect("a plan");
    let text = |path: &str| {
        let file = plan.files.iter().find(|file| file.path == path);
        file.expect("a file").text.clone()
    };
    assert_eq!(text("client/token"), "correct-horse-battery\n");
    let written = text("client/gateway.pem").replace('\n', "");
    assert_eq!(written, made.certificate.replace(['\r', '\n'], ""));
    let gateway = "h2+tls://gw.example:443?ca=gateway.pem&ip=203.0.113.5";
    assert_eq!(gateway_of(&plan), gateway);
}
