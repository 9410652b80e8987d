//! Runs that go round in circles.

use crate::world::World;

#[test]
fn the_same_failure_again_and_again_is_told_and_then_ended() {
    for world in World::everyone() {
        let script = "while true; do sh -c 'exit 4'; sh -c true; done";
        let options = ["--alert-failures", "3", "--stop-failures", "6"];
        world.start("circle", &options, script).expect(122);
        let fuse = world.all("circle", "repeat_fuse");
        let what: Vec<_> = fuse
            .iter()
            .map(|one| (one["action"].clone(), one["count"].clone()))
            .collect();
        assert_eq!(
            what,
            [("alert".into(), 3.into()), ("stop".into(), 6.into())]
        );
        assert_eq!(
            fuse[1]["command"],
            serde_json::json!(["sh", "-c", "exit 4"])
        );
        assert_eq!(world.event("circle", "run_finished")["stopped"], "fuse");
    }
}

#[test]
fn by_default_somebody_is_told_and_nothing_is_ended() {
    for world in World::everyone() {
        let script = "for i in 1 2 3 4 5 6 7 8; do sh -c 'exit 4'; done; true";
        world.start("told", &[], script).expect(0);
        let fuse = world.event("told", "repeat_fuse");
        assert_eq!(
            (&fuse["action"], &fuse["count"]),
            (&"alert".into(), &5.into())
        );
        // A success in between is a new beginning.
        let script =
            "for i in 1 2 3 4; do sh -c '[ -e f ]'; touch f; sh -c '[ -e f ]'; rm f; done; true";
        world.start("fine", &[], script).expect(0);
        assert!(world.all("fine", "repeat_fuse").is_empty());
    }
}

#[test]
fn a_run_that_changes_nothing_for_long_is_told_and_then_ended() {
    for world in World::everyone() {
        let options = ["--alert-idle", "1s", "--stop-idle", "2s"];
        world
            .start("idle", &options, "while true; do sleep 0.1; done")
            .expect(122);
        let fuse = world.all("idle", "repeat_fuse");
        let actions: Vec<_> = fuse.iter().map(|one| one["action"].clone()).collect();
        assert_eq!(actions, ["alert", "stop"]);
        assert!(fuse.iter().all(|one| one["circle"] == "no_change"));
        let busy = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do touch f$i; sleep 0.2; done";
        world.start("busy", &options, busy).expect(0);
        assert!(world.all("busy", "repeat_fuse").is_empty());
    }
}

#[test]
fn whoever_looks_at_the_end_sees_the_alert() {
    for world in World::everyone() {
        let script = "for i in 1 2 3 4 5 6; do sh -c 'exit 4'; done; true";
        let args = ["run", "--run-id", "alert", "--", "sh", "-c", script];
        let (_, said) = world.expect(0, &args);
        assert!(
            said.contains("alert    sh -c 'exit 4' failed 5 times"),
            "{said}"
        );
        let (said, _) = world.expect(0, &["show", "alert"]);
        assert!(
            said.contains("alert    sh -c 'exit 4' failed 5 times"),
            "{said}"
        );
        let shown = world.json(0, &["show", "alert", "--json"]);
        assert_eq!(shown["circles"][0]["count"], 5);
        world.expect(0, &["report", "alert", "-o", "report.html"]);
        assert!(world.read("report.html").contains("failed 5 times"));
    }
}
