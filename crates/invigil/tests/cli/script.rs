//! Journals that no program has made: long ones, and ones with hostile texts.

use std::sync::Arc;

use invigil_journal::{Journal, Options, Store, SystemClock};
use invigil_schema::{
    AccessDenied, CallResult, Check, CheckCompleted, CheckResult, CheckStarted, Errno, Event,
    FileOp, FileOpKind, OpenFlag, Origin, ProcessExec, ProcessForked, ProcessRef, RunId, Stage,
};
use serde_json::value::RawValue;

use crate::Invigil;

/// Begins a journal in the store of a test.
pub(crate) fn journal(invigil: &Invigil, id: &str) -> Journal {
    let store = Store::new(invigil.home());
    let id = RunId::new(id).unwrap();
    let clock = Arc::new(SystemClock);
    let made = store
        .create(&id, clock, Options::default(), "test")
        .unwrap();
    made.1
}

pub(crate) fn add(journal: &Journal, origin: Origin, event: impl Into<Event>) {
    drop(journal.append(origin, &event.into()).unwrap());
}

const PROCESS: ProcessRef = ProcessRef { pid: 10, start: 1 };

pub(crate) fn begun(journal: &Journal) {
    let forked = ProcessForked {
        process: PROCESS,
        parent: None,
    };
    add(journal, Origin::Kernel, forked);
    let exec = ProcessExec {
        process: PROCESS,
        parent: None,
        executable: "/bin/agent".into(),
        requested: None,
        argv: vec!["agent".into()],
        argv_cut_bytes: 0,
        cwd: "/".into(),
        sha256: None,
    };
    add(journal, Origin::Kernel, exec);
}

pub(crate) fn created(path: &str) -> FileOp {
    FileOp {
        process: PROCESS,
        op: FileOpKind::Create,
        path: path.into(),
        to: None,
        flags: vec![OpenFlag::Write],
        mode: None,
        detail: None,
        result: CallResult::Ok,
    }
}

pub(crate) fn denied(target: &str) -> AccessDenied {
    AccessDenied {
        process: PROCESS,
        what: "file.open".into(),
        target: target.into(),
        rule: "line 7".into(),
        place: None,
        error: Errno(13),
    }
}

pub(crate) fn unknown(data: &str) -> Event {
    Event::Unknown {
        kind: "from_tomorrow".into(),
        data: RawValue::from_string(data.into()).unwrap(),
    }
}

/// A check that was started and did not pass.
pub(crate) fn checked(journal: &Journal, name: &str, tail: &str) {
    let (stage, round) = (Stage::Verify, 1);
    let started = CheckStarted {
        stage,
        round,
        number: 1,
        of: 1,
        check: Check {
            name: name.into(),
            command: "false".into(),
            expect_exit_zero: true,
            output_contains: None,
            timeout_secs: 10,
        },
    };
    add(journal, Origin::Runtime, started);
    let result = CheckResult {
        name: name.into(),
        passed: false,
        exit_code: Some(1),
        timed_out: false,
        tail: tail.into(),
        duration_ms: 1500,
        output: None,
        run: None,
    };
    let completed = CheckCompleted {
        stage,
        round,
        result,
    };
    add(journal, Origin::Runtime, completed);
}
