//! The terminal: taken over, and given back as it was, after an error, a panic or a signal too.

use std::io::{self, BufWriter, Stdout, Write as _, stdout};
use std::time::Duration;
use std::{panic, process, thread};

use ratatui::Frame;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, kill_current_process_group};

use super::model::Key;

/// What somebody at the terminal did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    Key(Key),
    /// Away for a while, as with any program in a shell.
    Suspend,
    Interrupt,
    Resized,
    /// Something that has no meaning here, or nothing at all.
    Nothing,
}

type Drawn = Terminal<CrosstermBackend<BufWriter<Stdout>>>;

/// The terminal, for as long as this lives.
pub(super) struct Screen {
    terminal: Drawn,
}

impl Screen {
    pub(super) fn enter() -> io::Result<Screen> {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            give_back();
            before(info);
        }));
        let screen = Screen { terminal: blank()? };
        thread::Builder::new()
            .name("hang-up".into())
            .spawn(leave_with_the_terminal)?;
        take_over()?;
        Ok(screen)
    }

    pub(super) fn draw(&mut self, render: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(render).map(drop)
    }

    /// What happens within this time.
    pub(super) fn input(&self, within: Duration) -> io::Result<Input> {
        match event::poll(within) {
            Ok(true) => Ok(meaning(&event::read()?)),
            Ok(false) => Ok(Input::Nothing),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Input::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Stops until the shell lets it go on.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        give_back();
        kill_current_process_group(Signal::TSTP)?;
        take_over()?;
        // Nothing of what was drawn before is there any more.
        self.terminal = blank()?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Whoever reads events from a terminal that is gone reads nothing, again and again, and never comes back to look at
/// signals; and not everybody who is started on a terminal gets one. There is nothing to give back then.
fn leave_with_the_terminal() {
    const HUNG_UP: i32 = 129;
    let out = stdout();
    let mut fds = [PollFd::new(&out, PollFlags::empty())];
    loop {
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => {}
            _ => process::exit(HUNG_UP),
        }
    }
}

fn take_over() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(
        stdout(),
        EnterAlternateScreen,
        Clear(ClearType::All),
        cursor::Hide
    )
}

/// A terminal on which nothing was drawn.
fn blank() -> io::Result<Drawn> {
    let out = BufWriter::with_capacity(64 * 1024, stdout());
    Terminal::new(CrosstermBackend::new(out))
}

/// Nothing can be done if it fails: the terminal is gone.
fn give_back() {
    let mut out = stdout();
    drop(disable_raw_mode());
    drop(execute!(out, LeaveAlternateScreen, cursor::Show));
    drop(out.flush());
}

fn meaning(event: &Event) -> Input {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => pressed(key),
        Event::Resize(..) => Input::Resized,
        _ => Input::Nothing,
    }
}

fn pressed(key: &KeyEvent) -> Input {
    let other = KeyModifiers::CONTROL | KeyModifiers::ALT | KeyModifiers::SUPER;
    if key.modifiers.intersects(other) {
        return match (key.modifiers, key.code) {
            (KeyModifiers::CONTROL, KeyCode::Char('c')) => Input::Interrupt,
            (KeyModifiers::CONTROL, KeyCode::Char('z')) => Input::Suspend,
            _ => Input::Nothing,
        };
    }
    Input::Key(match key.code {
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Char(c) => Key::Char(c),
        _ => return Input::Nothing,
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Starts a program on a terminal; what it wrote, and whether the terminal reads lines afterwards.
    const WATCH: &str = r#"
import fcntl, os, pty, struct, sys, termios
pid, fd = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    os.execv(sys.argv[1], sys.argv[1:])
seen = b""
try:
    while piece := os.read(fd, 65536):
        seen += piece
except OSError:
    pass
taken, given, said = (seen.find(text) for text in (b"\x1b[?1049h", b"\x1b[?1049l", b"on purpose"))
assert 0 <= taken < given < said, seen
assert termios.tcgetattr(fd)[3] & termios.ICANON
os.waitpid(pid, 0)
"#;

    #[test]
    #[ignore = "the test below starts it on a terminal"]
    fn panics() {
        let _screen = Screen::enter().unwrap();
        panic!("on purpose");
    }

    #[test]
    fn a_panic_gives_the_terminal_back_and_is_read_then() {
        let output = Command::new("python3")
            .args(["-c", WATCH])
            .arg(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture"])
            .arg("replay::screen::tests::panics")
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
    }
}
