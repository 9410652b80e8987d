//! The surface of a run: the sets of everything that it touched.
//!
//! Sets only: no pids, times, ids or counts, so that two runs of one deterministic command have the same surface, and
//! a difference between two surfaces means something.

use std::collections::{BTreeMap, BTreeSet};

use invigil_schema::{
    AccessDenied, Address, Digest, Event, FileOp, NetOp, NetOpKind, OsText, ProcessExec,
    ProcessRef, RunId,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::{Ports, stable_address, stable_path};
use crate::outcome::{accesses, note_best};
use crate::{Access, Fact, Outcome, View};

/// Everything that a run touched, as sorted sets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SurfaceDoc {
    /// Names this form: [`SurfaceDoc::SCHEMA`].
    pub schema: String,
    /// Files and directories.
    pub filesystem_paths: Vec<PathEntry>,
    /// Addresses.
    pub network_endpoints: Vec<EndpointEntry>,
    /// Programs.
    pub process_execs: Vec<ExecEntry>,
    /// Tools that were reported; nobody has seen them from outside.
    pub tools: Vec<ToolEntry>,
    /// What a tool gate decided, as `decision:tool`.
    pub policy_decisions: BTreeSet<String>,
    /// What Invigil refused.
    pub denials: BTreeSet<DenialEntry>,
}

impl SurfaceDoc {
    /// The value of `schema`.
    pub const SCHEMA: &'static str = "invigil.view.surface.v1";
}

/// One path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PathEntry {
    /// The absolute path. What differs from run to run is a word in braces: `/proc/{pid}/mem`.
    pub path: OsText,
    /// What it was asked for, and how that ended at best.
    pub access: BTreeMap<Access, Outcome>,
}

/// One address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EndpointEntry {
    /// `ip:port`, `[v6]:port`, `unix:path`, `unix:@name`, `netlink`, `family-N:hex`. A port that the kernel chose is
    /// `{ephemeral}`.
    pub endpoint: OsText,
    /// The names that it was found under, where they are known.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub hosts: BTreeSet<String>,
    /// What was tried with it, and how that ended at best.
    pub operations: BTreeMap<NetOpKind, Outcome>,
}

/// One program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecEntry {
    /// The file that was loaded, or was to be.
    pub executable: OsText,
    /// What was asked for, where that was something else: a script, a symbolic link.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub requested: BTreeSet<OsText>,
    /// Digests of the file, as it was when it was loaded.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub sha256: BTreeSet<Digest>,
    /// Whether it was ever loaded.
    pub outcome: Outcome,
}

/// One tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolEntry {
    /// Its name.
    pub tool: String,
    /// Who speaks of it.
    pub reported_by: BTreeSet<Reporter>,
}

/// Who speaks of a tool.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Reporter {
    /// The agent's own framework.
    Sdk,
    /// A tool gate.
    Policy,
}

/// Something that Invigil refused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct DenialEntry {
    /// What was refused: `file.open`, `exec`, `net.connect` and so on.
    pub what: String,
    /// What it was about.
    pub target: OsText,
    /// The rule that refused it.
    pub rule: String,
}

#[derive(Debug, Clone)]
struct Exec {
    requested: BTreeSet<OsText>,
    sha256: BTreeSet<Digest>,
    outcome: Outcome,
}

/// What was done with an address.
#[derive(Debug, Clone, Default)]
struct Used {
    hosts: BTreeSet<String>,
    operations: BTreeMap<NetOpKind, Outcome>,
}

/// Folds facts into a [`SurfaceDoc`].
#[derive(Debug, Clone, Default)]
pub struct Surface {
    run: Option<RunId>,
    ports: Ports,
    paths: BTreeMap<OsText, BTreeMap<Access, Outcome>>,
    addresses: BTreeMap<Address, Used>,
    execs: BTreeMap<OsText, Exec>,
    tools: BTreeMap<String, BTreeSet<Reporter>>,
    decisions: BTreeSet<String>,
    denials: BTreeSet<DenialEntry>,
}

impl Surface {
    fn name(&self, path: &OsText, process: ProcessRef) -> OsText {
        stable_path(path, process, self.run.as_ref()).into_owned()
    }

    fn file(&mut self, op: &FileOp) {
        for (path, access) in accesses(op) {
            let path = stable_path(path, op.process, self.run.as_ref());
            // Most paths are met again and again.
            if let Some(known) = self.paths.get_mut(&*path) {
                note_best(known, access, op.result.into());
            } else {
                let new = BTreeMap::from([(access, op.result.into())]);
                self.paths.insert(path.into_owned(), new);
            }
        }
    }

    fn net(&mut self, op: &NetOp) {
        self.ports.take(op);
        let address = stable_address(op, self.run.as_ref());
        let used = self.addresses.entry(address).or_default();
        note_best(&mut used.operations, op.op, op.result.into());
        used.hosts.extend(op.host.clone());
    }

    fn exec(&mut self, exec: &ProcessExec) {
        let requested = exec.requested.as_ref().filter(|r| **r != exec.executable);
        let requested = requested.map(|requested| self.name(requested, exec.process));
        let entry = self.program(&exec.executable, exec.process, Outcome::Succeeded);
        entry.requested.extend(requested);
        entry.sha256.extend(exec.sha256);
    }

    fn program(&mut self, path: &OsText, process: ProcessRef, outcome: Outcome) -> &mut Exec {
        let path = self.name(path, process);
        let entry = self.execs.entry(path).or_insert_with(|| Exec {
            requested: BTreeSet::new(),
            sha256: BTreeSet::new(),
            outcome,
        });
        entry.outcome = entry.outcome.max(outcome);
        entry
    }

    fn tool(&mut self, tool: &str, reporter: Reporter) {
        match self.tools.get_mut(tool) {
            Some(reporters) => _ = reporters.insert(reporter),
            None => _ = self.tools.insert(tool.to_owned(), [reporter].into()),
        }
    }

    fn denied(&mut self, denied: &AccessDenied) {
        self.denials.insert(DenialEntry {
            what: denied.what.clone(),
            target: self.name(&denied.target, denied.process),
            rule: denied.rule.clone(),
        });
    }

    fn endpoints(&self) -> BTreeMap<OsText, Used> {
        let mut endpoints: BTreeMap<OsText, Used> = BTreeMap::new();
        for (address, used) in &self.addresses {
            for (&operation, &outcome) in &used.operations {
                if let Some(name) = self.ports.endpoint(operation, address) {
                    let endpoint = endpoints.entry(name).or_default();
                    note_best(&mut endpoint.operations, operation, outcome);
                    endpoint.hosts.extend(used.hosts.iter().cloned());
                }
            }
        }
        endpoints
    }
}

impl View for Surface {
    type Document = SurfaceDoc;

    fn take(&mut self, fact: &Fact<'_>) {
        match fact.vouched() {
            Some(Event::JournalOpened(opened)) => self.run = Some(opened.run_id.clone()),
            Some(Event::FileOp(op)) => self.file(op),
            Some(Event::NetOp(op)) => self.net(op),
            Some(Event::ProcessExec(exec)) => self.exec(exec),
            Some(Event::ExecFailed(failed)) => {
                self.program(&failed.path, failed.process, Outcome::Failed);
            }
            Some(Event::AccessDenied(denied)) => self.denied(denied),
            Some(Event::SdkEvent(event)) => {
                if let Some(tool) = &event.tool {
                    self.tool(tool, Reporter::Sdk);
                }
            }
            Some(Event::PolicyDecision(decided)) => {
                self.tool(&decided.tool, Reporter::Policy);
                self.decisions
                    .insert(format!("{}:{}", decided.decision, decided.tool));
            }
            _ => {}
        }
    }

    fn document(&self) -> SurfaceDoc {
        let paths = self.paths.iter().map(|(path, access)| PathEntry {
            path: path.clone(),
            access: access.clone(),
        });
        let endpoints = self.endpoints().into_iter();
        let execs = self.execs.iter().map(|(executable, exec)| ExecEntry {
            executable: executable.clone(),
            requested: exec.requested.clone(),
            sha256: exec.sha256.clone(),
            outcome: exec.outcome,
        });
        let tools = self.tools.iter().map(|(tool, reported_by)| ToolEntry {
            tool: tool.clone(),
            reported_by: reported_by.clone(),
        });
        SurfaceDoc {
            schema: SurfaceDoc::SCHEMA.to_owned(),
            filesystem_paths: paths.collect(),
            network_endpoints: endpoints
                .map(|(endpoint, used)| EndpointEntry {
                    endpoint,
                    hosts: used.hosts,
                    operations: used.operations,
                })
                .collect(),
            process_execs: execs.collect(),
            tools: tools.collect(),
            policy_decisions: self.decisions.clone(),
            denials: self.denials.clone(),
        }
    }
}
