//! Chromium's DevTools protocol over a pipe: JSON messages, each closed by a zero byte.

use bytes::BytesMut;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::BrowserError;
use super::super::process::Pipe;

/// Largest message taken; the largest that we ask for are a thousand times smaller.
const MAX_MESSAGE: usize = 256 << 20;
const READ: usize = 256 << 10;

/// This program's end of the pipe.
#[derive(Debug)]
pub(super) struct DevTools {
    pipe: Pipe,
    /// Bytes read; before `scanned` is no zero.
    input: BytesMut,
    scanned: usize,
    last_id: u64,
}

/// A message from Chromium: an answer has an `id`, an event a `method`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DevToolsMessage {
    pub(super) id: Option<u64>,
    pub(super) session_id: Option<String>,
    #[serde(default)]
    pub(super) method: String,
    #[serde(default)]
    pub(super) params: Value,
    #[serde(default)]
    pub(super) result: Value,
    pub(super) error: Option<Refusal>,
}

/// An error of a command.
#[derive(Debug, Deserialize)]
pub(super) struct Refusal {
    pub(super) message: String,
}

impl DevTools {
    pub(super) fn new(pipe: Pipe) -> Self {
        Self {
            pipe,
            input: BytesMut::new(),
            scanned: 0,
            last_id: 0,
        }
    }

    /// Sends a command; gives its number.
    pub(super) async fn send(
        &mut self,
        session: Option<&str>,
        method: &str,
        params: Value,
    ) -> Result<u64, BrowserError> {
        self.last_id += 1;
        let mut message = json!({ "id": self.last_id, "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.pipe
            .commands
            .write_all(&bytes)
            .await
            .map_err(BrowserError::Pipe)?;
        self.pipe
            .commands
            .flush()
            .await
            .map_err(BrowserError::Pipe)?;
        Ok(self.last_id)
    }

    /// The next message. Safe to drop while it waits.
    pub(super) async fn receive(&mut self) -> Result<DevToolsMessage, BrowserError> {
        loop {
            if let Some(at) = self.input[self.scanned..].iter().position(|&b| b == 0) {
                let text = self.input.split_to(self.scanned + at + 1);
                self.scanned = 0;
                return serde_json::from_slice(&text[..text.len() - 1])
                    .map_err(BrowserError::Message);
            }
            self.scanned = self.input.len();
            if self.input.len() > MAX_MESSAGE {
                return Err(BrowserError::TooLong);
            }
            self.input.reserve(READ);
            let read = self
                .pipe
                .answers
                .read_buf(&mut self.input)
                .await
                .map_err(BrowserError::Pipe)?;
            if read == 0 {
                return Err(BrowserError::Ended {
                    complaint: String::new(),
                });
            }
        }
    }

    /// Ends the conversation.
    pub(super) fn into_pipe(self) -> Pipe {
        self.pipe
    }
}
