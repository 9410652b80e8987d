//! What is to be run, and whether it can be: checked before anything is started or written.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use invigil_schema::{RunId, RunIdError, Tier};

use crate::approvals::Asking;
use crate::guard::Rules;
use crate::steer::{Ancestry, Fuse, Milestones, Offspring};

/// What is to be run.
#[derive(Debug, Clone)]
pub struct RunSpec {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// The id, not yet checked; without one a new one is made.
    pub run_id: Option<String>,
    /// The operating system.
    pub platform: String,
    /// Which agent framework is said to be inside, not yet checked.
    pub agent_shim: String,
    /// Variables to set for the command, besides those of this process.
    pub env: BTreeMap<OsString, OsString>,
    /// Where it is started; here, if nothing is said.
    pub cwd: Option<PathBuf>,
    /// After this time it is ended.
    pub timeout: Option<Duration>,
    /// Whether opens for reading are recorded too.
    pub reads: bool,
    /// This tier and no other; without it the best that is to be had.
    pub tier: Option<Tier>,
    /// Nothing below this tier.
    pub require_tier: Option<Tier>,
    /// A file to which the agent's framework writes its events, for those that cannot use a socket.
    pub events_file: Option<PathBuf>,
    /// A file to which a tool gate writes its decisions.
    pub decisions_file: Option<PathBuf>,
    /// How many bytes the command may print.
    pub max_output: Option<u64>,
    /// What the command reads.
    pub stdin: Input,
    /// Where the command's output goes.
    pub stdout: Output,
    /// What becomes of the processes that are still there when the command itself has ended.
    pub leftovers: Leftovers,
    /// How a person is asked.
    pub asking: Asking,
    /// What decides; without one everything is allowed.
    pub rules: Option<Arc<Rules>>,
    /// When it is said to go round in circles.
    pub fuse: Fuse,
    /// Its phases, if it has some.
    pub milestones: Option<Milestones>,
    /// How many runs may be started inside of it.
    pub offspring: Offspring,
    /// Where it comes from, if it was started inside of another run.
    pub ancestry: Option<Ancestry>,
}

/// What the command reads.
#[derive(Debug, Clone)]
pub enum Input {
    /// The stdin of this process.
    Stdin,
    /// This descriptor.
    From(Arc<OwnedFd>),
}

/// Where the command's output goes.
#[derive(Debug, Clone)]
pub enum Output {
    /// Its stdout to the stdout of this process, its stderr to the stderr.
    Stdout,
    /// All of it to the stderr of this process, because its stdout is for something else.
    Stderr,
    /// To these descriptors.
    Into {
        /// Its stdout.
        stdout: Arc<OwnedFd>,
        /// Its stderr.
        stderr: Arc<OwnedFd>,
    },
}

/// What becomes of the processes that are still there when the command itself has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftovers {
    /// The run goes on until the last one has ended.
    Await,
    /// They are killed.
    Kill,
}

/// What is wrong with a specification. The checks are made in this order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// There is nothing to run.
    #[error("there is no command: `invigil run -- CMD…`")]
    EmptyCommand,
    /// The run id is not one.
    #[error(transparent)]
    RunId(#[from] RunIdError),
    /// The shim is not known. A typo is an error, never silently `none`.
    #[error("{0:?} is not a shim: it is one of {all}", all = SHIMS.join(", "))]
    UnknownShim(String),
    /// A variable that Invigil sets itself, or that is no name.
    #[error("the variable {0:?} cannot be set: a name is needed, and those of Invigil are its own")]
    Variable(OsString),
    /// The tier that is forced is below the one that is required.
    #[error("tier {} is below the required {}", tier.as_str(), required.as_str())]
    Tier {
        /// What is forced.
        tier: Tier,
        /// What is required.
        required: Tier,
    },
}

/// Agent frameworks that Invigil has a name for.
pub const SHIMS: [&str; 7] = [
    "none",
    "openai-agents",
    "gemini-google-genai",
    "claude-code",
    "codex",
    "gemini-cli",
    "mcp",
];

/// Variables that Invigil sets for every run.
pub(crate) const RUN_ID: &str = "INVIGIL_RUN_ID";
pub(crate) const EVENTS: &str = "INVIGIL_EVENTS";
pub(crate) const EVENTS_SCHEMA: &str = "INVIGIL_EVENTS_SCHEMA";
const OWN: [&str; 3] = [RUN_ID, EVENTS, EVENTS_SCHEMA];

impl RunSpec {
    /// A command, and for the rest what most people want.
    pub fn new<A: Into<OsString>>(command: impl IntoIterator<Item = A>) -> Self {
        RunSpec {
            command: command.into_iter().map(Into::into).collect(),
            run_id: None,
            platform: std::env::consts::OS.to_owned(),
            agent_shim: "none".to_owned(),
            env: BTreeMap::new(),
            cwd: None,
            timeout: None,
            reads: false,
            tier: None,
            require_tier: None,
            events_file: None,
            decisions_file: None,
            max_output: None,
            stdin: Input::Stdin,
            stdout: Output::Stdout,
            leftovers: Leftovers::Await,
            asking: Asking::default(),
            rules: None,
            fuse: Fuse::default(),
            milestones: None,
            offspring: Offspring::default(),
            ancestry: None,
        }
    }

    /// Under this id.
    pub fn with_run_id(mut self, run_id: impl Into<String>) -> Self {
        self.run_id = Some(run_id.into());
        self
    }

    /// On this platform.
    pub fn with_platform(mut self, platform: impl Into<String>) -> Self {
        self.platform = platform.into();
        self
    }

    /// With this framework inside.
    pub fn with_agent_shim(mut self, shim: impl Into<String>) -> Self {
        self.agent_shim = shim.into();
        self
    }

    /// With this variable set.
    pub fn with_env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Checks everything that can be checked without doing anything, and gives the run's id.
    pub fn validate(&self) -> Result<RunId, SpecError> {
        if self
            .command
            .first()
            .is_none_or(|command| command.is_empty())
        {
            return Err(SpecError::EmptyCommand);
        }
        let run_id = match &self.run_id {
            Some(id) => RunId::new(id.as_str())?,
            None => RunId::new(format!("run_{}", uuid::Uuid::now_v7().simple()))?,
        };
        if !SHIMS.contains(&self.agent_shim.as_str()) {
            return Err(SpecError::UnknownShim(self.agent_shim.clone()));
        }
        if let Some(name) = self.env.keys().find(|name| !may_be_set(name)) {
            return Err(SpecError::Variable(name.clone()));
        }
        match (self.tier, self.require_tier) {
            (Some(tier), Some(required)) if tier < required => {
                Err(SpecError::Tier { tier, required })
            }
            _ => Ok(run_id),
        }
    }
}

fn may_be_set(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    let is_name = !bytes.is_empty() && !bytes.contains(&b'=') && !bytes.contains(&0);
    is_name && !OWN.iter().any(|own| name == *own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bad_specification_has_its_own_error() {
        let bad = |spec: RunSpec| spec.validate().unwrap_err();
        assert_eq!(bad(RunSpec::new([""; 0])), SpecError::EmptyCommand);
        assert_eq!(bad(RunSpec::new([""])), SpecError::EmptyCommand);
        let spec = || RunSpec::new(["true"]);
        for (id, error) in [
            ("", RunIdError::Empty),
            ("a:/b", RunIdError::Colon("a:/b".into())),
            (
                "a/b",
                RunIdError::Character {
                    id: "a/b".into(),
                    bad: '/',
                },
            ),
        ] {
            assert_eq!(bad(spec().with_run_id(id)), SpecError::RunId(error));
        }
        let error = bad(spec().with_agent_shim("claude_code"));
        assert_eq!(error, SpecError::UnknownShim("claude_code".into()));
        assert!(error.to_string().contains("claude-code"));
        for name in ["", "A=B", "INVIGIL_RUN_ID"] {
            assert_eq!(
                bad(spec().with_env(name, "x")),
                SpecError::Variable(name.into())
            );
        }
    }

    #[test]
    fn the_order_of_the_checks() {
        let spec = RunSpec::new([""; 0]).with_run_id(":").with_agent_shim("x");
        assert_eq!(spec.validate(), Err(SpecError::EmptyCommand));
        let spec = RunSpec::new(["true"]).with_run_id(":").with_agent_shim("x");
        assert!(matches!(
            spec.validate(),
            Err(SpecError::RunId(RunIdError::Colon(_)))
        ));
    }

    #[test]
    fn a_new_id_sorts_behind_an_older_one() {
        let id = || RunSpec::new(["true"]).validate().unwrap();
        let (first, second) = (id(), id());
        assert!(first < second, "{first} {second}");
        assert_eq!(first.as_str().len(), "run_".len() + 32);
    }
}
