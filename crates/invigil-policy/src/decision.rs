//! What is decided, by which line of which file, and how that is said.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::Layer;

/// May it happen? Ordered from lax to strict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It may.
    Allow,
    /// A person decides. With nobody to ask it is a deny.
    Ask,
    /// It may not.
    Deny,
}

impl Verdict {
    /// From lax to strict.
    pub const ALL: [Verdict; 3] = [Verdict::Allow, Verdict::Ask, Verdict::Deny];

    /// The word in a policy file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verdict::Allow => "allow",
            Verdict::Ask => "ask",
            Verdict::Deny => "deny",
        }
    }
}

/// A part of a policy: what its rules are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Section {
    /// `[files.read]`
    Read,
    /// `[files.write]`
    Write,
    /// `[programs]` and `[[exec]]`
    Programs,
    /// `[network]`
    Network,
    /// `[tools]` and `[[tool]]`
    Tools,
}

impl Section {
    /// All of them.
    pub const ALL: [Section; 5] = [
        Section::Read,
        Section::Write,
        Section::Programs,
        Section::Network,
        Section::Tools,
    ];

    /// Its table in a policy file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Section::Read => "files.read",
            Section::Write => "files.write",
            Section::Programs => "programs",
            Section::Network => "network",
            Section::Tools => "tools",
        }
    }
}

/// A line of a policy file that says something: a rule or a default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// The name of the file.
    pub file: Arc<str>,
    /// Whose file it is.
    pub layer: Layer,
    /// Its line, from 1.
    pub line: usize,
    /// Its column in characters, from 1.
    pub column: usize,
    /// What it is about. A default of the whole file has none.
    pub section: Option<Section>,
    /// What it says.
    pub verdict: Verdict,
    /// What it matches, in the words of the file: `~/.ssh/**`, `git push ..`.
    pub text: String,
    /// Why, in the words of its author.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `coding.toml:12: deny ~/.ssh/**`: what the evidence says.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, line, verdict) = (&self.file, self.line, self.verdict.as_str());
        write!(f, "{file}:{line}: {verdict} {}", self.text)
    }
}

/// Who decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "by", content = "rule", rename_all = "snake_case")]
pub enum By {
    /// A rule.
    Rule(Arc<Rule>),
    /// No rule matched; a default did.
    Default(Arc<Rule>),
    /// No rule matched, and what no rule allows is denied in the mode `strict`.
    Strict,
    /// A rule may refuse what is below a directory, and nobody can look there.
    Unseen,
    /// No file says anything about it.
    Nobody,
}

/// A verdict, with everything that a person wants to know about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// May it happen?
    pub verdict: Verdict,
    /// Who says so.
    #[serde(flatten)]
    pub by: By,
    /// All rules that matched, in the order of the files, those that were overruled too.
    pub matched: Vec<Arc<Rule>>,
    /// What would have been allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instead: Option<String>,
}

impl Decision {
    /// The rule or default that decided, if it is in a file.
    pub fn rule(&self) -> Option<&Rule> {
        match &self.by {
            By::Rule(rule) | By::Default(rule) => Some(rule),
            By::Strict | By::Unseen | By::Nobody => None,
        }
    }

    /// What is below a directory may be refused, but cannot be looked at.
    pub fn unseen() -> Decision {
        Decision {
            verdict: Verdict::Deny,
            by: By::Unseen,
            matched: Vec::new(),
            instead: None,
        }
    }

    /// One line for the evidence: which rule of which file, or what else decided.
    pub fn cite(&self) -> String {
        match &self.by {
            By::Rule(rule) => rule.to_string(),
            By::Default(rule) => rule.to_string(),
            By::Strict => "strict: what no rule allows is denied".to_owned(),
            By::Unseen => "a rule may refuse what is below, which cannot be looked at".to_owned(),
            By::Nobody => "no rule".to_owned(),
        }
    }
}

/// The explanation for people, several lines.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.verdict.as_str())?;
        writeln!(f, "  by       {}", self.cite())?;
        if let Some(reason) = self.rule().and_then(|rule| rule.reason.as_ref()) {
            writeln!(f, "  because  {reason}")?;
        }
        let decided = self.rule();
        let others = self.matched.iter().filter(|rule| Some(&***rule) != decided);
        for (n, rule) in others.enumerate() {
            let label = if n == 0 { "also" } else { "" };
            writeln!(f, "  {label:<8} {rule}")?;
        }
        if let Some(instead) = &self.instead {
            writeln!(f, "  instead  {instead}")?;
        }
        Ok(())
    }
}
