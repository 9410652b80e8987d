//! Clients that are broken or mean: an error for them, nothing for the others.

use std::fs;
use std::time::{Duration, Instant};

use invigil_server::ClientError;
use serde_json::{Value, json};

use crate::world::{Daemon, Host, Reply, World};

/// Memory in KiB and open files of a daemon.
pub(crate) fn usage(daemon: &Daemon<'_>) -> (u64, usize) {
    let pid = daemon.child.id();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    let memory = line
        .split_ascii_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    (
        memory,
        fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
    )
}

/// A frame of a client, with the mask of zeros.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first, 0x80 | 127];
    frame.extend((payload.len() as u64).to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(payload);
    frame
}

#[track_caller]
fn alive(host: &mut Host) {
    assert_eq!(
        host.ok("state.exists", json!({ "key": "k" }))["exists"],
        false
    );
}

#[test]
fn messages_that_are_too_large_or_no_text_are_answered() {
    for world in World::everyone() {
        let daemon = world.serve(&[]);
        let mut host = daemon.host(None);
        let (before, _) = usage(&daemon);
        let large = vec![b' '; 64 << 20];
        host.client.send_raw(&frame(0x81, &large)).unwrap();
        let error = host.client.receive(Duration::from_secs(30)).unwrap();
        assert_eq!(
            (&error["error"]["code"], &error["error"]["data"]["limit"]),
            (&json!(-32009), &json!("message_bytes"))
        );
        alive(&mut host);
        host.client
            .send_raw(&frame(0x01, &large[..5 << 20]))
            .unwrap();
        host.client
            .send_raw(&frame(0x00, &large[..2 << 20]))
            .unwrap();
        host.client
            .send_raw(&frame(0x80, &large[..2 << 20]))
            .unwrap();
        assert_eq!(
            host.client.receive(Duration::from_secs(30)).unwrap()["error"]["code"],
            -32009
        );
        alive(&mut host);
        let (after, _) = usage(&daemon);
        assert!(after < before + 30_000, "{before} KiB, then {after} KiB");
        for bytes in [&b"\xff\xfe{}"[..], b"{\"a\": \"\xc3\x28\"}"] {
            host.client.send_raw(&frame(0x81, bytes)).unwrap();
            assert_eq!(
                host.client.receive(Duration::from_secs(5)).unwrap()["error"]["code"],
                -32700
            );
        }
        host.client.send_raw(&frame(0x82, b"{}")).unwrap();
        assert_eq!(
            host.client.receive(Duration::from_secs(5)).unwrap()["error"]["code"],
            -32700
        );
        alive(&mut host);
    }
}

#[test]
fn deep_json_is_no_danger() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(None);
    let deep =
        |open: &str, close: &str| format!("{}1{}", open.repeat(200_000), close.repeat(200_000));
    for text in [
        deep("[", "]"),
        deep("{\"a\":", "}"),
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"state.set","params":{{"key":"k","value":{}}}}}"#,
            deep("[", "]")
        ),
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools.register","params":{}}}"#,
            deep("[", "]")
        ),
        format!(
            r#"{{"jsonrpc":"2.0","id":{},"method":"x"}}"#,
            deep("[", "]")
        ),
        "[".repeat(1 << 20),
        "nonsense".into(),
        "{\"jsonrpc\":\"2.0\"".into(),
    ] {
        host.client.send(text.clone()).unwrap();
        let answer = host.client.receive(Duration::from_secs(10)).unwrap();
        let answer = answer.get(0).unwrap_or(&answer);
        let code = answer["error"]["code"].as_i64().unwrap();
        assert!(
            [-32700, -32600, -32602].contains(&code),
            "{code} {}",
            &text[..40.min(text.len())]
        );
        alive(&mut host);
    }
}

#[test]
fn broken_framing_ends_that_connection_only() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut other = daemon.host(None);
    for bytes in [
        vec![0xff; 64],
        vec![0x81, 0x05, b'h', b'e', b'l', b'l', b'o'],
        frame(0x8b, b""),
        frame(0x80, b"x"),
    ] {
        let mut host = daemon.host(None);
        host.client.send_raw(&bytes).unwrap();
        let end = host.client.receive(Duration::from_secs(5));
        assert!(matches!(end, Err(ClientError::Closed)), "{end:?}");
        alive(&mut other);
    }
    daemon.wait_for("connections", |open| open <= 2);
}

#[test]
fn a_client_that_reads_nothing_holds_up_nobody() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut mute = daemon.host(None);
    mute.ok(
        "state.set",
        json!({ "key": "big", "value": "x".repeat(512 << 10) }),
    );
    let (before, _) = usage(&daemon);
    let request =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "state.get", "params": { "key": "big" } });
    for _ in 0..200 {
        mute.client.send(request.to_string()).unwrap();
    }
    let mut host = daemon.host(None);
    host.tool("t", |_| Reply::With(json!(1)));
    host.start("x");
    let begun = Instant::now();
    for _ in 0..50 {
        host.submit(json!([{ "id": "a", "tool": "t" }]));
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
    let (after, _) = usage(&daemon);
    // The outbox, and what is on its way: not two hundred answers.
    assert!(after < before + 100_000, "{before} KiB, then {after} KiB");
    drop(mute);
    daemon.wait_for("connections", |open| open <= 2);
}

/// Values that no parameter expects.
fn oddities() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!(-1),
        json!(1e308),
        json!(u64::MAX),
        json!(""),
        json!("\u{0}\u{202e}../../etc/passwd"),
        json!("x".repeat(100_000)),
        json!([]),
        json!([[[[]]]]),
        json!({}),
        json!({ "id": {}, "name": [], "run_id": 7, "intent": null, "unknown": 1 }),
        json!([{ "name": "", "parameters": 7 }]),
        json!([{ "name": "ok", "parameters": { "$ref": "http://127.0.0.1:1/x" } }]),
        json!([{ "name": "ok", "parameters": { "pattern": "(a+)+$" }, "cache_ttl_secs": -1 }]),
    ]
}

#[test]
fn bad_parameters_of_every_method_are_refused_and_nothing_breaks() {
    for world in World::everyone() {
        let daemon = world.serve(&[]);
        let mut host = daemon.host(None);
        let document = host.ok("rpc.discover", json!({}));
        let schemas = &document["components"]["schemas"];
        let mut sent = 0;
        for method in document["methods"].as_array().unwrap() {
            let name = method["name"].as_str().unwrap();
            let schema = &method["params"][0]["schema"];
            let reference = schema["$ref"]
                .as_str()
                .and_then(|path| path.rsplit('/').next());
            let schema = reference.map_or(schema, |name| &schemas[name]);
            let fields: Vec<String> = match schema["properties"].as_object() {
                Some(fields) => fields.keys().cloned().collect(),
                None => Vec::new(),
            };
            let mut all = oddities();
            for field in &fields {
                all.extend(oddities().into_iter().map(|odd| json!({ field: odd })));
                for odd in oddities() {
                    let mut full: Value = json!({});
                    for other in &fields {
                        full[other] = json!("x");
                    }
                    full[field] = odd;
                    all.push(full);
                }
            }
            for params in all {
                sent += 1;
                match host.call(name, params.clone()) {
                    Ok(_) => {}
                    Err(ClientError::Refused(error)) => {
                        assert_ne!(error.code, -32603, "{name} {params}: {error}");
                        if error.code == -32602 {
                            assert!(error.data.unwrap()["field"].is_string(), "{name} {params}");
                        }
                    }
                    Err(error) => panic!("{name} {params}: {error}"),
                }
                if name == "runs.start"
                    && let Some(run) = host.ok("session.info", json!({}))["run_id"].as_str()
                {
                    let run = run.to_owned();
                    host.complete(&run);
                }
            }
        }
        println!("{sent} requests");
        assert!(sent > 500);
        assert_eq!(host.refused("no.such.method", json!({})).code, -32601);
    }
}

#[test]
fn too_many_requests_at_once_are_refused() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(None);
    host.ok("tools.register", json!([{ "name": "silent" }]));
    for n in 0..140 {
        let actions = json!([{ "id": "a", "tool": "silent" }]);
        let params = json!({ "proposal": { "id": format!("q{n}"), "actions": actions } });
        host.client.request("proposal.submit", &params).unwrap();
    }
    let refused = |host: &Host| {
        let refused = host.seen.iter();
        let refused = refused.filter(|message| message["error"]["data"]["limit"] == "requests");
        refused.count()
    };
    host.until(|host| host.calls("tools.execute") + refused(host) == 140);
    assert_eq!((host.calls("tools.execute"), refused(&host)), (128, 12));
}
