//! The responses to clients: problems, states, answers and documents.

use bytes::Bytes;
use tandem_http::ResponseHead;
use tandem_submit::problem::{self, Problem};
use tandem_submit::store::{DAY, Record};
use tandem_submit::submission::{SUBMISSION_ID, State, StateDocument};

use super::{location, now};
use crate::exchange::{Part, Sink};

/// The seconds after which a client may ask again.
const RETRY_AFTER: &str = "2";

/// The seconds after which a client may send again to a full store.
const RETRY_WHEN_FULL: &str = "60";

/// A complete response.
pub(in crate::middle) struct Response {
    head: ResponseHead,
    body: Bytes,
}

impl Response {
    fn new(status: u16, media_type: &str, body: impl Into<Bytes>) -> Self {
        let (mut head, body) = (ResponseHead::new(status), body.into());
        head.fields.push("content-type", media_type);
        head.fields.push("content-length", body.len().to_string());
        head.fields.push("cache-control", "no-store");
        Self { head, body }
    }

    pub(in crate::middle) fn document(media_type: &str, body: impl Into<Bytes>) -> Self {
        let mut response = Self::new(200, media_type, body);
        response.head.fields.set("cache-control", "max-age=3600");
        response
    }

    /// Returns the explanation of a type of problems, in plain text.
    pub(in crate::middle) fn explanation(problem: Problem) -> Self {
        let text = format!("{}.\n{}\n", problem.title(), problem.remedy());
        Self::document("text/plain; charset=utf-8", text)
    }

    pub(in crate::middle) fn problem(problem: Problem) -> Self {
        let mut response = Self::new(problem.status(), problem::MEDIA_TYPE, problem.json());
        let fields = &mut response.head.fields;
        match problem {
            Problem::MissingCredential | Problem::UnknownCredential => {
                fields.push("www-authenticate", "Bearer");
            }
            Problem::OverQuota => {
                let seconds = (DAY - now().rem_euclid(DAY)).div_euclid(1000) + 1;
                fields.push("retry-after", seconds.to_string());
            }
            Problem::StoreFull => fields.push("retry-after", RETRY_WHEN_FULL),
            Problem::Busy | Problem::StoreFailed => fields.push("retry-after", RETRY_AFTER),
            _ => {}
        }
        response
    }

    pub(in crate::middle) fn method_not_allowed(allow: &str) -> Self {
        let mut response = Self::problem(Problem::MethodNotAllowed);
        response.head.fields.push("allow", allow);
        response
    }

    /// Returns content for one client, which no cache may keep.
    #[cfg(feature = "submit")]
    pub(in crate::middle) fn private(media_type: &str, body: Vec<u8>) -> Self {
        Self::new(200, media_type, body)
    }

    /// Returns a problem that may be over after some seconds.
    #[cfg(feature = "submit")]
    pub(in crate::middle) fn retry_after(problem: Problem, seconds: u64) -> Self {
        let mut response = Self::problem(problem);
        response.head.fields.set("retry-after", seconds.to_string());
        response
    }

    /// Returns a problem with challenges (RFC 9577 section 2.1).
    #[cfg(feature = "submit")]
    pub(super) fn challenges(problem: Problem, challenges: Vec<String>) -> Self {
        let mut response = Self::problem(problem);
        for challenge in challenges {
            response.head.fields.push("www-authenticate", challenge);
        }
        response
    }

    /// Returns the message for an encapsulated response. Its length is that of its content.
    #[cfg(feature = "submit")]
    pub(super) fn into_message(self) -> tandem_tokens::message::Response {
        let mut fields = self.head.fields;
        fields.remove("content-length");
        tandem_tokens::message::Response {
            status: self.head.status,
            fields,
            body: self.body,
        }
    }

    /// Returns the state of a submission, as the response to a question about it.
    pub(super) fn state(record: &Record) -> Self {
        let document = StateDocument {
            id: record.id.to_string(),
            state: record.state,
            status: record.status,
        };
        let mut response = Self::new(200, "application/json", document.json());
        if record.state == State::Accepted {
            response.head.fields.push("retry-after", RETRY_AFTER);
        }
        response
    }

    /// Returns the answer of the server, or status 202 as long as there is none.
    pub(super) fn answer(record: Record) -> Self {
        let mut response = match (record.state, record.answer) {
            // A redirect would lead the client away from the gateway.
            (State::Answered, Some(answer)) if answer.status / 100 != 3 => {
                let mut head = ResponseHead::new(answer.status);
                head.fields = answer.fields;
                if answer.status != 204 {
                    let length = answer.body.len().to_string();
                    head.fields.push("content-length", length);
                }
                head.fields.push("cache-control", "no-store");
                let body = answer.body;
                Self { head, body }
            }
            (State::NotDelivered, _) | (State::Answered, Some(_)) => {
                Self::problem(Problem::NotDelivered)
            }
            (state, answer) => {
                let record = Record {
                    state,
                    answer,
                    ..record
                };
                let mut response = Self::state(&record);
                response.head.status = 202;
                response
            }
        };
        let fields = &mut response.head.fields;
        fields.push(SUBMISSION_ID, record.id.to_string());
        fields.push("location", location(record.id));
        response
    }

    pub(in crate::middle) async fn send(self, mut sink: Sink) {
        sink.send(Part::Head(self.head)).await;
        if !self.body.is_empty() {
            sink.send(Part::Data(self.body)).await;
        }
    }
}
