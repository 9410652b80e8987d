//! Runs that are started inside of a run. The supervisor starts them on behalf of a process of its run: with the rights of
//! that run or fewer, with a part of what it has left, and with its own journal.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use invigil_policy::{Budget, Layer, Places, Source};
use invigil_sandbox::descriptor_of;
use invigil_schema::{
    BudgetKind, BudgetShare, ChildRunEnded, Lineage, Mode, OsText, PolicyPlaces, ProcessRef,
    RunFailed, RunFinished, RunId, Tier,
};
use serde::{Deserialize, Serialize};

use super::helm::{Helm, Remote};
use crate::control::Control;
use crate::guard::Rules;
use crate::run::{End, Engine, RunError, RunOutcome};
use crate::spec::{Input, Output, RunSpec};

/// No process has a larger environment, unless it wants us to read for ever.
const MAX_ENVIRONMENT: u64 = 8 << 20;

/// How many runs may be started inside of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offspring {
    /// How many runs may be above one.
    pub depth: u32,
    /// How many children of one run may go on at once.
    pub open: usize,
    /// How many runs there may be below the one at the top, in all.
    pub total: u32,
}

impl Default for Offspring {
    fn default() -> Self {
        Offspring {
            depth: 3,
            open: 8,
            total: 64,
        }
    }
}

/// Where a run comes from.
#[derive(Clone)]
pub struct Ancestry {
    pub(crate) lineage: Lineage,
    pub(super) family: Arc<Family>,
    /// Where the helm of the new run goes, for the parent to reach it.
    helm: mpsc::Sender<Helm>,
    /// What nobody inside may change: what its parent keeps to itself.
    pub(crate) protected: Vec<PathBuf>,
}

impl std::fmt::Debug for Ancestry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.lineage.fmt(f)
    }
}

impl Ancestry {
    /// The new run can be steered: its parent reaches it there.
    pub(crate) fn reached(&self, helm: &Helm) {
        // Who does not wait any more is over itself.
        drop(self.helm.send(helm.clone()));
    }
}

/// A run and all that were started below it.
#[derive(Default)]
pub(super) struct Family {
    /// How many were started below the one at the top.
    started: AtomicU32,
    top: OnceLock<Remote>,
    /// Held by whoever keeps or puts back files: one at a time.
    pub(super) files: Mutex<()>,
}

impl Family {
    /// Whoever says so first is at the top.
    pub(super) fn begin_with(&self, helm: &Helm) {
        self.top.get_or_init(|| helm.remote());
    }

    /// The run at the top, unless it is over and forgotten.
    pub(super) fn top(&self) -> Option<Helm> {
        self.top.get()?.helm()
    }
}

/// A run that a process of another one wants.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChildSpec {
    /// The store that it should be kept in.
    pub home: OsText,
    /// The command and its arguments.
    pub command: Vec<OsText>,
    /// Where it is started.
    pub cwd: OsText,
    /// Its id, if it was chosen.
    pub run_id: Option<String>,
    /// Which agent framework is said to be inside.
    pub agent_shim: String,
    /// After this time it is ended.
    pub timeout_ms: Option<u64>,
    /// Whether opens for reading are recorded too.
    pub reads: bool,
    /// What its policy means.
    pub mode: Mode,
    /// Its policy files, beyond those of its parent: name and text.
    pub policy: Vec<(String, String)>,
    /// What the variables of these files stand for, if its parent has no policy.
    pub places: PolicyPlaces,
}

/// What whoever wants a run is told. First that it has started, then how it has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildNews {
    /// It is about to start.
    Started {
        /// Its id.
        run_id: RunId,
    },
    /// It has ended.
    Finished(RunFinished),
    /// Its command could not be started.
    Failed(RunFailed),
    /// It cannot be had.
    Error(String),
    /// It is not for this supervisor: it belongs to another store.
    Elsewhere,
}

/// A run that was asked for.
pub(super) struct Birth {
    pub(super) spec: ChildSpec,
    pub(super) process: ProcessRef,
    pub(super) stream: UnixStream,
}

impl Birth {
    /// Tells whoever asked. Who does not listen any more is not waited for.
    pub(super) fn tell(&self, news: &ChildNews) {
        tell(&self.stream, news);
    }
}

pub(super) fn tell(mut stream: &UnixStream, news: &ChildNews) {
    if let Ok(mut line) = serde_json::to_vec(news) {
        line.push(b'\n');
        drop(stream.write_all(&line));
    }
}

/// The runs inside of one.
pub(super) struct Children {
    most: Offspring,
    run_id: RunId,
    root: RunId,
    depth: u32,
    family: Arc<Family>,
    protected: Vec<PathBuf>,
    pub(super) open: Vec<Child>,
    /// What those that have ended have used.
    spent: BTreeMap<BudgetKind, u64>,
}

/// A run that goes on.
pub(super) struct Child {
    pub(super) run_id: RunId,
    pub(super) process: ProcessRef,
    pub(super) control: Control,
    /// None if it could not even begin.
    pub(super) helm: Option<Helm>,
    reserved: Vec<BudgetShare>,
    stream: Option<UnixStream>,
    thread: Option<JoinHandle<Result<RunOutcome, RunError>>>,
}

impl Ready {
    /// Starts a run that is on the record. When this returns it can be steered, though its command may not be there yet.
    pub(super) fn start(
        self,
        family: &Family,
        birth: &Birth,
        over: impl FnOnce() + Send + 'static,
    ) -> Child {
        family.started.fetch_add(1, Ordering::SeqCst);
        let control = Control::new();
        let (engine, spec, steered) = (self.engine, self.spec, control.clone());
        let body = move || {
            let ran = engine.run(&spec, &steered);
            // Ours are the last ends of what it was given.
            drop(spec);
            over();
            ran
        };
        let thread = std::thread::Builder::new()
            .name("child run".into())
            .spawn(body);
        Child {
            run_id: self.run_id,
            process: birth.process,
            control,
            // Nobody can send it any more if it has failed.
            helm: self.helm.recv().ok(),
            reserved: self.reserved,
            stream: birth.stream.try_clone().ok(),
            thread: thread.ok(),
        }
    }
}

/// A run that is about to start.
pub(super) struct Ready {
    pub(super) run_id: RunId,
    pub(super) depth: u32,
    pub(super) reserved: Vec<BudgetShare>,
    engine: Engine,
    spec: RunSpec,
    helm: mpsc::Receiver<Helm>,
}

/// What a run has left of each budget that it has.
pub(super) type Left = BTreeMap<BudgetKind, u64>;

impl Children {
    pub(super) fn new(
        run_id: &RunId,
        spec: &RunSpec,
        protected: Vec<PathBuf>,
        family: &Arc<Family>,
    ) -> Children {
        let above = spec.ancestry.as_ref();
        Children {
            most: spec.offspring,
            run_id: run_id.clone(),
            root: above.map_or_else(|| run_id.clone(), |above| above.lineage.root.clone()),
            depth: above.map_or(0, |above| above.lineage.depth),
            family: Arc::clone(family),
            protected,
            open: Vec::new(),
            spent: BTreeMap::new(),
        }
    }

    /// How much of a budget is not the parent's own any more: set aside for children that go on, and used by those that
    /// have ended.
    pub(super) fn taken(&self, budget: BudgetKind) -> u64 {
        let open = self.open.iter().flat_map(|child| &child.reserved);
        let reserved = open.filter(|share| share.budget == budget);
        let spent = self.spent.get(&budget).copied().unwrap_or(0);
        // What agents report of themselves may be any number.
        reserved.fold(spent, |sum, share| sum.saturating_add(share.amount))
    }

    /// Checks whether a run may be started and what it gets. Nothing has happened yet.
    pub(super) fn prepare(
        &self,
        birth: &Birth,
        engine: &Engine,
        parent: &RunSpec,
        left: &Left,
    ) -> Result<Ready, String> {
        let depth = self.depth + 1;
        if depth > self.most.depth {
            return Err(format!("runs are nested {} deep at most", self.most.depth));
        }
        if self.open.len() >= self.most.open {
            let most = self.most.open;
            return Err(format!(
                "{most} runs go on inside of this one, which is the most"
            ));
        }
        if self.family.started.load(Ordering::SeqCst) >= self.most.total {
            let most = self.most.total;
            return Err(format!(
                "{most} runs were started below {}, which is the most",
                self.root
            ));
        }
        let wanted = &birth.spec;
        let (rules, reserved) = self.rules(wanted, parent.rules.as_ref(), left)?;
        let said = |error: io::Error| error.to_string();
        let fd = |number| {
            descriptor_of(birth.process, number)
                .map(Arc::new)
                .map_err(said)
        };
        let (stdin, stdout, stderr) = (fd(0)?, fd(1)?, fd(2)?);
        let (reached, helm) = mpsc::channel();
        let words = wanted.command.iter().cloned();
        let mut spec = RunSpec {
            run_id: wanted.run_id.clone(),
            agent_shim: wanted.agent_shim.clone(),
            cwd: Some(path(&wanted.cwd)),
            timeout: wanted.timeout_ms.map(Duration::from_millis),
            reads: wanted.reads || parent.reads,
            tier: parent.tier,
            // It is in a run that is watched, and is not less so.
            require_tier: parent.require_tier.max(Some(Tier::Ptrace)),
            stdin: Input::From(stdin),
            stdout: Output::Into { stdout, stderr },
            asking: parent.asking.clone(),
            rules,
            offspring: parent.offspring,
            fuse: parent.fuse.clone(),
            ..RunSpec::new(words.map(|word| OsString::from_vec(word.as_bytes().to_vec())))
        };
        let run_id = spec.validate().map_err(|error| error.to_string())?;
        spec.run_id = Some(run_id.as_str().to_owned());
        spec.ancestry = Some(Ancestry {
            lineage: Lineage {
                parent: self.run_id.clone(),
                root: self.root.clone(),
                depth,
                process: birth.process,
                reserved: reserved.clone(),
            },
            family: Arc::clone(&self.family),
            helm: reached,
            protected: self.protected.clone(),
        });
        let engine = Engine {
            env: environment(birth.process).map_err(said)?,
            ..engine.clone()
        };
        Ok(Ready {
            run_id,
            depth,
            reserved,
            engine,
            spec,
            helm,
        })
    }

    /// The rules of a child: those of its parent, and on top of them only what is stricter.
    fn rules(
        &self,
        wanted: &ChildSpec,
        parent: Option<&Arc<Rules>>,
        left: &Left,
    ) -> Result<(Option<Arc<Rules>>, Vec<BudgetShare>), String> {
        let layer = match parent {
            Some(_) => Layer::Project,
            // Whatever they say is less than everything.
            None => Layer::CommandLine,
        };
        let source = |(name, text): &(String, String)| Source {
            name: name.clone(),
            text: text.clone(),
            layer,
        };
        let mut more: Vec<Source> = wanted.policy.iter().map(source).collect();
        let Some(parent) = parent else {
            if wanted.mode == Mode::Observe {
                return Ok((None, Vec::new()));
            }
            let rules = Rules::load(wanted.mode, more, places(&wanted.places));
            let rules = rules.map_err(|error| error.to_string())?;
            return Ok((Some(Arc::new(rules)), Vec::new()));
        };
        let narrowed = |more: Vec<Source>| {
            let narrowed = parent.narrowed(wanted.mode, more);
            narrowed.map_err(|error| error.to_string())
        };
        let asked = narrowed(more.clone())?.policy().bounds().budget;
        let own = parent.policy().bounds().budget;
        let reserved = reserve(&own, &asked, left)?;
        if !reserved.is_empty() {
            more.push(Source {
                name: format!("what {} has set aside", self.run_id),
                text: as_policy(&reserved),
                layer: Layer::Project,
            });
        }
        Ok((Some(Arc::new(narrowed(more)?)), reserved))
    }

    /// Takes out those that have ended, or all.
    pub(super) fn over(&mut self, all: bool) -> Vec<Child> {
        let over = |child: &mut Child| {
            all || child
                .thread
                .as_ref()
                .is_none_or(|thread| thread.is_finished())
        };
        self.open.extract_if(.., |child| over(child)).collect()
    }

    /// What one that has ended has used is used.
    pub(super) fn account(&mut self, used: &[BudgetShare]) {
        for share in used {
            let spent = self.spent.entry(share.budget).or_default();
            *spent = spent.saturating_add(share.amount);
        }
    }
}

impl Child {
    /// Waits for its end.
    pub(super) fn leave(&mut self) -> (ChildRunEnded, ChildNews) {
        let ran = self.thread.take().map(JoinHandle::join);
        let (end, news) = match ran {
            Some(Ok(Ok(outcome))) => (Some(outcome.end.clone()), news(outcome.end)),
            Some(Ok(Err(error))) => (None, ChildNews::Error(error.to_string())),
            Some(Err(_)) | None => (None, ChildNews::Error("it could not be run".to_owned())),
        };
        let finished = match end {
            Some(End::Finished(finished)) => Some(finished),
            Some(End::NotStarted(_)) | None => None,
        };
        let ended = ChildRunEnded {
            run_id: self.run_id.clone(),
            exit_code: finished.as_ref().and_then(|finished| finished.exit_code),
            signal: finished.as_ref().and_then(|finished| finished.signal),
            success: finished.as_ref().is_some_and(|finished| finished.success),
            stopped: finished.and_then(|finished| finished.stopped),
            used: self.helm.as_ref().map(Helm::used).unwrap_or_default(),
        };
        (ended, news)
    }

    /// Tells whoever wanted it.
    pub(super) fn tell(&self, news: &ChildNews) {
        if let Some(stream) = &self.stream {
            tell(stream, news);
        }
    }
}

fn news(end: End) -> ChildNews {
    match end {
        End::Finished(finished) => ChildNews::Finished(finished),
        End::NotStarted(failed) => ChildNews::Failed(failed),
    }
}

pub(super) fn path(text: &OsText) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(text.as_bytes()))
}

fn places(places: &PolicyPlaces) -> Places {
    Places {
        home: path(&places.home),
        workspace: path(&places.workspace),
        tmp: path(&places.tmp),
        path: places.path.iter().map(path).collect(),
    }
}

/// What a process was started with. Those of Invigil are set anew.
fn environment(process: ProcessRef) -> io::Result<BTreeMap<OsString, OsString>> {
    let environ = File::open(
        Path::new("/proc")
            .join(process.pid.to_string())
            .join("environ"),
    )?;
    let mut text = Vec::new();
    // A process can say that its environment is all of its memory.
    environ.take(MAX_ENVIRONMENT + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_ENVIRONMENT {
        return Err(io::Error::other("its environment is too large"));
    }
    let pairs = text.split(|byte| *byte == 0).filter_map(|pair| {
        let at = pair.iter().position(|byte| *byte == b'=')?;
        let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
        Some((text(&pair[..at]), text(&pair[at + 1..])))
    });
    Ok(pairs.collect())
}

/// What is set aside for a child, of everything that its parent is limited in: what it asks for, or half of what is left.
fn reserve(own: &Budget, asked: &Budget, left: &Left) -> Result<Vec<BudgetShare>, String> {
    let (own, asked) = (amounts(own), amounts(asked));
    let mut shares = Vec::new();
    for (budget, limit) in own {
        let left = left.get(&budget).copied().unwrap_or(limit).min(limit);
        let wanted = asked.get(&budget).copied().filter(|wanted| *wanted < limit);
        let amount = wanted.unwrap_or(left / 2);
        if amount == 0 || amount > left {
            return Err(format!(
                "of its parent's budget of {} {left} is left",
                budget.as_str()
            ));
        }
        shares.push(BudgetShare { budget, amount });
    }
    Ok(shares)
}

/// The limits of a budget that a child can have a part of. Time passes for everybody, and what a child prints passes
/// through its parent.
pub(super) fn amounts(budget: &Budget) -> BTreeMap<BudgetKind, u64> {
    let pairs = [
        (
            BudgetKind::Cpu,
            budget.cpu.map(|cpu| cpu.as_micros() as u64),
        ),
        (BudgetKind::Memory, budget.memory),
        (BudgetKind::Processes, budget.processes),
        (BudgetKind::Disk, budget.disk),
        (BudgetKind::ToolCalls, budget.tool_calls),
        (BudgetKind::Tokens, budget.tokens),
        (BudgetKind::Cost, budget.cost),
    ];
    let some = pairs.into_iter();
    some.filter_map(|(kind, most)| Some((kind, most?)))
        .collect()
}

/// Whether what was used is gone, as time on a processor is, and memory is not.
pub(super) fn is_used_up(budget: BudgetKind) -> bool {
    !matches!(budget, BudgetKind::Memory | BudgetKind::Processes)
}

fn as_policy(shares: &[BudgetShare]) -> String {
    let line = |share: &BudgetShare| {
        let amount = share.amount;
        match share.budget {
            BudgetKind::Cpu => format!("cpu = \"{amount}us\"\n"),
            BudgetKind::Cost => format!(
                "cost = \"{}.{:06}\"\n",
                amount / 1_000_000,
                amount % 1_000_000
            ),
            BudgetKind::Memory | BudgetKind::Disk => {
                format!("{} = \"{amount}B\"\n", share.budget.as_str())
            }
            kind => format!("{} = {amount}\n", kind.as_str()),
        }
    };
    let lines: String = shares.iter().map(line).collect();
    format!("version = 1\n[budget]\n{lines}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_gets_what_it_asks_for_or_half_of_what_is_left() {
        let own = Budget {
            tokens: Some(1000),
            cost: Some(8_000_000),
            ..Budget::default()
        };
        let asked = Budget {
            tokens: Some(300),
            ..own
        };
        let left =
            |tokens, cost| Left::from([(BudgetKind::Tokens, tokens), (BudgetKind::Cost, cost)]);
        let share = |budget, amount| BudgetShare { budget, amount };
        let reserved = reserve(&own, &asked, &left(1000, 8_000_000)).unwrap();
        let wanted = [
            share(BudgetKind::Tokens, 300),
            share(BudgetKind::Cost, 4_000_000),
        ];
        assert_eq!(reserved, wanted);
        let policy = as_policy(&reserved);
        assert_eq!(
            policy,
            "version = 1\n[budget]\ntokens = 300\ncost = \"4.000000\"\n"
        );
        assert!(reserve(&own, &asked, &left(299, 8_000_000)).is_err());
        assert!(reserve(&own, &asked, &left(1000, 1)).is_err());
        assert_eq!(
            reserve(&Budget::default(), &asked, &Left::new()),
            Ok(Vec::new())
        );
    }
}
