//! Claims of absence, and what they hang on.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PolicyStatus;

/// Whether one claim may be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Claim {
    /// What is claimed.
    pub claim: ClaimKind,
    /// Whether the evidence allows it.
    pub allowed: bool,
    /// Why not, each as `name: words`. Empty when it is allowed.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub reasons: BTreeSet<String>,
}

/// A claim of absence: what the surface does not name did not happen.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ClaimKind {
    /// No other file was changed.
    NoOtherFileChanged,
    /// No other file was read.
    NoOtherFileRead,
    /// No other address was used.
    NoOtherNetwork,
    /// No other program was run.
    NoOtherProgram,
    /// No other tool was called. Tools are known by report only.
    NoOtherTool,
    /// The tool gate decided nothing else.
    NoOtherDecision,
}

/// Classes of facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Programs,
    Files,
    Network,
    Reads,
}

impl Class {
    /// The classes without which the kernel layer is not complete.
    pub(super) const REQUIRED: [Class; 3] = [Class::Programs, Class::Files, Class::Network];

    /// The class that a hook is for, by the beginning of its name.
    pub(super) fn of_hook(name: &str) -> Option<Class> {
        let begins = |words: &[&str]| words.iter().any(|word| name.starts_with(word));
        if name.contains("read") {
            Some(Class::Reads)
        } else if begins(&["process", "program", "exec", "fork", "clone", "exit"]) {
            Some(Class::Programs)
        } else if begins(&["net", "socket", "connect", "bind", "listen", "send"]) {
            Some(Class::Network)
        } else if begins(&["file", "path", "open", "dir", "rename", "unlink", "mount"]) {
            Some(Class::Files)
        } else {
            None
        }
    }

    /// Hooks that make the observer faster or safer and see nothing themselves. Without them nothing is missed.
    pub(super) fn is_aid(name: &str) -> bool {
        matches!(
            name,
            "killable_wait"
                | "synchronous_wake_up"
                | "signal_scope"
                | "landlock_files"
                | "landlock_tcp"
                | "landlock_scopes"
                | "cgroup"
        )
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Class::Programs => "processes",
            Class::Files => "files",
            Class::Network => "network",
            Class::Reads => "reads",
        }
    }
}

/// Something that is missing, or may be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Missing {
    /// `name: words`.
    pub(super) text: String,
    /// The class that it bears on; none means all.
    pub(super) class: Option<Class>,
    /// Whether somebody asked for it. What was left off on purpose does not make the layer partial.
    pub(super) wanted: bool,
}

impl Missing {
    pub(super) fn all(text: impl Into<String>) -> Self {
        Missing {
            text: text.into(),
            class: None,
            wanted: true,
        }
    }

    pub(super) fn one(class: Option<Class>, text: impl Into<String>) -> Self {
        Missing {
            class,
            ..Missing::all(text)
        }
    }

    pub(super) fn bears_on(&self, class: Class) -> bool {
        // Whoever cannot see what happens to files cannot see what is read, either.
        self.class
            .is_none_or(|own| own == class || (own == Class::Files && class == Class::Reads))
    }
}

pub(super) fn claims(
    missing: &BTreeSet<Missing>,
    policy: PolicyStatus,
    decisions_whole: bool,
) -> Vec<Claim> {
    let seen = |claim, class| {
        let reasons = missing.iter().filter(|missing| missing.bears_on(class));
        decide(claim, reasons.map(|missing| missing.text.clone()).collect())
    };
    let one = |text: &str| BTreeSet::from([text.to_owned()]);
    let decisions = match (policy, decisions_whole) {
        (PolicyStatus::Absent, _) => one("policy_layer_absent: no gate has decided anything"),
        (_, false) => one("policy_flagged: lines of the gate's log could not count"),
        _ => BTreeSet::new(),
    };
    vec![
        seen(ClaimKind::NoOtherFileChanged, Class::Files),
        seen(ClaimKind::NoOtherFileRead, Class::Reads),
        seen(ClaimKind::NoOtherNetwork, Class::Network),
        seen(ClaimKind::NoOtherProgram, Class::Programs),
        decide(
            ClaimKind::NoOtherTool,
            one("self_reported: tools are known only from what is said of them"),
        ),
        decide(ClaimKind::NoOtherDecision, decisions),
    ]
}

fn decide(claim: ClaimKind, reasons: BTreeSet<String>) -> Claim {
    Claim {
        claim,
        allowed: reasons.is_empty(),
        reasons,
    }
}
