//! Rules about calls of tools.

use std::collections::HashMap;

use globset::{Candidate, Glob, GlobMatcher};
use regex::Regex;
use serde_json::Value;

use crate::Verdict;
use crate::glob::{Globs, literal};

/// A rule about calls of tools.
#[derive(Debug, Clone)]
pub(crate) struct ToolRule {
    pub(crate) verdict: Verdict,
    /// Without braces.
    pub(crate) names: Vec<Glob>,
    /// All must hold.
    pub(crate) tests: Vec<ParamTest>,
}

/// A test of one parameter.
#[derive(Debug, Clone)]
pub(crate) struct ParamTest {
    /// A name, or a JSON pointer if it begins with a slash.
    pub(crate) param: String,
    pub(crate) test: Test,
}

#[derive(Debug, Clone)]
pub(crate) enum Test {
    Contains(String),
    Equals(Value),
    Matches(Regex),
    Glob(GlobMatcher),
}

impl ParamTest {
    fn holds(&self, params: &Value) -> bool {
        let value = match self.param.starts_with('/') {
            true => params.pointer(&self.param),
            false => params.get(&self.param),
        };
        let Some(value) = value else { return false };
        match (&self.test, value) {
            (Test::Equals(wanted), value) => wanted == value,
            (test, Value::String(text)) => test.holds(text),
            // What is no text is judged as it is written, so that a list around a text hides nothing.
            (test, value) => test.holds(&value.to_string()),
        }
    }
}

impl Test {
    fn holds(&self, text: &str) -> bool {
        match self {
            Test::Contains(part) => text.contains(part.as_str()),
            Test::Equals(wanted) => wanted == text,
            Test::Matches(regex) => regex.is_match(text),
            Test::Glob(glob) => glob.is_match_candidate(&Candidate::from_bytes(text.as_bytes())),
        }
    }
}

/// Rules by the names of tools.
#[derive(Debug, Clone, Default)]
pub(crate) struct ToolIndex {
    rules: Vec<ToolRule>,
    names: HashMap<String, Vec<usize>>,
    globs: Globs,
}

impl ToolIndex {
    pub(crate) fn new(rules: Vec<ToolRule>) -> Result<Self, globset::Error> {
        let mut names: HashMap<String, Vec<usize>> = HashMap::new();
        let mut globs = Vec::new();
        for (n, rule) in rules.iter().enumerate() {
            for glob in &rule.names {
                match literal(glob.glob()) {
                    Some(name) => names.entry(name).or_default().push(n),
                    None => globs.push((glob, n)),
                }
            }
        }
        let globs = Globs::new(globs)?;
        Ok(ToolIndex {
            rules,
            names,
            globs,
        })
    }

    /// Calls with each rule that matches, perhaps more than once.
    pub(crate) fn each_match(
        &self,
        name: &str,
        params: &Value,
        mut found: impl FnMut(usize, Verdict),
    ) {
        let mut test = |n: usize| {
            let rule = &self.rules[n];
            if rule.tests.iter().all(|test| test.holds(params)) {
                found(n, rule.verdict);
            }
        };
        for &n in self.names.get(name).into_iter().flatten() {
            test(n);
        }
        self.globs
            .each_match(&Candidate::from_bytes(name.as_bytes()), test);
    }
}
