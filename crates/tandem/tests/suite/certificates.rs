//! Certificates for one test: an authority, and the certificates of a gateway and a client that it
//! signed.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of the next directory. Tests that run at once may use the same name.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// An authority and its certificates for `gw.example` and 127.0.0.1, in files of one directory.
pub(crate) struct Certificates {
    directory: PathBuf,
}

impl Certificates {
    pub(crate) fn new(name: &str) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = format!("tandem-test-{name}-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(directory);
        std::fs::create_dir_all(&directory).unwrap();
        let this = Self { directory };
        let ca_key = rcgen::KeyPair::generate().unwrap();
        let mut ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca_certificate = ca.self_signed(&ca_key).unwrap();
        let issuer = rcgen::Issuer::new(ca, ca_key);
        std::fs::write(this.path("ca.pem"), ca_certificate.pem()).unwrap();
        for name in ["gateway", "client"] {
            let key = rcgen::KeyPair::generate().unwrap();
            let names = vec!["gw.example".to_owned(), "127.0.0.1".to_owned()];
            let certificate = rcgen::CertificateParams::new(names)
                .unwrap()
                .signed_by(&key, &issuer)
                .unwrap();
            std::fs::write(this.path(&format!("{name}.pem")), certificate.pem()).unwrap();
            std::fs::write(this.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
        }
        this
    }

    /// Returns the options by which an endpoint shows the gateway's certificate.
    pub(crate) fn identity(&self) -> String {
        let (certificate, key) = (self.path("gateway.pem"), self.path("gateway.key"));
        format!("cert={certificate}&key={key}")
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
