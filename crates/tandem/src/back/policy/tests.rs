use super::*;

#[test]
fn refuses_what_is_not_public() {
    let policy = Policy::default();
    for address in [
        "127.0.0.1:80",
        "10.1.2.3:80",
        "169.254.169.254:80",
        "192.168.0.1:443",
        "172.31.0.1:80",
        "100.64.0.1:80",
        "0.0.0.0:80",
        "224.0.0.1:80",
        "255.255.255.255:80",
        "192.0.2.80:80",
        "198.18.0.1:80",
        "[::1]:80",
        "[::]:80",
        "[fd00::1]:80",
        "[fe80::1]:80",
        "[ff02::1]:80",
        "[::ffff:127.0.0.1]:80",
        "[64:ff9b::7f00:1]:80",
        "[2002:7f00:1::]:80",
        "[2001:db8::1]:80",
        "168.63.129.16:80",
        "[64:ff9b::a83f:8110]:80",
        "93.184.216.34:22",
        "93.184.216.34:8080",
    ] {
        assert!(!policy.permits(address.parse().unwrap()), "{address}");
    }
    for address in [
        "93.184.216.34:80",
        "93.184.216.34:443",
        "[2606:2800::1]:443",
        "[64:ff9b::5db8:d822]:80",
    ] {
        assert!(policy.permits(address.parse().unwrap()), "{address}");
    }
}

#[tokio::test]
async fn direct_looks_up_no_onion_name() {
    let direct = Direct {
        policy: Policy::default(),
        named: None,
        own: OwnListeners::default(),
        options: SocketOptions::default(),
    };
    for host in ["secretservice.onion", "www.a.ONION.", "onion"] {
        let target = Target::new(host.into(), 80);
        let error = direct.resolve(0, &target).await.expect_err(host);
        // A look-up would have failed on the side of the origin.
        assert_eq!((error.kind, error.side), (Kind::Dns, Side::Local), "{host}");
        assert!(error.detail.contains("--via"), "{error:?}");
    }
}

#[tokio::test]
async fn direct_refuses_its_own_listener() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let bound = listener.local_addr().expect("an address");
    let target = Target::new("127.0.0.1".into(), bound.port());
    let transports = crate::transport::registry::Transports::default();
    let endpoints = ["http://127.0.0.1:0".parse().expect("an endpoint")];
    for (bound, expected) in [(&[bound][..], Some(Kind::Loop)), (&[], None)] {
        let direct = Direct {
            policy: Policy::default(),
            named: Some(target.clone()),
            own: OwnListeners::new(&endpoints, &transports, bound).expect("known"),
            options: SocketOptions::default(),
        };
        let dialled = direct.dial(&target, &Isolation::none()).await;
        assert_eq!(dialled.err().map(|error| error.kind), expected);
    }
}

/// A client has no option --allow-dest.
#[test]
fn refusal_names_an_option_of_the_program() {
    for (of, options, others) in [
        (
            PolicyOf::Gateway,
            [" --allow-dest", " --allow-port"],
            "--solo",
        ),
        (PolicyOf::Solo, ["--solo-allow-dest"; 2], " --allow"),
    ] {
        let policy = Policy {
            of,
            ..Policy::default()
        };
        for (refused, option) in [
            (Refused::NotPublic, options[0]),
            (Refused::OwnNetwork, options[0]),
            (Refused::Port, options[1]),
        ] {
            let text = policy.remedy(refused);
            assert!(text.contains(option) && !text.contains(others), "{text}");
        }
        let text = policy.refusal();
        assert!(
            text.contains(options[0]) && !text.contains(others),
            "{text}"
        );
    }
}

#[test]
fn addresses_of_this_machine_need_permission() {
    let own: [IpAddr; 2] = [
        [5, 6, 7, 8].into(),
        "2a02:1234::1".parse().expect("address"),
    ];
    let check = |policy: &Policy, address: &str| {
        let address = address.parse().expect("an address");
        policy.check(address, |ip| own.contains(&ip))
    };
    let policy = Policy::default();
    for (address, refused) in [
        ("5.6.7.8:80", Some(Refused::OwnNetwork)),
        ("[::ffff:5.6.7.8]:443", Some(Refused::OwnNetwork)),
        ("[64:ff9b::506:708]:443", Some(Refused::OwnNetwork)),
        ("[2002:506:708::1]:443", Some(Refused::OwnNetwork)),
        ("[2a02:1234::1]:443", Some(Refused::OwnNetwork)),
        ("5.6.7.9:80", None),
        ("5.6.7.9:81", Some(Refused::Port)),
        ("127.0.0.1:80", Some(Refused::NotPublic)),
    ] {
        assert_eq!(check(&policy, address), refused, "{address}");
    }
    let policy = Policy {
        allow: vec!["5.6.7.8:8080".parse().expect("a rule")],
        ..policy
    };
    assert_eq!(check(&policy, "5.6.7.8:8080"), None);
    assert_eq!(check(&policy, "5.6.7.8:80"), Some(Refused::OwnNetwork));
}

#[test]
fn allows_what_is_named() {
    let policy = Policy {
        allow: ["10.0.0.0/8:8080", "[::1]", "192.0.2.80"]
            .map(|a| a.parse().unwrap())
            .to_vec(),
        ..Policy::default()
    };
    for (address, permitted) in [
        ("10.9.9.9:8080", true),
        ("10.9.9.9:80", false),
        ("[::1]:99", true),
        ("192.0.2.80:9980", true),
        ("192.0.2.81:80", false),
    ] {
        assert_eq!(
            policy.permits(address.parse().unwrap()),
            permitted,
            "{address}"
        );
    }
    for bad in ["10.0.0.0/33", "x", "10.0.0.1:port", "[::1"] {
        assert!(bad.parse::<AllowDest>().is_err(), "{bad}");
    }
    assert_eq!(
        "[fd00::/8]:443".parse::<AllowDest>().unwrap().to_string(),
        "[fd00::/8]:443"
    );
}
