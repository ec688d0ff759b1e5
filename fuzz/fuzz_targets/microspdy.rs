//! The C interface of `tandem-microspdy`. The input chooses the order of the calls and the handles,
//! which are live, destroyed, of another type or invented. A client sends arbitrary frames.
#![no_main]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use microspdy::ffi::callbacks::EndedFn;
use microspdy::ffi::{daemon, name_value, push, request, response, session, settings};
use tandem_spdy::frame::{Data, Headers, Settings, SynStream};
use tandem_spdy::header_block::{Block, Encoder, HeaderCompression};

/// Handles that callbacks and functions have returned, live or not.
static HANDLES: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// The rest of the input, which the callbacks read too.
static SCRIPT: Mutex<(Vec<u8>, usize)> = Mutex::new((Vec::new(), 0));

/// Bytes of an input that are played, at most: each step costs system calls.
const MAX_SCRIPT: usize = 8 << 10;
/// Connections that one input opens, at most.
const MAX_CLIENTS: usize = 4;
/// Handles that one input keeps, at most.
const MAX_HANDLES: usize = 256;
/// Calls that a callback makes in turn, at most: some call the library again.
const MAX_DEPTH: usize = 3;

fuzz_target!(|bytes: &[u8]| {
    static START: Once = Once::new();
    START.call_once(|| {
        daemon::microspdy_init(2);
        // SAFETY: the function has the documented type.
        unsafe { daemon::SPDY_set_panic_func(Some(on_panic), null_mut()) };
    });
    lock(&HANDLES).clear();
    *lock(&SCRIPT) = (bytes[..bytes.len().min(MAX_SCRIPT)].to_vec(), 0);
    let Some(mut run) = Run::start() else {
        return;
    };
    while let Some(step) = next() {
        run.step(step);
    }
    run.clients.clear();
    daemon::SPDY_run(run.daemon);
    daemon::SPDY_stop_daemon(run.daemon);
    for handle in std::mem::take(&mut *lock(&HANDLES)) {
        // A number is of one kind at most; the other calls find nothing.
        (0..4).for_each(|kind| destroy(handle, kind));
    }
});

/// A fault inside the library.
unsafe extern "C" fn on_panic(_: *mut c_void, _: *const c_char, _: c_uint, _: *const c_char) {
    std::process::abort();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a byte of the script.
fn next() -> Option<u8> {
    let mut script = lock(&SCRIPT);
    let byte = script.0.get(script.1).copied();
    script.1 += 1;
    byte
}

fn byte() -> u8 {
    next().unwrap_or(0)
}

fn keep<T>(pointer: *mut T) {
    let mut handles = lock(&HANDLES);
    if handles.len() < MAX_HANDLES {
        handles.push(pointer.addr());
    }
}

/// Chooses a handle: NULL, one that was returned, or a number near one.
fn handle() -> *mut c_void {
    let choice = usize::from(byte());
    let handles = lock(&HANDLES);
    let chosen = match handles.len() {
        0 => choice,
        count => handles[choice % count],
    };
    std::ptr::without_provenance_mut(match choice {
        0 => 0,
        250.. => chosen.wrapping_add(choice).wrapping_sub(253),
        _ => chosen,
    })
}

fn destroy(handle: usize, kind: u8) {
    let pointer: *mut c_void = std::ptr::without_provenance_mut(handle);
    match kind % 4 {
        0 => request::SPDY_destroy_request(pointer),
        1 => response::SPDY_destroy_response(pointer),
        2 => name_value::SPDY_name_value_destroy(pointer),
        _ => settings::SPDY_settings_destroy(pointer),
    }
}

unsafe extern "C" fn on_session(_: *mut c_void, session: *mut c_void) {
    keep(session);
    calls();
}

unsafe extern "C" fn on_closed(_: *mut c_void, session: *mut c_void, _: c_int) {
    keep(session);
    calls();
}

unsafe extern "C" fn on_request(
    _: *mut c_void,
    request: *mut c_void,
    _: u8,
    _: *const c_char,
    _: *const c_char,
    _: *const c_char,
    _: *const c_char,
    _: *const c_char,
    headers: *mut c_void,
    _: bool,
) {
    keep(request);
    keep(headers);
    calls();
}

unsafe extern "C" fn on_data(
    _: *mut c_void,
    request: *mut c_void,
    _: *const c_void,
    _: usize,
    _: bool,
) -> c_int {
    keep(request);
    calls();
    c_int::from(byte() & 1)
}

unsafe extern "C" fn on_result(
    _: *mut c_void,
    response: *mut c_void,
    request: *mut c_void,
    _: c_int,
    _: bool,
) {
    keep(response);
    keep(request);
    calls();
}

unsafe extern "C" fn on_ended(_: *mut c_void, request: *mut c_void, _: c_int) {
    keep(request);
    calls();
}

unsafe extern "C" fn on_ping(_: *mut c_void, session: *mut c_void, time: *mut libc::timeval) {
    // SAFETY: the library passes a valid time.
    assert!(unsafe { (*time).tv_sec } >= 0);
    keep(session);
    calls();
}

unsafe extern "C" fn on_body(
    _: *mut c_void,
    buffer: *mut c_void,
    max: usize,
    more: *mut bool,
) -> isize {
    calls();
    let choice = byte();
    let len = (usize::from(choice) * 40).min(max);
    // SAFETY: the library passes a buffer of `max` bytes and a valid flag.
    unsafe {
        buffer.cast::<u8>().write_bytes(b'x', len);
        more.write(choice & 3 == 1);
    }
    match choice {
        255 => -1,
        254 => isize::MAX,
        _ => len as isize,
    }
}

unsafe extern "C" fn on_pair(
    _: *mut c_void,
    name: *const c_char,
    values: *const *const c_char,
    count: c_int,
) -> c_int {
    assert!(!name.is_null());
    for place in 0..count as usize {
        // SAFETY: the array has `count` C strings.
        let value = unsafe { std::ffi::CStr::from_ptr(*values.add(place)) };
        assert!(value.to_bytes().len() < 1 << 20);
    }
    calls();
    c_int::from(byte() & 3 != 0)
}

unsafe extern "C" fn on_setting(_: *mut c_void, _: c_int, _: i32, _: u8) -> c_int {
    calls();
    1
}

/// Calls the library from within a callback.
fn calls() {
    static DEPTH: Mutex<usize> = Mutex::new(0);
    if *lock(&DEPTH) >= MAX_DEPTH {
        return;
    }
    *lock(&DEPTH) += 1;
    for _ in 0..byte() % 4 {
        call(byte());
    }
    *lock(&DEPTH) -= 1;
}

/// Calls one function of the library.
fn call(which: u8) {
    const TEXTS: [*const c_char; 6] = [
        null(),
        c"".as_ptr(),
        c"accept".as_ptr(),
        c"Capital".as_ptr(),
        c"/path".as_ptr(),
        c"a\r\nb".as_ptr(),
    ];
    let text = || TEXTS[usize::from(byte()) % TEXTS.len()];
    let cls = null_mut();
    // SAFETY: texts are NULL or C strings, functions have the documented types, and pointers for
    // results are NULL or valid. Handles may be any number.
    unsafe {
        match which % 26 {
            0 => keep(name_value::SPDY_name_value_create()),
            1 => drop(name_value::SPDY_name_value_add(handle(), text(), text())),
            2 => drop(name_value::SPDY_name_value_iterate(
                handle(),
                Some(on_pair),
                cls,
            )),
            3 => lookup(handle(), text()),
            4 => {
                let size = usize::from(byte()) * 400;
                let body = vec![b'b'; size];
                keep(response::SPDY_build_response(
                    c_int::from(byte()) * 2,
                    text(),
                    c"HTTP/1.1".as_ptr(),
                    handle(),
                    body.as_ptr().cast(),
                    size,
                ));
            }
            5 => keep(response::SPDY_build_response_with_callback(
                200,
                text(),
                c"HTTP/1.1".as_ptr(),
                null_mut(),
                Some(on_body),
                cls,
                u32::from(byte()) * 40,
            )),
            6..=9 => drop(request::SPDY_queue_response(
                handle(),
                handle(),
                byte() & 1 == 0,
                byte() & 1 == 0,
                Some(on_result),
                cls,
            )),
            10 => keep(request::SPDY_get_session_for_request(handle())),
            11 => request::SPDY_set_cls_to_request(handle(), handle()),
            12 => drop(request::SPDY_get_cls_from_request(handle())),
            13 => session::SPDY_set_cls_to_session(handle(), handle()),
            14 => drop(session::SPDY_get_cls_from_session(handle())),
            15 => session::SPDY_close_session(handle()),
            16 => drop(session::SPDY_send_ping(handle(), Some(on_ping), cls)),
            17 => {
                let mut address = null_mut();
                let len = session::SPDY_get_remote_addr(handle(), &raw mut address);
                assert_eq!(len == 0, address.is_null());
            }
            18 => keep(settings::SPDY_settings_create().cast_mut()),
            19 => drop(settings::SPDY_settings_add(
                handle(),
                c_int::from(byte()),
                c_int::from(byte()),
                i32::from(byte()) - 3,
            )),
            20 => drop(settings::SPDY_settings_iterate(
                handle(),
                Some(on_setting),
                cls,
            )),
            21 => drop(settings::microspdy_send_settings(
                handle(),
                handle(),
                c_int::from(byte() & 3),
            )),
            22 => keep(push::SPDYX_push_response(
                handle(),
                c"http".as_ptr(),
                text(),
                text(),
                byte() % 9,
                handle(),
                Some(on_result),
                cls,
            )),
            23 => drop(push::SPDYX_set_priority(handle(), byte() % 9)),
            24 => destroy(handle().addr(), byte()),
            _ => daemon::SPDY_run(handle()),
        }
    }
}

fn lookup(list: *mut c_void, name: *const c_char) {
    let mut count = 0;
    // SAFETY: the name is NULL or a C string, and the pointer is valid.
    let values = unsafe { name_value::SPDY_name_value_lookup(list, name, &raw mut count) };
    if !values.is_null() {
        assert!(count > 0);
    }
}

/// A daemon and its clients.
struct Run {
    daemon: *mut c_void,
    port: u16,
    clients: Vec<Client>,
}

struct Client {
    socket: TcpStream,
    encoder: Encoder,
    stream: u32,
}

impl Run {
    /// Starts a daemon on a port of the system's choice.
    fn start() -> Option<Self> {
        let address = socket_address();
        let options = daemon::DaemonOptions::raw((&raw const address).cast());
        // SAFETY: the callbacks have the documented types, and the options are valid.
        let daemon = unsafe {
            daemon::microspdy_start_daemon(
                0,
                null(),
                null(),
                Some(on_session),
                Some(on_closed),
                Some(on_request),
                Some(on_data),
                null_mut(),
                &raw const options,
            )
        };
        if daemon.is_null() {
            return None;
        }
        keep(daemon);
        let ended = (byte() & 1 == 0).then_some(on_ended as EndedFn);
        // SAFETY: the function has the documented type.
        unsafe { push::SPDYX_set_request_ended_callback(daemon, ended, null_mut()) };
        let mut this = Self {
            daemon,
            port: 0,
            clients: Vec::new(),
        };
        this.port = local_port(this.wait_sets())?;
        Some(this)
    }

    /// Calls the functions for `select`. Returns the highest descriptor.
    fn wait_sets(&self) -> c_int {
        // SAFETY: sets of zeros are empty sets.
        let mut sets: [libc::fd_set; 3] = unsafe { std::mem::zeroed() };
        let [read, write, except] = &mut sets;
        let mut time = 0;
        // SAFETY: the pointers are valid.
        unsafe {
            daemon::SPDY_get_timeout(self.daemon, &raw mut time);
            daemon::SPDY_get_fdset(self.daemon, read, write, except)
        }
    }

    fn step(&mut self, step: u8) {
        match step % 8 {
            0 => self.connect(),
            1..=3 => self.frame(step),
            4 => self.raw(),
            5 => call(byte()),
            6 => {
                let place = usize::from(byte());
                if place < self.clients.len() {
                    self.clients.swap_remove(place);
                }
            }
            _ => {
                self.wait_sets();
            }
        }
        daemon::SPDY_run(self.daemon);
        // What the server sends is read, so that it can go on.
        let mut buffer = [0; 4096];
        for client in &mut self.clients {
            while matches!(client.socket.read(&mut buffer), Ok(1..)) {}
        }
    }

    fn connect(&mut self) {
        if self.clients.len() < MAX_CLIENTS
            && let Ok(socket) = TcpStream::connect(("127.0.0.1", self.port))
            && socket.set_nonblocking(true).is_ok()
            && closes_at_once(&socket)
        {
            self.clients.push(Client {
                socket,
                encoder: Encoder::new(HeaderCompression::Full),
                stream: 1,
            });
        }
    }

    fn raw(&mut self) {
        let bytes: Vec<u8> = (0..byte()).map(|_| byte()).collect();
        let place = usize::from(byte());
        if let Some(client) = self.clients.get_mut(place) {
            let _ = client.socket.write(&bytes);
        }
    }

    /// Sends a frame that is legal in itself.
    fn frame(&mut self, step: u8) {
        let place = usize::from(step >> 6);
        let choice = byte();
        let Some(client) = self.clients.get_mut(place) else {
            return;
        };
        let mut wire = BytesMut::new();
        let fin = choice & 1 == 0;
        match step % 8 {
            1 => {
                let mut block = Block::new();
                for (name, value) in [
                    (":method", "POST"),
                    (":path", "/"),
                    (":version", "HTTP/1.1"),
                    (":host", "site.example"),
                    (":scheme", "http"),
                ] {
                    block.push(name.as_bytes(), &[value.as_bytes()], 0, false);
                }
                let mut compressed = Vec::new();
                client.encoder.encode(&block, &mut compressed);
                SynStream {
                    stream: client.stream,
                    associated: 0,
                    priority: choice >> 5,
                    slot: 0,
                    fin,
                    unidirectional: false,
                    block: &compressed,
                }
                .encode(&mut wire);
                client.stream += 2;
            }
            2 if choice & 2 == 0 => {
                let mut compressed = Vec::new();
                client.encoder.encode(&Block::new(), &mut compressed);
                Headers {
                    stream: u32::from(choice >> 2),
                    fin,
                    block: &compressed,
                }
                .encode(&mut wire);
            }
            2 => Settings {
                clear: false,
                entries: vec![tandem_spdy::frame::Setting {
                    flags: 0,
                    id: 7,
                    value: u32::from(choice) * 100,
                }],
            }
            .encode(&mut wire),
            _ => {
                let len = u32::from(byte()) * 10;
                Data {
                    stream: client.stream.saturating_sub(2),
                    fin,
                    len,
                }
                .encode(&mut wire);
                wire.resize(wire.len() + len as usize, b'd');
            }
        }
        let _ = client.socket.write(&wire);
    }
}

/// Lets the end of a connection be a reset, which leaves no port in TIME_WAIT.
fn closes_at_once(socket: &TcpStream) -> bool {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let len = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: the option and its length are valid.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            len,
        )
    };
    result == 0
}

/// The IPv4 loopback address.
fn socket_address() -> libc::sockaddr_in {
    // SAFETY: zeros are a valid address.
    let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    address.sin_family = libc::AF_INET as libc::sa_family_t;
    address.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
    address
}

/// Returns the port of a descriptor.
fn local_port(descriptor: c_int) -> Option<u16> {
    let mut address = socket_address();
    let mut len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: the address and its length are valid.
    let result = unsafe { libc::getsockname(descriptor, (&raw mut address).cast(), &raw mut len) };
    (result == 0).then(|| u16::from_be(address.sin_port))
}
