//! A policy that asks: who is shown the question, who can answer it, and what is left of it.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Invigil;

/// Asks about every write to a name that begins with `asked`.
const POLICY: &str = r#"
version = 1
[files.write]
default = "allow"
ask = [{ rule = "**/asked*", reason = "a person should know" }]
"#;

const TIERS: [&str; 2] = ["notify", "ptrace"];
const LIMIT: Duration = Duration::from_secs(30);

#[track_caller]
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A run in the background that asks.
struct Asking<'a> {
    invigil: &'a Invigil,
    id: &'a str,
    child: Child,
}

impl<'a> Asking<'a> {
    fn start(invigil: &'a Invigil, id: &'a str, more: &[&str], script: &str) -> Asking<'a> {
        std::fs::write(invigil.at("policy.toml"), POLICY).unwrap();
        let head = ["run", "-q", "--run-id", id, "--policy", "policy.toml"];
        let args = [&head, more, &["--", "sh", "-c", script]].concat();
        let mut command = invigil.command(&args);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.spawn().unwrap();
        Asking { invigil, id, child }
    }

    fn open(&self) -> Vec<Value> {
        let (stdout, _) = self.invigil.expect(0, &["approvals", "list", "--json"]);
        let lines = stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        lines
            .filter(|line: &Value| line["run_id"] == self.id)
            .collect()
    }

    /// Waits for this many open questions; their ids.
    #[track_caller]
    fn questions(&self, count: usize) -> Vec<String> {
        let id = |question: &Value| question["id"].as_str().unwrap().to_owned();
        until("a question", || {
            let open = self.open();
            (open.len() == count).then(|| open.iter().map(id).collect())
        })
    }

    #[track_caller]
    fn question(&self) -> String {
        self.questions(1).remove(0)
    }

    /// The exit code, and what was printed.
    #[track_caller]
    fn end(mut self) -> (i32, String) {
        let status = until("an end", || self.child.try_wait().unwrap());
        let mut said = String::new();
        let mut stdout = self.child.stdout.take().unwrap();
        stdout.read_to_string(&mut said).unwrap();
        self.invigil.expect(0, &["verify", self.id]);
        // Nothing of a question is left, whatever became of it.
        assert!(!self.invigil.home().join("approvals").join(self.id).exists());
        let asked = self.invigil.all(self.id, "approval_requested");
        let answered = self.invigil.all(self.id, "approval_answered");
        let ids = |events: &[Value]| {
            let mut ids: Vec<_> = events.iter().map(|e| e["id"].to_string()).collect();
            ids.sort();
            ids
        };
        assert_eq!(ids(&asked), ids(&answered));
        (status.code().unwrap_or(-1), said)
    }

    /// How many events of a kind there are while the run goes on.
    fn so_far(&self, kind: &str) -> usize {
        let show = ["show", self.id, "--events", "--json"];
        let (lines, _) = self.invigil.expect(0, &show);
        let kind = format!("\"kind\":\"{kind}\"");
        lines.lines().filter(|line| line.contains(&kind)).count()
    }

    fn folder(&self) -> PathBuf {
        self.invigil.home().join("approvals").join(self.id)
    }
}

const WRITE: &str = "(: > asked) 2>/dev/null && echo wrote || echo refused";

#[test]
fn only_the_call_that_asks_waits_and_the_answer_counts() {
    for invigil in Invigil::everyone() {
        for tier in TIERS {
            let script = format!(
                "(while ! [ -e go ]; do sleep 0.05; done; echo on > other) & {WRITE}; wait"
            );
            let run = Asking::start(&invigil, tier, &["--tier", tier], &script);
            let id = run.question();
            // The rest of the tree goes on meanwhile.
            std::fs::write(invigil.at("go"), "").unwrap();
            until("the other process", || {
                std::fs::read(invigil.at("other"))
                    .ok()
                    .filter(|text| text == b"on\n")
            });
            assert!(!std::path::Path::new(&invigil.at("asked")).exists());
            let (shown, _) = invigil.expect(0, &["approvals", "show", &id[..4]]);
            for part in [
                invigil.at("asked").as_str(),
                "policy.toml:5",
                "a person should know",
                "then no",
            ] {
                assert!(shown.contains(part), "{part} in {shown}");
            }
            let (said, _) = invigil.expect(0, &["approvals", "allow", &id[..4]]);
            assert!(said.contains("allowed once"), "{said}");
            assert_eq!(run.end(), (0, "wrote\n".to_owned()), "{tier}");
            let asked = invigil.event(tier, "approval_requested");
            let answered = invigil.event(tier, "approval_answered");
            assert_eq!(asked["action"], answered["action"]);
            assert_eq!(answered["scope"], "once");
            assert_eq!(answered["by"]["through"], "command_line");
            let events = invigil.events(tier);
            let origin =
                |kind: &str| events.iter().find(|e| e["kind"] == kind).unwrap()["origin"].clone();
            assert_eq!(origin("approval_requested"), "runtime");
            assert_eq!(origin("approval_answered"), "user");
            let (_, stderr) = invigil.expect(125, &["approvals", "deny", &id]);
            assert!(stderr.contains("answered already: allowed"), "{stderr}");
            for name in ["go", "other", "asked"] {
                std::fs::remove_file(invigil.at(name)).unwrap();
            }
        }
    }
}

#[test]
fn no_expiry_and_nobody_are_refusals() {
    for invigil in Invigil::everyone() {
        let run = Asking::start(&invigil, "no", &[], WRITE);
        let id = run.question();
        invigil.expect(0, &["approvals", "deny", &id, "--reason", "not today"]);
        assert_eq!(run.end().1, "refused\n");
        let answered = invigil.event("no", "approval_answered");
        assert_eq!(
            (&answered["decision"], &answered["reason"]),
            (&"deny".into(), &"not today".into())
        );
        assert!(
            invigil.event("no", "access_denied")["rule"]
                .to_string()
                .contains(&id)
        );

        let run = Asking::start(&invigil, "late", &["--ask-timeout", "1s"], WRITE);
        let id = run.question();
        assert_eq!(run.end().1, "refused\n");
        assert_eq!(
            invigil.event("late", "approval_answered")["by"]["through"],
            "timeout"
        );
        let (_, stderr) = invigil.expect(125, &["approvals", "allow", &id]);
        assert!(stderr.contains("expired"), "{stderr}");

        let run = Asking::start(&invigil, "never", &["--ask", "never"], WRITE);
        assert_eq!(run.end().1, "refused\n");
        assert_eq!(
            invigil.event("never", "approval_answered")["by"]["through"],
            "nobody"
        );
        let (_, stderr) = invigil.expect(125, &["approvals", "allow", "zzzz"]);
        assert!(stderr.contains("no question"), "{stderr}");
    }
}

#[test]
fn a_run_cannot_answer_itself() {
    for invigil in Invigil::everyone() {
        for tier in TIERS {
            let binary = env!("CARGO_BIN_EXE_invigil");
            let script = format!(
                "(: > asked) 2>/dev/null & \
                 while id=$({binary} approvals list --json | sed 's/.*\"id\":\"\\([0-9a-z]*\\)\".*/\\1/') && [ -z \"$id\" ]; do sleep 0.1; done; \
                 {binary} approvals allow $id 2>&1; echo code $?; \
                 env -u INVIGIL_RUN_ID {binary} approvals allow $id 2>&1; echo code $?; \
                 dir=$INVIGIL_HOME/approvals/{tier}; echo x > $dir/$id.answer; cp $dir/$id.question $dir/$id.answer; \
                 ln -s /tmp/x $dir/$id.answer; mv $dir $dir.away; rm -rf $dir; echo tried; wait"
            );
            let more = ["--tier", tier, "--ask-timeout", "20s"];
            let run = Asking::start(&invigil, tier, &more, &script);
            let id = run.question();
            until("all tries", || {
                (run.so_far("access_denied") >= 6).then_some(())
            });
            assert_eq!(run.question(), id, "it is still open");
            assert!(!std::path::Path::new(&invigil.at("asked")).exists());
            invigil.expect(0, &["approvals", "deny", &id]);
            let (_, said) = run.end();
            assert_eq!(said.matches("code 125").count(), 2, "{said}");
            assert_eq!(
                said.matches("a process of a run cannot answer").count(),
                2,
                "{said}"
            );
            assert_eq!(invigil.event(tier, "approval_answered")["decision"], "deny");
            assert_eq!(invigil.all(tier, "approval_refused").len(), 0);
        }
    }
}

#[test]
fn an_answer_for_the_run_is_not_asked_again() {
    for invigil in Invigil::everyone() {
        let script = "mkdir asked & mkdir asked & wait; mkdir asked; mkdir asked2; ls -d asked*";
        let run = Asking::start(&invigil, "r", &[], script);
        let ids = run.questions(2);
        invigil.expect(0, &["approvals", "allow", &ids[0], "--run"]);
        // The third one is not asked about any more; the fourth is something else.
        let last = until("another question", || {
            let open = run.open();
            open.into_iter()
                .find(|asked| asked["what"]["path"].to_string().contains("asked2"))
        });
        invigil.expect(0, &["approvals", "deny", last["id"].as_str().unwrap()]);
        assert_eq!(run.end().1, "asked\n");
        let answered = invigil.all("r", "approval_answered");
        let by: Vec<_> = answered
            .iter()
            .map(|a| a["by"]["through"].as_str().unwrap())
            .collect();
        assert_eq!(by, ["command_line", "same_action", "command_line"]);
    }
}

#[test]
fn always_is_a_rule_in_the_users_policy() {
    for invigil in Invigil::everyone() {
        let config = PathBuf::from(invigil.at(".config/invigil"));
        std::fs::create_dir_all(&config).unwrap();
        let own = config.join("policy.toml");
        let text = "# mine\nversion = 1\n\n[files.write]\nallow = [\"/dev/**\"] # devices\ndefault = \"ask\"\n";
        std::fs::write(&own, text).unwrap();
        if invigil.nobody {
            for path in [&config, &own] {
                std::os::unix::fs::chown(path, Some(crate::NOBODY), Some(crate::NOBODY)).unwrap();
            }
        }
        std::fs::write(invigil.at("empty.toml"), "version = 1\n").unwrap();
        let script = "(: > file) 2>/dev/null && echo wrote";
        let args = |id: &'static str| {
            [
                "run",
                "-q",
                "--run-id",
                id,
                "--policy",
                "empty.toml",
                "--",
                "sh",
                "-c",
                script,
            ]
        };
        let mut command = invigil.command(&args("first"));
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let run = Asking {
            invigil: &invigil,
            id: "first",
            child,
        };
        let id = run.question();
        let (said, _) = invigil.expect(0, &["approvals", "allow", &id, "--always"]);
        assert!(
            said.contains("allowed for always") && said.contains("policy.toml, line 5:"),
            "{said}"
        );
        assert_eq!(run.end().1, "wrote\n");
        let added = &invigil.event("first", "approval_answered")["added"];
        assert!(
            added["text"].to_string().contains(&invigil.at("file")),
            "{added}"
        );
        let now = std::fs::read_to_string(&own).unwrap();
        assert!(
            now.starts_with("# mine\nversion = 1\n") && now.contains("# devices"),
            "{now}"
        );
        std::fs::remove_file(invigil.at("file")).unwrap();
        invigil.expect(0, &args("second"));
        assert_eq!(invigil.all("second", "approval_requested").len(), 0);
    }
}

#[test]
fn fifty_at_once_and_some_answered() {
    let invigil = Invigil::new();
    let script =
        "for i in $(seq 50); do (: > asked$i) 2>/dev/null & done; wait; ls | grep -c '^asked'";
    let run = Asking::start(&invigil, "many", &[], script);
    let ids = run.questions(50);
    let (_, stderr) = invigil.expect(125, &["approvals", "allow", ""]);
    assert!(stderr.contains("no question"), "{stderr}");
    for (at, id) in ids.iter().enumerate() {
        let answer = if at % 5 == 0 { "allow" } else { "deny" };
        invigil.expect(0, &["approvals", answer, id]);
    }
    assert_eq!(run.end().1, "10\n");
    let (shown, _) = invigil.expect(0, &["show", "many"]);
    assert!(
        shown.contains("50 times, 10 allowed, 0 not answered"),
        "{shown}"
    );
}

#[test]
fn answers_that_are_none_are_refused_and_the_question_stays() {
    let invigil = Invigil::new();
    let run = Asking::start(&invigil, "bad", &[], WRITE);
    let id = run.question();
    let answer = run.folder().join(format!("{id}.answer"));
    let question = std::fs::read_to_string(run.folder().join(format!("{id}.question"))).unwrap();
    let question: Value = serde_json::from_str(&question).unwrap();
    let forged = |action: &str, id: &str| {
        serde_json::json!({ "schema": "invigil.approval.answer.v1", "run_id": "bad", "id": id, "action": action,
            "decision": "allow", "scope": "once", "uid": 0, "pid": 1 })
        .to_string()
    };
    let action = question["question"]["action"].as_str().unwrap();
    let big = format!("{}{}", forged(action, &id), " ".repeat(20_000));
    let bad = [
        "garbage".to_owned(),
        String::new(),
        big,
        forged(&"0".repeat(64), &id),
        forged(action, "other"),
        forged(action, &id).replace("answer.v1", "answer.v2"),
        forged(action, &id).replace("\"pid\"", "\"more\":1,\"pid\""),
    ];
    let refusals = |count: usize| {
        until("a refusal", || {
            (run.so_far("approval_refused") == count).then_some(())
        })
    };
    for (at, text) in bad.iter().enumerate() {
        std::fs::write(run.folder().join("draft"), text).unwrap();
        std::fs::rename(run.folder().join("draft"), &answer).unwrap();
        refusals(at + 1);
    }
    // A link to a good answer, a FIFO, and one that others may write.
    std::fs::write(run.folder().join("good"), forged(action, &id)).unwrap();
    std::os::unix::fs::symlink(run.folder().join("good"), &answer).unwrap();
    refusals(bad.len() + 1);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &answer,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    refusals(bad.len() + 2);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(run.folder().join("good"), open).unwrap();
    std::fs::rename(run.folder().join("good"), &answer).unwrap();
    refusals(bad.len() + 3);
    // A directory is passed over.
    std::fs::create_dir(&answer).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let (_, stderr) = invigil.expect(125, &["approvals", "allow", &id]);
    assert!(stderr.contains("somebody else"), "{stderr}");
    std::fs::remove_dir(&answer).unwrap();
    assert_eq!(run.question(), id);
    invigil.expect(0, &["approvals", "allow", &id]);
    assert_eq!(run.end().1, "wrote\n");
}

#[test]
fn questions_of_the_dead_are_gone() {
    for invigil in Invigil::everyone() {
        // The process that waits is killed; the run goes on.
        let script = "sh -c ': > asked' & pid=$!; while ! [ -e kill ]; do sleep 0.05; done; kill -9 $pid; echo on";
        let run = Asking::start(&invigil, "process", &[], script);
        let id = run.question();
        std::fs::write(invigil.at("kill"), "").unwrap();
        assert_eq!(run.end().1, "on\n");
        assert_eq!(
            invigil.event("process", "approval_answered")["by"]["through"],
            "process_ended"
        );
        let (_, stderr) = invigil.expect(125, &["approvals", "allow", &id]);
        assert!(stderr.contains("gone"), "{stderr}");
        // The whole run is over in time.
        let run = Asking::start(&invigil, "timeout", &["--timeout", "1s"], WRITE);
        assert_eq!(run.end().0, 124);
        // The supervisor is killed.
        let mut run = Asking::start(&invigil, "killed", &[], WRITE);
        let id = run.question();
        let pid = rustix::process::Pid::from_child(&run.child);
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        run.child.wait().unwrap();
        until("nothing open", || run.open().is_empty().then_some(()));
        assert!(!run.folder().exists());
        let (_, stderr) = invigil.expect(125, &["approvals", "allow", &id]);
        assert!(stderr.contains("was killed"), "{stderr}");
        std::fs::remove_file(invigil.at("kill")).unwrap();
    }
}

/// Plays a person at a pseudo-terminal. The rest of a script is what that person does.
const PERSON: &str = r#"
import os, pty, select, subprocess, sys, time
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
seen = everything = b""
def more(limit):
    global seen, everything
    if not select.select([fd], [], [], limit)[0]:
        return False
    try:
        new = os.read(fd, 4096)
    except OSError:
        return False
    seen += new
    everything += new
    return True
def fail(why):
    print(why)
    os.kill(pid, 15)
    time.sleep(1)
    os.kill(pid, 9)
    sys.exit(1)
def until(text, limit=20):
    global seen
    stop = time.time() + limit
    while text not in seen:
        if time.time() > stop or not more(stop - time.time()):
            fail("did not see %r in %r" % (text, everything))
    seen = seen[seen.find(text) + len(text):]
def quiet(text, limit):
    stop = time.time() + limit
    while time.time() < stop:
        more(0.1)
    if text in seen:
        fail("saw %r in %r" % (text, everything))
def type(text):
    os.write(fd, text)
def invigil(*args):
    at = sys.argv.index("run")
    return subprocess.run(sys.argv[1:at] + list(args), stdin=subprocess.DEVNULL, capture_output=True, text=True)
def question():
    import json
    stop = time.time() + 20
    while time.time() < stop:
        lines = invigil("approvals", "list", "--json").stdout.splitlines()
        if lines:
            return json.loads(lines[0])["id"]
        time.sleep(0.05)
    fail("no question is open")
def end(limit=30):
    stop = time.time() + limit
    while time.time() < stop:
        more(0.02)
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            print("exit", os.waitstatus_to_exitcode(status))
            sys.exit(0)
    fail("it does not end: %r" % everything)
"#;

/// A run that asks, on a terminal with somebody at it; its exit code.
#[track_caller]
fn at_a_terminal(invigil: &Invigil, id: &str, more: &[&str], script: &str, person: &str) -> i32 {
    std::fs::write(invigil.at("policy.toml"), POLICY).unwrap();
    under_rules(invigil, id, more, script, person)
}

/// The same under the rules that are there.
#[track_caller]
fn under_rules(invigil: &Invigil, id: &str, more: &[&str], script: &str, person: &str) -> i32 {
    let head = ["run", "-q", "--run-id", id, "--policy", "policy.toml"];
    let watched = invigil.command(&[&head, more, &["--", "sh", "-c", script]].concat());
    let variables = watched.get_envs();
    let output = std::process::Command::new("python3")
        .args(["-c", &format!("{PERSON}{person}")])
        .arg(watched.get_program())
        .args(watched.get_args())
        .envs(variables.filter_map(|(name, value)| Some((name, value?))))
        .current_dir(invigil.directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat())
        .trim()
        .to_owned();
    let code = said
        .strip_prefix("exit ")
        .and_then(|code| code.parse().ok());
    let code = code.unwrap_or_else(|| panic!("{id}: {said}"));
    invigil.expect(0, &["verify", id]);
    code
}

const THEN: &str = "(: > asked) 2>/dev/null && exit 7; exit 8";

#[test]
fn a_person_answers_in_the_terminal() {
    for invigil in Invigil::everyone() {
        let run = |id: &str, person: &str| {
            drop(std::fs::remove_file(invigil.at("asked")));
            let code = at_a_terminal(&invigil, id, &[], THEN, person);
            let answered = invigil.event(id, "approval_answered");
            assert_eq!(answered["by"]["through"], "terminal", "{id}");
            (code, answered["scope"].as_str().unwrap_or("no").to_owned())
        };
        let asks =
            "until(b'invigil asks'); until(b'/asked'); until(b'policy.toml:5'); until(b'[n]o'); ";
        let person = |keys: &str| format!("{asks}type(b'{keys}'); end()");
        assert_eq!(run("o", &person("o\\n")), (7, "once".into()));
        assert_eq!(run("r", &person("run\\n")), (7, "run".into()));
        assert_eq!(run("n", &person("n\\n")), (8, "no".into()));
        assert_eq!(run("enter", &person("\\n")), (8, "no".into()));
        // What is no answer is asked again.
        let person = format!(
            "{asks}type(b'yes\\n'); until(b'no answer here'); type(b'once\\n'); until(b'allowed'); end()"
        );
        assert_eq!(run("unclear", &person), (7, "once".into()));
        // The user's file does not overrule the one on the command line, so nothing is written there.
        let person = format!("{asks}type(b'a\\n'); until(b'no rule was added'); end()");
        assert_eq!(run("a", &person), (7, "run".into()));
        assert!(!std::path::Path::new(&invigil.at(".config/invigil/policy.toml")).exists());
    }
}

#[test]
fn what_was_typed_before_is_no_answer() {
    let invigil = Invigil::new();
    let script = format!("echo rea''dy; sleep 1; {THEN}");
    let person = "until(b'ready'); type(b'o\\no\\no'); until(b'[n]o'); quiet(b'allowed', 1); type(b'\\n'); end()";
    assert_eq!(at_a_terminal(&invigil, "early", &[], &script, person), 8);
}

#[test]
fn questions_stand_in_line_and_can_be_answered_elsewhere() {
    let invigil = Invigil::new();
    let script = "(: > asked1) & (: > asked2) & wait; ls | grep -c asked; exit 0";
    let person = "until(b'invigil asks'); until(b'[n]o'); id = question(); \
        r = invigil('approvals', 'allow', id); until(id.encode() + b' allowed once'); \
        until(b'invigil asks'); until(b'[n]o'); type(b'o\\n'); until(b'2'); end()";
    assert_eq!(at_a_terminal(&invigil, "line", &[], script, person), 0);
}

#[test]
fn a_terminal_in_raw_mode_is_left_alone() {
    for invigil in Invigil::everyone() {
        let script = format!("stty raw -echo; echo rea''dy; {THEN}");
        let person = "until(b'ready'); id = question(); type(b'o\\r'); quiet(b'invigil', 1); invigil('approvals', 'allow', id); end()";
        assert_eq!(at_a_terminal(&invigil, "raw", &[], &script, person), 7);
        assert_eq!(
            invigil.event("raw", "approval_answered")["by"]["through"],
            "command_line"
        );
        // With --ask elsewhere there is one line, and nothing is read.
        drop(std::fs::remove_file(invigil.at("asked")));
        let person = "until(b'invigil approvals show'); type(b'o\\n'); quiet(b'allowed', 1); invigil('approvals', 'deny', question()); end()";
        assert_eq!(
            at_a_terminal(&invigil, "elsewhere", &["--ask", "elsewhere"], THEN, person),
            8
        );
    }
}

#[test]
fn a_question_steers_no_terminal() {
    let invigil = Invigil::new();
    let script =
        r#"f=$(printf 'asked\033[2J\342\200\256x'); (: > "$f") 2>/dev/null && exit 7; exit 8"#;
    let person = r"until(rb'asked\u{1b}[2J\u{202e}x'); until(b'[n]o'); type(b'\n'); quiet(b'\033[2J', 0.3)
if b'\033[2J' in everything: fail('steered: %r' % everything)
end()";
    assert_eq!(at_a_terminal(&invigil, "steer", &[], script, person), 8);
}

#[test]
fn an_interrupt_takes_the_question_back() {
    for invigil in Invigil::everyone() {
        let person = r"until(b'[n]o'); type(b'\x03'); end()";
        let code = at_a_terminal(&invigil, "int", &[], ": > asked", person);
        assert_eq!(code, 130);
        let answered = invigil.event("int", "approval_answered");
        assert_eq!(answered["by"]["through"], "interrupted");
        // One that takes the foreground does not stop the supervisor.
        let script = "setsid -w true; bash --norc -ic ': > asked; exit 9' 2>/dev/null";
        let person = r"id = question(); invigil('approvals', 'allow', id); end()";
        assert_eq!(at_a_terminal(&invigil, "job", &[], script, person), 9);
    }
}

/// Asks about a program that is found in two directories of `PATH`.
const PROGRAMS: &str = r#"
version = 1
[[exec]]
program = "touch"
args = ["asked", ".."]
decision = "ask"
reason = "a person should know"
"#;

#[test]
fn a_program_is_approved_in_the_terminal() {
    for invigil in Invigil::everyone() {
        std::fs::write(invigil.at("policy.toml"), PROGRAMS).unwrap();
        std::fs::create_dir(invigil.at("bin")).unwrap();
        std::os::unix::fs::symlink("/usr/bin/touch", invigil.at("bin/touch")).unwrap();
        let script = "PATH=$PWD/bin:/usr/bin:/bin; touch free; touch asked && exit 7; exit 8";
        let asks = "until(b'invigil asks'); until(b'touch'); until(b'asked'); until(b'a person should know'); until(b'[n]o'); ";
        for (id, keys, code) in [("once", "o", 7), ("no", "n", 8), ("enter", "", 8)] {
            drop(std::fs::remove_file(invigil.at("asked")));
            let person = format!("{asks}type(b'{keys}\\n'); end()");
            assert_eq!(
                under_rules(&invigil, id, &[], script, &person),
                code,
                "{id}"
            );
            let made = std::path::Path::new(&invigil.at("asked")).exists();
            assert_eq!(made, code == 7, "{id}");
            // A shell that is refused tries the next directory, and nobody is asked twice about the same.
            let asked = invigil.event(id, "approval_requested");
            let argv: Vec<_> = asked["what"]["argv"].as_array().unwrap().iter().collect();
            assert_eq!(argv, ["touch", "asked"], "{asked}");
            let answered = invigil.event(id, "approval_answered");
            assert_eq!(answered["by"]["through"], "terminal", "{id}");
            assert_eq!(answered["action"], asked["action"], "{id}");
            let denied = invigil.all(id, "access_denied");
            assert_eq!(denied.is_empty(), code == 7, "{id}: {denied:?}");
            let question = asked["id"].as_str().unwrap();
            assert!(
                denied
                    .iter()
                    .all(|d| d["rule"].as_str().unwrap().contains(question)),
                "{id}: {denied:?}"
            );
        }
        assert!(std::path::Path::new(&invigil.at("free")).exists());
    }
}

/// What is written to the terminal is not typed; what would type is refused; whoever takes the terminal away answers nothing.
#[test]
fn the_terminal_cannot_be_answered_from_inside() {
    const HOSTILE: &str = r#"
import fcntl, os, signal, sys, termios, time
asked = os.fork()
if asked == 0:
    try:
        open('asked', 'w')
        os._exit(7)
    except OSError:
        os._exit(8)
time.sleep(0.5)
tty = os.open('/dev/tty', os.O_RDWR)
os.write(tty, b'o\nonce\n\r\n')
for byte in b'o\n':
    for terminal in (tty, 0):
        try:
            fcntl.ioctl(terminal, termios.TIOCSTI, bytes([byte]))
            print('TYPED')
        except OSError:
            pass
reader = os.fork()
if reader == 0:
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)
    os.setpgid(0, 0)
    if sys.argv[1] == 'takes':
        os.tcsetpgrp(tty, os.getpid())
        os.write(tty, b'o\n')
        time.sleep(1)
        os.tcsetpgrp(tty, os.getpgid(os.getppid()))
    else:
        try:
            os.read(tty, 100)
            print('READ')
        except OSError:
            pass
    os._exit(0)
os.waitpid(reader, 0)
print('rea' + 'dy', flush=True)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1]))
"#;
    for invigil in Invigil::everyone() {
        std::fs::write(invigil.at("hostile.py"), HOSTILE).unwrap();
        for id in ["reads", "takes"] {
            let script = format!("exec python3 hostile.py {id}");
            let person = "until(b'[n]o'); until(b'ready'); quiet(b'allowed', 0.3)
if b'TYPED' in everything or b'READ' in everything: fail('%r' % everything)
type(b'n\\n'); end()";
            assert_eq!(at_a_terminal(&invigil, id, &[], &script, person), 8, "{id}");
            assert!(!std::path::Path::new(&invigil.at("asked")).exists());
            let answered = invigil.event(id, "approval_answered");
            assert_eq!(answered["decision"], "deny", "{id}");
            let denied = invigil.all(id, "access_denied");
            let typed = denied.iter().filter(|d| d["what"] == "terminal");
            assert_eq!(typed.count(), 4, "{id}: {denied:?}");
        }
    }
}
