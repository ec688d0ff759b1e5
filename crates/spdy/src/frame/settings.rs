//! SETTINGS frames: the parameters of each end. Draft section 2.6.4.

use bytes::{BufMut as _, BytesMut};

use super::{FrameError, FrameType, put_control_head, u32_at};

const FLAG_CLEAR: u8 = 0x01;

/// Settings of the sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// True if the client must forget the values stored for this server. This client stores none.
    pub clear: bool,
    /// The entries as written.
    pub entries: Vec<Setting>,
}

/// An entry of a SETTINGS frame. On the wire the flags come first, then the 24-bit id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// 1: please store; 2: this was stored. We never ask for it and ignore both.
    pub flags: u8,
    /// See [`SettingId`].
    pub id: u32,
    /// In the unit of its id.
    pub value: u32,
}

/// The entries that affect this implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingId {
    /// Streams that the receiver of the frame may have open at once.
    MaxConcurrentStreams = 4,
    /// Bytes that the receiver of the frame may send on a stream unasked.
    InitialWindowSize = 7,
}

impl Settings {
    /// Reads a payload.
    pub fn load(flags: u8, payload: &[u8]) -> Result<Self, FrameError> {
        let Some((count, entries)) = payload.split_first_chunk::<4>() else {
            return Err(FrameError::Length);
        };
        if entries.len() as u64 != u64::from(u32::from_be_bytes(*count)) * 8 {
            return Err(FrameError::Count);
        }
        let entry = |bytes: &[u8]| {
            let head = u32_at(bytes, 0);
            Setting {
                flags: (head >> 24) as u8,
                id: head & 0x00ff_ffff,
                value: u32_at(bytes, 4),
            }
        };
        Ok(Self {
            clear: flags & FLAG_CLEAR != 0,
            entries: entries.chunks_exact(8).map(entry).collect(),
        })
    }

    /// The value of an entry. "If a setting appears several times, only the first counts."
    pub fn value(&self, id: SettingId) -> Option<u32> {
        self.entries
            .iter()
            .find(|entry| entry.id == id as u32)
            .map(|entry| entry.value)
    }

    /// Appends the frame.
    pub fn encode(&self, dst: &mut BytesMut) {
        let flags = if self.clear { FLAG_CLEAR } else { 0 };
        put_control_head(dst, FrameType::Settings, flags, 4 + 8 * self.entries.len());
        dst.put_u32(self.entries.len() as u32);
        for entry in &self.entries {
            dst.put_u32(u32::from(entry.flags) << 24 | (entry.id & 0x00ff_ffff));
            dst.put_u32(entry.value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_of_an_id_counts() {
        let entry = |value| Setting {
            flags: 0,
            id: 7,
            value,
        };
        let settings = Settings {
            clear: false,
            entries: vec![entry(1), entry(2)],
        };
        assert_eq!(settings.value(SettingId::InitialWindowSize), Some(1));
        assert_eq!(settings.value(SettingId::MaxConcurrentStreams), None);
    }

    #[test]
    fn count_must_fit() {
        assert_eq!(Settings::load(0, &[0, 0, 0, 1]), Err(FrameError::Count));
        assert_eq!(Settings::load(0, &[0xff; 12]), Err(FrameError::Count));
    }
}
