//! Values that configuration files and messages hold as text, in the form that users write.

/// Implements `Deserialize` by `FromStr`, and `Serialize` by `Display`.
macro_rules! textual {
    ($($type:ident)*) => { $(
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                <String as serde::Deserialize>::deserialize(deserializer)?
                    .parse()
                    .map_err(serde::de::Error::custom)
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )* };
}

pub(crate) use textual;
