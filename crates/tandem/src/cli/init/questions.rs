//! The questions of `tandem init`: a flag answers a question, else the user does, else the default.

use std::io::{BufRead, Write};

use crate::cli::Failure;

/// A question.
pub(super) struct Question {
    /// The flag that answers it.
    pub(super) flag: &'static str,
    pub(super) text: &'static str,
    pub(super) default: Option<&'static str>,
}

pub(super) const ROLE: Question = Question {
    flag: "ROLE",
    text: "Set-ups:\n  \
           1 own-gateway    a gateway on a server of your own, and its client\n  \
           2 onion-operator a gateway beside your onion service\n  \
           3 tor-user       a client that reaches a gateway through Tor\n  \
           4 exit           a gateway at your Tor exit\n  \
           5 no-gateway     a client without a gateway and without Tor, for a slow link\n\
           Number or name",
    default: None,
};
pub(super) const ADDRESS: Question = Question {
    flag: "--address",
    text: "Name or address at which clients reach the gateway",
    default: None,
};
pub(super) const IP: Question = Question {
    flag: "--ip",
    text: "Address of that name (empty: each client asks its resolver)",
    default: Some(""),
};
pub(super) const PORT: Question = Question {
    flag: "--port",
    text: "Port of the gateway",
    default: Some("443"),
};
pub(super) const ONION: Question = Question {
    flag: "--onion",
    text: "Onion address of the service, or the path of Tor's file with it",
    default: None,
};
pub(super) const ORIGIN: Question = Question {
    flag: "--origin",
    text: "URL of the web server behind the service",
    default: Some("http://127.0.0.1:80"),
};
pub(super) const MARKED_PORT: Question = Question {
    default: Some("9980"),
    ..PORT
};
pub(super) const TOR_GATEWAY: Question = Question {
    flag: "--gateway",
    text: "Gateway: \"sites\" for those that sites announce, NAME.onion for that of one site, or \
           for all sites an endpoint, a tandem:// URL with a token, or \"exit\" for Tor exits",
    default: Some("sites"),
};
pub(super) const SOCKS: Question = Question {
    flag: "--via",
    text: "Tor's SOCKS port (Tor Browser's own Tor: socks5://127.0.0.1:9150)",
    default: Some("socks5://127.0.0.1:9050"),
};
pub(super) const CONTROL: Question = Question {
    flag: "--via",
    text: "Tor's control port",
    default: Some("tor://127.0.0.1:9051"),
};
pub(super) const MARKER: Question = Question {
    flag: "--address",
    text: "Address of the gateway at the exit",
    default: Some("192.0.2.80"),
};

/// The user's side of the command.
pub(super) struct Questions<I, O> {
    pub(super) input: I,
    pub(super) output: O,
    /// False if no user can answer, as in scripts.
    pub(super) asks: bool,
}

impl<I: BufRead, O: Write> Questions<I, O> {
    /// Returns the answer to a question. An invalid answer of the user is asked for again.
    ///
    /// # Errors
    /// Fails if the flag's value is invalid, or if nothing answers the question.
    pub(super) fn ask<T>(
        &mut self,
        question: &Question,
        given: Option<&str>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, Failure> {
        let flag = question.flag;
        if let Some(given) = given {
            return parse(given.trim()).map_err(|problem| format!("{flag}: {problem}").into());
        }
        if !self.asks {
            let default = question
                .default
                .ok_or_else(|| format!("give {flag}: there is no terminal for the question"))?;
            return parse(default).map_err(|problem| format!("{flag}: {problem}").into());
        }
        loop {
            match question.default {
                Some("") | None => write!(self.output, "{}: ", question.text)?,
                Some(default) => write!(self.output, "{} [{default}]: ", question.text)?,
            }
            let line = self.line()?;
            let answer = match (line.as_str(), question.default) {
                ("", None) => continue,
                ("", Some(default)) => default,
                (line, _) => line,
            };
            match parse(answer) {
                Ok(value) => return Ok(value),
                Err(problem) => writeln!(self.output, "  {problem}")?,
            }
        }
    }

    /// Returns whether the user agrees. The default is no.
    pub(super) fn confirm(&mut self, text: &str) -> Result<bool, Failure> {
        write!(self.output, "{text} [y/N] ")?;
        let answer = self.line()?.to_ascii_lowercase();
        Ok(matches!(answer.as_str(), "y" | "yes"))
    }

    fn line(&mut self) -> Result<String, Failure> {
        self.output.flush()?;
        let mut line = String::new();
        if self.input.read_line(&mut line)? == 0 {
            return Err("the input ended before the last question".into());
        }
        Ok(line.trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: Question = Question {
        flag: "--port",
        text: "Port",
        default: Some("443"),
    };

    fn parse(text: &str) -> Result<u16, String> {
        text.parse().map_err(|_| format!("{text:?} is no port"))
    }

    fn answer(input: &str, asks: bool, given: Option<&str>) -> (Result<u16, String>, String) {
        let mut questions = Questions {
            input: input.as_bytes(),
            output: Vec::new(),
            asks,
        };
        let result = questions
            .ask(&QUESTION, given, parse)
            .map_err(|error| error.to_string());
        let output = String::from_utf8(questions.output).expect("text");
        (result, output)
    }

    #[test]
    fn ask_prefers_flag_then_user_then_default() {
        assert_eq!(answer("", true, Some("8443")), (Ok(8443), String::new()));
        assert_eq!(answer("", false, None), (Ok(443), String::new()));
        let prompt = "Port [443]: ";
        assert_eq!(answer("\n", true, None), (Ok(443), prompt.into()));
        assert_eq!(answer(" 80 \n", true, None), (Ok(80), prompt.into()));
        let twice = format!("{prompt}  \"x\" is no port\n{prompt}");
        assert_eq!(answer("x\n81\n", true, None), (Ok(81), twice));
    }

    #[test]
    fn ask_fails_without_an_answer() {
        let (bad, _) = answer("80\n", true, Some("x"));
        assert_eq!(bad, Err("--port: \"x\" is no port".into()));
        let (ended, _) = answer("x\n", true, None);
        assert!(ended.expect_err("the end").contains("input ended"));
        let mut questions = Questions {
            input: &b""[..],
            output: Vec::new(),
            asks: false,
        };
        let needed = Question {
            default: None,
            ..QUESTION
        };
        let error = questions.ask(&needed, None, parse).expect_err("no answer");
        assert!(error.to_string().contains("give --port"), "{error}");
    }
}
