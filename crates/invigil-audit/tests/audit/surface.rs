use invigil_audit::{Access, Outcome, Reporter};
use invigil_schema::*;

use crate::journal::{Journal, exec, file, net, process, sdk};

#[test]
fn a_hidden_write_appears_once_with_what_it_asked_for() {
    let surface = Journal::around(|j| j.write(1, "/w/out").write(1, "/w/out")).surface();
    let [entry] = surface.filesystem_paths.as_slice() else {
        panic!("{surface:?}")
    };
    assert_eq!(entry.path, "/w/out".into());
    let expected = [
        (Access::Write, Outcome::Succeeded),
        (Access::Create, Outcome::Succeeded),
    ];
    assert_eq!(entry.access, expected.into());
}

#[test]
fn whether_the_file_was_there_makes_no_difference() {
    let made = Journal::around(|j| j.write(1, "/w/out")).surface();
    let mut open = file(1, FileOpKind::Open, "/w/out");
    open.flags = vec![OpenFlag::Create, OpenFlag::Write];
    assert_eq!(Journal::around(|j| j.kernel(open)).surface(), made);
}

#[test]
fn a_failed_attempt_is_there_and_failed() {
    let mut open = file(1, FileOpKind::Open, "/etc/shadow");
    open.flags = vec![OpenFlag::Write];
    open.result = CallResult::Failed(Errno(13));
    let surface = Journal::around(|j| j.kernel(open.clone())).surface();
    let access = &surface.filesystem_paths[0].access;
    assert_eq!(access[&Access::Write], Outcome::Failed);
    open.result = CallResult::Ok;
    let surface = Journal::around(|j| j.kernel(open.clone())).surface();
    let access = &surface.filesystem_paths[0].access;
    assert_eq!(access[&Access::Write], Outcome::Succeeded);
}

#[test]
fn both_names_of_a_rename_are_there_and_the_text_of_a_link_is_not() {
    let mut rename = file(1, FileOpKind::Rename, "/w/a");
    rename.to = Some("/w/b".into());
    let mut symlink = file(1, FileOpKind::Symlink, "/w/l");
    symlink.to = Some("../nowhere".into());
    let surface = Journal::around(|j| j.kernel(rename).kernel(symlink)).surface();
    let paths: Vec<_> = surface
        .filesystem_paths
        .iter()
        .map(|e| (&e.path, e.access.keys().next().unwrap()))
        .collect();
    let expected = [
        (&"/w/a".into(), &Access::RenameFrom),
        (&"/w/b".into(), &Access::RenameTo),
        (&"/w/l".into(), &Access::Create),
    ];
    assert_eq!(paths, expected);
}

#[test]
fn nothing_depends_on_pids_times_or_the_run() {
    let run = |pid: u32, id: &str| {
        let opened = JournalOpened {
            format: 1,
            run_id: RunId::new(id).unwrap(),
            writer: "test".into(),
        };
        let mut unix = net(pid, NetOpKind::Connect, 0);
        let path = format!("/h/runs/{id}/events.sock").as_str().into();
        unix.address = Address::Unix { path };
        Journal::default()
            .runtime(opened)
            .forked(pid, None)
            .exec(pid, "/bin/sh")
            .write(pid, &format!("/proc/{pid}/oom_score_adj"))
            .kernel(net(pid, NetOpKind::Bind, 0))
            .kernel(net(pid, NetOpKind::Listen, 40_000 + pid as u16))
            .kernel(net(pid, NetOpKind::Connect, 40_000 + pid as u16))
            .kernel(unix)
    };
    let (one, two) = (run(5, "run_000000000001"), run(6, "run_000000000002"));
    assert_eq!(one.surface(), two.surface());
    let endpoints: Vec<_> = one
        .surface()
        .network_endpoints
        .into_iter()
        .map(|e| e.endpoint)
        .collect();
    let expected = [
        "127.0.0.1:0",
        "127.0.0.1:{ephemeral}",
        "unix:/h/runs/{run_id}/events.sock",
    ];
    assert_eq!(endpoints, expected.map(OsText::from));
}

#[test]
fn a_port_that_was_asked_for_by_number_keeps_it() {
    let surface = Journal::around(|j| {
        j.kernel(net(1, NetOpKind::Bind, 0))
            .kernel(net(1, NetOpKind::Bind, 8080))
            .kernel(net(1, NetOpKind::Listen, 8080))
            .connect(1, 8080)
            .connect(1, 443)
    })
    .surface();
    let names: Vec<_> = surface
        .network_endpoints
        .iter()
        .map(|e| e.endpoint.to_string_lossy().into_owned())
        .collect();
    assert_eq!(names, ["127.0.0.1:0", "127.0.0.1:443", "127.0.0.1:8080"]);
}

#[test]
fn programs_are_named_by_what_was_loaded() {
    let mut script = exec(1, "/bin/sh");
    script.requested = Some("/w/x.sh".into());
    script.sha256 = Some(Digest::ZERO);
    let failed = ExecFailed {
        process: process(1),
        path: "/nope".into(),
        error: Errno(2),
    };
    let surface = Journal::around(|j| j.kernel(script).kernel(failed)).surface();
    let [sh, nope] = surface.process_execs.as_slice() else {
        panic!("{surface:?}")
    };
    assert_eq!(sh.requested, ["/w/x.sh".into()].into());
    assert_eq!(sh.sha256, [Digest::ZERO].into());
    assert_eq!(sh.outcome, Outcome::Succeeded);
    assert_eq!(
        (&nope.executable, nope.outcome),
        (&"/nope".into(), Outcome::Failed)
    );
}

#[test]
fn reports_stay_reports() {
    let surface = Journal::around(|j| {
        j.call(1, "c1", SdkEventType::ToolCallStarted)
            .decision("c1", "allow")
            .with(Origin::Sdk, file(1, FileOpKind::Unlink, "/w/told"))
            .with(Origin::Kernel, sdk(1, "c2", SdkEventType::ToolCallStarted))
    })
    .surface();
    assert!(surface.filesystem_paths.is_empty());
    assert_eq!(
        surface.tools[0].reported_by,
        [Reporter::Sdk, Reporter::Policy].into()
    );
    assert_eq!(surface.policy_decisions, ["allow:edit".to_owned()].into());
}

#[test]
fn refusals_are_part_of_the_surface() {
    let denied = AccessDenied {
        process: process(1),
        what: "file.open".into(),
        target: "/h/journal.ndjson".into(),
        rule: "own store".into(),
        error: Errno(13),
    };
    let surface = Journal::around(|j| j.kernel(denied.clone()).kernel(denied)).surface();
    assert_eq!(surface.denials.len(), 1);
}

#[test]
fn an_address_keeps_the_names_that_it_was_found_under() {
    let to = |host: Option<&str>| NetOp {
        host: host.map(str::to_owned),
        ..net(1, NetOpKind::Connect, 443)
    };
    let journal = Journal::around(|j| {
        j.kernel(to(None))
            .kernel(to(Some("b.example")))
            .kernel(to(Some("a.example")))
            .kernel(to(Some("b.example")))
            .kernel(net(1, NetOpKind::Connect, 80))
    });
    let endpoints = serde_json::to_value(journal.surface().network_endpoints).unwrap();
    assert_eq!(endpoints[0]["endpoint"], "127.0.0.1:443");
    assert_eq!(
        endpoints[0]["hosts"],
        serde_json::json!(["a.example", "b.example"])
    );
    assert_eq!(endpoints[1].get("hosts"), None, "no name, no field");
    let summary = journal.summary();
    assert_eq!(summary.endpoints[0].hosts.len(), 2);
}
