use invigil_audit::{
    ChangeKind, DiffDoc, HealthDoc, Ignore, Section, Side, SurfaceDoc, Verdict, diff, sarif,
};
use invigil_schema::*;

use crate::journal::{Journal, file, observer};

fn views(journal: &Journal) -> (SurfaceDoc, HealthDoc) {
    (journal.surface(), journal.health())
}

fn side(views: &(SurfaceDoc, HealthDoc)) -> Side<'_> {
    Side {
        surface: &views.0,
        health: &views.1,
        identity: None,
    }
}

fn compare(before: &Journal, after: &Journal, ignore: &[&str]) -> DiffDoc {
    let ignore = Ignore::new(ignore).unwrap();
    diff(side(&views(before)), side(&views(after)), &ignore)
}

fn contract_only() -> Journal {
    Journal::of(Tier::ContractOnly)
        .runtime(observer(Tier::ContractOnly, false))
        .done()
}

#[test]
fn two_whole_runs_that_touched_the_same_are_the_same() {
    let run = Journal::around(|j| j.write(1, "/w/a").connect(1, 443));
    let doc = compare(&run, &run, &[]);
    assert_eq!(doc.verdict, Verdict::Same, "{doc:?}");
    assert!(doc.rows().is_empty());
}

#[test]
fn differences_are_listed_by_kind() {
    let mut unlink = file(1, FileOpKind::Unlink, "/w/both");
    unlink.result = CallResult::Failed(Errno(2));
    let before = Journal::around(|j| j.write(1, "/w/old").write(1, "/w/both").connect(1, 80));
    let after = Journal::around(|j| {
        let after = j.write(1, "/w/new").write(1, "/w/both");
        after.kernel(unlink).connect(1, 80)
    });
    let doc = compare(&before, &after, &[]);
    assert_eq!(doc.verdict, Verdict::Different);
    let rows: Vec<_> = doc
        .rows()
        .into_iter()
        .map(|row| {
            (
                row.change,
                row.name.to_string_lossy().into_owned(),
                row.detail,
                row.sure,
            )
        })
        .collect();
    let made = "create:succeeded write:succeeded";
    assert_eq!(
        rows,
        [
            (ChangeKind::Added, "/w/new".into(), made.into(), true),
            (ChangeKind::Removed, "/w/old".into(), made.into(), true),
            (
                ChangeKind::Changed,
                "/w/both".into(),
                "+delete:failed".into(),
                true
            ),
        ]
    );
}

#[test]
fn what_is_ignored_makes_no_difference() {
    let before = Journal::around(|j| j.write(1, "/tmp/x1"));
    let after = Journal::around(|j| j.write(1, "/tmp/x2"));
    assert_eq!(compare(&before, &after, &[]).verdict, Verdict::Different);
    let doc = compare(&before, &after, &["/tmp/**"]);
    assert_eq!((doc.verdict, doc.ignored), (Verdict::Same, 2));
}

#[test]
fn little_known_is_not_comparable_rather_than_the_same() {
    let doc = compare(&contract_only(), &contract_only(), &[]);
    assert_eq!(doc.verdict, Verdict::NotComparable);
    let files = &doc.sections[0];
    assert_eq!(files.section, Section::FilesystemPaths);
    assert!(
        files
            .reasons
            .iter()
            .any(|r| r.starts_with("before: contract_only_mode"))
    );
}

#[test]
fn a_run_is_the_same_as_itself_however_little_is_known() {
    let views = views(&contract_only());
    let identity = Some("head");
    let side = Side {
        identity,
        ..side(&views)
    };
    let doc = diff(side, side, &Ignore::nothing());
    assert_eq!(doc.verdict, Verdict::Same);
}

#[test]
fn an_addition_counts_only_if_the_first_run_was_seen_whole() {
    let whole = Journal::around(|j| j);
    let more = Journal::around(|j| j.write(1, "/w/new"));
    let cut = Journal::of(Tier::Notify)
        .runtime(observer(Tier::Notify, false))
        .forked(1, None)
        .exec(1, "/bin/sh");
    assert_eq!(compare(&whole, &more, &[]).verdict, Verdict::Different);
    let doc = compare(&cut, &more, &[]);
    assert_eq!(doc.verdict, Verdict::NotComparable);
    assert!(!doc.rows()[0].sure);
    // What the whole run has not, it has not: that the other one is cut off does not matter.
    let cut_more = cut.write(1, "/w/new");
    assert_eq!(compare(&whole, &cut_more, &[]).verdict, Verdict::Different);
}

#[test]
fn reads_of_one_side_only_are_not_compared() {
    let with = |reads| {
        let mut open = file(1, FileOpKind::Open, "/w/in");
        open.flags = vec![OpenFlag::Read];
        let begun = Journal::of(Tier::Notify).runtime(observer(Tier::Notify, reads));
        let begun = begun.forked(1, None);
        match reads {
            true => begun.kernel(open).done(),
            false => begun.done(),
        }
    };
    let doc = compare(&with(true), &with(false), &[]);
    assert_eq!(doc.verdict, Verdict::NotComparable);
    assert!(doc.rows().is_empty());
    assert!(
        doc.health
            .iter()
            .any(|change| change.member == "kernel.reads")
    );
    assert_eq!(
        compare(&with(true), &with(true), &[]).verdict,
        Verdict::Same
    );
}

#[test]
fn sarif_has_what_its_readers_need() {
    let before = Journal::around(|j| j.write(1, "/w/a"));
    let after = Journal::around(|j| j.write(1, "/w/a b").connect(1, 443));
    let log = sarif(&compare(&before, &after, &[]));
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    assert_eq!(run["tool"]["driver"]["name"], "invigil");
    assert_eq!(run["properties"]["verdict"], "different");
    let results = run["results"].as_array().unwrap();
    let ids: Vec<_> = results
        .iter()
        .map(|r| r["ruleId"].as_str().unwrap())
        .collect();
    assert_eq!(
        ids,
        [
            "filesystem_paths.added",
            "filesystem_paths.removed",
            "network_endpoints.added"
        ]
    );
    let place = &results[0]["locations"][0];
    assert_eq!(
        place["physicalLocation"]["artifactLocation"]["uri"],
        "file:///w/a%20b"
    );
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    assert!(
        ids.iter()
            .all(|id| rules.iter().any(|rule| rule["id"] == *id))
    );
}
