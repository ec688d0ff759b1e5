//! TLS through OpenSSL (`c/npn.c`), with NPN and ALPN for the version of SPDY.
//!
//! OpenSSL reads and writes memory. This module moves the bytes between memory and the socket.

#![expect(unsafe_code, reason = "OpenSSL is a C library")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Buf as _;
use socket2::Socket;
use tandem_http::SendBuf;
use tandem_spdy::Version;

use super::{Received, SEND_FLAGS};

/// Bytes that are moved at once: one record with its head.
const RECORD: usize = 16 << 10;
const CLOSED: c_int = -1;

unsafe extern "C" {
    fn microspdy_tls_context_new(certificate: *const c_char, key: *const c_char) -> *mut c_void;
    fn microspdy_tls_context_free(context: *mut c_void);
    fn microspdy_tls_new(context: *mut c_void) -> *mut c_void;
    fn microspdy_tls_free(tls: *mut c_void);
    fn microspdy_tls_handshake(tls: *mut c_void) -> c_int;
    fn microspdy_tls_read(tls: *mut c_void, buffer: *mut c_void, length: c_int) -> c_int;
    fn microspdy_tls_write(tls: *mut c_void, bytes: *const c_void, length: c_int) -> c_int;
    fn microspdy_tls_put(tls: *mut c_void, bytes: *const c_void, length: c_int) -> c_int;
    fn microspdy_tls_take(tls: *mut c_void, buffer: *mut c_void, length: c_int) -> c_int;
    fn microspdy_tls_version(tls: *mut c_void) -> c_int;
    fn microspdy_tls_shutdown(tls: *mut c_void);
}

/// Why a daemon with TLS did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("OpenSSL cannot use the certificate or the key")]
    Files,
    #[error("OpenSSL is out of memory")]
    Memory,
}

/// An SSL_CTX.
#[derive(Debug)]
struct Context(NonNull<c_void>);

// SAFETY: OpenSSL permits the use of a context from several threads.
unsafe impl Send for Context {}
// SAFETY: as above; after its creation, only `SSL_new` uses it.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: this is the only owner.
        unsafe { microspdy_tls_context_free(self.0.as_ptr()) }
    }
}

/// The certificate and options of a daemon.
#[derive(Clone, Debug)]
pub(crate) struct TlsAcceptor(Arc<Context>);

impl TlsAcceptor {
    /// Loads PEM files. The certificate's chain may follow it in its file.
    pub(crate) fn new(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let path = |path: &Path| CString::new(path.as_os_str().as_bytes());
        let (Ok(certificate), Ok(key)) = (path(certificate), path(key)) else {
            return Err(TlsError::Files);
        };
        // SAFETY: both paths are C strings.
        let context = unsafe { microspdy_tls_context_new(certificate.as_ptr(), key.as_ptr()) };
        let context = NonNull::new(context).ok_or(TlsError::Files)?;
        Ok(Self(Arc::new(Context(context))))
    }

    /// Begins a handshake.
    pub(crate) fn accept(&self) -> Result<TlsStream, TlsError> {
        // SAFETY: the context lives as long as `self`; OpenSSL counts the references to it.
        let tls = unsafe { microspdy_tls_new(self.0.0.as_ptr()) };
        Ok(TlsStream {
            tls: NonNull::new(tls).ok_or(TlsError::Memory)?,
            ready: false,
            outgoing: Vec::new(),
            written: 0,
        })
    }
}

/// A TLS connection.
#[derive(Debug)]
pub(crate) struct TlsStream {
    tls: NonNull<c_void>,
    ready: bool,
    /// Ciphertext for the socket, of which `written` bytes have left.
    outgoing: Vec<u8>,
    written: usize,
}

// SAFETY: OpenSSL permits the use of a connection from one thread after the other, and `&mut self`
// excludes use at the same time.
unsafe impl Send for TlsStream {}

impl Drop for TlsStream {
    fn drop(&mut self) {
        // SAFETY: this is the only owner.
        unsafe { microspdy_tls_free(self.tls.as_ptr()) }
    }
}

impl TlsStream {
    pub(super) fn receive(&mut self, socket: &Socket, buffer: &mut [u8]) -> io::Result<Received> {
        let mut record = [0; RECORD];
        loop {
            if self.ready {
                match self.read(buffer) {
                    0 => {}
                    CLOSED => return Ok(Received::Closed),
                    count => match usize::try_from(count) {
                        Ok(count) => return Ok(Received::Bytes(count)),
                        Err(_) => return Err(self.failed(socket)),
                    },
                }
            }
            let count = match super::receive(socket, &mut record)? {
                Received::Bytes(count) => count,
                other => return Ok(other),
            };
            self.put(&record[..count])?;
            if !self.ready {
                // SAFETY: the connection is valid.
                match unsafe { microspdy_tls_handshake(self.tls.as_ptr()) } {
                    1 => self.ready = true,
                    0 => {}
                    _ => return Err(self.failed(socket)),
                }
            }
            self.flush(socket)?;
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> c_int {
        let length = buffer.len().min(c_int::MAX as usize) as c_int;
        // SAFETY: the connection is valid, and the buffer has that length.
        unsafe { microspdy_tls_read(self.tls.as_ptr(), buffer.as_mut_ptr().cast(), length) }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        // SAFETY: the connection is valid, and the bytes have that length, at most `RECORD`.
        let taken = unsafe {
            microspdy_tls_put(
                self.tls.as_ptr(),
                bytes.as_ptr().cast(),
                bytes.len() as c_int,
            )
        };
        if taken < 0 {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(())
    }

    /// Sends the alert that tells the client about a failure.
    fn failed(&mut self, socket: &Socket) -> io::Error {
        match self.flush(socket) {
            Ok(_) => io::Error::other("TLS failed"),
            Err(error) => error,
        }
    }

    /// Encrypts only as much as leaves at once, so that urgent data overtakes the rest.
    pub(super) fn send(&mut self, socket: &Socket, out: &mut SendBuf) -> io::Result<usize> {
        let mut taken = 0;
        while self.flush(socket)? && self.ready && !out.is_empty() {
            let chunk = out.chunk();
            let length = chunk.len().min(RECORD) as c_int;
            // SAFETY: the connection is valid, and the chunk has at least that length.
            let count =
                unsafe { microspdy_tls_write(self.tls.as_ptr(), chunk.as_ptr().cast(), length) };
            match usize::try_from(count) {
                Ok(0) => break,
                Ok(count) => {
                    out.advance(count);
                    taken += count;
                }
                Err(_) => return Err(io::Error::other("TLS failed")),
            }
        }
        Ok(taken)
    }

    /// Returns true if all ciphertext has left.
    fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        loop {
            while self.written < self.outgoing.len() {
                match socket.send_with_flags(&self.outgoing[self.written..], SEND_FLAGS) {
                    Ok(count) => self.written += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            self.written = 0;
            if !self.fill() {
                return Ok(true);
            }
        }
    }

    /// Takes ciphertext from OpenSSL; false if there is none.
    fn fill(&mut self) -> bool {
        self.outgoing.resize(2 * RECORD, 0);
        let length = self.outgoing.len() as c_int;
        // SAFETY: the connection is valid, and the buffer has that length.
        let count = unsafe {
            microspdy_tls_take(self.tls.as_ptr(), self.outgoing.as_mut_ptr().cast(), length)
        };
        self.outgoing.truncate(usize::try_from(count).unwrap_or(0));
        if self.outgoing.is_empty() {
            // An idle session holds no buffer.
            self.outgoing = Vec::new();
        }
        !self.outgoing.is_empty()
    }

    pub(super) const fn is_ready(&self) -> bool {
        self.ready
    }

    pub(super) fn wants_write(&self) -> bool {
        self.written < self.outgoing.len()
    }

    pub(super) fn version(&self) -> Option<Version> {
        // SAFETY: the connection is valid.
        match unsafe { microspdy_tls_version(self.tls.as_ptr()) } {
            30 => Some(Version::V3),
            31 => Some(Version::V31),
            _ => None,
        }
    }

    pub(super) fn close(&mut self) {
        if self.ready {
            // SAFETY: the connection is valid.
            unsafe { microspdy_tls_shutdown(self.tls.as_ptr()) }
        }
    }
}
