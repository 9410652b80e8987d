//! Where one stands in a run, and what a key does to that. Knows no terminal.

use std::io;

use invigil_audit::Notable;
use invigil_schema::Origin;

use super::reading::{LAYERS, layer};
use super::tape::{Needle, Sought, Tape};

/// So many records are searched before the screen is drawn again.
const BUDGET: u64 = 4096;
/// A line that is typed is not longer.
const LONGEST: usize = 200;

/// What was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Tab,
    BackTab,
    Enter,
    Escape,
    Backspace,
    Char(char),
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    Stay,
    Leave,
}

/// A part of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pane {
    Timeline,
    Event,
    Processes,
    Snapshot,
}

impl Pane {
    const ALL: [Pane; 4] = [Pane::Timeline, Pane::Event, Pane::Processes, Pane::Snapshot];

    fn step(self, by: usize) -> Pane {
        let at = Pane::ALL.iter().position(|pane| *pane == self);
        Pane::ALL[(at.unwrap_or(0) + by) % Pane::ALL.len()]
    }
}

/// A line that is being typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Prompt {
    Goto(String),
    Search(String),
}

#[derive(Debug, Clone)]
struct Search {
    at: u64,
    forward: bool,
}

/// Where one stands.
#[derive(Debug)]
pub(super) struct Model {
    /// The record that is looked at.
    pub(super) at: u64,
    /// Whether that is always the last one.
    pub(super) follow: bool,
    /// The layers that are shown.
    pub(super) layers: u8,
    pub(super) focus: Pane,
    /// How far the event, the processes and the snapshot are scrolled.
    pub(super) scrolled: [u16; 4],
    pub(super) prompt: Option<Prompt>,
    /// Something to tell, until the next key.
    pub(super) message: Option<String>,
    pub(super) help: bool,
    /// How many rows a page of the timeline has.
    pub(super) page: usize,
    needle: Option<(String, Needle)>,
    search: Option<Search>,
}

impl Model {
    pub(super) fn new(at: u64, follow: bool) -> Model {
        Model {
            at,
            follow,
            layers: LAYERS,
            focus: Pane::Timeline,
            scrolled: [0; 4],
            prompt: None,
            message: None,
            help: false,
            page: 1,
            needle: None,
            search: None,
        }
    }

    /// Whether a search goes on.
    pub(super) fn is_searching(&self) -> bool {
        self.search.is_some()
    }

    pub(super) fn scrolled(&self, pane: Pane) -> u16 {
        self.scrolled[pane as usize]
    }

    /// Takes in what happened behind the screen since the last time.
    pub(super) fn tick(&mut self, tape: &Tape) {
        self.search_on(tape);
        let count = tape.count();
        let last = count.saturating_sub(1);
        if self.follow {
            let end = tape.nearest(last, false, self.layers, None);
            self.move_to(end.unwrap_or(self.at.min(last)));
        } else if self.at > last && (count > 0 || tape.is_whole()) {
            self.move_to(last);
        }
    }

    pub(super) fn press(&mut self, key: Key, tape: &Tape) -> Then {
        self.message = None;
        if self.prompt.is_some() {
            self.type_in(key, tape);
            return Then::Stay;
        }
        if self.help {
            self.help = false;
            return Then::Stay;
        }
        if self.search.take().is_some() && key == Key::Escape {
            self.message = Some("the search was stopped".to_owned());
            return Then::Stay;
        }
        match key {
            Key::Char('q') => return Then::Leave,
            Key::Up | Key::Char('k') => self.arrow(false, 1, tape),
            Key::Down | Key::Char('j') => self.arrow(true, 1, tape),
            Key::PageUp | Key::Char('b') => self.arrow(false, self.page.max(1), tape),
            Key::PageDown | Key::Char(' ') => self.arrow(true, self.page.max(1), tape),
            Key::Home | Key::Char('0') => self.go_to_start(tape),
            Key::End | Key::Char('G') => {
                self.follow = true;
                self.tick(tape);
            }
            Key::Tab => self.focus = self.focus.step(1),
            Key::BackTab => self.focus = self.focus.step(3),
            Key::Char('g') => self.prompt = Some(Prompt::Goto(String::new())),
            Key::Char('/') => self.prompt = Some(Prompt::Search(String::new())),
            Key::Char('d') => self.go_to_notable(Notable::Refused, true, tape),
            Key::Char('D') => self.go_to_notable(Notable::Refused, false, tape),
            Key::Char('a') => self.go_to_notable(Notable::Asked, true, tape),
            Key::Char('A') => self.go_to_notable(Notable::Asked, false, tape),
            Key::Char('n') => self.search_again(true, tape),
            Key::Char('N') => self.search_again(false, tape),
            Key::Char('f') => self.show_layers(LAYERS, tape),
            Key::Char('1') => self.toggle(Origin::Kernel, tape),
            Key::Char('2') => self.toggle(Origin::Runtime, tape),
            Key::Char('3') => self.toggle(Origin::Sdk, tape),
            Key::Char('4') => self.toggle(Origin::Client, tape),
            Key::Char('5') => self.toggle(Origin::User, tape),
            Key::Char('?') => self.help = true,
            Key::Enter | Key::Escape | Key::Backspace | Key::Char(_) => {}
        }
        Then::Stay
    }

    fn move_to(&mut self, seq: u64) {
        if self.at != seq {
            self.at = seq;
            self.scrolled = [0; 4];
        }
    }

    /// In the timeline an arrow goes to another record; elsewhere it scrolls.
    fn arrow(&mut self, forward: bool, by: usize, tape: &Tape) {
        if self.focus == Pane::Timeline {
            return self.step(forward, by, tape);
        }
        let lines = u16::try_from(by).unwrap_or(u16::MAX);
        let scrolled = &mut self.scrolled[self.focus as usize];
        *scrolled = match forward {
            true => scrolled.saturating_add(lines),
            false => scrolled.saturating_sub(lines),
        };
    }

    fn step(&mut self, forward: bool, by: usize, tape: &Tape) {
        self.follow = false;
        for _ in 0..by {
            let next = match forward {
                true => self.at.checked_add(1),
                false => self.at.checked_sub(1),
            };
            let found = next.and_then(|next| tape.nearest(next, forward, self.layers, None));
            let Some(seq) = found else {
                self.message = Some(self.no_more(forward, tape));
                break;
            };
            self.move_to(seq);
        }
    }

    fn no_more(&self, forward: bool, tape: &Tape) -> String {
        match (forward, tape.is_whole()) {
            (false, _) => "this is the first one".to_owned(),
            (true, true) => "this is the last one".to_owned(),
            (true, false) => "nothing more so far: the journal is still being read".to_owned(),
        }
    }

    fn go_to_start(&mut self, tape: &Tape) {
        self.follow = false;
        let first = tape.nearest(0, true, self.layers, None);
        self.move_to(first.unwrap_or(0));
    }

    fn go_to_notable(&mut self, notable: Notable, forward: bool, tape: &Tape) {
        self.follow = false;
        let from = match forward {
            true => self.at.checked_add(1),
            false => self.at.checked_sub(1),
        };
        let found = from.and_then(|from| tape.nearest(from, forward, self.layers, Some(notable)));
        if let Some(seq) = found {
            return self.move_to(seq);
        }
        let what = match notable {
            Notable::Refused => "refusal",
            Notable::Asked => "question",
        };
        let so_far = match tape.is_whole() {
            true => "",
            false => " so far: the journal is still being read",
        };
        self.message = Some(match forward {
            true => format!("no {what} behind this one{so_far}"),
            false => format!("no {what} before this one"),
        });
    }

    fn toggle(&mut self, origin: Origin, tape: &Tape) {
        // From all layers one picks the one that matters; from there on they are added and taken away.
        let layers = match self.layers {
            LAYERS => layer(origin),
            some => some ^ layer(origin),
        };
        self.show_layers(if layers == 0 { LAYERS } else { layers }, tape);
    }

    fn show_layers(&mut self, layers: u8, tape: &Tape) {
        self.layers = layers;
        let near = tape.nearest(self.at, true, layers, None);
        let near = near.or_else(|| tape.nearest(self.at, false, layers, None));
        match near {
            Some(seq) => self.move_to(seq),
            None => self.message = Some("no record of these layers so far".to_owned()),
        }
    }

    fn type_in(&mut self, key: Key, tape: &Tape) {
        let Some(prompt) = &mut self.prompt else {
            return;
        };
        let (Prompt::Goto(text) | Prompt::Search(text)) = prompt;
        match key {
            Key::Char(c) if text.chars().count() < LONGEST => text.push(c),
            Key::Backspace if text.pop().is_none() => self.prompt = None,
            Key::Escape => self.prompt = None,
            Key::Enter => match self.prompt.take() {
                Some(Prompt::Goto(text)) => self.go_to(&text, tape),
                Some(Prompt::Search(text)) => self.search_for(text, tape),
                None => {}
            },
            _ => {}
        }
    }

    fn go_to(&mut self, text: &str, tape: &Tape) {
        let Ok(seq) = text.trim().parse::<u64>() else {
            self.message = Some("that is not the number of a record".to_owned());
            return;
        };
        self.follow = false;
        let last = tape.count().saturating_sub(1);
        if seq > last {
            self.message = Some(format!("the last record is {last}"));
        }
        let wanted = seq.min(last);
        if tape.nearest(wanted, true, self.layers, None) != Some(wanted) {
            // Whoever names a record wants to see it.
            self.layers = LAYERS;
        }
        self.move_to(wanted);
    }

    fn search_for(&mut self, text: String, tape: &Tape) {
        if !text.is_empty() {
            match Needle::new(&text) {
                Ok(needle) => self.needle = Some((text, needle)),
                Err(error) => return self.cannot_search(&error),
            }
        }
        self.search_again(true, tape);
    }

    fn cannot_search(&mut self, error: &io::Error) {
        self.message = Some(format!("cannot search for that: {error}"));
    }

    fn search_again(&mut self, forward: bool, tape: &Tape) {
        if self.needle.is_none() {
            self.message = Some("nothing to search for: / and a text".to_owned());
            return;
        }
        self.follow = false;
        let from = match forward {
            true => self.at.checked_add(1),
            false => self.at.checked_sub(1),
        };
        match from {
            Some(at) => self.search = Some(Search { at, forward }),
            None => self.message = Some("this is the first one".to_owned()),
        }
        self.search_on(tape);
    }

    /// A piece of a search that goes on.
    fn search_on(&mut self, tape: &Tape) {
        let (Some(search), Some((text, needle))) = (self.search.take(), &self.needle) else {
            return;
        };
        let (at, forward) = (search.at, search.forward);
        match tape.search(needle, at, forward, self.layers, BUDGET) {
            Sought::Found(seq) => self.move_to(seq),
            Sought::Further(at) => {
                self.message = Some(format!("searching at {at}, Esc stops"));
                self.search = Some(Search { at, forward });
            }
            Sought::Nowhere => {
                let place = if forward { "behind" } else { "before" };
                self.message = Some(format!("{text:?} is not {place} this one"));
            }
        }
    }
}
