//! The responses of the origins of a scene.

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
