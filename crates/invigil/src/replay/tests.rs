//! The screen without a terminal: real journals, keys, and what stands in the buffer then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use invigil_journal::{Journal, Options, RunRef, Store, SystemClock};
use invigil_schema::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::value::RawValue;

use super::draw::Palette;
use super::model::{Key, Model, Then};
use super::show;
use super::tape::Tape;

/// A journal that is being written.
struct World {
    _directory: tempfile::TempDir,
    run: RunRef,
    journal: Journal,
}

fn process(pid: u32) -> ProcessRef {
    ProcessRef { pid, start: 1 }
}

impl World {
    fn new() -> World {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        let id = RunId::new("run_test").unwrap();
        let clock = Arc::new(SystemClock);
        let (run, journal) = store
            .create(&id, clock, Options::default(), "test")
            .unwrap();
        World {
            _directory: directory,
            run,
            journal,
        }
    }

    fn add(&self, origin: Origin, event: impl Into<Event>) {
        let ticket = self.journal.append(origin, &event.into()).unwrap();
        ticket.written().unwrap();
    }

    /// One of many: written some time later.
    fn add_later(&self, origin: Origin, event: impl Into<Event>) {
        drop(self.journal.append(origin, &event.into()).unwrap());
    }

    fn forked(&self, pid: u32, parent: Option<u32>) {
        let (process, parent) = (process(pid), parent.map(process));
        self.add(Origin::Kernel, ProcessForked { process, parent });
    }

    fn exec(&self, pid: u32, command: &str) {
        let argv: Vec<OsText> = command.split(' ').map(OsText::from).collect();
        self.add(
            Origin::Kernel,
            ProcessExec {
                process: process(pid),
                parent: None,
                executable: argv[0].clone(),
                requested: None,
                argv,
                argv_cut_bytes: 0,
                cwd: "/".into(),
                sha256: None,
            },
        );
    }

    fn open(&self, pid: u32, path: &str) {
        self.add(
            Origin::Kernel,
            FileOp {
                process: process(pid),
                op: FileOpKind::Create,
                path: path.into(),
                to: None,
                flags: vec![OpenFlag::Write],
                mode: None,
                detail: None,
                result: CallResult::Ok,
            },
        );
    }

    fn deny(&self, pid: u32, target: &str) {
        self.add(
            Origin::Kernel,
            AccessDenied {
                process: process(pid),
                what: "file.open".into(),
                target: target.into(),
                rule: "line 7".into(),
                place: None,
                error: Errno(13),
            },
        );
    }

    fn unknown(&self, origin: Origin, data: &str) {
        let event = Event::Unknown {
            kind: "from_tomorrow".into(),
            data: RawValue::from_string(data.into()).unwrap(),
        };
        self.add(origin, event);
    }

    /// Record 0, two processes and a file, a refusal, an unknown kind.
    fn small() -> World {
        let world = World::new();
        world.forked(10, None);
        world.exec(10, "sh -c make");
        world.forked(11, Some(10));
        world.exec(11, "cc main.c");
        world.open(11, "/w/main.o");
        world.deny(11, "/etc/shadow");
        world.unknown(Origin::Sdk, r#"{"b": 1.50,  "a":[ 1 ]}"#);
        world
    }

    fn look(&self) -> Looker {
        let mut looker = Looker {
            tape: Tape::open(self.run.clone()).unwrap(),
            model: Model::new(0, false),
            terminal: Terminal::new(TestBackend::new(140, 30)).unwrap(),
            palette: Palette { colour: true },
        };
        looker.read();
        looker
    }
}

/// Somebody who looks at it.
struct Looker {
    tape: Tape,
    model: Model,
    terminal: Terminal<TestBackend>,
    palette: Palette,
}

impl Looker {
    /// Waits until everything that is there was read.
    fn read(&mut self) {
        let end = invigil_journal::Reader::count(self.tape.run().storage()).unwrap_or(0);
        let stop = Instant::now() + Duration::from_secs(20);
        while !self.tape.is_whole() || self.tape.damage().is_none() && self.tape.read() < end {
            assert!(Instant::now() < stop, "it is not read");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.model.tick(&self.tape);
    }

    fn size(&mut self, width: u16, height: u16) {
        self.terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    }

    fn press(&mut self, keys: &str) {
        for c in keys.chars() {
            let key = match c {
                '\n' => Key::Enter,
                '\t' => Key::Tab,
                '\x1b' => Key::Escape,
                '\x08' => Key::Backspace,
                c => Key::Char(c),
            };
            assert_eq!(self.model.press(key, &self.tape), Then::Stay);
            while self.model.is_searching() {
                self.model.tick(&self.tape);
            }
        }
    }

    fn screen(&mut self) -> String {
        let Looker {
            tape,
            model,
            terminal,
            palette,
        } = self;
        terminal
            .draw(|frame| show(frame, model, tape, *palette))
            .unwrap();
        terminal.backend().to_string()
    }

    #[track_caller]
    fn sees(&mut self, text: &str) {
        let screen = self.screen();
        assert!(screen.contains(text), "{text:?} is not in\n{screen}");
    }

    #[track_caller]
    fn sees_not(&mut self, text: &str) {
        let screen = self.screen();
        assert!(!screen.contains(text), "{text:?} is in\n{screen}");
    }
}

#[test]
fn stepping_shows_the_event_and_the_state_after_it() {
    let world = World::small();
    let mut looker = world.look();
    looker.sees("0 journal_opened");
    looker.sees("0 of 8");
    looker.sees("nobody is alive");
    looker.press("jj");
    looker.sees(">      2 kernel  process_exec [10] sh -c make");
    looker.sees("1 alive, 0 of 1 ended");
    looker.press("jj");
    looker.sees("▸└ 11 cc main.c");
    looker.sees("2 alive, 0 of 2 ended");
    looker.press("k");
    looker.sees("(fork of) sh -c make");
    looker.press("G");
    looker.sees("7 from_tomorrow");
    looker.press("j");
    looker.sees("this is the last one");
    looker.press("0k");
    looker.sees("this is the first one");
    assert_eq!(
        looker.model.press(Key::Char('q'), &looker.tape),
        Then::Leave
    );
}

#[test]
fn jumps_to_numbers_refusals_and_questions() {
    let world = World::small();
    let mut looker = world.look();
    looker.press("g5\n");
    assert_eq!(looker.model.at, 5);
    looker.sees("/w/main.o");
    looker.press("g999\n");
    assert_eq!(looker.model.at, 7);
    looker.sees("the last record is 7");
    looker.press("gx\n");
    looker.sees("that is not the number of a record");
    looker.press("g12\x08\n");
    assert_eq!(looker.model.at, 1);
    looker.press("d");
    assert_eq!(looker.model.at, 6);
    looker.sees("refused   1, last in 6");
    looker.press("d");
    looker.sees("no refusal behind this one");
    looker.press("GD");
    assert_eq!(looker.model.at, 6);
    looker.press("a");
    looker.sees("no question behind this one");
}

#[test]
fn questions_wait_in_the_snapshot_until_they_are_answered() {
    let world = World::small();
    let action = Digest::ZERO;
    world.add(
        Origin::Runtime,
        ApprovalRequested {
            id: "abcd1234".into(),
            process: process(11),
            what: Asked::Exec {
                program: "/bin/rm".into(),
                argv: vec!["rm".into()],
                cwd: "/".into(),
            },
            action,
            rule: "line 1".into(),
            reason: None,
            deadline: Timestamp::default(),
        },
    );
    world.add(
        Origin::User,
        ApprovalAnswered {
            id: "abcd1234".into(),
            action,
            decision: ApprovalDecision::Deny,
            scope: None,
            by: ApprovalBy::Terminal { uid: 0 },
            reason: None,
            added: None,
            not_added: None,
        },
    );
    let mut looker = world.look();
    looker.press("a");
    assert_eq!(looker.model.at, 8);
    looker.sees("waits     ask_user abcd1234 (8)");
    looker.sees("11 waiting cc main.c");
    looker.press("j");
    looker.sees("waits     nothing");
    looker.press("kd");
    assert_eq!(looker.model.at, 9, "a no is a refusal");
    looker.press("A");
    assert_eq!(looker.model.at, 8);
}

#[test]
fn search_goes_both_ways_and_ignores_case() {
    let world = World::small();
    let mut looker = world.look();
    looker.press("/MAIN\n");
    assert_eq!(looker.model.at, 4);
    looker.press("n");
    assert_eq!(looker.model.at, 5);
    looker.press("n");
    looker.sees(r#""MAIN" is not behind this one"#);
    looker.press("N");
    assert_eq!(looker.model.at, 4);
    looker.press("/from_tom\n");
    assert_eq!(looker.model.at, 7, "kinds are searched too");
    looker.press("/nowhere\x1b");
    assert_eq!((looker.model.at, looker.model.prompt.is_none()), (7, true));
}

#[test]
fn a_long_search_is_made_in_pieces_and_can_be_stopped() {
    let world = World::new();
    for n in 0..10_000 {
        let event = Event::Unknown {
            kind: "n".into(),
            data: RawValue::from_string(n.to_string()).unwrap(),
        };
        world.add_later(Origin::Sdk, event);
    }
    world.unknown(Origin::Sdk, "\"needle\"");
    let mut looker = world.look();
    let (tape, model) = (&looker.tape, &mut looker.model);
    model.press(Key::Char('/'), tape);
    for c in "needle".chars() {
        model.press(Key::Char(c), tape);
    }
    model.press(Key::Enter, tape);
    assert!(model.is_searching() && model.at == 0);
    model.press(Key::Escape, tape);
    assert!(!model.is_searching() && model.at == 0);
    looker.press("n");
    assert_eq!(looker.model.at, 10_001);
    looker.press("g3\n/1\nGN");
    assert_eq!(looker.model.at, 9_992, "9991 is the last number with a 1");
}

#[test]
fn layers_are_shown_and_hidden() {
    let world = World::small();
    let mut looker = world.look();
    looker.press("3");
    assert_eq!(looker.model.at, 7);
    looker.sees("timeline: only sdk");
    looker.sees_not("process_exec");
    looker.press("1");
    looker.sees("timeline: only kernel, sdk");
    looker.press("k");
    assert_eq!(looker.model.at, 6);
    looker.press("0");
    assert_eq!(looker.model.at, 1, "the first of the kernel");
    // Whoever names a record that is hidden sees it.
    looker.press("g0\n");
    assert_eq!(looker.model.at, 0);
    looker.sees_not("only");
    looker.press("5");
    looker.sees("no record of these layers so far");
    looker.press("f");
    looker.sees("journal_opened");
}

#[test]
fn unknown_kinds_word_for_word() {
    let world = World::small();
    let mut looker = world.look();
    looker.press("G");
    looker.sees(r#"{"b": 1.50,  "a":[ 1 ]}"#);
    looker.sees("word for word");
    looker.sees("records   1 of unknown kinds");
}

#[test]
fn nothing_steers_the_terminal() {
    let world = World::small();
    let hostile = "/w/\u{1b}[2J\u{202e}gpj.exe\u{200b}\u{7}\u{9b}";
    world.open(11, hostile);
    world.exec(11, &format!("x{hostile}"));
    world.unknown(Origin::Sdk, &serde_json::to_string(hostile).unwrap());
    let mut looker = world.look();
    for step in ["g8\n", "j", "j"] {
        looker.press(step);
        let screen = looker.screen();
        let steers = |c: char| c.is_control() && c != '\n' || "\u{202e}\u{200b}\u{9b}".contains(c);
        assert!(!screen.contains(steers), "{screen:?}");
    }
    looker.press("g8\n");
    looker.sees(r"\u{202e}gpj.exe");
}

#[test]
fn a_growing_journal_is_followed_if_one_stands_at_its_end() {
    let world = World::small();
    let mut looker = world.look();
    looker.press("g3\n");
    world.open(10, "/w/more");
    looker.read();
    assert_eq!(looker.model.at, 3);
    looker.sees("3 of 9");
    looker.sees("running");
    looker.press("G");
    assert_eq!(looker.model.at, 8);
    world.open(10, "/w/evenmore");
    looker.read();
    assert_eq!(looker.model.at, 9);
    looker.sees("/w/evenmore");
    looker.sees("followed");
    looker.press("k");
    world.open(10, "/w/last");
    looker.read();
    assert_eq!(looker.model.at, 8, "whoever steps does not follow");
}

#[test]
fn a_damaged_journal_is_shown_up_to_the_damage() {
    let world = World::small();
    let World {
        run,
        journal,
        _directory,
    } = world;
    journal.close().unwrap();
    let path = run.directory().join("journal.ndjson");
    let good = std::fs::read(&path).unwrap();
    let lines: Vec<&[u8]> = good.split_inclusive(|byte| *byte == b'\n').collect();
    let mut bad = good.clone();
    let place = lines[..5].concat().len() + 40;
    bad[place] ^= 1;
    std::fs::write(&path, &bad).unwrap();
    let mut looker = Looker {
        tape: Tape::open(run.clone()).unwrap(),
        model: Model::new(0, false),
        terminal: Terminal::new(TestBackend::new(140, 30)).unwrap(),
        palette: Palette { colour: false },
    };
    looker.read();
    looker.sees("! record 5 is damaged (journal.ndjson, byte");
    looker.sees("shown up to record 4");
    looker.press("G");
    assert_eq!(looker.model.at, 4);
    looker.sees("cc main.c");
    looker.sees_not("main.o");
    // All of it.
    std::fs::write(&path, b"\xff\xfe\n{}\n").unwrap();
    let mut looker = Looker {
        tape: Tape::open(run).unwrap(),
        model: Model::new(0, false),
        ..looker
    };
    looker.read();
    looker.sees("nothing of it is good");
}

#[test]
fn it_fits_into_every_window() {
    let world = World::small();
    let mut looker = world.look();
    looker.press("g5\n");
    for (width, height) in [
        (1, 1),
        (2, 3),
        (20, 5),
        (39, 12),
        (60, 24),
        (80, 10),
        (300, 90),
    ] {
        looker.size(width, height);
        looker.screen();
        looker.press("?");
        looker.screen();
        looker.press(" ");
    }
    // One pane at a time where there is no room for more.
    looker.size(60, 8);
    looker.sees("timeline");
    looker.sees_not("snapshot");
    looker.press("\t\t\t");
    looker.sees("snapshot");
    looker.sees_not("timeline");
    // One below the other.
    looker.size(60, 30);
    for pane in ["timeline", "event", "processes", "snapshot"] {
        looker.sees(pane);
    }
}

#[test]
fn panes_scroll_on_their_own() {
    let world = World::small();
    let mut looker = world.look();
    looker.press("g5\n\t");
    looker.sees("▸ event");
    looker.sees("5 file_op");
    looker.press("jjj");
    assert_eq!(looker.model.at, 5);
    looker.sees_not("5 file_op, ");
    assert_eq!(looker.model.scrolled, [0, 3, 0, 0]);
    looker.press("\t\t\tj");
    assert_eq!((looker.model.at, looker.model.scrolled), (6, [0; 4]));
}

#[test]
fn without_colour_there_is_none() {
    let world = World::small();
    let mut looker = world.look();
    looker.press("d");
    let colours = |looker: &Looker| {
        let cells = looker.terminal.backend().buffer().content.iter();
        let plain = ratatui::style::Color::Reset;
        cells
            .filter(|cell| cell.fg != plain || cell.bg != plain)
            .count()
    };
    looker.screen();
    assert!(colours(&looker) > 0);
    looker.palette.colour = false;
    looker.size(140, 30);
    looker.screen();
    assert_eq!(colours(&looker), 0);
    looker.press("k");
    looker.sees("!      6");
}

#[test]
fn the_state_is_the_same_from_wherever_one_comes() {
    let world = World::new();
    for n in 0..20_000_u32 {
        let pid = 10 + n % 7;
        match n % 5 {
            0 => world.add_later(
                Origin::Kernel,
                ProcessForked {
                    process: process(pid),
                    parent: None,
                },
            ),
            _ => world.add_later(
                Origin::Kernel,
                ProcessExited {
                    process: process(pid),
                    exit_code: Some(0),
                    signal: None,
                    user_us: 0,
                    system_us: 0,
                    max_rss_kib: 0,
                },
            ),
        }
    }
    world.unknown(Origin::Sdk, "1");
    let mut looker = world.look();
    let mut forward = Vec::new();
    let places = [
        1, 2, 255, 256, 257, 8190, 8191, 8192, 8193, 12_345, 16_384, 19_999,
    ];
    for at in places {
        forward.push(looker.tape.standing(at).unwrap().clone());
        assert_eq!(forward.last().unwrap().os.events, at + 1);
    }
    for (at, standing) in places.iter().zip(&forward).rev() {
        assert_eq!(looker.tape.standing(*at).unwrap(), standing, "{at}");
    }
    assert_eq!(looker.tape.standing(30_000), None);
}
