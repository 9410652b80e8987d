//! Journals as somebody would write them who wants to be believed.

use std::sync::Arc;

use invigil_journal::{Options, Store, SystemClock};
use invigil_policy::{Layer, Places, Source};
use invigil_schema::*;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::{Difference, Redecided, redecide};
use crate::approvals::hash;
use crate::guard::{Rules, decide_again};
use crate::tasks::digest;

const RULES: &str = r#"version = 1
[files.write]
default = "deny"
allow = ["/w/**"]
deny = ["/w/secret"]
ask = ["/w/asked*"]
[programs]
default = "allow"
deny = ["id"]
ask = ["make"]
[network]
default = "ask"
"#;

/// A journal, record by record.
struct Written {
    directory: tempfile::TempDir,
    store: Store,
    events: Vec<(Origin, Event)>,
}

impl Written {
    /// Nothing but its beginning.
    fn new() -> Written {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path().join("home"));
        Written {
            directory,
            store,
            events: Vec::new(),
        }
    }

    /// A run under the rules.
    fn run() -> Written {
        let written = Written::new();
        let loaded = written.policy();
        let written = written.with(Origin::Runtime, loaded);
        written.kernel(ProcessForked {
            process: process(1),
            parent: None,
        })
    }

    fn policy(&self) -> PolicyLoaded {
        let sha256 = self.store.blobs().unwrap().put(RULES.as_bytes()).unwrap();
        PolicyLoaded {
            mode: Mode::Guard,
            sources: vec![PolicySource {
                name: "rules.toml".into(),
                layer: "command_line".into(),
                sha256,
            }],
            places: PolicyPlaces {
                home: "/home/me".into(),
                workspace: "/w".into(),
                tmp: "/tmp".into(),
                path: vec!["/usr/bin".into()],
            },
            denied_programs: vec![],
            env_withheld: vec![],
        }
    }

    fn with(mut self, origin: Origin, event: impl Into<Event>) -> Written {
        self.events.push((origin, event.into()));
        self
    }

    fn kernel(self, event: impl Into<Event>) -> Written {
        self.with(Origin::Kernel, event)
    }

    fn runtime(self, event: impl Into<Event>) -> Written {
        self.with(Origin::Runtime, event)
    }

    fn exited(self, pid: u32, code: Option<i32>, signal: Option<i32>) -> Written {
        self.kernel(ProcessExited {
            process: process(pid),
            exit_code: code,
            signal,
            user_us: 0,
            system_us: 0,
            max_rss_kib: 0,
        })
    }

    /// The last process ends, and with it the run.
    fn finished(self, code: i32) -> Written {
        self.exited(1, Some(code), None).runtime(RunFinished {
            exit_code: Some(code),
            signal: None,
            success: code == 0,
            window_elapsed_ms: 1,
            stopped: None,
            why: None,
        })
    }

    fn redecided(&self) -> Redecided {
        let run_id = RunId::new("run_1").unwrap();
        let (clock, options) = (Arc::new(SystemClock), Options::default());
        let (run, journal) = self.store.create(&run_id, clock, options, "test").unwrap();
        for (origin, event) in &self.events {
            drop(journal.append(*origin, event).unwrap());
        }
        journal.close().unwrap();
        let redecided = redecide(&self.store, &run).unwrap();
        assert!(self.directory.path().exists());
        redecided
    }

    #[track_caller]
    fn fits(&self) -> Redecided {
        let redecided = self.redecided();
        assert_eq!(redecided.differs, None);
        redecided
    }

    /// The record that comes out differently, as its place in what was written, and what comes out.
    #[track_caller]
    fn differs(&self, at: usize, derived: &str) {
        let redecided = self.redecided();
        let Some(Difference {
            seq, derived: came, ..
        }) = &redecided.differs
        else {
            panic!("{redecided:?}")
        };
        // A journal has one record before the first that anybody writes.
        assert_eq!(
            (*seq, came.contains(derived)),
            (at as u64 + 1, true),
            "{redecided:?}"
        );
    }
}

fn process(pid: u32) -> ProcessRef {
    let start = u64::from(pid);
    ProcessRef { pid, start }
}

fn write(pid: u32, path: &str) -> FileOp {
    FileOp {
        process: process(pid),
        op: FileOpKind::Open,
        path: path.into(),
        to: None,
        flags: vec![OpenFlag::Write],
        mode: None,
        detail: None,
        result: CallResult::Ok,
    }
}

fn removed(pid: u32, path: &str) -> FileOp {
    FileOp {
        op: FileOpKind::Unlink,
        flags: vec![],
        ..write(pid, path)
    }
}

fn loaded(pid: u32, program: &str, argv: &[&str]) -> ProcessExec {
    ProcessExec {
        process: process(pid),
        parent: None,
        executable: program.into(),
        requested: None,
        argv: argv.iter().map(|&word| word.into()).collect(),
        argv_cut_bytes: 0,
        cwd: "/w".into(),
        sha256: None,
    }
}

fn connect(pid: u32, port: u16) -> NetOp {
    NetOp {
        process: process(pid),
        op: NetOpKind::Connect,
        address: Address::Inet {
            ip: [192, 0, 2, 1].into(),
            port,
        },
        host: None,
        instead: None,
        result: CallResult::Ok,
    }
}

/// A refusal by the line of the rules that has this text.
fn denied(pid: u32, what: &str, target: &str, text: &str) -> AccessDenied {
    let line = RULES.lines().position(|line| line.contains(text)).unwrap() + 1;
    let column = RULES.lines().nth(line - 1).unwrap().find(text).unwrap() + 1;
    AccessDenied {
        process: process(pid),
        what: what.into(),
        target: target.into(),
        rule: format!("rules.toml:{line}: deny {}", text.trim_matches('"')),
        place: Some(RulePlace {
            file: "rules.toml".into(),
            line: line as u64,
            column: column as u64,
            decision: "deny".into(),
            text: text.trim_matches('"').into(),
            reason: None,
            instead: None,
        }),
        error: Errno(13),
    }
}

fn question(what: Asked) -> ApprovalRequested {
    let places = Places {
        home: "/home/me".into(),
        workspace: "/w".into(),
        tmp: "/tmp".into(),
        path: vec!["/usr/bin".into()],
    };
    let source = Source {
        name: "rules.toml".into(),
        text: RULES.into(),
        layer: Layer::CommandLine,
    };
    let rules = Rules::load(Mode::Guard, vec![source], places).unwrap();
    ApprovalRequested {
        id: "q".into(),
        process: process(1),
        action: hash(&what),
        rule: decide_again(rules.policy(), &what).unwrap().cite(),
        what,
        reason: None,
        deadline: Timestamp::from_micros(1),
    }
}

fn asked_file(op: &FileOp) -> Asked {
    Asked::File {
        op: op.op,
        path: op.path.clone(),
        to: op.to.clone(),
        flags: op.flags.clone(),
        detail: op.detail.clone(),
    }
}

fn answer(question: &ApprovalRequested, scope: ApprovalScope) -> ApprovalAnswered {
    ApprovalAnswered {
        id: question.id.clone(),
        action: question.action,
        decision: ApprovalDecision::Allow,
        scope: Some(scope),
        by: ApprovalBy::Terminal { uid: 1000 },
        reason: None,
        added: None,
        not_added: None,
    }
}

/// A run in which a person has allowed this.
fn allowed(question: ApprovalRequested, scope: ApprovalScope) -> Written {
    let answer = answer(&question, scope);
    Written::run().runtime(question).with(Origin::User, answer)
}

#[test]
fn a_denial_that_was_made_up_hides_nothing() {
    Written::run()
        .kernel(write(1, "/w/fine"))
        .finished(0)
        .fits();
    let denial = || denied(1, "file.open", "/w/secret", "\"/w/secret\"");
    Written::run()
        .kernel(removed(1, "/w/secret"))
        .finished(0)
        .differs(2, "deny by");
    let behind = Written::run()
        .kernel(write(1, "/w/secret"))
        .runtime(denial());
    behind.finished(0).differs(2, "deny by");
    let before = Written::run()
        .runtime(denial())
        .kernel(write(1, "/w/secret"));
    before.finished(0).differs(3, "deny by");
    let of_another = denied(1, "file.open", "/w/fine", "\"/w/secret\"");
    let other = Written::run()
        .kernel(removed(1, "/w/secret"))
        .runtime(of_another);
    other.finished(0).differs(2, "deny by");
    // What cannot be undone is not undone by a death.
    let gone = Written::run()
        .kernel(removed(1, "/w/secret"))
        .runtime(denial());
    gone.exited(1, None, Some(9)).differs(2, "deny by");
}

#[test]
fn who_dies_before_the_first_instruction_has_run_nothing() {
    let denial = || denied(2, "exec", "/usr/bin/id", "\"id\"");
    let born = |written: Written| {
        written.kernel(ProcessForked {
            process: process(2),
            parent: Some(process(1)),
        })
    };
    let id = || loaded(2, "/usr/bin/id", &["id"]);
    let killed = |written: Written| written.exited(2, None, Some(9)).finished(0);
    killed(born(Written::run()).runtime(denial()).kernel(id())).fits();
    killed(born(Written::run()).kernel(id()).runtime(denial())).fits();
    let lives = born(Written::run()).runtime(denial()).kernel(id());
    lives
        .exited(2, Some(0), None)
        .finished(0)
        .differs(4, "deny by");
    let acts = born(Written::run())
        .runtime(denial())
        .kernel(id())
        .kernel(write(2, "/w/x"));
    killed(acts).differs(4, "deny by");
    // A journal that breaks off there is no lie.
    born(Written::run()).runtime(denial()).kernel(id()).fits();
}

#[test]
fn rules_are_loaded_once_and_first() {
    let written = Written::run().kernel(write(1, "/w/x"));
    let again = written.policy();
    written.runtime(again).finished(0).differs(3, "loaded once");
    let written = Written::new().kernel(write(1, "/w/secret"));
    let late = written.policy();
    written.runtime(late).differs(1, "before anything happens");
    // To take them away leaves decisions that nobody made.
    let denial = denied(1, "file.open", "/w/secret", "\"/w/secret\"");
    Written::new()
        .runtime(denial)
        .differs(0, "no policy was loaded");
    // Nor does the mode say that rules are none.
    let mut written = Written::run().kernel(removed(1, "/w/secret"));
    if let (_, Event::PolicyLoaded(loaded)) = &mut written.events[0] {
        loaded.mode = Mode::Observe;
    }
    written.finished(0).differs(2, "deny by");
}

#[test]
fn an_approval_covers_the_action_it_was_given_for() {
    use ApprovalScope::{Once, Run};
    let op = || removed(1, "/w/asked");
    let asked = || question(asked_file(&op()));
    allowed(asked(), Once).kernel(op()).finished(0).fits();
    // Not twice, not for another process, not for something else with the same file.
    allowed(asked(), Once)
        .kernel(op())
        .kernel(op())
        .finished(0)
        .differs(5, "ask by");
    let failed = FileOp {
        result: CallResult::Failed(Errno(2)),
        ..op()
    };
    allowed(asked(), Once)
        .kernel(failed)
        .kernel(op())
        .finished(0)
        .differs(5, "ask by");
    allowed(asked(), Once)
        .kernel(removed(2, "/w/asked"))
        .finished(0)
        .differs(4, "ask by");
    let chmod = FileOp {
        op: FileOpKind::Truncate,
        ..op()
    };
    allowed(asked(), Once)
        .kernel(chmod.clone())
        .finished(0)
        .differs(4, "ask by");
    // For the whole run, for everybody, and still for nothing else.
    let run = allowed(asked(), Run).kernel(op()).kernel(op());
    run.kernel(removed(2, "/w/asked")).finished(0).fits();
    allowed(asked(), Run)
        .kernel(chmod)
        .finished(0)
        .differs(4, "ask by");
    allowed(asked(), Run)
        .kernel(removed(1, "/w/asked2"))
        .finished(0)
        .differs(4, "ask by");
    // Always is more than a word.
    allowed(asked(), ApprovalScope::Always).differs(3, "no rule was added");
}

#[test]
fn an_approval_of_a_program_or_an_address_is_bound_too() {
    use ApprovalScope::Run;
    let make = |argv: &[&str]| loaded(1, "/usr/bin/make", argv);
    let what = Asked::Exec {
        program: "/usr/bin/make".into(),
        argv: vec!["make".into(), "all".into()],
        cwd: "/w".into(),
    };
    let asked = || question(what.clone());
    allowed(asked(), Run)
        .kernel(make(&["make", "all"]))
        .finished(0)
        .fits();
    let install = allowed(asked(), Run).kernel(make(&["make", "install"]));
    install.finished(0).differs(4, "ask by");
    let elsewhere = ProcessExec {
        cwd: "/".into(),
        ..make(&["make", "all"])
    };
    allowed(asked(), Run)
        .kernel(elsewhere)
        .finished(0)
        .differs(4, "ask by");
    // A script has its interpreter in front, and another program does not become it by its arguments.
    let what_script = Asked::Exec {
        program: "/w/make".into(),
        argv: vec!["./make".into(), "all".into()],
        cwd: "/w".into(),
    };
    let asked = || question(what_script.clone());
    let script = ProcessExec {
        requested: Some("/w/make".into()),
        ..loaded(1, "/usr/bin/dash", &["/bin/sh", "./make", "all"])
    };
    allowed(asked(), Run).kernel(script).finished(0).fits();
    let evil = loaded(1, "/usr/bin/make", &["evil", "./make", "all"]);
    allowed(asked(), Run)
        .kernel(evil)
        .finished(0)
        .differs(4, "ask by");
    let what = Asked::Net {
        op: NetOpKind::Connect,
        address: connect(1, 443).address,
    };
    let asked = || question(what.clone());
    allowed(asked(), Run)
        .kernel(connect(1, 443))
        .finished(0)
        .fits();
    allowed(asked(), Run)
        .kernel(connect(1, 80))
        .finished(0)
        .differs(4, "ask by");
}

#[test]
fn a_question_is_about_the_action_whose_hash_it_has() {
    let op = removed(1, "/w/asked");
    let mut asked = question(asked_file(&op));
    asked.action = hash(&asked_file(&removed(1, "/w/asked2")));
    let answer = answer(&asked, ApprovalScope::Run);
    let written = Written::run().runtime(asked).with(Origin::User, answer);
    written.kernel(op).finished(0).differs(2, "another action");
    // Nobody but a person speaks for a person.
    let asked = question(asked_file(&removed(1, "/w/asked")));
    let answer = self::answer(&asked, ApprovalScope::Run);
    Written::run()
        .runtime(asked)
        .runtime(answer)
        .differs(3, "cannot vouch");
}

#[test]
fn what_cannot_be_read_cannot_be_derived() {
    let unreadable = |kind: &str| Event::Unknown {
        kind: kind.into(),
        data: RawValue::from_string("{\"path\":7}".into()).unwrap(),
    };
    Written::run()
        .kernel(unreadable("file_op"))
        .finished(0)
        .differs(2, "nothing can be derived");
    // A kind of tomorrow is none of ours.
    Written::run()
        .kernel(unreadable("from_tomorrow"))
        .finished(0)
        .fits();
    // Neither does a record count for nothing because of who is said to have written it.
    let written = Written::run().with(Origin::Sdk, removed(1, "/w/secret"));
    written.finished(0).differs(2, "cannot vouch");
}

fn check(name: &str) -> Check {
    Check {
        name: name.into(),
        command: format!("./{name}"),
        expect_exit_zero: true,
        output_contains: None,
        timeout_secs: 10,
    }
}

/// A task up to its green checks: with the names of the contract, and of what was run.
fn task(agreed: &[&str], ran: &[&str], voice: Origin) -> Written {
    let contract = Contract {
        description: String::new(),
        checks: agreed.iter().map(|name| check(name)).collect(),
    };
    let written = Written::new()
        .runtime(TaskStarted {
            task_id: TaskId::new("task_1").unwrap(),
            intent: "x".into(),
            repository: "/r".into(),
            base: "b".into(),
            worktree: "/w".into(),
            agent: vec![],
            agent_id: (voice == Origin::Client).then(|| "a".into()),
            max_rounds: 1,
            notes: vec![],
        })
        .with(
            voice,
            TaskContract {
                contract,
                derived: false,
                confirmed: true,
            },
        )
        .runtime(stands(TaskState::Running))
        .runtime(stands(TaskState::Verifying));
    let numbered = (1..).zip(ran);
    numbered.fold(written, |written, (number, name)| {
        let of = agreed.len() as u32;
        let started = started(number, of, name);
        written.runtime(started).runtime(completed(name, true))
    })
}

fn stands(state: TaskState) -> TaskChanged {
    TaskChanged {
        state,
        round: 1,
        why: None,
    }
}

fn started(number: u32, of: u32, name: &str) -> CheckStarted {
    CheckStarted {
        stage: Stage::Verify,
        round: 1,
        number,
        of,
        check: check(name),
    }
}

fn completed(name: &str, passed: bool) -> CheckCompleted {
    CheckCompleted {
        stage: Stage::Verify,
        round: 1,
        result: CheckResult {
            name: name.into(),
            passed,
            exit_code: Some(i32::from(!passed)),
            timed_out: false,
            tail: String::new(),
            duration_ms: 1,
            output: None,
            run: Some(RunId::new("gone").unwrap()),
        },
    }
}

fn proposed(written: &Written, commit: &str) -> TaskProposed {
    let patch = written.store.blobs().unwrap().put(b"patch").unwrap();
    TaskProposed {
        digest: digest("b", commit, b"patch"),
        commit: commit.into(),
        tree: "t".into(),
        patch,
        files: vec![],
        commits: vec![],
        edited_checks: vec![],
        notes: vec![],
    }
}

/// The same, proposed, approved and delivered.
fn delivered(written: Written, commit: &str) -> Written {
    let proposed = proposed(&written, "c");
    let answered = TaskAnswered {
        approved: true,
        digest: proposed.digest,
        text: None,
        uid: 1000,
    };
    written
        .runtime(proposed)
        .runtime(stands(TaskState::NeedsApproval))
        .with(Origin::User, answered)
        .runtime(TaskEnded {
            state: TaskState::Merged,
            verdict: "x".into(),
            branch: None,
            commit: Some(commit.into()),
        })
}

#[test]
fn a_task_is_judged_by_its_contract() {
    delivered(task(&["a", "b"], &["a", "b"], Origin::User), "c").fits();
    delivered(task(&["a", "b"], &["a", "b"], Origin::Client), "c").fits();
    // A check that nobody agreed on, and one that was left out.
    task(&["a", "b"], &["a", "x"], Origin::User).differs(6, "another check");
    let left_out = delivered(task(&["a", "b"], &["a"], Origin::User), "c");
    left_out.differs(7, "not all of its checks");
    // Another commit than the one that was shown.
    delivered(task(&["a"], &["a"], Origin::User), "d").differs(9, "another commit");
    // Nobody in particular has agreed.
    task(&["a"], &["a"], Origin::Sdk).differs(1, "cannot vouch");
    let unsaid = Written::new().runtime(stands(TaskState::Running));
    unsaid.differs(0, "there is no task");
}

#[test]
fn a_check_ends_as_the_one_that_was_started() {
    let begun = || task(&["a"], &[], Origin::User).runtime(started(1, 1, "a"));
    begun()
        .runtime(completed("b", true))
        .differs(5, "check a was started");
    let mut other = completed("a", true);
    other.round = 2;
    begun().runtime(other).differs(5, "check a was started");
    let mut nowhere = completed("a", true);
    nowhere.result.run = None;
    begun().runtime(nowhere).differs(5, "failed");
    begun()
        .with(Origin::Sdk, completed("a", true))
        .differs(5, "cannot vouch");
    // A round that was green is not the one that is shown.
    let written = task(&["a"], &["a"], Origin::User).runtime(stands(TaskState::Running));
    let proposal = proposed(&written, "c");
    let written = written.runtime(proposal);
    written
        .runtime(stands(TaskState::NeedsApproval))
        .differs(8, "not all of its checks");
}

#[test]
fn what_is_proposed_has_the_digest_of_its_patch() {
    let written = task(&["a"], &["a"], Origin::User);
    let mut proposal = proposed(&written, "c");
    proposal.digest = Digest::from_bytes(Sha256::digest(b"x").into());
    let derived = digest("b", "c", b"patch").to_string();
    written.runtime(proposal).differs(6, &derived);
}
