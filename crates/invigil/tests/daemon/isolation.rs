//! What one agent may not see of another looks like what does not exist, on every method.

use std::time::Duration;

use serde_json::{Value, json};

use crate::coder;
use crate::world::{Host, Reply, World};

/// Every method, with what would touch the run, the session or the proposal of another.
fn probes([run, session, proposal, question, task]: [&str; 5]) -> Vec<(&'static str, Value)> {
    let submit = json!({ "id": "q", "source": "t", "actions": [] });
    vec![
        ("session.auth", json!({ "token": null })),
        (
            "runs.complete",
            json!({ "run_id": run, "outcome": { "status": "done" } }),
        ),
        ("runs.cancel", json!({ "run_id": run })),
        (
            "runs.record_turns",
            json!({ "run_id": run, "turns": [{ "parameters": {} }] }),
        ),
        ("runs.record_turns", json!({ "run_id": run, "turns": [] })),
        ("runs.list", json!({ "cursor": run })),
        ("runs.list", json!({ "agent_id": "victim" })),
        ("runs.get_trace", json!({ "run_id": run })),
        ("runs.subscribe", json!({ "run_id": run })),
        ("runs.unsubscribe", json!({ "run_id": run })),
        (
            "proposal.submit",
            json!({ "proposal": submit, "session_id": session }),
        ),
        ("proposal.cancel", json!({ "proposal_id": proposal })),
        ("tools.list", json!({})),
        ("tools.unregister", json!({ "names": ["secret"] })),
        (
            "policy.register",
            json!({ "name": "x", "rule": "deny_tool", "target": "t", "session_id": session }),
        ),
        ("policy.list", json!({})),
        ("state.get", json!({ "key": "secret" })),
        ("state.exists", json!({ "key": "secret" })),
        ("state.keys", json!({})),
        ("state.snapshot", json!({})),
        ("approvals.list", json!({})),
        (
            "approvals.resolve",
            json!({ "id": question, "decision": "allow" }),
        ),
        ("coder.list", json!({})),
        ("coder.list", json!({ "cursor": task })),
        ("coder.list", json!({ "agent_id": "victim" })),
        ("coder.get", json!({ "task_id": task })),
        ("coder.get", json!({ "task_id": task, "patch_from": 0 })),
        ("coder.subscribe", json!({ "task_id": task })),
        (
            "coder.subscribe",
            json!({ "task_id": task, "from_seq": 1_000_000 }),
        ),
        ("coder.unsubscribe", json!({ "task_id": task })),
        ("coder.confirm_contract", json!({ "task_id": task })),
        ("coder.respond", json!({ "task_id": task, "text": "x" })),
        ("coder.respond", json!({ "task_id": task, "text": "" })),
        (
            "coder.approve_merge",
            json!({ "task_id": task, "digest": "0".repeat(64) }),
        ),
        ("coder.cancel", json!({ "task_id": task })),
    ]
}

/// The very bytes of an answer, with what was asked for taken out.
fn bytes(host: &mut Host, method: &str, params: &Value, names: [&str; 5]) -> String {
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    host.client.send(request.to_string()).unwrap();
    let mut text = host.client.receive_text(Duration::from_secs(10)).unwrap();
    for name in names {
        text = text.replace(name, "NAME");
    }
    text
}

#[test]
fn others_runs_look_like_none_on_every_method() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut victim = daemon.host(Some("victim"));
    victim.tool("secret", |_| Reply::Never);
    victim.ok("state.set", json!({ "key": "secret", "value": 1 }));
    victim.ok(
        "policy.register",
        json!({ "name": "asks", "rule": "ask_tool", "target": "asked" }),
    );
    let run = victim.start("secret");
    let proposal = json!({ "proposal": { "id": "mine", "actions": [{ "id": "a", "tool": "secret" }, { "id": "b", "tool": "asked" }] } });
    victim.client.request("proposal.submit", &proposal).unwrap();
    daemon.wait_for("questions_open", |open| open == 1);
    let open = victim.ok("approvals.list", json!({}));
    let question = open["approvals"][0]["id"].as_str().unwrap().to_owned();
    let repository = coder::repository(&world);
    let agent = "sed -i 's/a - b/a + b/' calc";
    let task = coder::start(&mut victim, coder::wanted(&repository, agent));
    let before = coder::stands(&mut victim, &task, "needs_approval");
    let journal = world.events(&run).len();

    let mut stranger = daemon.host(Some("stranger"));
    let there = [
        run.as_str(),
        victim.session.as_str(),
        "mine",
        question.as_str(),
        task.as_str(),
    ];
    let none = [
        "run_00000000000000000000000000000000",
        "client_0",
        "none",
        "ask_0",
        "task_0",
    ];
    let (probes_there, probes_none) = (probes(there), probes(none));
    for ((method, real), (_, made_up)) in probes_there.iter().zip(&probes_none) {
        let real = bytes(&mut stranger, method, real, there);
        let made_up = bytes(&mut stranger, method, made_up, none);
        assert_eq!(real, made_up, "{method}");
    }
    let described: Value = stranger.ok("rpc.discover", json!({}));
    let names = described["methods"].as_array().unwrap().iter();
    let own = [
        "rpc.discover",
        "session.info",
        "runs.start",
        "coder.start",
        "tools.register",
        "state.set",
    ];
    for name in names.map(|method| method["name"].as_str().unwrap()) {
        let walked = probes_there.iter().any(|(method, _)| *method == name);
        assert!(walked || own.contains(&name), "{name} is not walked");
    }
    assert_eq!(world.events(&run).len(), journal, "nothing was changed");
    assert_eq!(coder::stands(&mut victim, &task, "needs_approval"), before);
    assert_eq!(
        victim.ok("state.get", json!({ "key": "secret" }))["value"],
        1
    );
    let mut operator = daemon.operator();
    assert_eq!(
        operator.ok("runs.list", json!({}))["runs"][0]["run_id"],
        json!(run),
        "an operator sees it"
    );
    let lead = operator.refused(
        "runs.complete",
        json!({ "run_id": run, "outcome": { "status": "done" } }),
    );
    assert_eq!(lead.code, -32004, "and leads nothing of others");
}
