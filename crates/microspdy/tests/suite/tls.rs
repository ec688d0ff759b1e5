//! TLS: ALPN chooses the version, and data of all sizes passes in both directions.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tandem_spdy::Version;

use crate::build::{Server, scratch};
use crate::client::{Client, connect, get, pattern, post};
use crate::served::file_server;

/// A certificate for `site.example` and the PEM file with its key.
fn certificate(test: &str) -> (CertificateDer<'static>, PathBuf) {
    let signed = rcgen::generate_simple_self_signed(["site.example".to_owned()]).expect("a key");
    let path = scratch(test).join("pair.pem");
    let pem = signed.signing_key.serialize_pem() + &signed.cert.pem();
    std::fs::write(&path, pem).expect("a writable directory");
    (signed.cert.der().clone(), path)
}

fn tls_server(test: &str) -> (Server, CertificateDer<'static>) {
    let (certificate, path) = certificate(test);
    let path = path.display().to_string();
    (file_server(test, &[&path, &path]), certificate)
}

/// A handshake that offers these protocols.
fn handshake(
    port: u16,
    root: &CertificateDer<'static>,
    protocols: &[&str],
) -> StreamOwned<ClientConnection, std::net::TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider's versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    let name = "site.example".try_into().expect("a DNS name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a name");
    StreamOwned::new(connection, connect(port))
}

#[test]
fn alpn_chooses_the_version() {
    let (server, root) = tls_server("tls");
    for (offer, version) in [
        (&["spdy/3"][..], Version::V3),
        (&["spdy/3", "spdy/3.1"][..], Version::V31),
        (&[][..], Version::V3),
    ] {
        let stream = handshake(server.port, &root, offer);
        let mut client = Client::over(Box::new(stream), version);
        for len in [0, 1000, 1_000_000] {
            assert!(client.fetch(&get(&format!("/{len}"))).body == pattern(len));
        }
        let uploads: Vec<_> = (0..5)
            .map(|_| client.upload(&post("/"), pattern(300_000)))
            .collect();
        for upload in uploads {
            assert_eq!(client.finish(upload).body, b"300000 bytes\n");
        }
    }
    server.stop();
}

#[test]
fn tls_refuses_other_protocols_and_plain_text() {
    let (server, root) = tls_server("tls-refused");
    let mut stream = handshake(server.port, &root, &["h2"]);
    assert!(
        stream
            .write_all(b"x")
            .and_then(|()| stream.flush())
            .is_err()
    );
    let mut plain = connect(server.port);
    plain
        .write_all(b"GET / HTTP/1.1\r\n\r\n")
        .expect("a connection");
    let mut rest = Vec::new();
    // An alert, then the end.
    let _ = std::io::Read::read_to_end(&mut plain, &mut rest);
    let mut client = Client::over(
        Box::new(handshake(server.port, &root, &["spdy/3.1"])),
        Version::V31,
    );
    assert_eq!(client.fetch(&get("/1000")).status, 200);
    server.stop();
}

#[test]
fn failed_handshake_leaves_other_sessions_open() {
    let (server, root) = tls_server("tls-others");
    let mut clients: Vec<_> = (0..3)
        .map(|_| {
            let stream = handshake(server.port, &root, &["spdy/3.1"]);
            let mut client = Client::over(Box::new(stream), Version::V31);
            assert_eq!(client.fetch(&get("/1000")).status, 200);
            client
        })
        .collect();
    for _ in 0..3 {
        let mut plain = connect(server.port);
        plain
            .write_all(b"GET / HTTP/1.1\r\n\r\n")
            .expect("a connection");
        let _ = std::io::Read::read_to_end(&mut plain, &mut Vec::new());
        for client in &mut clients {
            assert!(client.fetch(&get("/1000")).body == pattern(1000));
        }
    }
    server.stop();
}

/// Clients of the years before ALPN, which OpenSSL plays.
#[cfg(feature = "openssl-npn")]
mod npn {
    use std::io::{self, Read, Write};
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::build::must;

    /// `openssl s_client`, whose input and output are those of the TLS connection.
    struct Tunnel(Child);

    impl Tunnel {
        fn start(port: u16, name: &str) -> Self {
            let child = Command::new("openssl")
                .args(["s_client", "-quiet", "-tls1_2", "-nextprotoneg", name])
                .arg("-connect")
                .arg(format!("127.0.0.1:{port}"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("apt-get install openssl");
            Self(child)
        }
    }

    impl Read for Tunnel {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.stdout.as_mut().expect("it is piped").read(buffer)
        }
    }

    impl Write for Tunnel {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.stdin.as_mut().expect("it is piped").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.0.stdin.as_mut().expect("it is piped").flush()
        }
    }

    impl Drop for Tunnel {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn npn_chooses_the_version() {
        let (server, _) = tls_server("npn");
        for name in ["spdy/3", "spdy/3.1"] {
            let output = must(
                Command::new("openssl")
                    .args(["s_client", "-nextprotoneg", name, "-connect"])
                    .arg(format!("127.0.0.1:{}", server.port))
                    .stdin(Stdio::null()),
                "openssl",
            );
            assert!(
                output.contains(&format!("Next protocol: (1) {name}\n")),
                "{output}"
            );
        }
        server.stop();
    }

    #[test]
    fn npn_client_fetches_files() {
        let (server, _) = tls_server("npn-files");
        for (name, version) in [("spdy/3", Version::V3), ("spdy/3.1", Version::V31)] {
            let tunnel = Tunnel::start(server.port, name);
            let mut client = Client::over(Box::new(tunnel), version);
            for len in [0, 1000, 1_000_000] {
                assert!(client.fetch(&get(&format!("/{len}"))).body == pattern(len));
            }
            let upload = client.upload(&post("/"), pattern(300_000));
            assert_eq!(client.finish(upload).body, b"300000 bytes\n");
        }
        server.stop();
    }
}
