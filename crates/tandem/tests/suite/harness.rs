//! The harness of the tests: a pair in this process, scripted origins and proxies, and a client
//! that reads responses byte by byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use tandem::config::{ClientOptions, GatewayOptions, RelayOptions};
use tandem::endpoint::Endpoint;
use tandem::roles::Role;
use tandem::runtime::Running;
use tandem::transport::registry::Transports;

/// The longest wait for an event; a test that reaches it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn endpoint(text: &str) -> Endpoint {
    text.parse().unwrap()
}

/// A running client and gateway, and the relays between them; they stop when the pair is dropped.
pub(crate) struct Pair {
    pub(crate) http: SocketAddr,
    pub(crate) socks: SocketAddr,
    pub(crate) gateway: SocketAddr,
    client_running: Option<Running>,
    gateway_running: Option<Running>,
    /// The relays on the way, from the client's side.
    relays: Vec<Running>,
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

pub(crate) fn gateway_options() -> GatewayOptions {
    GatewayOptions {
        listen: vec![endpoint("h2+tcp://127.0.0.1:0")],
        open: Some(true),
        allow_dest: vec!["127.0.0.0/8".parse().unwrap()],
        workers: Some(1),
        // Otherwise, one page of fifty gets no pushes.
        hold_out: Some(0.0),
        ..GatewayOptions::default()
    }
}

pub(crate) fn client_options(gateway: &str) -> ClientOptions {
    ClientOptions {
        listen: vec![
            endpoint("http://127.0.0.1:0"),
            endpoint("socks5://127.0.0.1:0"),
        ],
        gateway: vec![gateway.parse().unwrap()],
        ..ClientOptions::default()
    }
}

/// Starts a role. Returns the address of one of its listeners too.
pub(crate) fn running(role: impl Role + 'static, listen: &Endpoint) -> (Running, SocketAddr) {
    let running = block_on(Running::start(Arc::new(role))).unwrap();
    let address = running.address(listen).unwrap();
    (running, address)
}

pub(crate) fn start_gateway(options: GatewayOptions) -> (Running, SocketAddr) {
    start_gateway_with(options, &Transports::default())
}

fn start_gateway_with(options: GatewayOptions, transports: &Transports) -> (Running, SocketAddr) {
    let listen = options.listen[0].clone();
    running(options.typed_with(transports).unwrap(), &listen)
}

/// Starts a relay with one listener, which admits everyone, to this next hop.
pub(crate) fn start_relay(
    listen: &str,
    next: &str,
    transports: &Transports,
    change: impl FnOnce(&mut RelayOptions),
) -> (Running, SocketAddr) {
    let listen = endpoint(listen);
    let mut options = RelayOptions {
        listen: vec![listen.clone()],
        gateway: vec![endpoint(next)],
        open: Some(true),
        workers: Some(1),
        ..RelayOptions::default()
    };
    change(&mut options);
    running(options.typed_with(transports).unwrap(), &listen)
}

/// Starts a client without a gateway; returns the addresses of its HTTP and SOCKS5 listeners.
pub(crate) fn start_client(options: ClientOptions) -> (Running, SocketAddr, SocketAddr) {
    start_client_with(options, &Transports::default())
}

pub(crate) fn start_client_with(
    mut options: ClientOptions,
    transports: &Transports,
) -> (Running, SocketAddr, SocketAddr) {
    options.listen = vec![
        endpoint("http://127.0.0.1:0"),
        endpoint("socks5://127.0.0.1:0"),
    ];
    let (http, socks) = (options.listen[0].clone(), options.listen[1].clone());
    let (running, http) = running(options.typed_with(transports).unwrap(), &http);
    let socks = running.address(&socks).unwrap();
    (running, http, socks)
}

impl Pair {
    /// Starts a pair whose session and transport have these names.
    pub(crate) fn over(
        scheme: &str,
        transports: &Transports,
        gateway: impl FnOnce(&mut GatewayOptions),
        client: impl FnOnce(&mut ClientOptions),
    ) -> Self {
        let mut options = gateway_options();
        options.listen = vec![endpoint(&format!("{scheme}://127.0.0.1:0"))];
        gateway(&mut options);
        let gateway = start_gateway_with(options, transports);
        let next = format!("{scheme}://{}", gateway.1);
        Self::before(gateway, Vec::new(), &next, transports, client)
    }

    /// Starts a pair with two relays on its way, whose sessions are h2, h3 over `between`, and h2.
    pub(crate) fn relayed(
        between: &str,
        transports: &Transports,
        gateway: impl FnOnce(&mut GatewayOptions),
        client: impl FnOnce(&mut ClientOptions),
    ) -> Self {
        let mut options = gateway_options();
        gateway(&mut options);
        let gateway = start_gateway_with(options, transports);
        let middle = format!("{between}://127.0.0.1:0");
        let next = format!("h2+tcp://{}", gateway.1);
        let (second, address) = start_relay(&middle, &next, transports, |_| {});
        let next = format!("{between}://{address}");
        let (first, address) = start_relay("h2+tcp://127.0.0.1:0", &next, transports, |_| {});
        let next = format!("h2+tcp://{address}");
        Self::before(gateway, vec![first, second], &next, transports, client)
    }

    /// Adds a client to a gateway and relays. The endpoint `next` is the client's next hop.
    fn before(
        (gateway_running, gateway): (Running, SocketAddr),
        relays: Vec<Running>,
        next: &str,
        transports: &Transports,
        change: impl FnOnce(&mut ClientOptions),
    ) -> Self {
        let mut options = client_options(next);
        change(&mut options);
        let (client_running, http, socks) = start_client_with(options, transports);
        Self {
            http,
            socks,
            gateway,
            client_running: Some(client_running),
            gateway_running: Some(gateway_running),
            relays,
        }
    }

    /// Returns a pair of running proxies; the client listens for HTTP only.
    pub(crate) fn of(client: Running, gateway: Running, http: SocketAddr) -> Self {
        Self {
            http,
            socks: http,
            gateway: http,
            client_running: Some(client),
            gateway_running: Some(gateway),
            relays: Vec::new(),
        }
    }

    pub(crate) fn stop_gateway(&mut self) {
        if let Some(running) = self.gateway_running.take() {
            block_on(running.drain(Duration::ZERO));
        }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::to(self.http)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let ends = [self.client_running.take(), self.gateway_running.take()];
        for running in ends.into_iter().flatten().chain(self.relays.drain(..)) {
            block_on(running.drain(Duration::ZERO));
        }
    }
}

/// A connection to a proxy or server.
pub(crate) struct Client {
    pub(crate) stream: BufReader<TcpStream>,
}

/// A response as it was received.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
}

impl Answer {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.as_str())
    }

    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.fields
            .iter()
            .filter(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.as_str())
            .collect()
    }
}

impl Client {
    pub(crate) fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream: BufReader::new(stream),
        }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }

    fn fields(&mut self) -> std::io::Result<Vec<(String, String)>> {
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(fields);
            }
            let (name, value) = line.split_once(':').expect("a field");
            fields.push((name.to_owned(), value.trim().to_owned()));
        }
    }

    /// Reads the next head, interim or final.
    pub(crate) fn head(&mut self) -> std::io::Result<Answer> {
        let line = self.line()?;
        let status = line
            .split(' ')
            .nth(1)
            .and_then(|s| s.parse().ok())
            .unwrap_or_else(|| panic!("no status line: {line:?}"));
        Ok(Answer {
            status,
            fields: self.fields()?,
            body: Vec::new(),
            trailers: Vec::new(),
        })
    }

    /// Reads the final, complete response to a request with `method`; an incomplete one is an
    /// error.
    pub(crate) fn try_answer(&mut self, method: &str) -> std::io::Result<Answer> {
        let mut answer = self.head()?;
        while answer.status < 200 && answer.status != 101 {
            answer = self.head()?;
        }
        if method == "HEAD" || matches!(answer.status, 204 | 304) {
            return Ok(answer);
        }
        if answer.field("transfer-encoding").is_some() {
            loop {
                let line = self.line()?;
                let size = usize::from_str_radix(&line, 16).expect("a chunk size");
                if size == 0 {
                    answer.trailers = self.fields()?;
                    return Ok(answer);
                }
                let mut chunk = vec![0; size + 2];
                self.stream.read_exact(&mut chunk)?;
                answer.body.extend_from_slice(&chunk[..size]);
            }
        }
        match answer
            .field("content-length")
            .map(|n| n.parse::<usize>().unwrap())
        {
            Some(length) => {
                answer.body.resize(length, 0);
                self.stream.read_exact(&mut answer.body)?;
            }
            None => {
                self.stream.read_to_end(&mut answer.body)?;
            }
        }
        Ok(answer)
    }

    pub(crate) fn answer(&mut self, method: &str) -> Answer {
        self.try_answer(method).unwrap()
    }

    pub(crate) fn get(&mut self, url: &str) -> Answer {
        self.send(request("GET", url, ""));
        self.answer("GET")
    }

    /// Runs the SOCKS5 handshake and returns the reply's code.
    pub(crate) fn socks(&mut self, target: &str, user: Option<(&str, &str)>) -> u8 {
        let (host, port) = target.rsplit_once(':').unwrap();
        let mut flight = Vec::new();
        match user {
            None => flight.extend([5, 1, 0]),
            Some((user, password)) => {
                flight.extend([5, 1, 2, 1, user.len() as u8]);
                flight.extend(user.bytes());
                flight.push(password.len() as u8);
                flight.extend(password.bytes());
            }
        }
        flight.extend([5, 1, 0, 3, host.len() as u8]);
        flight.extend(host.bytes());
        flight.extend(port.parse::<u16>().unwrap().to_be_bytes());
        self.send(&flight);
        let mut greeting = vec![0; if user.is_some() { 4 } else { 2 }];
        self.stream.read_exact(&mut greeting).unwrap();
        let mut reply = [0; 10];
        self.stream.read_exact(&mut reply).unwrap();
        reply[1]
    }

    pub(crate) fn read_exact(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Returns true if the other end closes without sending more bytes.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        self.stream
            .read_to_end(&mut rest)
            .map_or(true, |_| rest.is_empty())
    }
}

pub(crate) fn request(method: &str, url: &str, fields: &str) -> String {
    let host = url
        .strip_prefix("http://")
        .unwrap_or(url)
        .split('/')
        .next()
        .unwrap();
    format!("{method} {url} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n")
}

/// A scripted origin that runs one function for each connection; it stops when dropped.
pub(crate) struct Scene {
    pub(crate) address: SocketAddr,
}

impl Scene {
    /// Starts an origin; `play` runs in a thread for each connection and receives the connection's
    /// number.
    pub(crate) fn new(play: impl Fn(usize, Client) + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1", play)
    }

    /// Starts an origin at another address of this machine, or at all of them.
    pub(crate) fn at(address: &str, play: impl Fn(usize, Client) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let play = Arc::new(play);
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { return };
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let play = Arc::clone(&play);
                std::thread::spawn(move || {
                    play(
                        number,
                        Client {
                            stream: BufReader::new(stream),
                        },
                    )
                });
            }
        });
        Self { address }
    }

    /// Starts an origin that answers every request on every connection with these bytes.
    pub(crate) fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::new(move |_, mut client| {
            while client.request().is_some() {
                client.send(&answer);
            }
        })
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

/// A request as an origin receives it.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) line: String,
    pub(crate) fields: Vec<(String, String)>,
}

impl Asked {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.as_str())
    }
}

impl Client {
    /// Reads the head of the next request at an origin; `None` means that the connection is closed.
    pub(crate) fn request(&mut self) -> Option<Asked> {
        let line = self.line().ok()?;
        let fields = self.fields().ok()?;
        Some(Asked { line, fields })
    }

    /// Returns true if the peer closes before the read timeout.
    pub(crate) fn request_ends(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(read) => read == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// A relay to a gateway that counts bytes and connections, and can drop all bytes.
pub(crate) struct Way {
    pub(crate) address: SocketAddr,
    state: Arc<WayState>,
}

#[derive(Default)]
struct WayState {
    connections: AtomicUsize,
    /// The bytes to the gateway, and those from it.
    passed: [AtomicUsize; 2],
    /// The relay drops the bytes of the connections up to this number.
    silent: AtomicUsize,
    /// The connections to the gateway.
    open: Mutex<Vec<TcpStream>>,
    /// Opens when one end has closed a connection.
    end: Gate,
}

impl Way {
    pub(crate) fn to(gateway: SocketAddr) -> Self {
        Self::from(TcpListener::bind("127.0.0.1:0").unwrap(), gateway)
    }

    /// Passes the connections of a listener on.
    pub(crate) fn from(listener: TcpListener, gateway: SocketAddr) -> Self {
        let address = listener.local_addr().unwrap();
        let state = Arc::<WayState>::default();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (near, far) = (near.unwrap(), TcpStream::connect(gateway).unwrap());
                let number = shared.connections.fetch_add(1, Ordering::SeqCst) + 1;
                shared.open.lock().unwrap().push(far.try_clone().unwrap());
                for (from, to, down) in [(&near, &far, false), (&far, &near, true)] {
                    let (from, to, state) = (
                        from.try_clone().unwrap(),
                        to.try_clone().unwrap(),
                        Arc::clone(&shared),
                    );
                    std::thread::spawn(move || state.pass(number, from, to, down));
                }
            }
        });
        Self { address, state }
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// Returns true if one end has closed a connection.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.end.is_open()
    }

    /// Returns the number of bytes to the gateway so far.
    pub(crate) fn up(&self) -> usize {
        self.state.passed[0].load(Ordering::SeqCst)
    }

    /// Returns the number of bytes from the gateway so far.
    pub(crate) fn down(&self) -> usize {
        self.state.passed[1].load(Ordering::SeqCst)
    }

    /// Drops the bytes of the first `count` connections, without closing them.
    pub(crate) fn lose_first(&self, count: usize) {
        self.state.silent.store(count, Ordering::SeqCst);
    }

    /// Drops all further bytes of the present connections, without closing them.
    pub(crate) fn lose(&self) {
        self.lose_first(self.connections());
    }

    /// Closes the present connections at both ends.
    pub(crate) fn close(&self) {
        for far in self.state.open.lock().unwrap().drain(..) {
            let _ = far.shutdown(std::net::Shutdown::Both); // It may have ended.
        }
    }
}

impl WayState {
    fn pass(&self, number: usize, mut from: TcpStream, mut to: TcpStream, down: bool) {
        let mut buffer = [0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if number <= self.silent.load(Ordering::SeqCst) {
                continue;
            }
            self.passed[usize::from(down)].fetch_add(count, Ordering::SeqCst);
            if to.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
        // The shutdown passes the end on to the other end; it may fail if that end is already gone.
        let _ = to.shutdown(std::net::Shutdown::Both);
        self.end.open();
    }
}

/// A gate that opens once, for all waiting threads.
#[derive(Default)]
pub(crate) struct Gate(Mutex<bool>, Condvar);

impl Gate {
    pub(crate) fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.0.lock().unwrap()
    }

    pub(crate) fn wait(&self) {
        let closed = self
            .1
            .wait_timeout_while(self.0.lock().unwrap(), 10 * PATIENCE, |open| !*open)
            .unwrap();
        assert!(!closed.1.timed_out(), "nobody opened it");
    }
}

/// Waits for this number of requests at the origin. Returns them in order of names.
pub(crate) fn wait_for(told: &mpsc::Receiver<String>, count: usize) -> Vec<String> {
    let mut paths: Vec<_> = (0..count)
        .map(|_| told.recv_timeout(PATIENCE).unwrap())
        .collect();
    paths.sort();
    paths
}
