//! The connection to the engine, which holds two streams (XADD, XREAD) and the responses that
//! gateways lend (SET, GETRANGE). Each command has a time limit, and each response a bound.

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
use tandem_fleet::Keeper;
use tandem_fleet::NameHash;
use tandem_fleet::inbox::LIFETIME;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;

use super::address::{EngineAddress, EngineSocket};

/// The longest lent response, in bytes.
const MAX_SEALED: usize = Keeper::Engine.max_sealed();

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
/// The beginning of the keys of lent responses.
const RESPONSES_KEY: &str = "tandem:fleet:1:r:";
/// The bytes of the response to a look for a lent response, besides its own.
const BULK_FRAME: usize = 16;
/// The bytes of an error of the engine, at most about.
const ERROR_LENGTH: usize = 512;

/// A stream of records in the engine, and the records that it keeps.
#[derive(Debug)]
pub(super) struct RecordStream {
    /// The key of the engine.
    pub key: &'static str,
    /// The most records. The engine drops up to a hundred more later.
    pub records: usize,
    /// The time after which records are dropped, in seconds.
    pub lifetime: u64,
}

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
pub(super) type LogEntry = (Position, Option<Vec<u8>>);

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

    /// Appends a record, and drops the oldest if they are too many. Returns the identifier of the
    /// entry.
    pub(super) async fn append(
        &mut self,
        stream: &RecordStream,
        record: &[u8],
    ) -> Result<Position, EngineError> {
        let mut command = redis::pipe();
        command
            .cmd("XADD")
            .arg(stream.key)
            .arg(&["MAXLEN", "~"])
            .arg(stream.records)
            .arg("*")
            .arg(FIELD)
            .arg(record);
        let (id,): (String,) = self.query(&command).await?;
        position(&id)
    }

    /// Drops the records that have expired at this time of the engine, in milliseconds since 1970.
    /// The stream itself lives for a day, so that an engine that is full drops responses first.
    pub(super) async fn expire(
        &mut self,
        stream: &RecordStream,
        now: u64,
    ) -> Result<(), EngineError> {
        let expired = now.saturating_sub(stream.lifetime.saturating_mul(1000));
        let mut commands = redis::pipe();
        commands
            .cmd("EXPIRE")
            .arg(stream.key)
            .arg(LIFETIME)
            .ignore()
            .cmd("XTRIM")
            .arg(stream.key)
            .arg("MINID")
            .arg(expired)
            .ignore();
        self.query(&commands).await
    }

    /// Returns at most `count` entries after the one with this identifier, in the order of the log.
    pub(super) async fn read_after(
        &mut self,
        stream: &RecordStream,
        id: Position,
        count: usize,
    ) -> Result<Vec<LogEntry>, EngineError> {
        let mut command = redis::pipe();
        command
            .cmd("XREAD")
            .arg("COUNT")
            .arg(count)
            .arg("STREAMS")
            .arg(stream.key)
            .arg(format!("{}-{}", id.0, id.1));
        let (reply,): (Option<StreamReadReply>,) = self.query(&command).await?;
        let keys = reply.map_or_else(Vec::new, |reply| reply.keys);
        let entries = keys.into_iter().flat_map(|key| key.ids);
        let entry = |mut entry: redis::streams::StreamId| {
            Ok((position(&entry.id)?, bytes(entry.map.remove(FIELD))))
        };
        entries.map(entry).collect()
    }

    /// Returns the time of the engine, in milliseconds since 1970.
    pub(super) async fn time(&mut self) -> Result<u64, EngineError> {
        let mut command = redis::pipe();
        command.cmd("TIME");
        let ((seconds, micros),): ((u64, u64),) = self.query(&command).await?;
        Ok(seconds.saturating_mul(1000).saturating_add(micros / 1000))
    }

    /// Returns which of these responses the engine holds.
    pub(super) async fn has(&mut self, names: &[NameHash]) -> Result<Vec<bool>, EngineError> {
        let mut commands = redis::pipe();
        for name in names {
            commands.cmd("EXISTS").arg(response_key(name));
        }
        self.query(&commands).await
    }

    /// Lends responses for these times in milliseconds, unless the engine holds one of the name.
    pub(super) async fn lend(&mut self, lent: &[Lent]) -> Result<(), EngineError> {
        let mut commands = redis::pipe();
        for lent in lent {
            commands
                .cmd("SET")
                .arg(response_key(&lent.name))
                .arg(&lent.sealed)
                .arg(&["NX", "PX"])
                .arg(lent.millis)
                .ignore();
        }
        self.query(&commands).await
    }

    /// Removes responses.
    pub(super) async fn remove(&mut self, names: &[NameHash]) -> Result<(), EngineError> {
        let mut command = redis::pipe();
        let command = command.cmd("DEL");
        for name in names {
            command.arg(response_key(name));
        }
        self.query(command.ignore()).await
    }

    /// Returns another handle on the connection, for looks that run side by side.
    pub(super) fn looks(&self) -> LookupHandle {
        self.room.store(0, Ordering::Relaxed);
        LookupHandle {
            connection: self.connection.clone(),
            room: Arc::clone(&self.room),
        }
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

/// A response to lend.
pub(super) struct Lent {
    pub name: NameHash,
    pub sealed: Vec<u8>,
    /// The time for which the engine keeps it.
    pub millis: u64,
}

/// A handle for looks at lent responses, many at once.
#[derive(Clone)]
pub(super) struct LookupHandle {
    connection: MultiplexedConnection,
    room: Arc<AtomicUsize>,
}

impl LookupHandle {
    /// Returns the response of a name, which is empty if the engine has none. Its command cuts off
    /// what is too long.
    pub(super) async fn look(&mut self, name: &NameHash) -> Result<Vec<u8>, EngineError> {
        // Each look adds its own part to the bound of the connection.
        self.room
            .fetch_add(MAX_SEALED + BULK_FRAME, Ordering::Relaxed);
        let mut command = redis::cmd("GETRANGE");
        command.arg(response_key(name)).arg(0).arg(MAX_SEALED - 1);
        let found: Result<Vec<u8>, _> = in_time(RESPONSE, async {
            Ok(command.query_async(&mut self.connection).await?)
        })
        .await;
        let length = found.as_ref().map_or(ERROR_LENGTH, Vec::len);
        let without = |room: usize| Some(room.saturating_sub(MAX_SEALED - length.min(MAX_SEALED)));
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = self.room.fetch_update(set, fetch, without);
        found
    }
}

/// Returns the key of a lent response.
fn response_key(name: &NameHash) -> String {
    let number = u128::from_be_bytes(*name);
    format!("{RESPONSES_KEY}{number:032x}")
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
trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Opens a stream to exactly the configured address.
async fn dial(address: &EngineAddress) -> Result<Box<dyn ByteStream>, EngineError> {
    let (host, port) = match &address.place {
        EngineSocket::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
        EngineSocket::Tcp { host, port } => (host, *port),
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
    stream: Box<dyn ByteStream>,
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
