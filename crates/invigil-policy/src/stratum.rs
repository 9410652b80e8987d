//! One file of a policy, compiled: what it says about an action, and nothing about other files.

use std::sync::Arc;

use globset::{Candidate, Glob};

use crate::exec::{ExecIndex, ExecRule};
use crate::glob::{Judged, PathGlob};
use crate::net::{NetIndex, NetPattern};
use crate::stacking::Firmness;
use crate::tool::{ToolIndex, ToolRule};
use crate::{Action, Budget, Exec, Layer, Places, Rule, Section, Verdict};

/// A rule about files.
pub(crate) type FileRule = (PathGlob, Verdict);

/// A section of a file: its rules, what they match in the same order, and its default.
#[derive(Debug, Clone)]
pub(crate) struct Part<P> {
    pub(crate) rules: Vec<Arc<Rule>>,
    pub(crate) default: Option<Arc<Rule>>,
    pub(crate) patterns: Vec<P>,
}

impl<P> Part<P> {
    pub(crate) fn empty() -> Self {
        Part {
            rules: Vec::new(),
            default: None,
            patterns: Vec::new(),
        }
    }
}

/// What one file says.
#[derive(Debug, Clone)]
pub(crate) struct Stratum {
    pub(crate) layer: Layer,
    pub(crate) default: Option<Arc<Rule>>,
    pub(crate) read: Part<FileRule>,
    pub(crate) write: Part<FileRule>,
    pub(crate) programs: Part<ExecRule>,
    pub(crate) network: Part<(NetPattern, Verdict)>,
    pub(crate) tools: Part<ToolRule>,
    pub(crate) env: Option<Vec<Glob>>,
    pub(crate) budget: Budget,
}

impl Stratum {
    pub(crate) fn rules(&self, section: Section) -> &[Arc<Rule>] {
        match section {
            Section::Read => &self.read.rules,
            Section::Write => &self.write.rules,
            Section::Programs => &self.programs.rules,
            Section::Network => &self.network.rules,
            Section::Tools => &self.tools.rules,
        }
    }

    /// The default that holds in a section, and whether it is the section's own.
    pub(crate) fn default_of(&self, section: Section) -> Option<(&Arc<Rule>, Firmness)> {
        let own = match section {
            Section::Read => &self.read.default,
            Section::Write => &self.write.default,
            Section::Programs => &self.programs.default,
            Section::Network => &self.network.default,
            Section::Tools => &self.tools.default,
        };
        let own = own.as_ref().map(|rule| (rule, Firmness::SectionDefault));
        own.or(self
            .default
            .as_ref()
            .map(|rule| (rule, Firmness::FileDefault)))
    }
}

/// The same, made fast.
#[derive(Debug, Clone)]
pub(crate) struct Compiled {
    read: Judged,
    write: Judged,
    programs: ExecIndex,
    network: NetIndex,
    tools: ToolIndex,
}

impl Compiled {
    pub(crate) fn new(stratum: &Stratum, places: &Places) -> Result<Self, globset::Error> {
        Ok(Compiled {
            read: judged(&stratum.read.patterns)?,
            write: judged(&stratum.write.patterns)?,
            programs: ExecIndex::new(stratum.programs.patterns.clone(), places)?,
            network: NetIndex::new(&stratum.network.patterns)?,
            tools: ToolIndex::new(stratum.tools.patterns.clone())?,
        })
    }

    /// The strictest rule that matches.
    pub(crate) fn strictest(&self, action: &Action<'_>) -> Option<Verdict> {
        let mut strictest = None;
        let mut take = |_: usize, verdict| strictest = strictest.max(Some(verdict));
        match action {
            Action::Read(path) => return self.read.strictest(&Candidate::from_bytes(path)),
            Action::Write(path) => return self.write.strictest(&Candidate::from_bytes(path)),
            Action::Exec(exec) => return self.strictest_exec(exec),
            Action::Unix(socket) => return self.network.strictest_unix(*socket),
            Action::Connect(to) => self.network.each_connect(to, take),
            Action::Bind(at) => self.network.each_bind(at, take),
            Action::Tool { name, params } => self.tools.each_match(name, params, &mut take),
        }
        strictest
    }

    /// A script is its interpreter with its arguments. A rule for the script itself can only make that stricter.
    fn strictest_exec(&self, exec: &Exec<'_>) -> Option<Verdict> {
        let own = self.programs.strictest(exec);
        match exec.interpreter {
            None => own,
            Some(interpreter) => {
                let strict = own.filter(|verdict| *verdict > Verdict::Allow);
                strict.max(self.strictest_exec(interpreter))
            }
        }
    }

    /// The numbers of all rules that match, in order.
    pub(crate) fn matching(&self, action: &Action<'_>) -> Vec<usize> {
        let mut found = Vec::new();
        match action {
            Action::Read(path) => self
                .read
                .each_match(&Candidate::from_bytes(path), |n| found.push(n)),
            Action::Write(path) => self
                .write
                .each_match(&Candidate::from_bytes(path), |n| found.push(n)),
            Action::Exec(exec) => self.matching_exec(exec, &mut found),
            Action::Connect(to) => self.network.each_connect(to, |n, _| found.push(n)),
            Action::Bind(at) => self.network.each_bind(at, |n, _| found.push(n)),
            Action::Unix(socket) => self.network.each_unix(*socket, |n| found.push(n)),
            Action::Tool { name, params } => {
                self.tools.each_match(name, params, |n, _| found.push(n))
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn matching_exec(&self, exec: &Exec<'_>, found: &mut Vec<usize>) {
        let script = exec.interpreter.is_some();
        self.programs.each_match(exec, |n, verdict| {
            if !script || verdict > Verdict::Allow {
                found.push(n);
            }
        });
        if let Some(interpreter) = exec.interpreter {
            self.matching_exec(interpreter, found);
        }
    }
}

fn judged(rules: &[FileRule]) -> Result<Judged, globset::Error> {
    let mut globs = Vec::new();
    for (n, (glob, verdict)) in rules.iter().enumerate() {
        globs.extend(glob.globs.iter().map(|glob| (glob.clone(), *verdict, n)));
    }
    Judged::new(&globs)
}
