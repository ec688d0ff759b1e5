//! Users without privileges: a user namespace in which they may administer networks of their own.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use tandem_net::emulator::{EmulatorError, sys};

/// Tells [`crate::init`] whom to become again before it runs the command.
pub(crate) const VARIABLE: &str = "TANDEM_LINK_USER";

/// A user and a group, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    uid: u32,
    gid: u32,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

impl User {
    /// Parses the output of [`fmt::Display`].
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (uid, gid) = text.split_once(':')?;
        Some(Self {
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
        })
    }

    fn current() -> io::Result<Self> {
        let own = fs::metadata("/proc/self")?;
        Ok(Self {
            uid: own.uid(),
            gid: own.gid(),
        })
    }
}

/// Enters a user namespace where it is needed, and returns the original user. It must be called
/// before any thread is started.
pub(crate) fn become_administrator() -> Result<Option<User>, EmulatorError> {
    if sys::may_administer_network() {
        return Ok(None);
    }
    let enter = || -> io::Result<User> {
        let user = User::current()?;
        enter_user_namespace(User { uid: 0, gid: 0 }, user)?;
        Ok(user)
    };
    enter().map(Some).map_err(EmulatorError::of(
        "make a user namespace, which a link without root needs",
    ))
}

/// Enters a user namespace in which `outside` is called `inside`.
pub(crate) fn enter_user_namespace(inside: User, outside: User) -> io::Result<()> {
    sys::unshare(sys::UnshareFlags::NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write(
        "/proc/self/uid_map",
        format!("{} {} 1", inside.uid, outside.uid),
    )?;
    fs::write(
        "/proc/self/gid_map",
        format!("{} {} 1", inside.gid, outside.gid),
    )
}

/// Becomes the user again that [`become_administrator`] found, for programs that are to run as
/// themselves.
pub(crate) fn become_user_again(user: User) -> io::Result<()> {
    enter_user_namespace(user, User { uid: 0, gid: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_passed_on_as_text() {
        let user = User {
            uid: 1000,
            gid: 100,
        };
        assert_eq!(User::parse(&user.to_string()), Some(user));
        for text in ["", "1000", "a:b", "1:2:3"] {
            assert_eq!(User::parse(text), None, "{text}");
        }
    }
}
