//! Authentication by Tor's cookie, a file that only programs with control over the Tor client can
//! read. Each end proves that it has read the file, and neither reveals its content (SAFECOOKIE in
//! <https://spec.torproject.org/control-spec/commands.html>). Any program may listen at the control
//! port, and may name any file.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use rustls::crypto::ring;
use rustls::crypto::tls13::OkmBlock;

use super::unreachable;
use crate::error::Error;
use crate::secret::is_equal;

/// The size of a cookie, a nonce and a hash, in bytes.
const SIZE: usize = 32;

const SERVER: &str = "Tor safe cookie authentication server-to-controller hash";
const CONTROLLER: &str = "Tor safe cookie authentication controller-to-server hash";

type Bytes = [u8; SIZE];

/// The proof that this end knows the cookie, with its nonce.
pub(super) struct Proof {
    cookie: Bytes,
    nonce: Bytes,
}

impl Proof {
    /// Begins a proof with the cookie in this file.
    pub(super) fn begin(file: &Path) -> Result<Self, Error> {
        let cookie = read(file).map_err(|error| {
            tracing::error!(?file, %error, "cannot read Tor's cookie file");
            unreachable(
                "Tor's cookie file, which the log names, cannot be read: add the user to the \
                 file's group (debian-tor on Debian), or give --tor-password-file",
            )
        })?;
        let mut nonce = Bytes::default();
        let filled = ring::default_provider().secure_random.fill(&mut nonce);
        filled.map_err(|_| unreachable("this machine has no random numbers"))?;
        Ok(Self { cookie, nonce })
    }

    pub(super) fn challenge(&self) -> String {
        format!("AUTHCHALLENGE SAFECOOKIE {}", HEXLOWER.encode(&self.nonce))
    }

    /// Returns the response to the server's answer, after a check that the server knows the cookie.
    pub(super) fn response(&self, answer: &str) -> Result<String, Error> {
        let value = |key: &str| {
            answer
                .split(' ')
                .find_map(|word| parse_bytes(word.strip_prefix(key)?))
        };
        let (Some(proof), Some(theirs)) = (value("SERVERHASH="), value("SERVERNONCE=")) else {
            return Err(unreachable(
                "the server at Tor's control port does not know its protocol",
            ));
        };
        if !is_equal(&self.hash(SERVER, &theirs), &proof) {
            return Err(unreachable(
                "the server at Tor's control port does not know Tor's cookie",
            ));
        }
        Ok(format!(
            "AUTHENTICATE {}",
            HEXLOWER.encode(&self.hash(CONTROLLER, &theirs))
        ))
    }

    fn hash(&self, key: &str, theirs: &Bytes) -> Vec<u8> {
        hmac_sha256(key, &[self.cookie, self.nonce, *theirs].concat())
    }
}

/// Reads the bytes of a cookie file. A file of another kind or size is rejected without waiting.
fn read(file: &Path) -> io::Result<Bytes> {
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(file)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() != SIZE as u64 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not a file of 32 bytes",
        ));
    }
    let mut cookie = Bytes::default();
    file.read_exact(&mut cookie)?;
    Ok(cookie)
}

/// Computes an HMAC (RFC 2104) with the TLS library. Returns no bytes if the library lacks it;
/// these equal no hash.
fn hmac_sha256(key: &str, message: &[u8]) -> Vec<u8> {
    let suite = ring::cipher_suite::TLS13_AES_128_GCM_SHA256.tls13();
    let tag = suite.map(|suite| {
        suite
            .hkdf_provider
            .hmac_sign(&OkmBlock::new(key.as_bytes()), message)
    });
    tag.map_or_else(Vec::new, |tag| tag.as_ref().to_vec())
}

fn parse_bytes(digits: &str) -> Option<Bytes> {
    let bytes = HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok()?;
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use data_encoding::HEXUPPER;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("tandem-cookie-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn cookie_hash_follows_rfc_4231() {
        // RFC 4231 section 4.3.
        let expected =
            parse_bytes("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843")
                .unwrap();
        assert_eq!(
            hmac_sha256("Jefe", b"what do ya want for nothing?"),
            expected
        );
    }

    #[test]
    fn cookie_rejects_other_files() {
        let folder = folder("read");
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        assert_eq!(read(&file("cookie", &[7; SIZE])).unwrap(), [7; SIZE]);
        for not in [
            file("short", &[7; SIZE - 1]),
            file("long", &[7; SIZE + 1]),
            folder.clone(),
            "/dev/zero".into(),
        ] {
            assert!(read(&not).is_err(), "{not:?}");
        }
        let pipe = folder.join("pipe");
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        assert!(read(&pipe).is_err(), "and nobody waits for its writer");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn unreadable_cookie_has_a_remedy_without_its_path() {
        let error = Proof::begin(Path::new("/nonexistent/cookie")).err();
        let words = error.expect("no file").detail;
        assert!(
            words.contains("debian-tor") && words.contains("--tor-password-file"),
            "{words}"
        );
        assert!(
            !words.contains("nonexistent"),
            "the error may reach a web page: {words}"
        );
    }

    #[test]
    fn cookie_proof_rejects_an_ignorant_server() {
        let folder = folder("proof");
        let file = folder.join("cookie");
        std::fs::write(&file, [7; SIZE]).unwrap();
        let ours = Proof::begin(&file).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        let nonce = HEXLOWER.encode(&[9; SIZE]);
        let answer = |hash: &[u8]| {
            format!(
                "AUTHCHALLENGE SERVERHASH={} SERVERNONCE={nonce}",
                HEXUPPER.encode(hash)
            )
        };
        assert_eq!(
            ours.challenge(),
            format!("AUTHCHALLENGE SAFECOOKIE {}", HEXLOWER.encode(&ours.nonce))
        );
        let told = ours
            .response(&answer(&ours.hash(SERVER, &[9; SIZE])))
            .unwrap();
        assert_eq!(
            told,
            format!(
                "AUTHENTICATE {}",
                HEXLOWER.encode(&ours.hash(CONTROLLER, &[9; SIZE]))
            )
        );
        let guessed = Proof {
            cookie: [8; SIZE],
            nonce: ours.nonce,
        };
        for wrong in [
            answer(&guessed.hash(SERVER, &[9; SIZE])),
            answer(&[]),
            "AUTHCHALLENGE".into(),
            String::new(),
        ] {
            assert!(ours.response(&wrong).is_err(), "{wrong}");
        }
    }
}
