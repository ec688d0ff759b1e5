//! A connection to the timing server, in any way: straight, or a tunnel through a SOCKS5 or HTTP
//! proxy.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tandem_http::Method;
use tandem_http::h1::{Authority, Limits, parse_response};
use tandem_http::socks::{Client, Progress};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::TimingError;
use tandem_web::loader::Via;

/// Time for a connection, the proxy's part included.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Opens a connection to `target`, as `host:port`.
pub async fn open(via: &Via, target: &str) -> Result<TcpStream, TimingError> {
    let authority = Authority::parse(target.as_bytes());
    let (host, port) = authority
        .and_then(|authority| Some((authority.host, authority.port?)))
        .ok_or_else(|| TimingError::Target(target.to_owned()))?;
    let to = match via {
        Via::Direct => target,
        Via::Http { proxy } | Via::Socks5 { proxy, .. } => proxy,
    };
    let opening = async {
        let connected = TcpStream::connect(to).await;
        let mut stream = connected.map_err(|source| TimingError::Connect {
            to: to.to_owned(),
            source,
        })?;
        stream
            .set_nodelay(true)
            .map_err(|source| TimingError::Connect {
                to: to.to_owned(),
                source,
            })?;
        match via {
            Via::Direct => {}
            Via::Http { .. } => http(&mut stream, target).await?,
            Via::Socks5 { credentials, .. } => {
                let pair = credentials
                    .as_ref()
                    .map(|(user, password)| (user.as_bytes(), password.as_bytes()));
                let client = Client::new(host, port, pair)
                    .map_err(|error| TimingError::Proxy(error.to_string()))?;
                socks(&mut stream, client).await?;
            }
        }
        Ok(stream)
    };
    tokio::time::timeout(LIMIT, opening)
        .await
        .map_err(|_| TimingError::TimedOut(to.to_owned()))?
}

fn refused(error: io::Error) -> TimingError {
    TimingError::Proxy(error.to_string())
}

/// The server speaks only when it was spoken to: nothing of it can have come with the proxy's
/// answer.
fn only(all: bool) -> Result<(), TimingError> {
    if all {
        Ok(())
    } else {
        Err(TimingError::Proxy("it sent bytes of its own".to_owned()))
    }
}

async fn socks(stream: &mut TcpStream, mut client: Client) -> Result<(), TimingError> {
    stream
        .write_all(&client.first_flight())
        .await
        .map_err(refused)?;
    let mut buffer = [0; 512];
    loop {
        let count = stream.read(&mut buffer).await.map_err(refused)?;
        if count == 0 {
            return Err(TimingError::Proxy("it closed the connection".to_owned()));
        }
        let progress = client.handle_input(&buffer[..count]);
        if let Progress::Done { consumed } =
            progress.map_err(|error| TimingError::Proxy(error.to_string()))?
        {
            return only(consumed == count);
        }
    }
}

/// RFC 9110 section 9.3.6.
async fn http(stream: &mut TcpStream, target: &str) -> Result<(), TimingError> {
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .await
        .map_err(refused)?;
    let (mut buffer, limits) = (BytesMut::new(), Limits::default());
    loop {
        if stream.read_buf(&mut buffer).await.map_err(refused)? == 0 {
            return Err(TimingError::Proxy("it closed the connection".to_owned()));
        }
        let parsed = parse_response(&buffer, &Method::Connect, &limits);
        match parsed.map_err(|error| TimingError::Proxy(error.to_string()))? {
            None => {}
            Some((response, consumed)) if response.head.status < 200 => {
                drop(buffer.split_to(consumed))
            }
            Some((response, consumed)) if response.head.status < 300 => {
                return only(consumed == buffer.len());
            }
            Some((response, _)) => {
                return Err(TimingError::Proxy(format!(
                    "status {}",
                    response.head.status
                )));
            }
        }
    }
}
