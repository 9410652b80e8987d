//! Draws where one stands into a buffer. Knows no terminal, and lets nothing through that could steer one.

use invigil_audit::{Notable, TimelineBin, TimelineDoc};
use invigil_schema::Origin;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Wrap};

use super::model::{Model, Pane, Prompt};
use super::reading::{LAYERS, layer};
use super::standing::{snapshot, tree};
use super::tape::{Row, Tape};
use crate::ui;

/// Of larger data only the beginning is shown.
const LARGEST: usize = 32 * 1024;

const HELP: &[(&str, &str)] = &[
    ("↓ ↑  j k", "one record forward, back"),
    ("PgDn PgUp  space b", "one page"),
    (
        "Home End  0 G",
        "the first record, the last one (and follow)",
    ),
    ("g", "go to a record by its number"),
    ("d D", "the next, the previous refusal"),
    ("a A", "the next, the previous question to a person"),
    ("/ n N", "search, again forward, again backward; Esc stops"),
    (
        "1 2 3 4 5",
        "only kernel, runtime, sdk, client, user; again adds or hides one",
    ),
    ("f", "all layers"),
    ("Tab", "the next pane; arrows scroll in it"),
    ("q", "end"),
];

const KEYS: &str =
    "↑↓ step  g goto  d refusal  a question  / search  1-5 layer  Tab pane  ? help  q quit";

/// What colours there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Palette {
    pub(super) colour: bool,
}

impl Palette {
    pub(super) fn in_colour(self, colour: Color) -> Style {
        match self.colour {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    pub(super) fn bad(self) -> Style {
        self.in_colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(super) fn warn(self) -> Style {
        self.in_colour(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    pub(super) fn dim() -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    fn origin(self, origin: Origin) -> Style {
        match origin {
            Origin::Kernel => Style::new().add_modifier(Modifier::BOLD),
            Origin::Runtime => Style::new(),
            Origin::Sdk => self.in_colour(Color::Magenta),
            Origin::Client => self.in_colour(Color::Cyan),
            Origin::User => self.in_colour(Color::Green),
        }
    }

    fn notable(self, notable: Option<Notable>) -> Style {
        match notable {
            Some(Notable::Refused) => self.bad(),
            Some(Notable::Asked) => self.warn(),
            None => Style::new(),
        }
    }
}

/// Where everything is.
#[derive(Debug, Clone, Copy, Default)]
struct Places {
    head: Rect,
    strip: Rect,
    damage: Rect,
    timeline: Rect,
    event: Rect,
    processes: Rect,
    snapshot: Rect,
    foot: Rect,
}

/// Panes side by side where there is room, one below the other where there is less, and else the one with the focus.
fn places(area: Rect, focus: Pane, damaged: bool) -> Places {
    let strip = u16::from(area.height >= 10);
    let rows = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(strip),
        Constraint::Length(u16::from(damaged)),
        Constraint::Min(0),
        Constraint::Length(1),
    ]);
    let [head, strip, damage, body, foot] = rows.areas(area);
    let mut places = Places {
        head,
        strip,
        damage,
        foot,
        ..Places::default()
    };
    let halves = [Constraint::Percentage(50), Constraint::Percentage(50)];
    if body.width >= 100 && body.height >= 12 {
        let [left, right] = Layout::horizontal(halves).areas(body);
        let [event, below] = Layout::vertical(halves).areas(right);
        let [processes, snapshot] = Layout::horizontal(halves).areas(below);
        (places.timeline, places.event) = (left, event);
        (places.processes, places.snapshot) = (processes, snapshot);
    } else if body.width >= 40 && body.height >= 18 {
        let thirds = [
            Constraint::Percentage(40),
            Constraint::Percentage(30),
            Constraint::Percentage(30),
        ];
        let [timeline, event, below] = Layout::vertical(thirds).areas(body);
        let [processes, snapshot] = Layout::horizontal(halves).areas(below);
        (places.timeline, places.event) = (timeline, event);
        (places.processes, places.snapshot) = (processes, snapshot);
    } else {
        match focus {
            Pane::Timeline => places.timeline = body,
            Pane::Event => places.event = body,
            Pane::Processes => places.processes = body,
            Pane::Snapshot => places.snapshot = body,
        }
    }
    places
}

/// How many rows of the timeline fit.
pub(super) fn page(area: Rect, model: &Model, tape: &Tape) -> usize {
    let places = places(area, model.focus, tape.damage().is_some());
    usize::from(places.timeline.height.saturating_sub(1)).max(1)
}

/// The whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, tape: &mut Tape, palette: Palette) {
    let damage = tape.damage();
    let at = places(frame.area(), model.focus, damage.is_some());
    let row = tape.row(model.at).filter(|row| row.seq < tape.count());
    frame.render_widget(head(model, tape, row.as_ref()), at.head);
    if let Some(timeline) = tape.timeline() {
        let strip = strip(&timeline, at.strip.width, model.at, palette);
        frame.render_widget(strip, at.strip);
    }
    if let Some(damage) = damage {
        let good = match tape.count() {
            0 => "nothing of it is good".to_owned(),
            count => format!("shown up to record {}", count - 1),
        };
        let text = format!("! {}; {good}", ui::harmless(&damage));
        frame.render_widget(Line::styled(text, palette.bad()), at.damage);
    }
    let pane = |pane: Pane, title: String| {
        let style = match pane == model.focus {
            true => Style::new().add_modifier(Modifier::BOLD),
            false => Palette::dim(),
        };
        let title = if pane == model.focus {
            format!("▸ {title}")
        } else {
            title
        };
        let block = Block::new().borders(Borders::TOP | Borders::LEFT);
        block.border_style(style).title(title)
    };
    let rows = tape.around(
        model.at,
        usize::from(at.timeline.height.saturating_sub(1)),
        model.layers,
    );
    let lines: Vec<Line<'_>> = rows
        .iter()
        .map(|row| listed(row, model.at, palette))
        .collect();
    let block = pane(Pane::Timeline, format!("timeline{}", layers(model.layers)));
    frame.render_widget(Paragraph::new(lines).block(block), at.timeline);
    let text = row
        .as_ref()
        .map_or_else(Vec::new, |row| event(row, palette));
    let text = Paragraph::new(text).wrap(Wrap { trim: false });
    let text = text.scroll((model.scrolled(Pane::Event), 0));
    frame.render_widget(text.block(pane(Pane::Event, "event".to_owned())), at.event);
    let actor = row.as_ref().and_then(|row| row.process);
    let (tree, counts) = match tape.standing(model.at) {
        Some(standing) => (tree(standing, actor, palette), snapshot(standing, palette)),
        None => (not_yet(), not_yet()),
    };
    for (which, name, lines, place) in [
        (Pane::Processes, "processes", tree, at.processes),
        (Pane::Snapshot, "snapshot", counts, at.snapshot),
    ] {
        let text = Paragraph::new(lines).scroll((model.scrolled(which), 0));
        frame.render_widget(text.block(pane(which, name.to_owned())), place);
    }
    frame.render_widget(foot(model, palette), at.foot);
    if model.help {
        help(frame);
    }
}

fn not_yet() -> Vec<Line<'static>> {
    vec![Line::styled("not read yet", Palette::dim())]
}

fn head(model: &Model, tape: &Tape, row: Option<&Row>) -> Line<'static> {
    let count = tape.count();
    let mut parts = vec![Span::styled(
        tape.run().run_id().to_string(),
        Style::new().add_modifier(Modifier::BOLD),
    )];
    let mut add = |text: String| parts.push(Span::raw(format!(" · {text}")));
    match row {
        Some(row) => {
            add(format!("{} of {count}", model.at));
            add(row.time.to_string()[..23].replace('T', " "));
        }
        None => add(format!("{count} records")),
    }
    if !tape.is_whole() {
        let percent = (tape.read() * 100).checked_div(count).unwrap_or(0);
        add(format!("reading {percent} %"));
    } else if tape.is_live() {
        add(match model.follow {
            true => "running, followed".to_owned(),
            false => "running".to_owned(),
        });
    }
    Line::from(parts)
}

fn layers(shown: u8) -> String {
    if shown == LAYERS {
        return String::new();
    }
    let all = [
        Origin::Kernel,
        Origin::Runtime,
        Origin::Sdk,
        Origin::Client,
        Origin::User,
    ];
    let names = all.into_iter().filter(|origin| layer(*origin) & shown != 0);
    let names: Vec<&str> = names.map(Origin::as_str).collect();
    format!(": only {}", names.join(", "))
}

/// The whole run in one line: how much happened when, and where something was refused or asked.
fn strip(timeline: &TimelineDoc, width: u16, at: u64, palette: Palette) -> Line<'static> {
    const BARS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
    let columns = squeeze(&timeline.bins, usize::from(width));
    let most = columns.iter().map(TimelineBin::records).max().unwrap_or(0);
    let here = columns
        .iter()
        .rposition(|bin| bin.first.is_some_and(|first| first <= at));
    let column = |(place, bin): (usize, &TimelineBin)| {
        let (sign, style) = match bin.records() {
            _ if bin.refused > 0 => ("!", palette.bad()),
            _ if bin.asked > 0 => ("?", palette.warn()),
            0 => (" ", Style::new()),
            // By orders of magnitude: a burst must not hide the rest.
            some => {
                let share = (some + 1).ilog2() as usize * 7;
                let whole = ((most + 1).ilog2() as usize).max(1);
                (BARS[(share / whole).min(7)], Palette::dim())
            }
        };
        match Some(place) == here {
            true => Span::styled(sign, style.add_modifier(Modifier::REVERSED)),
            false => Span::styled(sign, style),
        }
    };
    columns.iter().enumerate().map(column).collect()
}

/// The same bins in at most this number of columns.
fn squeeze(bins: &[TimelineBin], columns: usize) -> Vec<TimelineBin> {
    let mut squeezed = vec![TimelineBin::default(); columns.min(bins.len())];
    let count = squeezed.len();
    for (at, bin) in bins.iter().enumerate() {
        if let Some(column) = squeezed.get_mut(at * count / bins.len()) {
            column.absorb(bin);
        }
    }
    squeezed
}

fn listed(row: &Row, at: u64, palette: Palette) -> Line<'static> {
    let selected = row.seq == at;
    let sign = match (selected, row.notable) {
        (true, _) => ">",
        (false, Some(Notable::Refused)) => "!",
        (false, Some(Notable::Asked)) => "?",
        (false, None) => " ",
    };
    let marked = palette.notable(row.notable);
    let line = Line::from(vec![
        Span::styled(sign, marked),
        Span::styled(format!("{:>7} ", row.seq), Palette::dim()),
        Span::styled(
            format!("{:7} ", row.origin.as_str()),
            palette.origin(row.origin),
        ),
        Span::styled(format!("{} ", ui::harmless(&row.kind)), marked),
        Span::raw(row.what.clone()),
    ]);
    match selected {
        true => line.patch_style(Style::new().add_modifier(Modifier::REVERSED)),
        false => line,
    }
}

fn event(row: &Row, palette: Palette) -> Vec<Line<'static>> {
    let title = format!("{} {}", row.seq, ui::harmless(&row.kind));
    let mut lines = vec![
        Line::styled(
            title,
            palette.notable(row.notable).add_modifier(Modifier::BOLD),
        ),
        Line::from(vec![
            Span::styled("vouched for by ", Palette::dim()),
            Span::styled(row.origin.as_str(), palette.origin(row.origin)),
            Span::styled(format!(" at {}", row.time), Palette::dim()),
        ]),
    ];
    let mut end = row.data.len().min(LARGEST);
    while !row.data.is_char_boundary(end) {
        end -= 1;
    }
    let data = &row.data[..end];
    match row.known {
        true => lines.extend(indented(data).into_iter().map(Line::raw)),
        false => {
            let said = "not known to this version, word for word:";
            lines.push(Line::styled(said, palette.warn()));
            lines.push(Line::raw(ui::harmless(data)));
        }
    }
    if end < row.data.len() {
        let (left, seq) = (row.data.len() - end, row.seq);
        let more = format!("… {left} bytes more: invigil show RUN --events --json --from {seq}");
        lines.push(Line::styled(more, Palette::dim()));
    }
    lines
}

/// JSON in lines. Only spaces between its words are added: order, numbers and repetitions stay as they are.
fn indented(json: &str) -> Vec<String> {
    let (mut lines, mut line, mut depth) = (Vec::new(), String::new(), 0_usize);
    let (mut inside, mut escaped) = (false, false);
    let mut last = ' ';
    for c in json.chars() {
        if inside {
            line.push(c);
            (inside, escaped) = (escaped || c != '"', !escaped && c == '\\');
            last = c;
            continue;
        }
        let mut turn = |line: &mut String, depth: usize| {
            lines.push(ui::harmless(&std::mem::take(line)));
            line.push_str(&"  ".repeat(depth.min(40)));
        };
        match c {
            '{' | '[' => {
                depth += 1;
                line.push(c);
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                if !matches!(last, '{' | '[') {
                    turn(&mut line, depth);
                }
                line.push(c);
            }
            ',' => {
                line.push(c);
                turn(&mut line, depth);
            }
            ':' => line.push_str(": "),
            ' ' | '\t' => continue,
            _ => {
                inside = c == '"';
                if matches!(last, '{' | '[') {
                    turn(&mut line, depth);
                }
                line.push(c);
            }
        }
        last = c;
    }
    lines.push(ui::harmless(&line));
    lines
}

fn foot(model: &Model, palette: Palette) -> Line<'static> {
    match (&model.prompt, &model.message) {
        (Some(Prompt::Goto(text)), _) => Line::raw(format!("go to record: {text}▏")),
        (Some(Prompt::Search(text)), _) => {
            Line::raw(format!("search for: {}▏", ui::harmless(text)))
        }
        (None, Some(message)) => Line::styled(ui::harmless(message), palette.warn()),
        (None, None) => Line::styled(KEYS, Palette::dim()),
    }
}

fn help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let lines = HELP.iter().map(|(keys, what)| {
        Line::from(vec![
            Span::styled(
                format!("{keys:19}"),
                Style::new().add_modifier(Modifier::BOLD),
            ),
            Span::raw(*what),
        ])
    });
    let lines: Vec<Line<'_>> = lines.collect();
    let height = area.height.min(lines.len() as u16 + 2);
    let width = area.width.min(88);
    let place = Rect {
        x: (area.width - width) / 2,
        y: (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, place);
    let block = Block::bordered().title("keys (any key closes)");
    frame.render_widget(Paragraph::new(lines).block(block), place);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_in_lines_keeps_every_word() {
        let json = r#"{"b": 1.50, "a":[1,{"x":"},{\"[\\"}],"e":{},"f":[ ],"b":null}"#;
        let lines = indented(json);
        let without = |text: &str| text.replace(' ', "");
        assert_eq!(without(&lines.concat()), without(json));
        assert_eq!(lines[1], r#"  "b": 1.50,"#);
        assert!(lines.contains(&r#"  "e": {},"#.to_owned()), "{lines:#?}");
        assert_eq!(lines.last().map(String::as_str), Some("}"));
    }

    #[test]
    fn bins_are_squeezed_and_none_is_lost() {
        let bins: Vec<TimelineBin> = (0..200)
            .map(|n| TimelineBin {
                first: Some(n),
                kernel: n,
                ..TimelineBin::default()
            })
            .collect();
        for columns in [1, 3, 80, 199, 200, 500] {
            let squeezed = squeeze(&bins, columns);
            assert_eq!(squeezed.len(), columns.min(200));
            let sum: u64 = squeezed.iter().map(TimelineBin::records).sum();
            assert_eq!(sum, 199 * 100);
            assert_eq!(squeezed[0].first, Some(0));
        }
        assert!(squeeze(&bins, 0).is_empty());
    }
}
