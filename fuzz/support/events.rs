//! The events of a session as text, for a comparison that does not depend on how its input is cut.

use tandem_http::{Event, Mux};

/// Returns the events of a session, with the data of each stream joined.
pub fn joined(core: &mut impl Mux) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    let mut open_data = None;
    while let Some(event) = core.poll_event() {
        match event {
            Event::Data { id, data, end } => {
                let text: String = data.iter().map(|b| format!("{b:02x}")).collect();
                match seen.last_mut() {
                    Some(last) if open_data == Some(id) => last.push_str(&text),
                    _ => seen.push(format!("data {id} {text}")),
                }
                open_data = (!end).then_some(id);
                if end {
                    seen.push(format!("end {id}"));
                }
            }
            other => {
                open_data = None;
                seen.push(format!("{other:?}"));
            }
        }
    }
    seen
}
