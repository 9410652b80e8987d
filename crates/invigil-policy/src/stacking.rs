//! How files stack: who may take back what.
//!
//! What the user's own files say is one line of thought: what is said later stands above what was said before, unless it
//! is said less firmly. What files of the project say is held against it, and only ever makes the result stricter. A
//! later own file takes back what a project said if it speaks at least as firmly.

use crate::{Layer, Verdict};

/// How firmly something is said. A default does not take back a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Firmness {
    Nothing,
    FileDefault,
    SectionDefault,
    Rule,
}

/// What one file says about an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opinion {
    pub(crate) verdict: Verdict,
    pub(crate) firmness: Firmness,
    /// The number of the file.
    pub(crate) file: usize,
}

/// What all files together say, so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stack {
    own: Opinion,
    /// The strictest opinion of projects for each firmness.
    projects: [Option<Opinion>; 4],
}

impl Stack {
    pub(crate) fn new() -> Self {
        let silence = Opinion {
            verdict: Verdict::Allow,
            firmness: Firmness::Nothing,
            file: 0,
        };
        Stack {
            own: silence,
            projects: [None; 4],
        }
    }

    pub(crate) fn put(&mut self, layer: Layer, opinion: Opinion) {
        if layer.may_loosen() {
            if opinion.firmness >= self.own.firmness {
                self.own = opinion;
            }
            self.projects[..=opinion.firmness as usize].fill(None);
        } else {
            let held = &mut self.projects[opinion.firmness as usize];
            if held.is_none_or(|held| opinion.verdict > held.verdict) {
                *held = Some(opinion);
            }
        }
    }

    /// What stands in the end.
    pub(crate) fn result(&self) -> Opinion {
        let mut result = self.own;
        for project in self.projects.iter().rev().flatten() {
            if project.verdict > result.verdict {
                result = *project;
            }
        }
        result
    }
}
