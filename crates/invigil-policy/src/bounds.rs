//! What a sandbox must enforce: the outer bound of everything that a policy could allow.
//!
//! A bound is never tighter than the policy. It is the floor that holds even where a single decision could be raced.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use globset::{Glob, GlobSet, GlobSetBuilder};
use serde::Serialize;

use crate::exec::Program;
use crate::glob::PathGlob;
use crate::net::{NetPattern, Target};
use crate::stacking::{Firmness, Opinion, Stack};
use crate::stratum::Stratum;
use crate::{Policy, Section, Verdict};

/// The outer bound of a policy. `None` is: no bound.
#[derive(Debug, Clone, Default)]
pub struct Bounds {
    /// Whether every open for reading must be judged: a rule or a default can refuse one.
    pub reads: bool,
    /// Whether every load of a program must be judged.
    pub execs: bool,
    /// Whether every use of the network must be judged.
    pub network: bool,
    /// Whether every use of a Unix socket must be judged.
    pub unix: bool,
    /// Files and directories outside of which nothing can be read.
    pub read_roots: Option<Vec<PathBuf>>,
    /// Files and directories outside of which nothing can be written.
    pub write_roots: Option<Vec<PathBuf>>,
    /// What can be executed.
    pub exec_roots: Option<ExecRoots>,
    /// TCP ports outside of which nothing can be connected or bound. Empty: no network at all but Unix sockets.
    pub ports: Option<Vec<RangeInclusive<u16>>>,
    /// Whether rules name hosts, so that names must be known for them to hold.
    pub names: bool,
    /// Programs that are denied whatever their arguments: look each one up, keep its digest, and refuse to read its file.
    /// A later file may have overruled one; [`crate::Policy::verdict`] on what was found has the last word.
    pub denied_programs: Vec<ProgramPattern>,
    /// Files and directories in which rules refuse files, as far as they say where to look: `**/.env` does not.
    pub refused_files: Vec<PathBuf>,
    /// Which variables reach the command.
    pub env: Option<EnvFilter>,
    /// How much may be used.
    pub budget: Budget,
}

impl Bounds {
    /// Whether there is no network but Unix sockets.
    pub fn network_off(&self) -> bool {
        self.ports.as_ref().is_some_and(Vec::is_empty)
    }
}

/// What can be executed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ExecRoots {
    /// Files and directories.
    pub roots: Vec<PathBuf>,
    /// Bare names, to be looked up in `PATH`. Their loader and their interpreter are needed too.
    pub names: Vec<String>,
}

/// How a rule names programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramPattern {
    /// By the last part of its path: `git`.
    Name(String),
    /// By its path.
    Path(PathBuf),
    /// By a glob over its path, or over its name if there is no slash.
    Glob(String),
}

/// Which variables reach the command.
#[derive(Debug, Clone)]
pub struct EnvFilter {
    /// A name must be in each of these.
    pub(crate) lists: Vec<GlobSet>,
}

impl EnvFilter {
    /// Whether a variable of this name reaches the command.
    pub fn passes(&self, name: &[u8]) -> bool {
        let name = globset::Candidate::from_bytes(name);
        self.lists.iter().all(|list| list.is_match_candidate(&name))
    }
}

/// How much may be used. `None` is: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Budget {
    /// From start to end.
    pub wall: Option<Duration>,
    /// Time on processors, of all processes together.
    pub cpu: Option<Duration>,
    /// Bytes of memory, of all processes together.
    pub memory: Option<u64>,
    /// Processes at one time.
    pub processes: Option<u64>,
    /// Bytes on standard output and standard error together.
    pub output: Option<u64>,
    /// Bytes of one file.
    pub file_size: Option<u64>,
    /// Bytes by which the files that are written may grow, all together.
    pub disk: Option<u64>,
    /// Calls of tools.
    pub tool_calls: Option<u64>,
    /// Tokens of models, as the agent's framework reports them.
    pub tokens: Option<u64>,
    /// Cost in millionths of the currency, as the agent's framework reports it.
    pub cost: Option<u64>,
}

impl Policy {
    /// What a sandbox must enforce.
    pub fn bounds(&self) -> Bounds {
        let denied_programs = self.denied_programs();
        let network = self.judges(Section::Network, |rule| {
            matches!(rule, NetPattern::Inet { .. })
        });
        Bounds {
            reads: self.refuses(Section::Read) || !denied_programs.is_empty(),
            execs: self.refuses(Section::Programs),
            network,
            unix: self.judges(Section::Network, |rule| {
                !matches!(rule, NetPattern::Inet { .. })
            }),
            read_roots: self.roots(Section::Read, |stratum| &stratum.read.patterns),
            write_roots: self.roots(Section::Write, |stratum| &stratum.write.patterns),
            exec_roots: self.exec_roots(),
            ports: self.ports(),
            names: self
                .inet()
                .any(|(target, _)| matches!(target, Target::Host(_) | Target::Below(_))),
            denied_programs,
            refused_files: self.refused_files(),
            env: self.env(),
            budget: self.budget(),
        }
    }

    /// Whether a rule or a default of this section can refuse something.
    fn refuses(&self, section: Section) -> bool {
        self.default_of(section) != Verdict::Allow
            || self.strata.iter().any(|(stratum, _)| {
                let strict = |verdict| verdict != Verdict::Allow;
                stratum
                    .rules(section)
                    .iter()
                    .any(|rule| strict(rule.verdict))
                    || stratum
                        .default_of(section)
                        .is_some_and(|(rule, _)| strict(rule.verdict))
            })
    }

    /// The same for one kind of rule of the network.
    fn judges(&self, section: Section, kind: impl Fn(&NetPattern) -> bool) -> bool {
        let by_rule = self
            .strata
            .iter()
            .flat_map(|(stratum, _)| &stratum.network.patterns);
        let mut by_rule = by_rule.filter(|(_, verdict)| *verdict != Verdict::Allow);
        let by_default = |(stratum, _): &(Stratum, _)| {
            stratum
                .default_of(section)
                .is_some_and(|(rule, _)| rule.verdict != Verdict::Allow)
        };
        by_rule.any(|(pattern, _)| kind(pattern))
            || self.strict
            || self.strata.iter().any(by_default)
    }

    /// What holds where no rule matches.
    fn default_of(&self, section: Section) -> Verdict {
        if self.strict {
            return Verdict::Deny;
        }
        let mut stack = Stack::new();
        for (file, (stratum, _)) in self.strata.iter().enumerate() {
            if let Some((rule, firmness)) = stratum.default_of(section) {
                let verdict = rule.verdict;
                stack.put(
                    stratum.layer,
                    Opinion {
                        verdict,
                        firmness,
                        file,
                    },
                );
            }
        }
        stack.result().verdict
    }

    /// What is not refused by default is what the rules of own files allow, or ask about. The files of a project cannot
    /// add to that. What they take away is left to single decisions.
    fn positive<'p, R: 'p>(
        &'p self,
        section: Section,
        rules: impl Fn(&'p Stratum) -> &'p [R],
        verdict: impl Fn(&R) -> Verdict,
    ) -> Option<Vec<&'p R>> {
        if self.default_of(section) != Verdict::Deny {
            return None;
        }
        // Where own files allow by default and only a project does not, the project's list is the bound.
        let mut own_default = (self.strict, Firmness::Nothing);
        let mut found: Vec<&R> = Vec::new();
        for (stratum, _) in &self.strata {
            let own = stratum.layer.may_loosen();
            let default = stratum.default_of(section);
            if let Some((rule, firmness)) =
                default.filter(|(_, firmness)| own && *firmness >= own_default.1)
            {
                own_default = (self.strict || rule.verdict == Verdict::Deny, firmness);
            }
            found.extend(
                rules(stratum)
                    .iter()
                    .filter(|rule| verdict(rule) != Verdict::Deny),
            );
        }
        if own_default.0 {
            let own = self
                .strata
                .iter()
                .filter(|(stratum, _)| stratum.layer.may_loosen());
            let own = own.flat_map(|(stratum, _)| rules(stratum));
            found = own.filter(|rule| verdict(rule) != Verdict::Deny).collect();
        }
        Some(found)
    }

    fn roots<'p>(
        &'p self,
        section: Section,
        rules: impl Fn(&'p Stratum) -> &'p Vec<(PathGlob, Verdict)>,
    ) -> Option<Vec<PathBuf>> {
        let rules = self.positive(section, |stratum| rules(stratum), |(_, verdict)| *verdict)?;
        let shapes = rules.iter().flat_map(|(glob, _)| &glob.shapes);
        outermost(shapes.map(|shape| shape.root()).collect())
    }

    fn exec_roots(&self) -> Option<ExecRoots> {
        let rules = self.positive(
            Section::Programs,
            |stratum| &stratum.programs.patterns,
            |rule| rule.verdict,
        )?;
        let (mut roots, mut names) = (Vec::new(), Vec::new());
        for rule in rules {
            match &rule.program {
                Program::Paths(paths) => {
                    roots.extend(paths.shapes.iter().map(|shape| shape.root()))
                }
                Program::Names(globs) => {
                    names.extend(globs.iter().map(|glob| glob.glob().to_owned()))
                }
            }
        }
        names.sort();
        names.dedup();
        let roots = outermost(roots)?;
        Some(ExecRoots { roots, names })
    }

    fn ports(&self) -> Option<Vec<RangeInclusive<u16>>> {
        let rules = self.positive(
            Section::Network,
            |stratum| &stratum.network.patterns,
            |(_, verdict)| *verdict,
        )?;
        let mut ports = Vec::new();
        for (pattern, _) in rules {
            match pattern {
                NetPattern::Inet { ports: range, .. } if *range == (0..=u16::MAX) => return None,
                NetPattern::Inet { ports: range, .. } => ports.push(range.clone()),
                NetPattern::UnixPath(_) | NetPattern::UnixAbstract(_) => {}
            }
        }
        ports.sort_by_key(|range| (*range.start(), *range.end()));
        ports.dedup();
        Some(ports)
    }

    fn inet(&self) -> impl Iterator<Item = (&Target, Verdict)> {
        let rules = self
            .strata
            .iter()
            .flat_map(|(stratum, _)| &stratum.network.patterns);
        rules.filter_map(|(pattern, verdict)| match pattern {
            NetPattern::Inet { target, .. } => Some((target, *verdict)),
            NetPattern::UnixPath(_) | NetPattern::UnixAbstract(_) => None,
        })
    }

    fn denied_programs(&self) -> Vec<ProgramPattern> {
        let rules = self
            .strata
            .iter()
            .flat_map(|(stratum, _)| &stratum.programs.patterns);
        let denied = rules.filter(|rule| rule.verdict == Verdict::Deny && rule.args.is_none());
        denied.flat_map(|rule| rule.program.patterns()).collect()
    }

    fn refused_files(&self) -> Vec<PathBuf> {
        let rules = self.strata.iter().flat_map(|(stratum, _)| {
            let (read, write) = (&stratum.read.patterns, &stratum.write.patterns);
            read.iter().chain(write)
        });
        let refused = rules.filter(|(_, verdict)| *verdict != Verdict::Allow);
        let shapes = refused.flat_map(|(glob, _)| &glob.shapes);
        let mut roots: Vec<PathBuf> = shapes.map(|shape| shape.root()).collect();
        roots.retain(|root| root.parent().is_some());
        outermost(roots).unwrap_or_default()
    }

    fn env(&self) -> Option<EnvFilter> {
        let mut lists: Vec<Vec<Glob>> = Vec::new();
        for (stratum, _) in &self.strata {
            match &stratum.env {
                Some(names) if stratum.layer.may_loosen() && !lists.is_empty() => {
                    lists
                        .iter_mut()
                        .for_each(|list| list.extend(names.iter().cloned()));
                }
                Some(names) => lists.push(names.clone()),
                None => {}
            }
        }
        let set = |names: Vec<Glob>| {
            let mut set = GlobSetBuilder::new();
            names.into_iter().for_each(|name| {
                set.add(name);
            });
            // A list that cannot be compiled lets nothing through.
            set.build().unwrap_or_else(|_| GlobSet::empty())
        };
        let lists: Vec<GlobSet> = lists.into_iter().map(set).collect();
        (!lists.is_empty()).then_some(EnvFilter { lists })
    }

    fn budget(&self) -> Budget {
        let mut budget = Budget::default();
        for (stratum, _) in &self.strata {
            budget = budget.under(&stratum.budget, stratum.layer.may_loosen());
        }
        budget
    }
}

impl Budget {
    /// What holds when another file is put on top.
    fn under(self, top: &Budget, may_loosen: bool) -> Budget {
        fn pick<T: Ord + Copy>(below: Option<T>, top: Option<T>, may_loosen: bool) -> Option<T> {
            match (below, top) {
                (Some(below), Some(top)) if !may_loosen => Some(below.min(top)),
                (below, top) => top.or(below),
            }
        }
        Budget {
            wall: pick(self.wall, top.wall, may_loosen),
            cpu: pick(self.cpu, top.cpu, may_loosen),
            memory: pick(self.memory, top.memory, may_loosen),
            processes: pick(self.processes, top.processes, may_loosen),
            output: pick(self.output, top.output, may_loosen),
            file_size: pick(self.file_size, top.file_size, may_loosen),
            disk: pick(self.disk, top.disk, may_loosen),
            tool_calls: pick(self.tool_calls, top.tool_calls, may_loosen),
            tokens: pick(self.tokens, top.tokens, may_loosen),
            cost: pick(self.cost, top.cost, may_loosen),
        }
    }
}

/// Without what lies below another one. No bound if the root of everything is among them.
fn outermost(mut roots: Vec<PathBuf>) -> Option<Vec<PathBuf>> {
    roots.sort();
    roots.dedup();
    let mut kept: Vec<PathBuf> = Vec::new();
    for root in roots {
        if !kept.iter().any(|kept| root.starts_with(kept)) {
            kept.push(root);
        }
    }
    (kept != [PathBuf::from("/")]).then_some(kept)
}
