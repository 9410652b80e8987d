//! Tools of the daemon's own: gated, timed and recorded like those of clients.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use invigil_server::{BuiltIn, Cancelled, Client, Config, Endpoint, Limits, Places, Retention};
use serde_json::{Value, json};

/// Reads files of one directory, and waits.
struct Tools {
    directory: PathBuf,
    was_cancelled: Arc<AtomicBool>,
}

impl BuiltIn for Tools {
    fn names(&self) -> Vec<String> {
        vec!["file_read".into(), "wait".into()]
    }

    fn schema(&self, name: &str) -> (String, Value) {
        match name {
            "file_read" => {
                let path = json!({ "type": "string" });
                let schema = json!({ "type": "object", "properties": { "path": path }, "required": ["path"] });
                ("Reads a file.".into(), schema)
            }
            _ => ("Waits.".into(), json!({})),
        }
    }

    fn execute(
        &self,
        name: &str,
        parameters: &Value,
        deadline: Instant,
        cancelled: &Cancelled,
    ) -> Result<Value, String> {
        if name == "file_read" {
            let path = self.directory.join(parameters["path"].as_str().unwrap());
            let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
            return Ok(json!({ "text": text }));
        }
        while !cancelled.is_set() {
            if Instant::now() > deadline + Duration::from_secs(5) {
                return Err("nobody cancelled it".into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.was_cancelled.store(true, Ordering::SeqCst);
        Err("cancelled".into())
    }
}

#[test]
fn built_in_tools_are_tools() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("hello"), "world").unwrap();
    let was_cancelled = Arc::new(AtomicBool::new(false));
    let tools = Tools {
        directory: directory.path().to_owned(),
        was_cancelled: Arc::clone(&was_cancelled),
    };
    let home = directory.path().join("home");
    let config = Config {
        home: home.clone(),
        listen: None,
        origins: Vec::new(),
        policies: Vec::new(),
        places: invigil_policy::Places {
            home: "/".into(),
            workspace: "/".into(),
            tmp: "/tmp".into(),
            path: Vec::new(),
        },
        limits: Limits::default(),
        retention: Retention::default(),
        built_in: Some(Arc::new(tools)),
        workshop: None,
        grace: Duration::from_secs(1),
    };
    let (ready, is_ready) = mpsc::channel();
    let daemon = thread::spawn(move || {
        invigil_server::serve(config, |_| ready.send(()).unwrap())
            .map_err(|error| error.to_string())
    });
    is_ready.recv_timeout(Duration::from_secs(30)).unwrap();
    let mut client = Client::connect(&Endpoint::Unix(Places::of(&home).socket())).unwrap();
    let mut call = |method: &str, params: Value| client.call(method, &params);
    let listed = call("tools.list", json!({})).unwrap();
    assert_eq!(listed["tools"][0]["name"], "file_read");
    assert_eq!(listed["tools"][0]["built_in"], true);
    let taken = call("tools.register", json!([{ "name": "wait" }])).unwrap_err();
    assert!(taken.to_string().contains("tools[0].name"), "{taken}");
    let run = call("runs.start", json!({ "intent": "read" })).unwrap()["run_id"].clone();
    let mut submit = |id: &str, action: Value| {
        let mut action = action;
        action["id"] = json!("a");
        let answer = call(
            "proposal.submit",
            json!({ "proposal": { "id": id, "actions": [action] } }),
        );
        answer.unwrap()["results"][0].clone()
    };
    let read = submit(
        "1",
        json!({ "tool": "file_read", "parameters": { "path": "hello" } }),
    );
    assert_eq!(read["output"], json!({ "text": "world" }));
    let failed = submit(
        "2",
        json!({ "tool": "file_read", "parameters": { "path": "nothing" } }),
    );
    assert_eq!(failed["status"], "failed");
    let unfit = submit(
        "3",
        json!({ "tool": "file_read", "parameters": { "path": 7 } }),
    );
    assert_eq!(unfit["rejected_by"], "parameters");
    let slow = submit("4", json!({ "tool": "wait", "timeout_ms": 100 }));
    assert_eq!(slow["status"], "timed_out");
    let denied = json!({ "name": "no", "rule": "deny_tool", "target": "file_*" });
    client.call("policy.register", &denied).unwrap();
    let action = json!({ "id": "a", "tool": "file_read", "parameters": { "path": "hello" } });
    let denied = client.call(
        "proposal.submit",
        &json!({ "proposal": { "id": "5", "actions": [action] } }),
    );
    assert_eq!(denied.unwrap()["results"][0]["rejected_by"], "policy");
    let trace = client
        .call("runs.get_trace", &json!({ "run_id": run }))
        .unwrap();
    assert_eq!(trace["records"].as_array().unwrap().len(), 6);
    let until = Instant::now() + Duration::from_secs(5);
    while !was_cancelled.load(Ordering::SeqCst) {
        assert!(Instant::now() < until, "it was not told");
        thread::sleep(Duration::from_millis(5));
    }
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::TERM).unwrap();
    assert_eq!(daemon.join().unwrap(), Ok(()));
    assert!(!Places::of(&home).socket().exists());
}
