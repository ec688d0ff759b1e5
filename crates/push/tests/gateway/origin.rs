//! The origins of a scene: their responses, and the requests that they receive.

use tandem_http::Fields;

/// A response of an origin.
#[derive(Clone, Default)]
pub(crate) struct Page {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(&'static str, String)>,
    pub(crate) body: String,
    /// The end of the body never comes.
    pub(crate) is_unfinished: bool,
}

/// Returns a response with this type and body.
pub(crate) fn page(content_type: &str, body: &str) -> Page {
    Page {
        status: 200,
        fields: vec![("content-type", content_type.to_owned())],
        body: body.to_owned(),
        is_unfinished: false,
    }
}

impl Page {
    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.fields.push((name, value.to_owned()));
        self
    }
}

/// Returns a redirect.
pub(crate) fn redirect(location: &str) -> Page {
    Page {
        status: 302,
        fields: vec![("location", location.to_owned())],
        ..Page::default()
    }
}

/// A request as an origin received it.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) url: String,
    pub(crate) fields: Fields,
    /// The method is HEAD.
    pub(crate) is_head: bool,
}

impl Asked {
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        let value = self.fields.get(name)?;
        Some(String::from_utf8_lossy(value).into_owned())
    }
}
