//! Invigil protects itself from an agent with its own user id, and says so.

use crate::Invigil;

#[test]
fn the_store_cannot_be_changed_from_inside() {
    for invigil in Invigil::everyone() {
        invigil.expect(0, &["run", "-q", "--run-id", "before", "--", "true"]);
        let journal = invigil.journal("before");
        let good = std::fs::read(&journal).unwrap();
        let home = invigil.home();
        let script = format!(
            "home={}; cd $home; \
             echo x >> runs/before/journal.ndjson; true > index.sqlite; rm -rf runs/before; mkdir evil; \
             ln -s $home ../link; echo x >> ../link/runs/before/journal.ndjson; \
             ln runs/before/journal.ndjson ../hard; mv $home ../away; mv runs/before runs/after; \
             truncate -s 0 runs/before/journal.ndjson; chmod 777 runs; touch runs/before/lock; \
             echo x >> /proc/self/cwd/runs/before/journal.ndjson; exit 0",
            home.display()
        );
        invigil.expect(
            0,
            &[
                "run", "-q", "--run-id", "hostile", "--", "sh", "-c", &script,
            ],
        );
        assert_eq!(std::fs::read(&journal).unwrap(), good);
        assert!(!home.join("evil").exists());
        invigil.expect(0, &["verify", "before"]);
        invigil.expect(0, &["verify", "hostile"]);
        let denied = invigil.all("hostile", "access_denied");
        assert!(denied.len() >= 9, "{} refusals: {denied:#?}", denied.len());
        let (stdout, _) = invigil.expect(0, &["show", "hostile", "--denials"]);
        assert!(stdout.contains("invigil protects itself"), "{stdout}");
    }
}

#[test]
fn the_supervisor_cannot_be_signalled_stopped_or_traced_from_inside() {
    for invigil in Invigil::everyone() {
        let script = "kill -9 $PPID && echo killed; kill -STOP $PPID && echo stopped; kill -TERM $PPID && echo termed; \
             echo x > /proc/$PPID/mem && echo wrote; echo 1 > /proc/$PPID/oom_score_adj && echo adjusted; \
             echo survived";
        let (stdout, _) =
            invigil.expect(0, &["run", "-q", "--run-id", "a", "--", "sh", "-c", script]);
        assert_eq!(stdout, "survived\n");
        let denied = invigil.all("a", "access_denied");
        assert!(
            denied
                .iter()
                .any(|denied| denied["what"].as_str().unwrap().contains("signal")),
            "{denied:#?}"
        );
        invigil.expect(0, &["verify", "a"]);
    }
}
