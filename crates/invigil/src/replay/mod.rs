//! A run on a screen: timeline, event, processes and snapshot side by side, step by step forward and back.
//!
//! `docs/replay.md` says what it promises and how it is quick. It only reads.

mod draw;
mod model;
mod reading;
mod screen;
mod standing;
mod tape;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use invigil_journal::RunRef;
use ratatui::layout::Rect;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::CliError;
use draw::Palette;
use model::{Model, Then};
use screen::{Input, Screen};
use tape::Tape;

/// Between two looks at what happened behind the screen.
const LOOK: Duration = Duration::from_millis(50);

/// Where to begin.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Start {
    At(u64),
    /// At the end, wherever that goes.
    Follow,
}

/// Shows a run until the person has seen enough. The number is the exit code.
pub(crate) fn replay(run: RunRef, start: Start, colour: bool) -> Result<u8, CliError> {
    let mut tape = Tape::open(run)?;
    let signal = signals().map_err(CliError::Signals)?;
    let mut model = match start {
        Start::At(seq) => Model::new(seq, false),
        Start::Follow => Model::new(0, true),
    };
    let mut screen = Screen::enter().map_err(CliError::Screen)?;
    attend(
        &mut screen,
        &mut model,
        &mut tape,
        Palette { colour },
        &signal,
    )
    .map_err(CliError::Screen)
}

fn attend(
    screen: &mut Screen,
    model: &mut Model,
    tape: &mut Tape,
    palette: Palette,
    signal: &AtomicUsize,
) -> std::io::Result<u8> {
    let mut drawn = None;
    loop {
        if tape.has_died() {
            return Err(std::io::Error::other("the journal is not read any more"));
        }
        model.tick(tape);
        let version = tape.version();
        if drawn != Some(version) || model.is_searching() {
            drawn = Some(version);
            screen.draw(|frame| show(frame, model, tape, palette))?;
        }
        let wait = match model.is_searching() {
            true => Duration::ZERO,
            false => LOOK,
        };
        match screen.input(wait)? {
            Input::Nothing => {}
            Input::Key(key) => {
                if model.press(key, tape) == Then::Leave {
                    return Ok(0);
                }
                drawn = None;
            }
            Input::Interrupt => return Ok(0),
            Input::Suspend => {
                screen.suspend()?;
                drawn = None;
            }
            Input::Resized => drawn = None,
        }
        if let Ok(number @ 1..) = u8::try_from(signal.load(Ordering::Relaxed)) {
            return Ok(128 + number);
        }
    }
}

fn show(frame: &mut ratatui::Frame<'_>, model: &mut Model, tape: &mut Tape, palette: Palette) {
    let area: Rect = frame.area();
    model.page = draw::page(area, model, tape);
    draw::draw(frame, model, tape, palette);
}

/// Remembers a request to end, so that the terminal can be given back first.
fn signals() -> std::io::Result<Arc<AtomicUsize>> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGHUP, SIGINT, SIGTERM] {
        flag::register_usize(number, Arc::clone(&signal), number as usize)?;
    }
    Ok(signal)
}
