//! The place of a reader in a stream of the engine.

use super::engine::{BATCH, Engine, EngineError, LogEntry, Position, RecordStream};

/// The position before the first entry of a stream.
const START: Position = (0, 0);

/// A reader, which outlives connections.
#[derive(Debug)]
pub(super) struct Cursor {
    stream: &'static RecordStream,
    /// The identifier of the last entry that was read.
    position: Position,
    /// The entries that are read at once: fewer after a failure, and none after another one.
    batch: usize,
}

impl Cursor {
    pub(super) const fn new(stream: &'static RecordStream) -> Self {
        Self {
            stream,
            position: START,
            batch: BATCH,
        }
    }

    /// Prepares for a new connection. Entries that could not be read are skipped: the reader
    /// continues after `mark`, a record that it appends. The engine has no command that names an
    /// entry without its content, and the identifiers in the stream may lie in the future.
    pub(super) async fn resume(
        &mut self,
        engine: &mut Engine,
        mark: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Result<(), EngineError> {
        // An engine that has lost its data, or has another clock, begins again below the position.
        if engine.time().await? < self.position.0 {
            self.position = START;
        }
        if self.batch == 0
            && let Some(mark) = mark()
        {
            self.position = engine.append(self.stream, &mark).await?;
            self.batch = BATCH;
            tracing::warn!(
                stream = self.stream.key,
                "entries of the engine cannot be read and were skipped"
            );
        }
        Ok(())
    }

    /// Returns the next entries, and whether they are the last ones.
    pub(super) async fn read(
        &mut self,
        engine: &mut Engine,
    ) -> Result<(Vec<LogEntry>, bool), EngineError> {
        // A response that is too long or malformed would be the same at the next connection.
        let count = self.batch.max(1);
        self.batch = usize::from(count > 1);
        let entries = engine.read_after(self.stream, self.position, count).await?;
        self.batch = (count * 2).min(BATCH);
        let is_last = entries.len() < count;
        if let Some((position, _)) = entries.last() {
            self.position = *position;
        }
        Ok((entries, is_last))
    }
}
