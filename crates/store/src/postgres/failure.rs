//! The failures of PostgreSQL, as texts for the operator. They contain no value of a statement, no
//! password and no address.

use tandem_submit::store::StoreError;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// The reason why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    text: String,
    code: Option<String>,
    is_temporary: bool,
}

impl Failure {
    /// Describes an error of the client library or of the server.
    pub(super) fn of(error: &Error) -> Self {
        match error.code() {
            Some(code) => Self::of_server(code),
            None => Self {
                text: without_code(error),
                code: None,
                // The connection is lost, or there was none.
                is_temporary: true,
            },
        }
    }

    fn of_server(code: &SqlState) -> Self {
        let text = match remedy(code) {
            Some(remedy) => remedy.to_owned(),
            None => format!("PostgreSQL reports the error {}", code.code()),
        };
        Self {
            text,
            code: Some(code.code().to_owned()),
            is_temporary: is_temporary(code),
        }
    }

    /// Describes a failure of the program, which a repetition does not mend.
    pub(super) fn permanent(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            code: None,
            is_temporary: false,
        }
    }

    /// Describes a value that this program does not write.
    pub(super) fn invalid() -> Self {
        Self::permanent("a value in the database is not valid")
    }

    /// Returns the SQLSTATE of the server.
    pub(super) fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// Returns true if the same call may succeed soon.
    pub(super) const fn is_temporary(&self) -> bool {
        self.is_temporary
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        Self(failure.text)
    }
}

/// Describes an error that the server did not report. Its sources name operating system errors and
/// problems of certificates.
fn without_code(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    format!("PostgreSQL cannot be reached: {text}")
}

fn is_temporary(code: &SqlState) -> bool {
    let is_ending = matches!(code.code(), "57P01" | "57P02" | "57P03" | "57P05");
    is_ending
        || code.code().starts_with("08")
        || [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::LOCK_NOT_AVAILABLE,
            SqlState::TOO_MANY_CONNECTIONS,
            // A server that was the primary. The next connection finds the new one.
            SqlState::READ_ONLY_SQL_TRANSACTION,
        ]
        .contains(code)
}

/// Returns the text for the errors that an operator can mend.
fn remedy(code: &SqlState) -> Option<&'static str> {
    Some(match code.code() {
        "28000" | "28P01" => {
            "PostgreSQL refuses the user or the password: check the address, password-file= and \
             pg_hba.conf"
        }
        "3D000" => "the database does not exist: create it with createdb",
        "42501" => {
            "the user lacks a right: GRANT CREATE ON DATABASE to it, or let it own the schema"
        }
        "3F000" | "42P01" | "42883" | "42703" => {
            "the tables of the store are missing or of another program: use a schema of its own \
             (schema=NAME)"
        }
        "25006" => {
            "the server is a standby: name the primary, or add target_session_attrs=read-write"
        }
        "53100" => "the disk of PostgreSQL is full",
        "53300" => "PostgreSQL has too many connections: raise max_connections",
        "55P03" | "57014" => "PostgreSQL does not answer in time",
        "57P01" | "57P02" | "57P03" => "PostgreSQL is stopping or starting",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_name_the_remedy_or_the_code() {
        let of = |code: &str| Failure::of_server(&SqlState::from_code(code));
        assert!(of("28P01").text.contains("password-file="));
        assert!(of("XX001").text.contains("XX001"));
        for (code, expected) in [
            ("40001", true),
            ("57P01", true),
            ("08006", true),
            ("25006", true),
            ("28P01", false),
            ("23505", false),
        ] {
            assert_eq!(of(code).is_temporary(), expected, "{code}");
        }
    }
}
