//! `invigil replay` on a pseudo-terminal, as a person uses it.

use invigil_schema::Origin;

use crate::Invigil;
use crate::script::{add, begun, created, denied, journal, unknown};
use crate::terminal::at_a_terminal;

/// A terminal that remembers what stands where, so that one can look at the whole screen.
const SCREEN: &str = r#"
import re
rows, columns, cells, row, column, alternate, raw = 30, 120, {}, 0, 0, False, b""
def take(wait):
    global raw, row, column, alternate, cells
    if not select.select([fd], [], [], wait)[0]:
        return False
    try:
        raw += os.read(fd, 65536)
    except OSError:
        return False
    text = raw.decode("utf-8", "ignore") if len(raw) < 4 else raw.decode("utf-8", "surrogateescape")
    at = 0
    while at < len(text):
        if text[at] == "\x1b":
            match = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])").match(text, at)
            if not match:
                break
            numbers, letter = match.groups()
            if letter == "H":
                row, column = [int(n or 1) - 1 for n in (numbers.split(";") + ["1"])[:2]]
            elif letter == "J":
                cells = {}
            elif letter in "hl" and numbers == "?1049":
                alternate, cells, row, column = letter == "h", {}, 0, 0
            at = match.end()
            continue
        if ord(text[at]) >= 0xdc80:
            break
        if text[at] == "\r":
            column = 0
        elif text[at] == "\n":
            row += 1
        else:
            cells[row, column] = text[at]
            column += 1
        at += 1
    raw = text[at:].encode("utf-8", "surrogateescape")
    return True
def screen():
    return "\n".join("".join(cells.get((r, c), " ") for c in range(columns)).rstrip() for r in range(rows))
def sees(wanted, limit=20):
    stop = time.time() + limit
    while wanted not in screen():
        if time.time() > stop:
            fail("did not see %r in\n%s" % (wanted, screen()))
        take(0.05)
def gone(unwanted, limit=20):
    stop = time.time() + limit
    while unwanted in screen():
        if time.time() > stop:
            fail("still sees %r in\n%s" % (unwanted, screen()))
        take(0.05)
def cooked():
    return bool(termios.tcgetattr(fd)[3] & termios.ICANON)
def over():
    stop = time.time() + 20
    while alternate and time.time() < stop:
        take(0.05)
    if alternate:
        fail("the screen was not given back")
"#;

/// Looks at a run and says how `replay` ended.
fn look(invigil: &Invigil, args: &[&str], person: &str) -> String {
    let argv = [&["replay"], args].concat();
    let size = "stty rows 30 cols 120 && exec \"$0\" \"$@\"";
    let line = ["sh", "-c", size];
    at_a_terminal(
        invigil,
        &line,
        &invigil.command(&argv),
        &format!("{SCREEN}{person}"),
    )
}

#[test]
fn keys_step_jump_search_and_filter_in_a_real_run() {
    for invigil in Invigil::everyone() {
        let script = "echo one > first.txt; mkdir sub; echo two > sub/second.txt; exit 3";
        invigil.expect(
            3,
            &["run", "-q", "--run-id", "one", "--", "sh", "-c", script],
        );
        let last = invigil.events("one").len() - 1;
        let person = format!(
            "
sees('0 journal_opened'); sees('q quit'); sees('nobody is alive')
assert not cooked()
type(b'j'); sees('1 run_started')
type(b'/SECOND.TXT\\r'); sees('sub/second.txt'); sees('sh -c')
type(b'G'); sees('{last} run_finished'); sees('exit 3')
type(b'g0\\r'); sees('0 journal_opened')
type(b'1'); sees('timeline: only kernel'); gone('run_started')
type(b'f'); sees('run_started')
type(b'?'); sees('any key closes'); type(b' '); gone('any key closes')
type(b'\\x1b[B'); type(b'\\x1b[6~')
type(b'd'); sees('no refusal behind this one')
type(b'q'); over(); assert cooked(); end()"
        );
        assert_eq!(look(&invigil, &["one"], &person), "exit 0");
    }
}

#[test]
fn the_window_changes_its_size() {
    let invigil = Invigil::new();
    invigil.expect(0, &["run", "-q", "--run-id", "one", "--", "true"]);
    let person = "
sees('timeline'); sees('snapshot')
rows, columns = 10, 50; window(10, 50); gone('snapshot'); sees('timeline')
type(b'\\t\\t\\t'); sees('snapshot'); gone('timeline')
rows, columns = 40, 150; window(40, 150); sees('timeline'); sees('processes')
rows, columns = 1, 1; window(1, 1); time.sleep(0.3)
rows, columns = 30, 120; window(30, 120); sees('timeline')
type(b'\\x03'); over(); assert cooked(); end()";
    assert_eq!(look(&invigil, &["one"], person), "exit 0");
}

#[test]
fn a_run_that_goes_on_is_followed() {
    let invigil = Invigil::new();
    let file = journal(&invigil, "one");
    begun(&file);
    let ticket = file.append(Origin::Kernel, &created("/w/early").into());
    ticket.unwrap().written().unwrap();
    std::thread::scope(|scope| {
        let person = "
sees('/w/early'); sees('running, followed')
open('go', 'w').close()
sees('/w/late'); sees('4 of 5')
type(b'k'); sees('3 of 5'); open('more', 'w').close(); sees('3 of 6')
type(b'q'); over(); end()";
        let looker = scope.spawn(|| look(&invigil, &["one", "--follow"], person));
        for (sign, path) in [("go", "/w/late"), ("more", "/w/latest")] {
            while !looker.is_finished() && std::fs::metadata(invigil.at(sign)).is_err() {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            let ticket = file.append(Origin::Kernel, &created(path).into());
            ticket.unwrap().written().unwrap();
        }
        assert_eq!(looker.join().unwrap(), "exit 0");
    });
}

#[test]
fn unknown_kinds_and_hostile_texts() {
    let invigil = Invigil::new();
    let file = journal(&invigil, "one");
    begun(&file);
    add(&file, Origin::Sdk, unknown(r#"{"z": 1.50,  "z":[ 1 ]}"#));
    let hostile = "/w/\u{1b}[2J\u{1b}]0;title\u{7}\u{202e}txt.exe";
    add(&file, Origin::Kernel, created(hostile));
    file.close().unwrap();
    let person = r#"
sees('from_tomorrow')
type(b'g3\r'); sees('{"z": 1.50,  "z":[ 1 ]}'); sees('word for word')
type(b'j'); sees('\\u{1b}[2J'); sees('\\u{202e}txt.exe'); sees('from_tomorrow')
type(b'q'); over(); end()"#;
    assert_eq!(look(&invigil, &["one"], person), "exit 0");
}

#[test]
fn a_damaged_journal_is_shown_up_to_the_damage() {
    let invigil = Invigil::new();
    let file = journal(&invigil, "one");
    begun(&file);
    for n in 0..100 {
        add(&file, Origin::Kernel, created(&format!("/w/file-{n}")));
    }
    file.close().unwrap();
    let path = invigil.journal("one");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("/w/file-50\"", "/w/FILE-50\"")).unwrap();
    let person = "
sees('record 53 is damaged (journal.ndjson, byte'); sees('shown up to record 52')
type(b'G'); sees('52 of 53'); sees('/w/file-49'); gone('/w/file-51')
type(b'g80\\r'); sees('the last record is 52')
type(b'q'); over(); end()";
    assert_eq!(look(&invigil, &["one"], person), "exit 0");
}

#[test]
fn signals_give_the_terminal_back() {
    for invigil in Invigil::everyone() {
        invigil.expect(0, &["run", "-q", "--run-id", "one", "--", "true"]);
        for (signal, code) in [(15, 143), (1, 129)] {
            let person = format!(
                "sees('timeline'); assert not cooked(); os.kill(pid, {signal}); over(); assert cooked(); end()"
            );
            assert_eq!(look(&invigil, &["one"], &person), format!("exit {code}"));
        }
    }
}

#[test]
fn it_ends_with_its_terminal() {
    for invigil in Invigil::everyone() {
        invigil.expect(0, &["run", "-q", "--run-id", "one", "--", "true"]);
        let person = "sees('timeline'); os.close(fd); fd = None; end()";
        assert_eq!(look(&invigil, &["one"], person), "exit 129");
    }
}

#[test]
fn a_shell_can_put_it_aside() {
    let invigil = Invigil::new();
    invigil.expect(0, &["run", "-q", "--run-id", "one", "--", "true"]);
    let rc = invigil.at("rc");
    std::fs::write(&rc, "PS1='ready> '; stty rows 30 cols 120\n").unwrap();
    let watched = invigil.command(&["replay", "one"]);
    let line = ["bash", "--rcfile", &rc, "-i", "-s"];
    let person = format!(
        "{SCREEN}
until(b'ready> '); type(b'\"$@\"\\n'); sees('timeline'); type(b'\\x1a')
over(); sees('Stopped'); type(b'fg\\n'); sees('timeline')
type(b'q'); over(); type(b'exit 4\\n'); end()"
    );
    assert_eq!(at_a_terminal(&invigil, &line, &watched, &person), "exit 4");
}

#[test]
fn without_a_terminal_it_says_what_to_use() {
    let invigil = Invigil::new();
    invigil.expect(0, &["run", "-q", "--run-id", "one", "--", "true"]);
    let (stdout, stderr) = invigil.expect(125, &["replay", "one"]);
    assert_eq!(stdout, "");
    assert!(stderr.contains("invigil show one --events"), "{stderr}");
    let (_, stderr) = invigil.expect(125, &["replay", "none"]);
    assert!(stderr.contains("invigil runs"), "{stderr}");
}

/// Of a long run the first screen is there before the journal was read.
#[test]
fn the_first_screen_of_a_long_run_does_not_wait() {
    let invigil = Invigil::new();
    let file = journal(&invigil, "one");
    begun(&file);
    for n in 0..200_000 {
        match n % 50_000 {
            49_999 => add(&file, Origin::Kernel, denied("/etc/shadow")),
            _ => add(&file, Origin::Kernel, created(&format!("/w/file-{n}"))),
        }
    }
    file.close().unwrap();
    let person = "
sees('reading'); sees('0 of 200003')
type(b'G'); sees('200002 of 200003'); sees('/etc/shadow')
gone('reading', 120); sees('refused   4, last in 200002')
type(b'D'); sees('150002 of 200003'); sees('refused   3, last in 150002')
type(b'q'); over(); end()";
    assert_eq!(look(&invigil, &["one"], person), "exit 0");
}

#[test]
fn there_is_no_colour_where_none_is_wanted() {
    let invigil = Invigil::new();
    let file = journal(&invigil, "one");
    begun(&file);
    add(&file, Origin::Kernel, denied("/etc/shadow"));
    file.close().unwrap();
    // Colours of the foreground and the background; bold, dim and reversed are none.
    let person = |colour: &str| {
        format!(
            r"
everything = b''
read = os.read
def keep(fd, size):
    global everything
    piece = read(fd, size); everything += piece; return piece
os.read = keep
sees('/etc/shadow'); type(b'd'); sees('3 access_denied')
found = re.search(rb'\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m', everything)
assert bool(found) == {colour}, everything
type(b'q'); over(); end()"
        )
    };
    assert_eq!(look(&invigil, &["one"], &person("False")), "exit 0");
    let mut command = invigil.command(&["replay", "one"]);
    command.env("NO_COLOR", "");
    let line = ["sh", "-c", "stty rows 30 cols 120 && exec \"$0\" \"$@\""];
    let person = format!("{SCREEN}{}", person("True"));
    assert_eq!(at_a_terminal(&invigil, &line, &command, &person), "exit 0");
}
