//! The process tree, folded: a process that is over, with all that it started, becomes one line under its parent, and
//! lines that say the same become one with a count.

use std::collections::BTreeMap;

use invigil_schema::{OsText, ProcessExec, ProcessExited, ProcessForked, ProcessRef};
use serde::Serialize;

/// One line under a parent per program, command line and end, as long as there are no more than this. Past it, command
/// lines are no longer told apart.
const DISTINCT_CHILDREN: usize = 64;

/// Deeper descendants are shown at this depth, so that a chain of processes without end needs no memory without end.
const DEPTH: usize = 24;

/// A process, or several that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessNode {
    /// How many are folded into this one.
    pub count: u64,
    /// The first of them.
    pub process: ProcessRef,
    /// The program that it ran last; that of its parent if it loaded none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executable: Option<OsText>,
    /// The arguments. Absent if the folded ones differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<OsText>>,
    /// How many programs they loaded. With 0 it is a copy of its parent.
    pub execs: u64,
    /// How it ended: alive, or not seen to end, if neither is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Processor time of all of them.
    pub cpu_us: u64,
    /// The most memory that one of them had.
    pub max_rss_kib: u64,
    /// What they started.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<ProcessNode>,
}

impl ProcessNode {
    fn alike(&self, other: &ProcessNode) -> bool {
        let ended = |node: &ProcessNode| (node.exit_code, node.signal);
        let loads = |node: &ProcessNode| node.execs > 0;
        self.executable == other.executable
            && self.argv == other.argv
            && ended(self) == ended(other)
            && loads(self) == loads(other)
            && self.children.len() == other.children.len()
            && self
                .children
                .iter()
                .zip(&other.children)
                .all(|(a, b)| a.alike(b))
    }

    fn absorb(&mut self, other: ProcessNode) {
        self.count = self.count.saturating_add(other.count);
        self.execs = self.execs.saturating_add(other.execs);
        self.cpu_us = self.cpu_us.saturating_add(other.cpu_us);
        self.max_rss_kib = self.max_rss_kib.max(other.max_rss_kib);
        for (own, others) in self.children.iter_mut().zip(other.children) {
            own.absorb(others);
        }
    }
}

/// A process that is not over, or has started something that is not.
#[derive(Debug, Clone)]
struct Open {
    parent: Option<ProcessRef>,
    depth: usize,
    exited: bool,
    /// Children that are not over.
    open_children: usize,
    node: ProcessNode,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Tree {
    open: BTreeMap<ProcessRef, Open>,
    roots: Vec<ProcessNode>,
}

impl Tree {
    pub(super) fn forked(&mut self, forked: &ProcessForked) {
        self.begin(forked.process, forked.parent);
    }

    fn begin(&mut self, process: ProcessRef, parent: Option<ProcessRef>) {
        if self.open.contains_key(&process) {
            return;
        }
        let made_by = parent.and_then(|parent| self.open.get(&parent));
        let (executable, argv) = match made_by {
            Some(parent) => (parent.node.executable.clone(), parent.node.argv.clone()),
            None => (None, None),
        };
        let (parent, depth) = match made_by {
            Some(maker) if maker.depth >= DEPTH => (maker.parent, maker.depth),
            Some(maker) => (parent, maker.depth + 1),
            None => (None, 0),
        };
        if let Some(parent) = parent.and_then(|parent| self.open.get_mut(&parent)) {
            parent.open_children += 1;
        }
        let node = ProcessNode {
            count: 1,
            process,
            executable,
            argv,
            execs: 0,
            exit_code: None,
            signal: None,
            cpu_us: 0,
            max_rss_kib: 0,
            children: Vec::new(),
        };
        let open = Open {
            parent,
            depth,
            exited: false,
            open_children: 0,
            node,
        };
        self.open.insert(process, open);
    }

    pub(super) fn exec(&mut self, exec: &ProcessExec) {
        self.begin(exec.process, exec.parent);
        if let Some(open) = self.open.get_mut(&exec.process) {
            open.node.executable = Some(exec.executable.clone());
            open.node.argv = Some(exec.argv.clone());
            open.node.execs += 1;
        }
    }

    pub(super) fn exited(&mut self, exited: &ProcessExited) {
        let Some(open) = self.open.get_mut(&exited.process) else {
            return;
        };
        open.exited = true;
        open.node.exit_code = exited.exit_code;
        open.node.signal = exited.signal;
        open.node.cpu_us = exited.user_us.saturating_add(exited.system_us);
        open.node.max_rss_kib = exited.max_rss_kib;
        self.close(exited.process);
    }

    /// Folds a process into its parent if it and all that it started are over, and then perhaps the parent.
    fn close(&mut self, mut process: ProcessRef) {
        while let Some(open) = self.open.get(&process)
            && open.exited
            && open.open_children == 0
            && let Some(open) = self.open.remove(&process)
        {
            let parent = open.parent.and_then(|parent| self.open.get_mut(&parent));
            match (open.parent, parent) {
                (Some(up), Some(parent)) => {
                    parent.open_children -= 1;
                    fold(&mut parent.node.children, open.node);
                    process = up;
                }
                _ => return fold(&mut self.roots, open.node),
            }
        }
    }

    /// The tree so far: what is not over is shown as it is.
    pub(super) fn document(&self) -> Vec<ProcessNode> {
        let mut open = self.open.clone();
        let mut roots = self.roots.clone();
        // Deepest first, so that every process has its children before it goes to its parent.
        let depths = self
            .open
            .iter()
            .map(|(process, open)| (open.depth, *process));
        let mut order: Vec<(usize, ProcessRef)> = depths.collect();
        order.sort_unstable_by_key(|&(depth, process)| (std::cmp::Reverse(depth), process));
        for (_, process) in order {
            let Some(gone) = open.remove(&process) else {
                continue;
            };
            match gone.parent.and_then(|parent| open.get_mut(&parent)) {
                Some(parent) => fold(&mut parent.node.children, gone.node),
                None => fold(&mut roots, gone.node),
            }
        }
        roots
    }
}

fn fold(siblings: &mut Vec<ProcessNode>, mut node: ProcessNode) {
    if siblings.len() >= DISTINCT_CHILDREN {
        node.argv = None;
        node.children.clear();
    }
    match siblings.iter_mut().find(|sibling| sibling.alike(&node)) {
        Some(sibling) => sibling.absorb(node),
        None => siblings.push(node),
    }
}
