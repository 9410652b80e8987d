//! What policies mean: real texts in, decisions out.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bad_files;
mod bounds;
mod learn;
mod profiles;
mod props;
mod semantics;
mod stacking;

use std::net::SocketAddr;
use std::path::PathBuf;

use invigil_policy::{
    Action, Decision, Endpoint, Exec, Layer, Places, Policy, Source, UnixSocket, Verdict,
};
use invigil_schema::OsText;
use serde_json::Value;

fn places() -> Places {
    Places {
        home: "/home/me".into(),
        workspace: "/home/me/work".into(),
        tmp: "/tmp".into(),
        path: [
            "/home/me/work/bin",
            "/home/me/.cargo/bin",
            "/usr/bin",
            "/bin",
        ]
        .map(PathBuf::from)
        .into(),
    }
}

fn source(layer: Layer, text: &str) -> Source {
    Source {
        name: "policy.toml".into(),
        text: format!("version = 1\n{text}"),
        layer,
    }
}

#[track_caller]
fn policy(text: &str) -> Policy {
    stack(&[(Layer::User, text)])
}

#[track_caller]
fn stack(texts: &[(Layer, &str)]) -> Policy {
    let sources: Vec<Source> = texts
        .iter()
        .map(|(layer, text)| source(*layer, text))
        .collect();
    Policy::load(&sources, &places()).unwrap_or_else(|error| panic!("{}", error.report()))
}

/// Short ways to ask. Each checks that the fast verdict and the full decision agree.
trait Ask {
    fn ask(&self, action: Action<'_>) -> Decision;

    fn read(&self, path: &str) -> Verdict {
        self.ask(Action::Read(path.as_bytes())).verdict
    }
    fn write(&self, path: &str) -> Verdict {
        self.ask(Action::Write(path.as_bytes())).verdict
    }
    fn exec(&self, program: &str, args: &[&str]) -> Verdict {
        self.called(program, program, args)
    }
    fn called(&self, program: &str, called: &str, args: &[&str]) -> Verdict {
        let name = called.rsplit('/').next().unwrap();
        let argv: Vec<OsText> = [name]
            .iter()
            .chain(args)
            .map(|arg| OsText::from(*arg))
            .collect();
        let (program, called) = (program.as_bytes(), called.as_bytes());
        self.ask(Action::Exec(Exec {
            program,
            called,
            argv: &argv,
            interpreter: None,
        }))
        .verdict
    }
    fn connect(&self, addr: &str, host: Option<&str>) -> Verdict {
        let addr: SocketAddr = addr.parse().unwrap();
        self.ask(Action::Connect(Endpoint { addr, host })).verdict
    }
    fn bind(&self, addr: &str) -> Verdict {
        let addr: SocketAddr = addr.parse().unwrap();
        self.ask(Action::Bind(Endpoint { addr, host: None }))
            .verdict
    }
    fn unix(&self, path: &str) -> Verdict {
        self.ask(Action::Unix(UnixSocket::Path(path.as_bytes())))
            .verdict
    }
    fn tool(&self, name: &str, params: &Value) -> Verdict {
        self.ask(Action::Tool { name, params }).verdict
    }
}

impl Ask for Policy {
    fn ask(&self, action: Action<'_>) -> Decision {
        let decision = self.decide(&action);
        assert_eq!(decision.verdict, self.verdict(&action), "{action:?}");
        decision
    }
}
