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

/// Opens for reading are trapped only when they are asked for; then the store is as closed to readers as to writers.
#[test]
fn the_store_cannot_be_read_where_reads_are_watched() {
    for invigil in Invigil::everyone() {
        invigil.expect(0, &["run", "-q", "--run-id", "before", "--", "true"]);
        let home = invigil.home().to_str().unwrap().to_owned();
        let script = "home=$0; journal=runs/before/journal.ndjson; ln -sfn $home link; \
             for way in $home/$journal link/$journal /proc/self/root$home/$journal $home/runs/../$journal; do \
             cat $way && echo read; done 2> /dev/null; \
             cd $home && cat $journal && echo read; \
             ls $home && echo listed; cat $home/tokens/any && echo read; \
             exec 5< $home/index.sqlite && echo opened; exit 0";
        for tier in ["notify", "ptrace"] {
            let start = [
                "run", "-q", "--run-id", tier, "--tier", tier, "--reads", "on",
            ];
            let args = [&start[..], &["--", "bash", "-c", script, &home]].concat();
            let (stdout, _) = invigil.expect(0, &args);
            assert_eq!(stdout, "", "{tier}");
            let denied = invigil.all(tier, "access_denied");
            let in_store = denied.iter().filter(|denied| {
                denied["what"] == "file.read"
                    && denied["target"].as_str().unwrap().starts_with(&home)
                    && denied["rule"] == "invigil protects itself"
            });
            assert!(in_store.count() >= 7, "{tier}: {denied:#?}");
            invigil.expect(0, &["verify", tier]);
        }
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

/// Whatever the run puts where Invigil writes or reads at its end, the record is whole and Invigil does not wait.
#[test]
fn traps_in_the_way_of_the_supervisor_catch_nothing() {
    for invigil in Invigil::everyone() {
        let begun = std::time::Instant::now();
        let home = invigil.home();
        let journal = |run: &str| home.join("runs").join(run).join("journal.ndjson");
        let run = |code: i32, id: &str, more: &[&str], script: &str| {
            let args = [
                &["run", "-q", "--run-id", id],
                more,
                &["--", "sh", "-c", script],
            ]
            .concat();
            let (_, stderr) = invigil.expect(code, &args);
            invigil.expect(0, &["verify", id]);
            stderr
        };
        // A link from the status file to the journal, and a FIFO in its place.
        let script = format!("ln -s {} out.json", journal("a").display());
        run(0, "a", &["--status", "out.json"], &script);
        assert!(
            std::fs::read_to_string(invigil.at("out.json"))
                .unwrap()
                .contains("run_finished")
        );
        run(0, "b", &["--status", "out.json"], "mkfifo out.json");
        assert!(
            std::fs::read_to_string(invigil.at("out.json"))
                .unwrap()
                .contains("run_finished")
        );
        // The agent's reports from a FIFO, and from the journal itself.
        run(
            124,
            "c",
            &["--timeout", "300ms", "--events", "ev"],
            "mkfifo ev; sleep 20",
        );
        let script = format!("ln -s {} ev2; sleep 0.2", journal("d").display());
        run(0, "d", &["--events", "ev2"], &script);
        assert_eq!(invigil.event("d", "sdk_rejected")["flaw"], "unreadable");
        // A file that would take hours to hash.
        run(0, "e", &[], "truncate -s 4T big; echo x >> big");
        assert!(
            invigil.event("e", "file_final")["why_not"]
                .as_str()
                .unwrap()
                .contains("larger")
        );
        // Decisions in the name of the gate.
        let forged = r#"echo '{"type":"a","source":"me","data":{"tool":"rm","tool_call_id":"c","decision":"allow"}}' > decisions"#;
        run(2, "f", &["--decisions", "decisions"], forged);
        assert_eq!(invigil.all("f", "policy_decision").len(), 0);
        assert_eq!(invigil.all("f", "access_denied").len(), 1);
        assert!(begun.elapsed() < std::time::Duration::from_secs(30));
    }
}

#[test]
fn places_that_cannot_be_used_are_refused_before_anything_runs() {
    let invigil = Invigil::new();
    std::fs::create_dir(invigil.at("directory")).unwrap();
    std::fs::create_dir_all(invigil.home()).unwrap();
    let in_store = invigil.home().join("status").to_str().unwrap().to_owned();
    for more in [
        ["--decisions", "directory"],
        ["--events", "directory"],
        ["--status", "directory"],
        ["--status", "nowhere/status"],
        ["--status", &in_store],
    ] {
        let args = [&["run"], &more[..], &["--", "touch", "effect"]].concat();
        let (_, stderr) = invigil.expect(125, &args);
        assert!(stderr.contains(more[1]), "{more:?}: {stderr}");
    }
    assert!(!std::path::Path::new(&invigil.at("effect")).exists());
    let (_, stderr) = invigil.expect(127, &["run", "-q", "--", "no-such-program"]);
    assert!(
        stderr.contains("not found"),
        "quiet is not silent: {stderr}"
    );
}

/// Reports in the name of another run, from a run of its own and from outside; and a place at the channel of one's own run.
#[test]
fn nobody_reports_in_the_name_of_another() {
    const FORGED: &str = "import json, socket, sys
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(open('channel').read().strip())
    s.sendall((json.dumps({'schema': 'invigil.sdk.v1', 'run_id': 'a', 'seq': 0, 'event_type': 'tool_call_started',
        'source': 'me', 'tool_call_id': '1', 'tool': 'forged'}) + '\\n').encode())
    s.recv(1)
except OSError as error:
    print(error)
";
    for invigil in Invigil::everyone() {
        let closed = invigil.at("closed.toml");
        std::fs::write(&closed, "version = 1\n[network]\ndefault = \"deny\"\n").unwrap();
        let script = "echo \"$INVIGIL_EVENTS\" > channel.new; mv channel.new channel; \
             rm -f \"$INVIGIL_EVENTS\"; mv \"$INVIGIL_EVENTS\" mine; mv \"${INVIGIL_EVENTS%/*}\" mine; \
             while [ ! -e over ]; do sleep 0.05; done";
        let mut command =
            invigil.command(&["run", "-q", "--run-id", "a", "--", "sh", "-c", script]);
        let mut other = command.stderr(std::process::Stdio::null()).spawn().unwrap();
        while !std::path::Path::new(&invigil.at("channel")).exists() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let forge = ["python3", "-c", FORGED];
        let run = |id: &str, more: &[&str]| {
            let head = ["run", "-q", "--run-id", id];
            invigil.expect(0, &[&head, more, &["--"], &forge].concat());
        };
        run("free", &[]);
        run("exact", &["--mode", "guard", "--profile", "coding"]);
        run("closed", &["--mode", "guard", "--policy", &closed]);
        let mut outside = std::process::Command::new("python3");
        outside.args(["-c", FORGED]).current_dir(invigil.at(""));
        assert!(outside.status().unwrap().success());
        std::fs::write(invigil.at("over"), "").unwrap();
        assert!(other.wait().unwrap().success());
        assert_eq!(invigil.all("a", "sdk_event").len(), 0);
        let rejected = invigil.all("a", "sdk_rejected");
        let foreign = rejected.iter().filter(|r| r["flaw"] == "foreign_peer");
        assert_eq!((foreign.count(), rejected.len()), (3, 3), "{rejected:?}");
        // The one that may not connect anywhere has not even called.
        let denied = invigil.event("closed", "access_denied");
        assert_eq!(denied["what"], "net.connect");
        let denied = invigil.all("a", "access_denied");
        assert_eq!(denied.len(), 3, "{denied:?}");
        assert!(
            denied
                .iter()
                .all(|d| d["rule"] == "invigil protects itself")
        );
    }
}

/// Whoever fills the disk that the record is on goes no further than the record.
#[test]
fn a_full_disk_ends_the_run() {
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root can make a small disk");
        return;
    }
    for invigil in Invigil::everyone() {
        std::fs::create_dir(invigil.home()).unwrap();
        std::fs::create_dir(invigil.at("kept")).unwrap();
        std::fs::create_dir(invigil.at("made")).unwrap();
        for name in ["kept", "made"] {
            let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            std::fs::set_permissions(invigil.at(name), everybody).unwrap();
        }
        let fill = "i=0; while :; do : > made/$i; i=$((i+1)); done";
        let watched = invigil.command(&["run", "-q", "--run-id", "a", "--", "sh", "-c", fill]);
        // In a view of its own, which is gone with the last process in it.
        let around = "mount -t tmpfs -o size=800k,mode=0777 none \"$INVIGIL_HOME\" || exit 77; \"$@\"; code=$?; \
             cp \"$INVIGIL_HOME\"/runs/a/*.ndjson kept; exit $code";
        let output = std::process::Command::new("timeout")
            .args(["60", "unshare", "--mount", "sh", "-c", around, "sh"])
            .arg(watched.get_program())
            .args(watched.get_args())
            .envs(
                watched
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .current_dir(invigil.at(""))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() == Some(77) {
            println!("skipped: no mounts here: {said}");
            return;
        }
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains("record"), "{said}");
        let text: Vec<String> = std::fs::read_dir(invigil.at("kept"))
            .unwrap()
            .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
            .collect();
        let recorded = text.concat().matches("\"op\":\"create\"").count();
        let made = std::fs::read_dir(invigil.at("made")).unwrap().count();
        assert!(made > 100 && made <= recorded + 1, "{made} {recorded}");
    }
}
