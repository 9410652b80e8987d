//! `git`: the real program, with a fixed set of operations, results that are read from formats made for machines, and
//! a way back.
//!
//! Objects are only ever added, and nobody sees them until a reference names them. What an operation changes is
//! references, the index, and the work tree that follows a reference: these are announced and changed by compare and
//! swap, and undo does the same in the other direction.

pub(crate) mod call;
mod clone;
mod look;
mod repository;
mod write;

use std::path::Path;

use invigil_schema::OsText;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::change::as_path;
use super::{Capability, Context, Failure, Invalid, Needs, Output, Plan, arguments};
use repository::Repository;

pub(super) use repository::{Back, change, way_back};

/// What is started.
pub(super) const PROGRAMS: &[&str] = &["git"];

const MAX_COUNT: usize = 1000;

/// Works with git repositories.
pub(super) struct Git;

/// Arguments of `git`. Which ones are used depends on the operation; any other is refused.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// What to do.
    operation: Operation,
    /// A directory of the repository; the working directory, if nothing is said. For clone the directory to make.
    path: Option<OsText>,
    /// add, diff: the files, relative to the repository's top directory.
    paths: Option<Vec<OsText>>,
    /// checkout, revert: which commit or branch. log, diff, branch: where to begin.
    #[serde(rename = "ref")]
    reference: Option<String>,
    /// diff: the commit to compare `ref` with.
    to: Option<String>,
    /// diff: what is in the index in place of what is in the work tree.
    staged: Option<bool>,
    /// log: how many commits.
    #[schemars(range(min = 1, max = 1000))]
    max_count: Option<usize>,
    /// commit: the message.
    message: Option<String>,
    /// commit: with all changes of files that git knows.
    all: Option<bool>,
    /// commit: although nothing has changed.
    allow_empty: Option<bool>,
    /// commit, revert: who, as `Name <address>`; by default as the repository is configured.
    author: Option<String>,
    /// branch: the branch to make or delete; without it they are listed. pull: the branch to take.
    name: Option<String>,
    /// branch: delete it.
    delete: Option<bool>,
    /// checkout: make the branch `ref` at the commit that is checked out.
    create: Option<bool>,
    /// clone: from where. A path below an allowed root, or https.
    url: Option<String>,
    /// pull: the remote.
    remote: Option<String>,
    /// Seconds after which it is given up: 30, if nothing is said.
    #[schemars(range(max = 3600))]
    timeout: Option<f64>,
}

/// What git is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Operation {
    /// Branch, commit, and which files are changed.
    Status,
    /// Differences as text.
    Diff,
    /// Commits, the newest first.
    Log,
    /// Puts files into the index.
    Add,
    /// Makes a commit of the index.
    Commit,
    /// Lists, makes or deletes branches.
    Branch,
    /// Changes to another branch or commit.
    Checkout,
    /// Makes a copy of another repository.
    Clone,
    /// Fetches a branch and goes forward to it.
    Pull,
    /// Makes a commit that takes another back.
    Revert,
}

impl Operation {
    /// The arguments that it has, and those it cannot do without.
    fn arguments(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Operation::Status => (&[], &[]),
            Operation::Diff => (&["paths", "ref", "to", "staged"], &[]),
            Operation::Log => (&["ref", "max_count"], &[]),
            Operation::Add => (&["paths"], &["paths"]),
            Operation::Commit => (&["message", "all", "allow_empty", "author"], &["message"]),
            Operation::Branch => (&["name", "ref", "delete"], &[]),
            Operation::Checkout => (&["ref", "create"], &["ref"]),
            Operation::Clone => (&["url", "path"], &["url", "path"]),
            Operation::Pull => (&["remote", "name"], &[]),
            Operation::Revert => (&["ref", "author"], &["ref"]),
        }
    }

    fn writes(self) -> bool {
        !matches!(self, Operation::Status | Operation::Diff | Operation::Log)
    }
}

impl Args {
    /// The arguments that were given, besides those that every operation has.
    fn given(&self) -> impl Iterator<Item = &'static str> {
        let all = [
            ("paths", self.paths.is_some()),
            ("ref", self.reference.is_some()),
            ("to", self.to.is_some()),
            ("staged", self.staged.is_some()),
            ("max_count", self.max_count.is_some()),
            ("message", self.message.is_some()),
            ("all", self.all.is_some()),
            ("allow_empty", self.allow_empty.is_some()),
            ("author", self.author.is_some()),
            ("name", self.name.is_some()),
            ("delete", self.delete.is_some()),
            ("create", self.create.is_some()),
            ("url", self.url.is_some()),
            ("remote", self.remote.is_some()),
        ];
        all.into_iter()
            .filter_map(|(name, given)| given.then_some(name))
    }

    fn reference(&self) -> &str {
        self.reference.as_deref().unwrap_or("HEAD")
    }
}

impl Capability for Git {
    type Args = Args;
    const NAME: &'static str = "git";
    const DESCRIPTION: &'static str =
        "Works with a git repository, without hooks, helpers, filters or prompts.";

    fn validate(&self, args: &Args) -> Result<(), Invalid> {
        let (allowed, required) = args.operation.arguments();
        if let Some(field) = args.given().find(|field| !allowed.contains(field)) {
            return Err(Invalid::new(field, "this operation does not have it"));
        }
        let given: Vec<&str> = args.given().collect();
        let path = args.path.is_some().then_some("path");
        let has = |field: &str| given.iter().chain(&path).any(|given| *given == field);
        if let Some(field) = required.iter().find(|field| !has(field)) {
            return Err(Invalid::new(*field, "this operation needs it"));
        }
        if let Some(path) = &args.path {
            arguments::path("path", path)?;
        }
        for (at, path) in args.paths.iter().flatten().enumerate() {
            let field = format!("paths[{at}]");
            arguments::path(&field, path)?;
            no_option(&field, path.as_bytes())?;
        }
        if args.paths.as_ref().is_some_and(Vec::is_empty) {
            return Err(Invalid::new("paths", "it is empty"));
        }
        for (field, revision) in [("ref", &args.reference), ("to", &args.to)] {
            if let Some(revision) = revision {
                self::revision(field, revision)?;
            }
        }
        if args.to.is_some() && (args.reference.is_none() || args.staged == Some(true)) {
            return Err(Invalid::new(
                "to",
                "it goes with `ref`, and not with `staged`",
            ));
        }
        for (field, name) in [("name", &args.name), ("remote", &args.remote)] {
            if let Some(name) = name {
                reference_name(field, name)?;
            }
        }
        if args.create == Some(true) {
            reference_name("ref", args.reference())?;
        }
        if args.delete == Some(true) && (args.name.is_none() || args.reference.is_some()) {
            return Err(Invalid::new(
                "delete",
                "it goes with `name`, and not with `ref`",
            ));
        }
        if args.operation == Operation::Branch && args.reference.is_some() && args.name.is_none() {
            return Err(Invalid::new("name", "it is needed where a branch is made"));
        }
        if let Some(message) = &args.message {
            arguments::text("message", message.as_bytes())?;
            if message.trim().is_empty() {
                return Err(Invalid::new("message", "it is empty"));
            }
        }
        if let Some(author) = &args.author {
            write::person(author)?;
        }
        if let Some(url) = &args.url {
            clone::source(url)?;
        }
        if let Some(count) = args.max_count {
            arguments::in_range("max_count", count, 1, MAX_COUNT)?;
        }
        arguments::timeout(args.timeout)
    }

    fn plan(&self, args: &Args) -> Plan {
        Plan::Work(Needs {
            writes: args.operation.writes(),
            programs: PROGRAMS,
            signals: false,
            timeout: arguments::timeout_or_default(args.timeout),
        })
    }

    fn execute(&self, args: Args, context: &mut Context<'_>) -> Result<Output, Failure> {
        if args.operation == Operation::Clone {
            return clone::clone(&args, context);
        }
        let path = args.path.as_ref().map_or(Path::new("."), as_path);
        let repository = Repository::find(path, context)?;
        let mut data = match args.operation {
            Operation::Status => look::status(&repository),
            Operation::Diff => look::diff(&repository, &args),
            Operation::Log => look::log(&repository, &args),
            Operation::Add => write::add(&repository, &args, context),
            Operation::Commit => write::commit(&repository, &args, context),
            Operation::Branch => write::branch(&repository, &args, context),
            Operation::Checkout => write::checkout(&repository, &args, context),
            Operation::Pull => clone::pull(&repository, &args, context),
            Operation::Revert | Operation::Clone => write::revert(&repository, &args, context),
        }?;
        if let (Value::Object(data), Value::Object(state)) = (&mut data, repository.state()?) {
            data.extend(state);
        }
        Ok(Output::new(data))
    }
}

fn no_option(field: &str, bytes: &[u8]) -> Result<(), Invalid> {
    if bytes.starts_with(b"-") {
        return Err(Invalid::new(field, "it begins with `-`"));
    }
    Ok(())
}

/// Anything that may name a commit.
fn revision(field: &str, revision: &str) -> Result<(), Invalid> {
    no_option(field, revision.as_bytes())?;
    let bad = |c: char| c.is_control() || c.is_whitespace();
    if revision.is_empty() || revision.contains(bad) || revision.contains("..") {
        return Err(Invalid::new(field, "it does not name one commit"));
    }
    Ok(())
}

/// The name of a branch or a remote, by the rules of git.
fn reference_name(field: &str, name: &str) -> Result<(), Invalid> {
    no_option(field, name.as_bytes())?;
    let bad = |c: char| c.is_control() || " ~^:?*[\\".contains(c);
    let part = |part: &str| {
        part.is_empty() || part.starts_with('.') || part.ends_with(".lock") || part.ends_with('.')
    };
    if name.contains(bad)
        || name.contains("..")
        || name.contains("@{")
        || name == "@"
        || name == "HEAD"
        || name.split('/').any(part)
    {
        return Err(Invalid::new(field, "it is not a name that git allows"));
    }
    Ok(())
}
