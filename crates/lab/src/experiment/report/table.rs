//! Tables. Cells are HTML already.

/// A table under construction.
pub(crate) struct Table {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Columns of text, besides the first.
    text: Vec<usize>,
}

impl Table {
    /// An empty one.
    pub(crate) fn new(heads: &[impl AsRef<str>]) -> Self {
        let heads = heads.iter().map(|head| head.as_ref().to_owned()).collect();
        Self {
            heads,
            rows: Vec::new(),
            text: Vec::new(),
        }
    }

    /// These columns are text.
    pub(crate) fn text_columns(self, text: &[usize]) -> Self {
        Self {
            text: text.to_vec(),
            ..self
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Returns true if it has no rows.
    pub(crate) const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the table as HTML.
    pub(crate) fn html(&self) -> String {
        let line = |cells: &[String], tag: &str| {
            let cells = cells.iter().enumerate().map(|(column, cell)| {
                let class = if self.text.contains(&column) {
                    " class=\"t\""
                } else {
                    ""
                };
                format!("<{tag}{class}>{cell}</{tag}>")
            });
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        let rows: String = self.rows.iter().map(|row| line(row, "td")).collect();
        format!(
            "<table>\n<thead>{}</thead>\n<tbody>\n{rows}</tbody></table>\n",
            line(&self.heads, "th")
        )
    }
}
