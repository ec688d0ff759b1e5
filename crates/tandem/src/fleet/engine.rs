//! The connection to the engine, which holds the log as a stream (XADD, XREAD). Each command has a
//! time limit, and each response a bound.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadReply;
use redis::{AsyncConnectionConfig, FromRedisValue, Pipeline, Value};
use rustls::pki_types::ServerName;
use tandem_fleet::inbox::LIFETIME;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;

use super::address::{EngineAddress, Place};
use super::log::{LOG_KEY, MAX_RECORDS};

/// The time limit for a connection with its handshakes and login.
const CONNECT: Duration = Duration::from_secs(5);
/// The time limit for the response to a command.
const RESPONSE: Duration = Duration::from_secs(2);
/// The most bytes of a response.
const MAX_RESPONSE: usize = 8 << 20;
/// The records that one command reads at most. Their bytes are less than [`MAX_RESPONSE`].
pub(super) const BATCH: usize = 16;
/// The name of the field of an entry that holds the record.
const FIELD: &str = "r";

/// The reason for which the engine cannot be used now.
#[derive(Debug, thiserror::Error)]
pub(super) enum EngineError {
    #[error("it cannot be reached: {0}")]
    Unreachable(#[from] io::Error),
    #[error("it has not answered within {} s", .0.as_secs())]
    Silent(Duration),
    #[error("{0}")]
    Login(String),
    #[error("it has named an entry in an unknown way")]
    Position,
    #[error("it has refused a command: {0}")]
    Command(#[from] redis::RedisError),
}

/// The identifier of an entry: the time at the engine in milliseconds since 1970, and a number.
pub(super) type Position = (u64, u64);

/// An entry of the log: its identifier, and the bytes of the record if it has any.
pub(super) type Entry = (Position, Option<Vec<u8>>);

/// A connection.
pub(super) struct Engine {
    connection: MultiplexedConnection,
    /// The bytes that the response to the current command may still have.
    room: Arc<AtomicUsize>,
    driver: AbortHandle,
}

impl Engine {
    /// Connects and logs in.
    pub(super) async fn connect(address: &EngineAddress) -> Result<Self, EngineError> {
        let connecting = async {
            let login = address.login().map_err(EngineError::Login)?;
            let room = Arc::new(AtomicUsize::new(MAX_RESPONSE));
            let stream = Bounded {
                stream: dial(address).await?,
                room: Arc::clone(&room),
            };
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            let (connection, driver) =
                MultiplexedConnection::new_with_config(&login, stream, config).await?;
            let driver = tokio::spawn(driver).abort_handle();
            Ok(Self {
                connection,
                room,
                driver,
            })
        };
        in_time(CONNECT, connecting).await
    }

    /// Appends a record, and drops the oldest if they are too many. Returns the time of the entry by
    /// the clock of the engine, in milliseconds since 1970.
    pub(super) async fn append(&mut self, record: &[u8]) -> Result<u64, EngineError> {
        let mut command = redis::pipe();
        command
            .cmd("XADD")
            .arg(LOG_KEY)
            .arg(&["MAXLEN", "~"])
            .arg(MAX_RECORDS)
            .arg("*")
            .arg(FIELD)
            .arg(record);
        let (id,): (String,) = self.query(&command).await?;
        Ok(position(&id)?.0)
    }

    /// Drops the records that have expired at this time of the engine, in milliseconds since 1970.
    pub(super) async fn expire(&mut self, now: u64) -> Result<(), EngineError> {
        let expired = now.saturating_sub(LIFETIME.saturating_mul(1000));
        let mut commands = redis::pipe();
        commands
            .cmd("EXPIRE")
            .arg(LOG_KEY)
            .arg(LIFETIME)
            .ignore()
            .cmd("XTRIM")
            .arg(LOG_KEY)
            .arg("MINID")
            .arg(expired)
            .ignore();
        self.query(&commands).await
    }

    /// Returns at most `count` entries after the one with this identifier, in the order of the log.
    pub(super) async fn read_after(
        &mut self,
        id: Position,
        count: usize,
    ) -> Result<Vec<Entry>, EngineError> {
        let mut command = redis::pipe();
        command
            .cmd("XREAD")
            .arg("COUNT")
            .arg(count)
            .arg("STREAMS")
            .arg(LOG_KEY)
            .arg(format!("{}-{}", id.0, id.1));
        let (reply,): (Option<StreamReadReply>,) = self.query(&command).await?;
        let keys = reply.map_or_else(Vec::new, |reply| reply.keys);
        let entries = keys.into_iter().flat_map(|key| key.ids);
        let entry = |mut entry: redis::streams::StreamId| {
            Ok((position(&entry.id)?, bytes(entry.map.remove(FIELD))))
        };
        entries.map(entry).collect()
    }

    /// Returns the identifier of the last entry, or `None` for an empty log.
    pub(super) async fn last(&mut self) -> Result<Option<Position>, EngineError> {
        let mut command = redis::pipe();
        command
            .cmd("XREVRANGE")
            .arg(LOG_KEY)
            .arg(&["+", "-", "COUNT", "1"]);
        let (reply,): (redis::streams::StreamRangeReply,) = self.query(&command).await?;
        reply
            .ids
            .first()
            .map(|entry| position(&entry.id))
            .transpose()
    }

    async fn query<T: FromRedisValue>(&mut self, commands: &Pipeline) -> Result<T, EngineError> {
        self.room.store(MAX_RESPONSE, Ordering::Relaxed);
        let connection = &mut self.connection;
        in_time(RESPONSE, async {
            Ok(commands.query_async(connection).await?)
        })
        .await
    }
}

impl Drop for Engine {
    /// Closes the socket, even if a command is still unanswered.
    fn drop(&mut self) {
        self.driver.abort();
    }
}

fn position(id: &str) -> Result<Position, EngineError> {
    let parse = |(time, number): (&str, &str)| Some((time.parse().ok()?, number.parse().ok()?));
    id.split_once('-')
        .and_then(parse)
        .ok_or(EngineError::Position)
}

fn bytes(value: Option<Value>) -> Option<Vec<u8>> {
    match value {
        Some(Value::BulkString(bytes)) => Some(bytes),
        _ => None,
    }
}

async fn in_time<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, EngineError>>,
) -> Result<T, EngineError> {
    let result = tokio::time::timeout(limit, work).await;
    result.unwrap_or(Err(EngineError::Silent(limit)))
}

/// A byte stream to the engine.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Opens a stream to exactly the configured address.
async fn dial(address: &EngineAddress) -> Result<Box<dyn Stream>, EngineError> {
    let (host, port) = match &address.place {
        Place::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
        Place::Tcp { host, port } => (host, *port),
    };
    let stream = TcpStream::connect((host.as_str(), port)).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = &address.tls else {
        return Ok(Box::new(stream));
    };
    let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
    let connector = tls
        .connector()
        .map_err(|error| EngineError::Login(error.to_string()))?;
    Ok(Box::new(connector.connect(name, stream).await?))
}

/// A stream that fails when a response is too long.
struct Bounded {
    stream: Box<dyn Stream>,
    room: Arc<AtomicUsize>,
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        let read = buffer.filled().len() - before;
        let room = self.room.load(Ordering::Relaxed);
        if read > room {
            return Poll::Ready(Err(io::Error::other("a response is too long")));
        }
        self.room.store(room - read, Ordering::Relaxed);
        result
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
