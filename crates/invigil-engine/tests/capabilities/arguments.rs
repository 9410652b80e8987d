//! Arguments: each wrong one is refused before anything happens, by the name of its field.

use std::time::Duration;

use invigil_engine::capabilities::{
    Capability, Context, Duplicate, Failure, Invalid, Needs, Output, Plan, Registry,
};
use serde_json::{Value, json};

use super::support::World;

#[test]
fn the_registry_is_sorted_and_complete() {
    let registry = Registry::standard();
    let names: Vec<&str> = registry
        .iter()
        .map(|capability| capability.name())
        .collect();
    let expected = [
        "file_delete",
        "file_edit",
        "file_list",
        "file_read",
        "file_write",
        "git",
        "kill",
        "search",
        "shell",
        "undo",
    ];
    assert_eq!(names, expected);
}

#[test]
fn every_argument_is_described() {
    for capability in Registry::standard().iter() {
        let schema = capability.schema();
        assert_eq!(
            schema["additionalProperties"],
            json!(false),
            "{}",
            capability.name()
        );
        for (name, property) in schema["properties"].as_object().unwrap() {
            let described = property["description"].is_string() || property["$ref"].is_string();
            assert!(described, "{}.{name}: {property}", capability.name());
        }
        assert!(!capability.description().is_empty());
    }
}

struct Second;

impl Capability for Second {
    type Args = std::collections::BTreeMap<String, String>;
    const NAME: &'static str = "file_read";
    const DESCRIPTION: &'static str = "A name that is taken.";
    fn validate(&self, _: &Self::Args) -> Result<(), Invalid> {
        Ok(())
    }
    fn plan(&self, _: &Self::Args) -> Plan {
        Plan::Work(Needs::READS)
    }
    fn execute(&self, _: Self::Args, _: &mut Context<'_>) -> Result<Output, Failure> {
        Ok(Output::new(json!({})))
    }
}

#[test]
fn a_second_of_the_same_name_is_refused() {
    let mut registry = Registry::standard();
    assert_eq!(registry.register(Second), Err(Duplicate("file_read")));
    assert_eq!(Registry::empty().register(Second), Ok(()));
}

#[test]
fn an_unknown_name_is_answered_with_a_similar_one() {
    let registry = Registry::standard();
    let unknown = |name| registry.get(name).err().unwrap();
    assert_eq!(unknown("file_raed").similar, Some("file_read"));
    assert_eq!(unknown("serach").similar, Some("search"));
    assert_eq!(unknown("quux").similar, None);
    let message = unknown("file_wrte").to_string();
    assert!(message.ends_with("did you mean `file_write`?"), "{message}");
}

#[test]
fn each_wrong_field_is_named() {
    let world = World::new();
    let digest = "0".repeat(64);
    let cases: Vec<(&str, Value, &str)> = vec![
        ("file_read", json!({}), "path"),
        ("file_read", json!([]), "arguments"),
        ("file_read", json!({"path": 5}), "path"),
        ("file_read", json!({"path": ""}), "path"),
        ("file_read", json!({"path": "a\0b"}), "path"),
        ("file_read", json!({"path": "a", "extra": 1}), "extra"),
        (
            "file_read",
            json!({"path": "a", "max_bytes": 0}),
            "max_bytes",
        ),
        (
            "file_read",
            json!({"path": "a", "max_bytes": 10_485_761}),
            "max_bytes",
        ),
        (
            "file_read",
            json!({"path": "a", "max_bytes": "1"}),
            "max_bytes",
        ),
        ("file_read", json!({"path": "a", "offset": -1}), "offset"),
        (
            "file_read",
            json!({"path": "a", "offset": u64::MAX}),
            "offset",
        ),
        ("file_write", json!({"path": "a"}), "content"),
        ("file_write", json!({"content": "a"}), "path"),
        ("file_write", json!({"path": "a", "content": 1}), "content"),
        (
            "file_write",
            json!({"path": "a", "content": "", "append": "yes"}),
            "append",
        ),
        (
            "file_write",
            json!({"path": "a", "content": "", "encoding": "latin1"}),
            "encoding",
        ),
        (
            "file_write",
            json!({"path": "a", "content": "?", "encoding": "base64"}),
            "content",
        ),
        (
            "file_write",
            json!({"path": "a", "content": "", "expect_sha256": "x"}),
            "expect_sha256",
        ),
        (
            "file_write",
            json!({"path": "a", "content": "", "mode": 1}),
            "mode",
        ),
        ("file_edit", json!({"path": "a", "new": ""}), "old"),
        ("file_edit", json!({"path": "a", "old": ""}), "new"),
        (
            "file_edit",
            json!({"path": "a", "old": "", "new": "b"}),
            "old",
        ),
        (
            "file_edit",
            json!({"path": "a", "old": "b", "new": "b"}),
            "new",
        ),
        (
            "file_edit",
            json!({"path": "a", "old": "b", "new": "", "expect_count": 0}),
            "expect_count",
        ),
        (
            "file_delete",
            json!({"path": "a", "recursive": 1}),
            "recursive",
        ),
        ("file_delete", json!({"recursive": true}), "path"),
        ("file_list", json!({"path": "a", "depth": 0}), "depth"),
        ("file_list", json!({"path": "a", "depth": 65}), "depth"),
        ("file_list", json!({"path": "a", "glob": "["}), "glob"),
        ("search", json!({}), "pattern"),
        ("search", json!({"pattern": "("}), "pattern"),
        ("search", json!({"pattern": "a", "glob": "["}), "glob"),
        (
            "search",
            json!({"pattern": "a", "max_matches": 0}),
            "max_matches",
        ),
        ("search", json!({"pattern": "a", "timeout": 0}), "timeout"),
        ("shell", json!({}), "command"),
        ("shell", json!({"command": ""}), "command"),
        ("shell", json!({"command": "a", "argv": ["a"]}), "argv"),
        ("shell", json!({"argv": []}), "argv"),
        ("shell", json!({"argv": [""]}), "argv[0]"),
        ("shell", json!({"argv": ["a", 1]}), "argv[1]"),
        ("shell", json!({"argv": ["a", "b\0"]}), "argv[1]"),
        ("shell", json!({"command": "a", "timeout": 3601}), "timeout"),
        ("shell", json!({"command": "a", "timeout": -1}), "timeout"),
        ("shell", json!({"command": "a", "timeout": "1"}), "timeout"),
        (
            "shell",
            json!({"command": "a", "stdin": "x".repeat((1 << 20) + 1)}),
            "stdin",
        ),
        (
            "shell",
            json!({"command": "a", "env": {"A=B": "c"}}),
            "env.A=B",
        ),
        ("shell", json!({"command": "a", "env": {"A": 1}}), "env.A"),
        (
            "shell",
            json!({"command": "a", "env": {"INVIGIL_HOME": "/"}}),
            "env.INVIGIL_HOME",
        ),
        ("shell", json!({"command": "a", "cwd": ""}), "cwd"),
        ("kill", json!({}), "pid"),
        ("kill", json!({"pid": 1}), "pid"),
        ("kill", json!({"pid": 0}), "pid"),
        ("kill", json!({"pid": -1}), "pid"),
        ("kill", json!({"pid": 1_i64 << 31}), "pid"),
        ("kill", json!({"pid": 5, "signal": "NONE"}), "signal"),
        ("kill", json!({"pid": 5, "start_time": -1}), "start_time"),
        ("undo", json!({}), "job_id"),
        ("undo", json!({"job_id": "a/b"}), "job_id"),
        ("undo", json!({"job_id": "a", "path": ""}), "path"),
        ("undo", json!({"job_id": "a", "force": 1}), "force"),
        ("git", json!({}), "operation"),
        ("git", json!({"operation": "push"}), "operation"),
        (
            "git",
            json!({"operation": "status", "message": "a"}),
            "message",
        ),
        ("git", json!({"operation": "add"}), "paths"),
        ("git", json!({"operation": "add", "paths": []}), "paths"),
        (
            "git",
            json!({"operation": "add", "paths": ["a", "-A"]}),
            "paths[1]",
        ),
        ("git", json!({"operation": "commit"}), "message"),
        (
            "git",
            json!({"operation": "commit", "message": " \n"}),
            "message",
        ),
        (
            "git",
            json!({"operation": "commit", "message": "a", "author": "me"}),
            "author",
        ),
        ("git", json!({"operation": "checkout"}), "ref"),
        (
            "git",
            json!({"operation": "checkout", "ref": "--force"}),
            "ref",
        ),
        (
            "git",
            json!({"operation": "checkout", "ref": "a..b"}),
            "ref",
        ),
        (
            "git",
            json!({"operation": "checkout", "ref": "a^", "create": true}),
            "ref",
        ),
        ("git", json!({"operation": "branch", "name": "-d"}), "name"),
        (
            "git",
            json!({"operation": "branch", "name": "../x"}),
            "name",
        ),
        (
            "git",
            json!({"operation": "branch", "name": "a.lock"}),
            "name",
        ),
        (
            "git",
            json!({"operation": "branch", "delete": true}),
            "delete",
        ),
        ("git", json!({"operation": "branch", "ref": "a"}), "name"),
        ("git", json!({"operation": "diff", "to": "a"}), "to"),
        (
            "git",
            json!({"operation": "log", "max_count": 0}),
            "max_count",
        ),
        ("git", json!({"operation": "clone", "path": "a"}), "url"),
        ("git", json!({"operation": "clone", "url": "a"}), "path"),
        (
            "git",
            json!({"operation": "clone", "path": "a", "url": "ext::sh -c id"}),
            "url",
        ),
        (
            "git",
            json!({"operation": "clone", "path": "a", "url": "host:a"}),
            "url",
        ),
        (
            "git",
            json!({"operation": "clone", "path": "a", "url": "ssh://host/a"}),
            "url",
        ),
        (
            "git",
            json!({"operation": "clone", "path": "a", "url": "--upload-pack=id"}),
            "url",
        ),
        (
            "git",
            json!({"operation": "pull", "remote": "-x"}),
            "remote",
        ),
        ("git", json!({"operation": "revert", "ref": "-n"}), "ref"),
        (
            "git",
            json!({"operation": "status", "timeout": 4000}),
            "timeout",
        ),
    ];
    for (name, args, field) in cases {
        assert_eq!(world.refused(name, args.clone()), field, "{name} {args}");
    }
    let valid = json!({"path": "a", "content": "", "expect_sha256": digest});
    assert!(world.check("file_write", valid).is_ok());
}

#[test]
fn a_missing_field_and_an_unknown_one_are_told_apart() {
    let world = World::new();
    let error = world.check("file_read", json!({})).unwrap_err().to_string();
    assert_eq!(error, "`path`: missing field `path`");
    let error = world.check("file_read", json!({"path": "a", "pth": 1}));
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("`pth`: unknown field `pth`"), "{error}");
}

#[test]
fn a_shell_line_and_a_program_become_commands() {
    let world = World::new();
    let plan = world.check("shell", json!({"command": "echo $HOME", "timeout": 1.5}));
    let Ok(Plan::Command(command)) = plan else {
        panic!("{plan:?}");
    };
    assert_eq!(command.argv, ["/bin/sh", "-c", "echo $HOME"]);
    assert_eq!(command.timeout, Duration::from_millis(1500));
    assert_eq!(command.cwd, None);
    let args = json!({
        "argv": ["cat", "-", {"base64": "/w=="}],
        "cwd": "sub",
        "stdin": "hello",
        "env": {"A": "b"},
    });
    let Ok(Plan::Command(command)) = world.check("shell", args) else {
        panic!("no command");
    };
    assert_eq!(command.argv.len(), 3);
    assert_eq!(command.argv[2].as_encoded_bytes(), b"\xff");
    assert_eq!(command.cwd.unwrap().as_os_str(), "sub");
    assert_eq!(command.stdin, b"hello");
    assert_eq!(command.env.len(), 1);
    assert_eq!(command.timeout, Duration::from_secs(30));
}

#[test]
fn only_what_is_needed_is_asked_for() {
    let world = World::new();
    let needs = |name, args| match world.check(name, args) {
        Ok(Plan::Work(needs)) => needs,
        other => panic!("{other:?}"),
    };
    assert_eq!(needs("file_read", json!({"path": "a"})), Needs::READS);
    assert_eq!(needs("file_delete", json!({"path": "a"})), Needs::WRITES);
    assert!(needs("kill", json!({"pid": 5})).signals);
    let status = needs("git", json!({"operation": "status", "timeout": 5}));
    assert_eq!((status.writes, status.programs), (false, &["git"][..]));
    assert_eq!(status.timeout, Duration::from_secs(5));
    assert!(needs("git", json!({"operation": "pull"})).writes);
}
