//! What goes in: the texts of policy files, and the places that their variables stand for.

use std::path::PathBuf;

use serde::Serialize;

/// The text of a policy file. Files stack in the order in which they are given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its name, as people should see it.
    pub name: String,
    /// Its text.
    pub text: String,
    /// Whose it is.
    pub layer: Layer,
}

/// Whose file it is. Everybody's own word may loosen what stood before, but for the project's: who clones a repository
/// has not agreed with what is in it, and an agent may have written it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// A profile that comes with Invigil.
    Builtin,
    /// The user's own file.
    User,
    /// A file of the project that is worked on. It can only tighten.
    Project,
    /// A file that the user named.
    CommandLine,
}

impl Layer {
    pub(crate) fn may_loosen(self) -> bool {
        self != Layer::Project
    }
}

/// What the variables of a policy file stand for: absolute paths, all links followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// `~` and `${home}`.
    pub home: PathBuf,
    /// `${workspace}`: what the agent works on.
    pub workspace: PathBuf,
    /// `${tmp}`: where temporary files go.
    pub tmp: PathBuf,
    /// Where a bare name of a program in an `allow` is looked for: the directories of `PATH`. Those inside of the
    /// workspace or of the temporary directory do not count, because the agent can put programs there.
    pub path: Vec<PathBuf>,
}

/// The names of the profiles that come with Invigil.
pub const PROFILES: [&str; 3] = ["observe", "coding", "strict"];

/// A profile that comes with Invigil.
pub fn profile(name: &str) -> Option<Source> {
    let text = match name {
        "observe" => include_str!("../profiles/observe.toml"),
        "coding" => include_str!("../profiles/coding.toml"),
        "strict" => include_str!("../profiles/strict.toml"),
        _ => return None,
    };
    Some(Source {
        name: format!("profile {name}"),
        text: text.to_owned(),
        layer: Layer::Builtin,
    })
}
