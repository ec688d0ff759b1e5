//! `tandem top`: shows the overview of a running client or gateway in a terminal.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize as _};
use ratatui::widgets::{Paragraph, Row, Table, Widget as _, Wrap};
use tandem::admin::control::ControlResponse;
use tandem::admin::overview::Overview;
use tandem::cli::Failure;
use tandem::cli::ask::{ProcessArgs, ask, plain};
use tandem::exchange::Supply;
use tandem::journal::PageLoad;
use tandem::status::{Opened, SessionStatus};

const EXAMPLES: &str = "Examples:
  tandem top -c client.toml
      Show the client with this file, until q or Ctrl-C; arrow keys scroll the page loads
  tandem top --control /run/tandem-gateway/control --once
      Print the state of a gateway once";

/// The time between two requests for the state.
const PERIOD: Duration = Duration::from_secs(1);

/// The numbers of sessions and page loads that are shown.
const MAX_SESSIONS: usize = 12;
const MAX_LOADS: usize = 12;

/// The number of lines for problems on the screen.
const MAX_PROBLEM_LINES: u16 = 8;

/// The titles of the columns, with their widths on the screen.
const SESSION_COLUMNS: [(&str, Constraint); 6] = [
    ("session", Constraint::Min(20)),
    ("round trip", Constraint::Length(10)),
    ("rate", Constraint::Length(13)),
    ("requests", Constraint::Length(8)),
    ("age", Constraint::Length(11)),
    ("path", Constraint::Min(16)),
];
const LOAD_COLUMNS: [(&str, Constraint); 8] = [
    ("seconds", Constraint::Length(8)),
    ("kB", Constraint::Length(9)),
    ("requested", Constraint::Length(9)),
    ("joined", Constraint::Length(6)),
    ("pushed", Constraint::Length(6)),
    ("cached", Constraint::Length(6)),
    ("tunnelled", Constraint::Length(9)),
    ("page", Constraint::Min(10)),
];

/// Arguments of `tandem top`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    process: ProcessArgs,
    /// Print the state once; this is the default without a terminal
    #[arg(long)]
    once: bool,
}

pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    let control = args.process.control()?;
    let overview = overview(&control, 0)?;
    let mut out = std::io::stdout();
    if args.once || !out.is_terminal() {
        return Ok(out.write_all(View::new(overview).text().as_bytes())?);
    }
    let mut terminal = ratatui::try_init()?;
    let ended = watch(&mut terminal, &control, View::new(overview));
    ratatui::try_restore()?;
    ended
}

/// Asks the process for its state, with the page loads that changed after the revision `known`.
fn overview(control: &Path, known: u64) -> Result<Overview, Failure> {
    match ask(control, &format!("overview {known}"))? {
        ControlResponse::Overview(overview) => Ok(*overview),
        ControlResponse::Error(problem) => Err(problem.into()),
        _ => Err("the process answered another question".into()),
    }
}

/// Shows the state until the user ends it.
fn watch(terminal: &mut DefaultTerminal, control: &Path, mut view: View) -> Result<(), Failure> {
    loop {
        let next = Instant::now() + PERIOD;
        loop {
            terminal.draw(|frame| view.draw(frame.area(), frame.buffer_mut()))?;
            if !event::poll(next.saturating_duration_since(Instant::now()))? {
                break;
            }
            if let Event::Key(key) = event::read()?
                && !view.press(key)
            {
                return Ok(());
            }
        }
        let mut new = overview(control, view.overview.revision)?;
        if new.status.uptime < view.overview.status.uptime {
            // Another process counts its revisions from 0 again.
            new = overview(control, 0)?;
        }
        view.update(new);
    }
}

/// The overview as it is shown.
struct View {
    overview: Overview,
    /// The number of page loads that are scrolled out of sight.
    skipped: usize,
}

impl View {
    const fn new(overview: Overview) -> Self {
        Self {
            overview,
            skipped: 0,
        }
    }

    /// Shows a newer overview, which leaves out the page loads that did not change.
    fn update(&mut self, mut new: Overview) {
        let known = self.overview.loads.drain(..).chain(new.loads.drain(..));
        let mut loads: HashMap<u64, PageLoad> = known.map(|load| (load.number, load)).collect();
        let kept = new.kept.iter();
        new.loads = kept.filter_map(|number| loads.remove(number)).collect();
        self.overview = new;
    }

    /// Obeys a key. Returns false if it ends the display.
    fn press(&mut self, key: KeyEvent) -> bool {
        let last = self.overview.loads.len().saturating_sub(1);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Down | KeyCode::Char('j') => self.skipped = (self.skipped + 1).min(last),
            KeyCode::Up | KeyCode::Char('k') => self.skipped = self.skipped.saturating_sub(1),
            _ => {}
        }
        true
    }

    /// Draws the state. A part without room is cut.
    fn draw(&self, area: Rect, buffer: &mut Buffer) {
        let problems = self.problems();
        let width = usize::from(area.width.max(1));
        let lines = problems.iter().map(|it| it.chars().count() / width + 1);
        let lines = u16::try_from(lines.sum::<usize>()).unwrap_or(u16::MAX);
        let sessions = self.sessions();
        // The number is at most MAX_SESSIONS + 1.
        let session_lines = sessions.len() as u16 + 2;
        let [title, problem, saving, session, counter, load] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(lines.min(MAX_PROBLEM_LINES) + 1),
            Constraint::Length(3),
            Constraint::Length(session_lines),
            Constraint::Length(2),
            Constraint::Min(0),
        ])
        .areas(area);
        Paragraph::new(self.title()).bold().render(title, buffer);
        let style = if self.overview.problems.is_empty() {
            Style::new()
        } else {
            Style::new().red()
        };
        let problems = Paragraph::new(problems.join("\n")).style(style);
        problems.wrap(Wrap { trim: true }).render(problem, buffer);
        let text = Paragraph::new(self.saving()).wrap(Wrap { trim: true });
        text.render(saving, buffer);
        table(SESSION_COLUMNS, sessions).render(session, buffer);
        Paragraph::new(self.counters()).render(counter, buffer);
        if self.overview.role == "client" {
            let loads = self
                .loads()
                .split_off(self.skipped.min(self.overview.loads.len()));
            table(LOAD_COLUMNS, loads).render(load, buffer);
        }
    }

    /// Returns the state as text.
    fn text(&self) -> String {
        let mut text = format!("{}\n\n", self.title());
        for problem in self.problems() {
            let _ = writeln!(text, "{problem}");
        }
        let _ = writeln!(text, "\n{}\n", self.saving());
        let titles = SESSION_COLUMNS.map(|(title, _)| title.to_owned());
        for row in std::iter::once(titles).chain(self.sessions()) {
            let [session, rest @ ..] = row;
            let _ = write!(text, "{session:<32}");
            let [round_trip, rate, requests, age, path] = rest;
            let _ = writeln!(
                text,
                " {round_trip:>10} {rate:>13} {requests:>8} {age:>11}  {path}"
            );
        }
        let _ = writeln!(text, "\n{}", self.counters());
        if !self.overview.loads.is_empty() {
            let titles = LOAD_COLUMNS.map(|(title, _)| title.to_owned());
            text.push('\n');
            for row in std::iter::once(titles).chain(self.loads()) {
                let [columns @ .., page] = row;
                for column in columns {
                    let _ = write!(text, "{column:>9} ");
                }
                let _ = writeln!(text, " {page}");
            }
        }
        text
    }

    fn title(&self) -> String {
        let Overview {
            role,
            version,
            status,
            ..
        } = &self.overview;
        format!(
            "Tandem {role} {version}, running for {}",
            age(status.uptime)
        )
    }

    fn problems(&self) -> Vec<String> {
        if self.overview.problems.is_empty() {
            return vec!["There are no problems.".into()];
        }
        let problems = self.overview.problems.iter();
        problems.map(|it| format!("! {}", plain(it))).collect()
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = &self.overview.status.counters;
        counters.get(name).copied().unwrap_or(0)
    }

    /// Returns the numbers of a gateway that takes submissions.
    fn submissions(&self) -> String {
        let counter = |name| self.counter(name);
        format!(
            "Submissions: {} wait for an answer, {} for their batch. Since the start: {} \
             delivered, {} given up, {} refused. The store has {:.1} kB.",
            counter("submissions_waiting"),
            counter("submissions_collected"),
            counter("submissions_answered"),
            counter("submissions_given_up"),
            counter("submissions_refused"),
            counter("submissions_stored_bytes") as f64 / 1e3,
        )
    }

    fn saving(&self) -> String {
        if self.counter("submission_store") > 0 {
            return self.submissions();
        }
        if self.overview.role == "issuer" {
            return format!(
                "{} accounts have {} tokens of this epoch. Refused requests: {}.",
                self.counter("issuer_accounts"),
                self.counter("tokens_issued_epoch"),
                self.counter("token_requests_refused"),
            );
        }
        if self.overview.role == "gateway" {
            let answered = self.counter("cache_hits") + self.counter("cache_collapsed");
            let asked = answered + self.counter("cache_misses");
            if asked == 0 {
                return "The cache has answered no request, or it is off (--cache).".into();
            }
            return format!("The cache answered {answered} of {asked} requests.");
        }
        if self.overview.role == "relay" {
            return "A relay passes pushes on, and measures no page loads.".into();
        }
        let saving = &self.overview.saving;
        format!(
            "{} Page loads: {} with push, {} without.",
            plain(&saving.summary),
            saving.loads_pushed,
            saving.loads_held_out
        )
    }

    fn counters(&self) -> String {
        let counter = |name| self.counter(name);
        format!(
            "requests {}   under way {}   failed {}   pushes used {}   joined {}   wasted {}",
            counter("exchanges"),
            counter("exchanges_open"),
            counter("exchanges_failed"),
            counter("pushes_used"),
            counter("pushes_late"),
            counter("pushes_wasted"),
        )
    }

    /// Returns the rows of the sessions: those to gateways first.
    fn sessions(&self) -> Vec<[String; 6]> {
        let mut sorted: Vec<_> = self.overview.status.sessions.iter().collect();
        sorted.sort_by_key(|session| session.gateway.is_none());
        let shown = sorted.iter().take(MAX_SESSIONS);
        let mut rows: Vec<_> = shown.map(|it| self.session(it)).collect();
        let left_out = self.overview.left_out;
        let all = sorted.len() + left_out.sessions + left_out.others;
        if all > MAX_SESSIONS {
            let mut row: [String; 6] = Default::default();
            row[0] = format!("and {} more", all - MAX_SESSIONS);
            rows.push(row);
        }
        rows
    }

    fn session(&self, session: &SessionStatus) -> [String; 6] {
        let other = match (session.opened, self.overview.role.as_str()) {
            (Opened::Here, _) => "sites, without a gateway",
            (Opened::There, "gateway" | "relay") => "a client",
            (Opened::There, _) => "a browser",
        };
        let number = |value: Option<f64>, factor: f64, unit: &str| {
            value.map_or_else(
                || "-".into(),
                |value| format!("{:.1} {unit}", value * factor),
            )
        };
        let requests = session.exchanges.map(|count| count.to_string());
        [
            plain(session.gateway.as_deref().unwrap_or(other)),
            number(session.round_trip, 1e3, "ms"),
            number(session.rate, 8e-6, "Mbit/s"),
            requests.unwrap_or_else(|| "-".into()),
            age(session.age),
            plain(session.protocol.as_deref().unwrap_or("-")),
        ]
    }

    fn loads(&self) -> Vec<[String; 8]> {
        self.overview
            .loads
            .iter()
            .take(MAX_LOADS)
            .map(load)
            .collect()
    }
}

fn load(load: &PageLoad) -> [String; 8] {
    let count = |supply| {
        let of_kind = load.resources.iter().filter(|it| it.supply == supply);
        of_kind.count().to_string()
    };
    let bytes: u64 = load.resources.iter().map(|it| it.bytes).sum();
    let seconds = load.duration.map(|seconds| format!("{seconds:.2}"));
    [
        seconds.unwrap_or_else(|| "loading".into()),
        format!("{:.1}", bytes as f64 / 1e3),
        count(Supply::Requested),
        count(Supply::Joined),
        count(Supply::Pushed),
        count(Supply::Stored),
        count(Supply::Tunnel),
        plain(&load.title),
    ]
}

/// Returns a table with a line of titles.
fn table<const N: usize>(
    columns: [(&'static str, Constraint); N],
    rows: Vec<[String; N]>,
) -> Table<'static> {
    let titles = Row::new(columns.map(|(title, _)| title)).style(Style::new().dim());
    let widths = columns.map(|(_, width)| width);
    Table::new(rows.into_iter().map(Row::new), widths).header(titles)
}

fn age(seconds: f64) -> String {
    let seconds = seconds as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tandem::admin::overview::OverviewSource;
    use tandem::journal::Journal;
    use tandem::role_name::RoleName;
    use tandem::status::StatusSource;

    use super::*;

    async fn view() -> View {
        let journal = Arc::<Journal>::default();
        let now = Instant::now();
        journal.open_load("http://older.example/", now);
        let load = journal.open_load("http://site.example/\x1b[2J", now);
        let pushed = [Supply::Pushed; 2];
        for supply in [Supply::Requested, Supply::Stored]
            .into_iter()
            .chain(pushed)
        {
            journal.begin(load, "GET", "http://site.example/", supply, now);
        }
        journal.set_warnings(vec!["gateway g does not answer".into()]);
        let session = SessionStatus {
            gateway: Some("g:443".into()),
            protocol: Some("h2 over TLS".into()),
            round_trip: Some(0.25),
            ..SessionStatus::new(Opened::Here, now, None)
        };
        let status = StatusSource::new(move || {
            let (sender, answer) = tokio::sync::oneshot::channel();
            // The source awaits the answer below.
            let _ = sender.send(vec![session.clone()]);
            vec![answer]
        });
        View::new(
            OverviewSource::new(RoleName::Client, status, journal)
                .take(0)
                .await,
        )
    }

    #[tokio::test]
    async fn newer_overview_keeps_unchanged_loads() {
        let mut view = view().await;
        let mut new = view.overview.clone();
        new.kept.pop();
        new.loads.truncate(1);
        new.loads[0].title = "changed".into();
        new.revision += 1;
        view.update(new.clone());
        let titles: Vec<_> = view.overview.loads.iter().map(|it| &*it.title).collect();
        assert_eq!(titles, ["changed"], "a load that is gone is not shown");
        new.loads.clear();
        view.update(new);
        assert_eq!(view.overview.loads.len(), 1);
    }

    #[tokio::test]
    async fn load_shows_its_duration_without_tunnels() {
        let mut view = view().await;
        let line = |view: &View| {
            let text = view.text();
            let line = text.lines().find(|line| line.contains("site.example"));
            line.expect("a load")
                .split_whitespace()
                .next()
                .map(str::to_owned)
        };
        assert_eq!(line(&view).as_deref(), Some("loading"));
        view.overview.loads[0].duration = Some(1.234);
        view.overview.loads[0].resources[0].end = Some(75.0);
        assert_eq!(line(&view).as_deref(), Some("1.23"));
    }

    /// Returns the lines of a drawn screen.
    fn drawn(view: &View, width: u16, height: u16) -> Vec<String> {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        view.draw(area, &mut buffer);
        let cells: Vec<_> = buffer.content().iter().map(|it| it.symbol()).collect();
        cells
            .chunks(usize::from(width.max(1)))
            .map(<[_]>::concat)
            .collect()
    }

    #[tokio::test]
    async fn text_shows_problems_and_loads() {
        let text = view().await.text();
        assert!(text.contains("! gateway g does not answer"), "{text}");
        let page = text.lines().find(|line| line.contains("site.example"));
        let columns: Vec<_> = page.expect("a load").split_whitespace().collect();
        assert_eq!(columns[2..7], ["1", "0", "2", "1", "0"], "{text}");
        assert!(!text.contains('\x1b'));
        assert!(text.contains("too few page loads"), "{text}");
        assert!(
            text.contains("250.0 ms") && text.contains("h2 over TLS"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn submissions_and_tokens_are_shown() {
        let mut view = view().await;
        view.overview.role = "gateway".into();
        let counters = &mut view.overview.status.counters;
        for (name, value) in [
            ("submission_store", 1),
            ("submissions_waiting", 7),
            ("submissions_given_up", 3),
            ("issuer_accounts", 5),
        ] {
            assert!(counters.insert(name.into(), value).is_some(), "{name}");
        }
        for shown in [view.text(), drawn(&view, 100, 30).join(" ")] {
            assert!(
                shown.contains("Submissions: 7 wait for an answer"),
                "{shown}"
            );
            assert!(shown.contains("3 given up"), "{shown}");
        }
        view.overview.role = "issuer".into();
        view.overview
            .status
            .counters
            .insert("submission_store".into(), 0);
        assert!(view.text().contains("5 accounts have 0 tokens"));
    }

    #[tokio::test]
    async fn screen_shows_the_same_as_the_text() {
        let mut view = view().await;
        let lines = drawn(&view, 100, 30);
        let screen = lines.join("\n");
        for words in [
            "! gateway g does not",
            "g:443",
            "250.0 ms",
            "site.example",
            "older.example",
        ] {
            assert!(screen.contains(words), "{words}: {screen}");
        }
        assert!(view.press(KeyCode::Down.into()) && view.press(KeyCode::Down.into()));
        let screen = drawn(&view, 100, 30).join("\n");
        assert!(!screen.contains("site.example") && screen.contains("older.example"));
        assert!(view.press(KeyCode::Up.into()));
        assert!(drawn(&view, 100, 30).join("\n").contains("site.example"));
    }

    #[tokio::test]
    async fn screen_fits_any_terminal() {
        let view = view().await;
        for width in 0..40 {
            for height in 0..20 {
                assert!(drawn(&view, width, height).len() <= usize::from(height));
            }
        }
    }

    #[tokio::test]
    async fn keys_end_the_display() {
        let mut view = view().await;
        assert!(!view.press(KeyCode::Char('q').into()) && !view.press(KeyCode::Esc.into()));
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(!view.press(interrupt) && view.press(KeyCode::Char('c').into()));
    }

    #[test]
    fn age_has_two_units_at_most() {
        assert_eq!(age(59.9), "59 s");
        assert_eq!(age(3599.0), "59 min");
        assert_eq!(age(7320.0), "2 h 2 min");
    }
}
