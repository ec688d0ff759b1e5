//! The documents that explain a refusal (RFC 9457), with the remedy for each problem.

use serde::{Deserialize, Serialize};

/// The media type of a problem document.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// The path below which the gateway explains the types of problems.
pub const PATH: &str = "/problems/";

/// The registered type of [`Problem::OhttpKey`] (RFC 9458 section 5.3).
const OHTTP_KEY: &str = "https://iana.org/assignments/http-problem-types#ohttp-key";

/// The largest problem document that is read, in bytes.
const MAX_LENGTH: usize = 16 << 10;

macro_rules! problems {
    ($($(#[doc = $doc:literal])+ $name:ident $slug:literal $status:literal $title:literal $remedy:literal;)*) => {
        /// A problem with a submission.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Problem {
            $($(#[doc = $doc])+ $name,)*
        }

        impl Problem {
            /// All problems.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns the last segment of the problem's type.
            pub const fn slug(self) -> &'static str {
                match self { $(Self::$name => $slug,)* }
            }

            /// Returns the status code of the response.
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// Returns the summary, which is the same for all occurrences.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }

            /// Returns the remedy.
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$name => $remedy,)* }
            }
        }
    };
}

problems! {
    /// The request has neither a token nor a client certificate.
    MissingCredential "missing-credential" 401
        "The request has no credential"
        "Send Authorization: Bearer TOKEN, or connect with a client certificate.";
    /// The token or the certificate belongs to no client.
    UnknownCredential "unknown-credential" 401
        "The credential is not valid"
        "Ask the operator of the gateway for a token or a certificate.";
    /// The client must not send to this path.
    PathNotAllowed "path-not-allowed" 403
        "This credential must not send to this path"
        "Send to a path that the operator has granted. Dot segments, empty segments, semicolons and encoded separators are refused.";
    /// The client must not send this media type.
    TypeNotAllowed "type-not-allowed" 415
        "This credential must not send this media type"
        "Send a content-type that the operator has granted.";
    /// The body is larger than the client may send.
    TooLarge "too-large" 413
        "The body is larger than this credential may send"
        "Send less data, or send it in several submissions.";
    /// The client has used its rights for today.
    OverQuota "over-quota" 429
        "This credential has used its rights for today"
        "Send again after midnight UTC, as Retry-After says.";
    /// The field `Idempotency-Key` is missing.
    MissingKey "missing-key" 400
        "The request has no Idempotency-Key"
        "Choose a random secret of 32 bytes, and send its SHA-256 hash in base64url as a quoted string.";
    /// The field `Idempotency-Key` does not hold a hash.
    MalformedKey "malformed-key" 400
        "Idempotency-Key is not a SHA-256 hash"
        "Send the 43 characters of the hash in base64url, without padding, as a quoted string.";
    /// The key belongs to another submission.
    KeyReused "key-reused" 422
        "Another submission has this Idempotency-Key"
        "Choose a new secret for each submission. Only a repetition of the same request may use it again.";
    /// The digest of the request does not match its body.
    DigestMismatch "digest-mismatch" 400
        "Content-Digest does not match the body"
        "Send the body again, with its SHA-256 digest or without the field.";
    /// The fields that pass the gateway are too long, or not ASCII.
    BadFields "bad-fields" 400
        "The fields of the content are not valid"
        "Send content-type, content-encoding and content-language in at most 1024 ASCII characters.";
    /// The body did not arrive in time.
    SlowBody "slow-body" 408
        "The body did not arrive in time"
        "Send the request again over a faster connection, or send less data.";
    /// The body ended before its announced length.
    IncompleteBody "incomplete-body" 400
        "The body is incomplete"
        "Send the request again.";
    /// The gateway does not serve this path.
    NotFound "not-found" 404
        "The gateway does not serve this path"
        "Send submissions to /submissions or below it.";
    /// The method is not allowed here.
    MethodNotAllowed "method-not-allowed" 405
        "This path does not support the method"
        "Use POST for a submission, and GET for its state and its answer.";
    /// The submission does not exist, or the secret is not the one of the submission.
    UnknownSubmission "unknown-submission" 404
        "There is no such submission for this secret"
        "Send the secret as Submission-Secret in base64url. Old submissions are removed.";
    /// The server could not be reached for too long.
    NotDelivered "not-delivered" 502
        "The server did not take the submission in time"
        "Send the data again with a new secret.";
    /// The answer of the server was larger than the gateway stores.
    AnswerTooLarge "answer-too-large" 500
        "The server took the submission, but its answer is too large"
        "Do not send the data again. Ask the operator of the server for the result.";
    /// The gateway holds too much data at this moment.
    Busy "busy" 503
        "The gateway has too much work at this moment"
        "Send the same request again after the time in Retry-After.";
    /// Another submission has spent the token.
    TokenSpent "token-spent" 401
        "Another submission has spent this token"
        "Send the data with another token. Only a repetition of the same request may use a token again.";
    /// The epoch of the token is over.
    EpochOver "epoch-over" 401
        "The token is no longer valid"
        "Get tokens of the present epoch, and send the data again.";
    /// The request has no token of an issuer.
    MissingToken "missing-token" 401
        "The request has no token of an issuer"
        "Get tokens for the challenge in WWW-Authenticate, and send Authorization: PrivateToken within an encapsulated request.";
    /// The token cannot be read.
    MalformedToken "malformed-token" 400
        "The token is malformed"
        "Send a token of type 2 (RFC 9578) in base64url as Authorization: PrivateToken token=\"...\".";
    /// The gateway accepts no tokens with this key.
    UnknownIssuer "unknown-issuer" 401
        "The gateway does not accept tokens of this issuer"
        "Get tokens for the challenge of this gateway, signed with the key in it.";
    /// The token answers another challenge.
    WrongChallenge "wrong-challenge" 401
        "The token is for another challenge"
        "Get tokens for the challenge of this gateway.";
    /// The signature of the token is not valid.
    ForgedToken "forged-token" 401
        "The signature of the token is not valid"
        "Get tokens from the issuer.";
    /// The media type is not that of an encapsulated request.
    WrongMediaType "wrong-media-type" 415
        "The content is no encapsulated request"
        "Send an encapsulated request (RFC 9458) as message/ohttp-req.";
    /// The request is encapsulated for another key.
    OhttpKey "ohttp-key" 422
        "The request is encapsulated for another key"
        "Get the present key of the gateway as application/ohttp-keys, and encapsulate the request again.";
    /// The encapsulated request cannot be decrypted.
    BadEncapsulation "bad-encapsulation" 400
        "The encapsulated request cannot be opened"
        "Encapsulate the request again for the present key of the gateway.";
    /// The encapsulated request was received before.
    Replayed "replayed" 409
        "The encapsulated request was received before"
        "Encapsulate a repeated request again, with the same token and Idempotency-Key.";
    /// The message within the encapsulation cannot be read.
    BadMessage "bad-message" 400
        "The encapsulated message is malformed"
        "Send a binary HTTP message (RFC 9292) with at most 16 KiB of fields.";
    /// The message within the encapsulation has no uniform length.
    BadPadding "bad-padding" 400
        "The encapsulated message is not padded"
        "Pad the message with zeros to the next power of two, and to at least 4096 bytes.";
    /// The account has got its tokens of the epoch.
    NoTokensLeft "no-tokens-left" 429
        "The account has got all its tokens of this epoch"
        "Ask again in the next epoch, as Retry-After says.";
    /// The token request cannot be read, or is for another key.
    BadTokenRequest "bad-token-request" 422
        "The token request is not valid"
        "Send a token request of type 2 (RFC 9578) for the present key in the directory of the issuer.";
    /// The store of the gateway has no room.
    StoreFull "store-full" 503
        "The gateway stores as much data as it may"
        "Send the same request again after the time in Retry-After. The gateway removes data when the server takes it.";
    /// The store of the gateway fails.
    StoreFailed "store-failed" 503
        "The gateway cannot store submissions at this moment"
        "Send the same request again after the time in Retry-After.";
}

/// A problem document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// The type of the problem, as a reference that is relative to the gateway.
    #[serde(rename = "type", default = "blank")]
    pub kind: String,
    /// The summary.
    #[serde(default)]
    pub title: String,
    /// The status code of the response.
    #[serde(default)]
    pub status: u16,
    /// The remedy.
    #[serde(default)]
    pub detail: String,
}

fn blank() -> String {
    "about:blank".to_owned()
}

impl Document {
    /// Reads a problem document of a server. Returns `None` if it is none, or is too large.
    pub fn read(text: &[u8]) -> Option<Self> {
        let text = (text.len() <= MAX_LENGTH).then_some(text)?;
        serde_json::from_slice(text).ok()
    }

    /// Returns the problem of this gateway that the document describes.
    pub fn problem(&self) -> Option<Problem> {
        if self.kind == OHTTP_KEY {
            return Some(Problem::OhttpKey);
        }
        let slug = self.kind.strip_prefix(PATH)?;
        Problem::of(slug)
    }
}

impl Problem {
    /// Returns the problem whose type ends with this segment.
    pub fn of(slug: &str) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|problem| problem.slug() == slug)
    }

    /// Returns the document. It names no client, no address and no content.
    pub fn document(self) -> Document {
        Document {
            kind: match self {
                Self::OhttpKey => OHTTP_KEY.to_owned(),
                _ => format!("{PATH}{}", self.slug()),
            },
            title: self.title().to_owned(),
            status: self.status(),
            detail: self.remedy().to_owned(),
        }
    }

    /// Returns the document as JSON.
    pub fn json(self) -> String {
        serde_json::to_string(&self.document()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_have_distinct_types_and_round_trip() {
        for problem in Problem::ALL {
            let document = Document::read(problem.json().as_bytes()).expect("our own document");
            assert_eq!(document.problem(), Some(*problem));
            assert!((400..600).contains(&document.status));
            assert!(document.detail.ends_with('.') && !document.title.ends_with('.'));
        }
    }

    #[test]
    fn documents_of_others_are_read() {
        let document = Document::read(b"{\"title\": \"Full\"}").expect("RFC 9457 section 3.1");
        assert_eq!(document.kind, "about:blank");
        assert_eq!(document.problem(), None);
        assert_eq!(Document::read(b"7"), None);
        assert_eq!(Document::read(&vec![b' '; MAX_LENGTH + 1]), None);
    }
}
