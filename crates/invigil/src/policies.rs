//! Which policies hold here: where the files are, and what their variables stand for.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use invigil_engine::{Rules, UserPolicy};
use invigil_policy::{Layer, Places, Policy, Source, profile};
use invigil_schema::Mode;
use rustix::fs::{CWD, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use crate::error::CliError;

/// Where the policy of a project is, below its directory.
const PROJECT: &str = ".invigil/policy.toml";

/// The files that hold in a workspace, in the order in which they stack: the profile, the user's own file, that of the
/// project, those that were named. The user's and the project's need not be there.
pub(crate) fn gather(
    base: Option<&str>,
    named: &[PathBuf],
    places: &Places,
) -> Result<Vec<Source>, CliError> {
    let mut sources = Vec::new();
    if let Some(name) = base {
        sources.push(by_name(name)?);
    }
    let optional = [
        (users_own(places), Layer::User),
        (places.workspace.join(PROJECT), Layer::Project),
    ];
    for (path, layer) in optional {
        match read(&path, layer) {
            Err(CliError::PolicyFile { source, .. })
                if source.kind() == io::ErrorKind::NotFound => {}
            source => sources.push(source?),
        }
    }
    for path in named {
        sources.push(read(path, Layer::CommandLine)?);
    }
    Ok(sources)
}

fn by_name(name: &str) -> Result<Source, CliError> {
    profile(name).ok_or_else(|| CliError::NoProfile(name.to_owned()))
}

/// Where the user's own policy is.
pub(crate) fn users_own(places: &Places) -> PathBuf {
    let xdg = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let config = xdg.filter(|path| path.is_absolute());
    let config = config.unwrap_or_else(|| places.home.join(".config"));
    config.join("invigil/policy.toml")
}

/// The user's own policy, to which rules can be added and which nobody inside may change.
pub(crate) fn user_policy(sources: &[Source], places: &Places) -> UserPolicy {
    let own = users_own(places);
    let (sources, places) = (sources.to_vec(), places.clone());
    UserPolicy::with_stack(own.clone(), move |text| {
        let sources = with_own(&sources, &own, text);
        Policy::load(&sources, &places).map_err(|error| error.to_string())
    })
}

/// The same files, where the user's own has this text.
pub(crate) fn with_own(sources: &[Source], own: &Path, text: &str) -> Vec<Source> {
    let user = Source {
        name: own.display().to_string(),
        text: text.to_owned(),
        layer: Layer::User,
    };
    let mut stack: Vec<Source> = sources.to_vec();
    stack.retain(|source| source.layer != Layer::User);
    let below = stack
        .iter()
        .take_while(|source| source.layer == Layer::Builtin);
    let at = below.count();
    stack.insert(at, user);
    stack
}

/// A policy file.
pub(crate) fn read(path: &Path, layer: Layer) -> Result<Source, CliError> {
    let text = match layer {
        Layer::Project => read_inside(path),
        _ => read_plain(path),
    };
    let text = text.map_err(|source| CliError::PolicyFile {
        path: path.to_owned(),
        source,
    })?;
    Ok(Source {
        name: path.display().to_string(),
        text,
        layer,
    })
}

/// Reads a file that nobody can make us wait for: an agent may have left anything under the name.
fn read_plain(path: &Path) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    text_of(openat(CWD, path, flags, rustix::fs::Mode::empty())?)
}

/// Reads the policy of a project. An agent may have put a link there that leads out of it, and what is wrong with a
/// policy is shown with its line.
fn read_inside(path: &Path) -> io::Result<String> {
    let project = path
        .ancestors()
        .nth(Path::new(PROJECT).components().count());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let project = openat(
        CWD,
        project.unwrap_or(path),
        flags,
        rustix::fs::Mode::empty(),
    )?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    match openat2(project, PROJECT, flags, rustix::fs::Mode::empty(), resolve) {
        Ok(file) => text_of(file),
        Err(Errno::XDEV) => Err(io::Error::other(
            "it is a link that leads out of the project",
        )),
        Err(error) => Err(error.into()),
    }
}

fn text_of(file: OwnedFd) -> io::Result<String> {
    const LARGEST: u64 = 1 << 20;
    let file = File::from(file);
    let data = file.metadata()?;
    if !data.is_file() || data.len() > LARGEST {
        return Err(io::Error::other("it is no plain file of at most 1 MiB"));
    }
    io::read_to_string(file.take(LARGEST))
}

/// What the variables stand for when something runs in this directory.
pub(crate) fn places(workspace: &Path) -> Places {
    let variable = |name| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let path = env::var_os("PATH").unwrap_or_default();
    Places {
        home: resolve(&variable("HOME").unwrap_or_else(|| "/".into())),
        workspace: resolve(workspace),
        tmp: resolve(&variable("TMPDIR").unwrap_or_else(|| "/tmp".into())),
        path: env::split_paths(&path)
            .filter(|path| path.is_absolute())
            .map(|path| resolve(&path))
            .collect(),
    }
}

/// A path with all links followed, as far as it is there.
pub(crate) fn resolve(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for ancestor in path.ancestors() {
        if let Ok(real) = fs::canonicalize(ancestor) {
            let rest = path.strip_prefix(ancestor).unwrap_or(Path::new(""));
            return if rest.as_os_str().is_empty() {
                real
            } else {
                real.join(rest)
            };
        }
    }
    path
}

/// Which policy holds, as every command that runs something can be told.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PolicyOptions {
    /// What a policy means for the run [default: guard with --policy or --profile, else observe]
    #[arg(long, value_enum)]
    mode: Option<ModeName>,

    /// Enforce this policy file, on top of the profile, the user's own and the project's (.invigil/policy.toml); may be
    /// repeated
    #[arg(long, value_name = "FILE")]
    policy: Vec<PathBuf>,

    /// Begin with this profile: observe, coding, strict [default: coding in guard, strict in strict, if no policy is given]
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
}

/// The modes, as they are typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeName {
    /// Record, and refuse nothing but harm to Invigil itself
    Observe,
    /// Enforce the policy, and ask where it says so
    Guard,
    /// Refuse what no rule allows, ask nobody, and do not start where that cannot be enforced
    Strict,
}

impl From<ModeName> for Mode {
    fn from(name: ModeName) -> Mode {
        match name {
            ModeName::Observe => Mode::Observe,
            ModeName::Guard => Mode::Guard,
            ModeName::Strict => Mode::Strict,
        }
    }
}

impl PolicyOptions {
    /// The mode, and the files that stack in it.
    pub(crate) fn sources(
        &self,
        default: Mode,
        places: &Places,
    ) -> Result<(Mode, Vec<Source>), CliError> {
        match self.base(default)? {
            (Mode::Observe, _) => Ok((Mode::Observe, Vec::new())),
            (mode, base) => Ok((mode, gather(base, &self.policy, places)?)),
        }
    }

    /// The mode, and the profile that it begins with.
    fn base(&self, default: Mode) -> Result<(Mode, Option<&str>), CliError> {
        let named = !self.policy.is_empty() || self.profile.is_some();
        let mode = match self.mode {
            Some(mode) => mode.into(),
            None if named => Mode::Guard,
            None => default,
        };
        let base = match (mode, &self.profile) {
            (Mode::Observe, _) if named => return Err(CliError::ObserveWithPolicy),
            (Mode::Observe, _) => None,
            (_, Some(profile)) => Some(profile.as_str()),
            (_, None) if named => None,
            (Mode::Guard, None) => Some("coding"),
            (Mode::Strict, None) => Some("strict"),
        };
        Ok((mode, base))
    }

    /// The mode, and the files that were named, without what stands below them: for whoever is held to more already.
    pub(crate) fn named(&self) -> Result<(Mode, Vec<Source>), CliError> {
        let (mode, profile) = self.base(Mode::Observe)?;
        let profile = profile.map(by_name).transpose()?;
        let files = self
            .policy
            .iter()
            .map(|path| read(path, Layer::CommandLine));
        let sources: Result<Vec<Source>, CliError> =
            profile.map(Ok).into_iter().chain(files).collect();
        Ok((mode, sources?))
    }

    /// The rules of a run, if it has some, and the user's own file, to which rules can be added.
    pub(crate) fn rules(&self, workspace: &Path) -> Result<Option<(Rules, UserPolicy)>, CliError> {
        let places = places(workspace);
        let (mode, sources) = self.sources(Mode::Observe, &places)?;
        if mode == Mode::Observe {
            return Ok(None);
        }
        let user = user_policy(&sources, &places);
        Ok(Some((Rules::load(mode, sources, places)?, user)))
    }
}
