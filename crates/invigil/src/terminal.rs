//! Questions in the terminal of the run: one at a time, in words that a tired person understands.
//!
//! The agent has the same terminal. So a question is asked only where lines are read as lines and we are in the
//! foreground, what was typed before is thrown away, and only an answer that is one counts. Where that cannot be, the
//! question waits for `invigil approvals`. What can go wrong all the same is in `docs/approvals.md`.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fs::File, sync::PoisonError};

use invigil_engine::{Audience, Desk, Reply};
use invigil_schema::{ApprovalAnswered, ApprovalBy, ApprovalScope, QuestionFile};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::termios::{self, LocalModes, QueueSelector};

use crate::question;
use crate::ui::{self, BOLD, DIM, WARN};

/// Between two looks at the terminal while a question is open.
const LOOK: Duration = Duration::from_millis(100);
/// A question that is longer cannot be read in a terminal; who wants to allow it reads it elsewhere.
const LONGEST: usize = 4000;

/// Where the questions of a run are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Ask {
    /// In the terminal of the run where that can be, and with `invigil approvals`
    Terminal,
    /// With `invigil approvals` in another terminal
    Elsewhere,
    /// Nowhere: what the policy asks about is denied
    Never,
}

/// Shows the questions of one run.
#[derive(Debug)]
pub(crate) struct Terminal {
    messages: Sender<Message>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Message {
    Asked(Box<QuestionFile>, Desk),
    Closed(Box<ApprovalAnswered>),
    Over,
}

impl Terminal {
    pub(crate) fn new(ask: Ask) -> io::Result<Terminal> {
        let (messages, inbox) = channel();
        let thread = std::thread::Builder::new().name("asking".into());
        let thread = thread.spawn(move || {
            invigil_sandbox::keep_from_being_stopped();
            Asker {
                inbox,
                tty: None,
                queue: VecDeque::new(),
                ask,
                over: false,
            }
            .serve();
        })?;
        Ok(Terminal {
            messages,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// The run is over: the last word on its questions is said when this returns.
    pub(crate) fn finish(&self) {
        self.send(Message::Over);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            drop(thread.join());
        }
    }

    fn send(&self, message: Message) {
        // Whoever does not listen any more has nothing to show.
        drop(self.messages.send(message));
    }
}

impl Audience for Terminal {
    fn asked(&self, question: &QuestionFile, desk: &Desk) {
        self.send(Message::Asked(Box::new(question.clone()), desk.clone()));
    }

    fn closed(&self, answered: &ApprovalAnswered) {
        self.send(Message::Closed(Box::new(answered.clone())));
    }
}

struct Asker {
    inbox: Receiver<Message>,
    tty: Option<File>,
    queue: VecDeque<Waiting>,
    ask: Ask,
    over: bool,
}

struct Waiting {
    file: QuestionFile,
    desk: Desk,
    /// Shown here, or announced for elsewhere.
    shown: Option<Shown>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Asked,
    Announced,
}

/// What a line means.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Reply(Reply),
    Unclear,
}

impl Asker {
    fn serve(&mut self) {
        while !self.over {
            // Without a question there is nothing to look at.
            let message = match self.queue.is_empty() {
                true => self
                    .inbox
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
                false => self.inbox.recv_timeout(self.pause()),
            };
            match message {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while let Ok(message) = self.inbox.try_recv() {
                self.take(message);
            }
            self.attend();
        }
    }

    /// With a question in the terminal, the terminal is what is waited for.
    fn pause(&self) -> Duration {
        match self.queue.front().and_then(|waiting| waiting.shown) {
            Some(Shown::Asked) => Duration::ZERO,
            Some(Shown::Announced) => LOOK,
            None => Duration::ZERO,
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Asked(file, desk) => self.queue.push_back(Waiting {
                file: *file,
                desk,
                shown: None,
            }),
            Message::Closed(answered) => self.closed(&answered),
            Message::Over => self.over = true,
        }
    }

    fn closed(&mut self, answered: &ApprovalAnswered) {
        let id = &answered.id;
        let mut queue = self.queue.iter();
        let Some(at) = queue.position(|waiting| waiting.file.question.id == *id) else {
            return;
        };
        let shown = self.queue.remove(at).and_then(|waiting| waiting.shown);
        let here = matches!(answered.by, ApprovalBy::Terminal { .. });
        let own_line = if shown == Some(Shown::Asked) && !here {
            "\n"
        } else {
            ""
        };
        if shown.is_some() && may_speak() {
            let lines = question::closed(answered).join("\n         ");
            ui::say(format_args!("{own_line}{BOLD}invigil{BOLD:#}  {lines}"));
        }
    }

    /// Asks the first question, or waits for its answer.
    fn attend(&mut self) {
        let here = self.ask == Ask::Terminal && self.may_ask();
        let count = self.queue.len();
        let Some(first) = self.queue.front_mut() else {
            return;
        };
        if !here {
            for waiting in self
                .queue
                .iter_mut()
                .filter(|waiting| waiting.shown.is_none())
            {
                waiting.shown = Some(Shown::Announced);
                announce(&waiting.file);
            }
            if let Some(first) = self.queue.front_mut() {
                // Asked again when the terminal is ours again.
                first.shown = Some(Shown::Announced);
            }
            return;
        }
        let Some(tty) = &mut self.tty else { return };
        if first.shown != Some(Shown::Asked) {
            first.shown = Some(Shown::Asked);
            let shown = show(tty, &first.file, count);
            if shown.is_err() {
                self.tty = None;
                return;
            }
        }
        let line = match read_line(tty, LOOK) {
            Ok(Some(line)) => line,
            Ok(None) => return,
            Err(_) => {
                self.tty = None;
                return;
            }
        };
        let short = is_short(&first.file);
        match understand(&line) {
            Line::Reply(reply) if short || reply == Reply::deny(None) => {
                let id = first.file.question.id.clone();
                // If it was closed a moment ago, that is said when the message comes.
                first.desk.answer(&id, reply);
            }
            Line::Reply(_) | Line::Unclear => {
                drop(write!(tty, "  that is no answer here; {}", keys(short)));
            }
        }
        self.drain();
    }

    /// What the desk has said meanwhile, before anything else is asked.
    fn drain(&mut self) {
        loop {
            match self.inbox.try_recv() {
                Ok(message) => self.take(message),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
            }
        }
    }

    /// Whether there is a terminal that reads lines, and we are in its foreground.
    fn may_ask(&mut self) -> bool {
        if self.tty.is_none() {
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            self.tty = rustix::fs::open("/dev/tty", flags, Mode::empty())
                .ok()
                .map(File::from);
        }
        let Some(tty) = &self.tty else { return false };
        let foreground =
            termios::tcgetpgrp(tty).is_ok_and(|group| group == rustix::process::getpgrp());
        foreground && reads_lines(tty)
    }
}

fn reads_lines(terminal: impl AsFd) -> bool {
    termios::tcgetattr(terminal)
        .is_ok_and(|attributes| attributes.local_modes.contains(LocalModes::ICANON))
}

/// Whether a line on stderr spoils nothing.
fn may_speak() -> bool {
    reads_lines(io::stderr())
}

/// One line about a question that is asked elsewhere.
fn announce(file: &QuestionFile) {
    if may_speak() {
        let (id, what) = (&file.question.id, question::brief(&file.question.what));
        let what = ui::shorten(&what, 60);
        ui::say(format_args!(
            "{BOLD}invigil{BOLD:#}  {WARN}waits for an answer{WARN:#}: {what}  {DIM}invigil approvals show {id}{DIM:#}"
        ));
    }
}

fn is_short(file: &QuestionFile) -> bool {
    question::brief(&file.question.what).len() <= LONGEST
}

fn show(tty: &mut File, file: &QuestionFile, count: usize) -> io::Result<()> {
    let mut text = Vec::new();
    let (id, short) = (&file.question.id, is_short(file));
    let more = match count {
        0 | 1 => String::new(),
        _ => format!(", {} more behind it", count - 1),
    };
    writeln!(
        text,
        "\n{BOLD}invigil asks{BOLD:#}  {DIM}question {id}{more}{DIM:#}"
    )?;
    match short {
        true => question::print(&mut text, file)?,
        false => {
            let what = ui::shorten(&question::brief(&file.question.what), 200);
            writeln!(text, "  {what}")?;
            writeln!(
                text,
                "  {WARN}it is too long to be shown here{WARN:#}: invigil approvals show {id}"
            )?;
        }
    }
    if anstream::stderr().current_choice() == anstream::ColorChoice::Never {
        text = anstream::adapter::strip_bytes(&text).into_vec();
    }
    tty.write_all(&text)?;
    // What was typed before was not meant for this question; what is typed at the prompt is.
    termios::tcflush(&*tty, QueueSelector::IFlush)?;
    write!(tty, "  {}", keys(short))
}

fn keys(short: bool) -> &'static str {
    match short {
        true => "[o]nce  [r]un  [a]lways  [n]o (Enter) > ",
        false => "[n]o (Enter) > ",
    }
}

/// A line, if there is one within the time. The end of input is an empty one.
fn read_line(tty: &mut File, most: Duration) -> io::Result<Option<Vec<u8>>> {
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: most.subsec_nanos().into(),
    };
    let mut events = [PollFd::new(&*tty, PollFlags::IN)];
    let ready = match poll(&mut events, Some(&timeout)) {
        Err(rustix::io::Errno::INTR) | Ok(0) => return Ok(None),
        ready => ready.map(|_| events[0].revents())?,
    };
    if ready.intersects(PollFlags::HUP | PollFlags::ERR) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    let mut line = vec![0; 4096];
    match tty.read(&mut line) {
        Ok(read) => {
            line.truncate(read);
            Ok(Some(line))
        }
        // Somebody else was faster, or we are in the background now.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}

fn understand(line: &[u8]) -> Line {
    let words = str::from_utf8(line).unwrap_or("?").trim().to_lowercase();
    Line::Reply(match words.as_str() {
        "o" | "once" => Reply::allow(ApprovalScope::Once),
        "r" | "run" => Reply::allow(ApprovalScope::Run),
        "a" | "always" => Reply::allow(ApprovalScope::Always),
        "" | "n" | "no" => Reply::deny(None),
        _ => return Line::Unclear,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_is_one() {
        let reply = |line: &str| understand(line.as_bytes());
        assert_eq!(reply("o\n"), Line::Reply(Reply::allow(ApprovalScope::Once)));
        assert_eq!(
            reply(" Run \n"),
            Line::Reply(Reply::allow(ApprovalScope::Run))
        );
        for no in ["\n", "", "n\n", "NO\n"] {
            assert_eq!(reply(no), Line::Reply(Reply::deny(None)));
        }
        for other in ["y\n", "yes\n", "ok\n", "oo\n", "o o\n", "\u{1b}o\n", "1\n"] {
            assert_eq!(reply(other), Line::Unclear, "{other:?}");
        }
        assert_eq!(understand(b"\xff\n"), Line::Unclear);
    }
}
