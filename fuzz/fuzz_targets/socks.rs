//! Both halves of SOCKS5 read the same however their input is cut. Our client can send every
//! request that a server accepts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_http::h1::Authority;
use tandem_http::socks::{BadSocks, Client, Progress, Request, Server, SocksError};

fuzz_target!(|data: &[u8]| {
    let Some((&first, data)) = data.split_first() else {
        return;
    };
    let step = usize::from(first % 16) + 1;
    let whole = serve(data, data.len().max(1));
    assert_eq!(whole, serve(data, step));
    if let Ok((Some(request), _, _)) = whole {
        ask_again(&request);
    }
    for credentials in [None, Some((&b"user"[..], &b""[..]))] {
        assert_eq!(
            connect(credentials, data, data.len().max(1)),
            connect(credentials, data, step)
        );
    }
});

fn serve(data: &[u8], step: usize) -> Result<(Option<Request>, Vec<u8>, Vec<u8>), BadSocks> {
    let mut server = Server::new();
    let mut request = None;
    for piece in data.chunks(step) {
        let got = server.handle_input(piece)?;
        request = request.or(got);
    }
    let mut out = Vec::new();
    server.poll_output(&mut out);
    Ok((request, out, server.take_rest()))
}

fn ask_again(request: &Request) {
    let (host, port) = request.target.rsplit_once(':').expect("a port");
    assert!(Authority::parse(host.as_bytes()).is_some());
    let credentials = request.user.as_deref().zip(request.password.as_deref());
    let client = Client::new(host, port.parse().expect("a number"), credentials)
        .expect("it came through SOCKS");
    let (again, _, rest) = serve(&client.first_flight(), 1000).expect("own writing");
    assert_eq!(again.expect("whole").target, request.target);
    assert!(rest.is_empty());
}

fn connect(
    credentials: Option<(&[u8], &[u8])>,
    data: &[u8],
    step: usize,
) -> Result<Option<usize>, SocksError> {
    let mut client = Client::new("a.onion", 80, credentials).expect("fits");
    let mut used = 0;
    for piece in data.chunks(step) {
        match client.handle_input(piece)? {
            Progress::Pending => used += piece.len(),
            Progress::Done { consumed } => return Ok(Some(used + consumed)),
        }
    }
    Ok(None)
}
