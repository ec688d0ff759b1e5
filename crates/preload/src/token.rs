//! Bounded pieces of the input that have to be kept until they are whole.

/// Longest attribute value, address or collected rule, in bytes; longer ones are skipped.
pub(super) const MAX_TOKEN: usize = 8 * 1_024;
/// Longest name of an element, attribute or rule that means anything here.
const MAX_NAME: usize = 20;

/// Bytes of a value, given up once they are too many or are seen to hold their data themselves.
#[derive(Debug)]
pub(super) struct Token {
    bytes: Vec<u8>,
    lost: bool,
}

impl Token {
    pub(super) const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            lost: false,
        }
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.lost = false;
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.lost || self.bytes.len() + bytes.len() > MAX_TOKEN {
            self.lost = true;
        } else {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Returns the whole token, unless it was too long.
    pub(super) fn get(&self) -> Option<&[u8]> {
        (!self.lost).then_some(&self.bytes)
    }
}

/// A name in lower case; a long one is known to be none of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Short {
    bytes: [u8; MAX_NAME],
    length: u8,
}

impl Short {
    pub(super) const fn new() -> Self {
        Self {
            bytes: [0; MAX_NAME],
            length: 0,
        }
    }

    pub(super) const fn clear(&mut self) {
        self.length = 0;
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let from = usize::from(self.length);
        let to = from + bytes.len();
        let Some(room) = self.bytes.get_mut(from..to) else {
            self.length = u8::MAX;
            return;
        };
        room.copy_from_slice(bytes);
        room.make_ascii_lowercase();
        self.length = u8::try_from(to).unwrap_or(u8::MAX);
    }

    /// Takes bytes up to the first that `lower` maps to 0, each as it maps it, and tells how many
    /// there were.
    pub(super) fn take(&mut self, bytes: &[u8], lower: &[u8; 256]) -> usize {
        for (at, &byte) in bytes.iter().enumerate() {
            let byte = lower[usize::from(byte)];
            if byte == 0 {
                return at;
            }
            match self.bytes.get_mut(usize::from(self.length)) {
                Some(room) => {
                    *room = byte;
                    self.length += 1;
                }
                None => self.length = u8::MAX,
            }
        }
        bytes.len()
    }

    /// The name, unless it was too long.
    pub(super) fn get(&self) -> Option<&[u8]> {
        self.bytes.get(..usize::from(self.length))
    }
}
