//! What must be known to go on with a task in another process. It lies in the store, with the agent's exact words, and
//! is removed with the end of the task.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use invigil_policy::{Layer, Places, Source};
use invigil_schema::{Contract, Mode, OsText};
use serde::{Deserialize, Serialize};

use super::{TaskSpec, path_of};

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) intent: String,
    pub(super) agent: Vec<OsText>,
    pub(super) mode: Mode,
    sources: Vec<File>,
    home: OsText,
    tmp: OsText,
    path: Vec<OsText>,
    pub(super) max_rounds: u32,
    pub(super) timeout: Option<Duration>,
}

#[derive(Debug, Serialize, Deserialize)]
struct File {
    name: String,
    text: String,
    layer: Whose,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Whose {
    Builtin,
    User,
    Project,
    CommandLine,
}

impl Settings {
    pub(super) const FILE: &'static str = "settings.json";
    pub(super) const CONTRACT: &'static str = "contract.json";

    pub(super) fn of(spec: &TaskSpec) -> Settings {
        let os = |path: &PathBuf| OsText::from(path.clone().into_os_string());
        let file = |source: &Source| File {
            name: source.name.clone(),
            text: source.text.clone(),
            layer: match source.layer {
                Layer::Builtin => Whose::Builtin,
                Layer::User => Whose::User,
                Layer::Project => Whose::Project,
                Layer::CommandLine => Whose::CommandLine,
            },
        };
        Settings {
            intent: spec.intent.clone(),
            agent: spec.agent.iter().cloned().map(OsText::from).collect(),
            mode: spec.mode,
            sources: spec.sources.iter().map(file).collect(),
            home: os(&spec.places.home),
            tmp: os(&spec.places.tmp),
            path: spec.places.path.iter().map(os).collect(),
            max_rounds: spec.max_rounds,
            timeout: spec.timeout,
        }
    }

    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(directory.join(Self::FILE))?;
        file.write_all(&serde_json::to_vec(self)?)
    }

    pub(super) fn read(directory: &Path) -> io::Result<Settings> {
        Ok(serde_json::from_slice(&fs::read(
            directory.join(Self::FILE),
        )?)?)
    }

    pub(super) fn keep_contract(directory: &Path, contract: &Contract) -> io::Result<()> {
        let path = directory.join(Self::CONTRACT);
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        options
            .open(path)?
            .write_all(&serde_json::to_vec(contract)?)
    }

    pub(super) fn contract(directory: &Path) -> io::Result<Contract> {
        Ok(serde_json::from_slice(&fs::read(
            directory.join(Self::CONTRACT),
        )?)?)
    }

    pub(super) fn sources(&self) -> Vec<Source> {
        let source = |file: &File| Source {
            name: file.name.clone(),
            text: file.text.clone(),
            layer: match file.layer {
                Whose::Builtin => Layer::Builtin,
                Whose::User => Layer::User,
                Whose::Project => Layer::Project,
                Whose::CommandLine => Layer::CommandLine,
            },
        };
        self.sources.iter().map(source).collect()
    }

    pub(super) fn places(&self, workspace: &Path) -> Places {
        let path = path_of;
        Places {
            home: path(&self.home),
            workspace: workspace.to_owned(),
            tmp: path(&self.tmp),
            path: self.path.iter().map(path).collect(),
        }
    }
}
