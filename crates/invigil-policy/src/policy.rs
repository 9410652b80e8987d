//! All files together: how they stack, and what they decide.

use std::sync::Arc;

use invigil_schema::OsText;

use crate::command::commands_of_words;
use crate::parse::{parse, too_big};
use crate::stacking::{Firmness, Opinion, Stack};
use crate::stratum::{Compiled, Stratum};
use crate::words::line_exec;
use crate::{Action, By, Decision, Exec, Places, PolicyError, Rule, Section, Source, Verdict};

/// A compiled policy.
#[derive(Debug, Clone)]
pub struct Policy {
    pub(crate) strata: Vec<(Stratum, Compiled)>,
    pub(crate) strict: bool,
    places: Places,
}

impl Policy {
    /// Reads files. They stack in the order given: what a later one says stands above what an earlier one says, but a
    /// file of the project can only make things stricter.
    pub fn load(sources: &[Source], places: &Places) -> Result<Policy, PolicyError> {
        let load = |source: &Source| {
            let flaw = |flaw| PolicyError::at(source, flaw);
            let stratum = parse(source, places).map_err(flaw)?;
            let compiled = Compiled::new(&stratum, places);
            let compiled = compiled.map_err(|error| flaw(too_big(&(0..0), &error)))?;
            Ok((stratum, compiled))
        };
        Ok(Policy {
            strata: sources.iter().map(load).collect::<Result<_, _>>()?,
            strict: false,
            places: places.clone(),
        })
    }

    /// The same policy where what no rule allows is denied, whatever the defaults say.
    pub fn strict(self) -> Policy {
        Policy {
            strict: true,
            ..self
        }
    }

    /// All rules, in the order of the files and of their sections. Defaults are none.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        let strata = self.strata.iter().map(|(stratum, _)| stratum);
        strata.flat_map(|stratum| {
            Section::ALL
                .into_iter()
                .flat_map(|section| stratum.rules(section))
                .map(AsRef::as_ref)
        })
    }

    /// May it happen? Does not allocate where plain paths, names and addresses decide.
    pub fn verdict(&self, action: &Action<'_>) -> Verdict {
        let standing = self.standing(action);
        match self.overruled_by_strict(&standing) {
            true => Verdict::Deny,
            false => standing.verdict,
        }
    }

    /// May it happen, who says so, and what would have been allowed?
    pub fn decide(&self, action: &Action<'_>) -> Decision {
        let section = section(action);
        let standing = self.standing(action);
        let matches: Vec<Vec<&Arc<Rule>>> = self
            .strata
            .iter()
            .map(|stratum| rules_that_match(stratum, action))
            .collect();
        let by = match standing.firmness {
            _ if self.overruled_by_strict(&standing) => By::Strict,
            Firmness::Nothing => By::Nobody,
            Firmness::Rule => {
                let mut rules = matches[standing.file].iter();
                let rule = rules.find(|rule| rule.verdict == standing.verdict);
                rule.map_or(By::Nobody, |rule| By::Rule(Arc::clone(rule)))
            }
            Firmness::FileDefault | Firmness::SectionDefault => {
                let default = self.strata[standing.file].0.default_of(section);
                default.map_or(By::Nobody, |(rule, _)| By::Default(Arc::clone(rule)))
            }
        };
        let verdict = if by == By::Strict {
            Verdict::Deny
        } else {
            standing.verdict
        };
        Decision {
            instead: match verdict {
                Verdict::Allow => None,
                Verdict::Ask | Verdict::Deny => self.instead(action, section, &by),
            },
            verdict,
            by,
            matched: matches.into_iter().flatten().map(Arc::clone).collect(),
        }
    }

    /// Judges a command line before it runs, as far as its words show what would be loaded: the command itself, what
    /// `env`, `timeout` and the like would run, and what stands in `sh -c`. The strictest decides; its words come with it.
    ///
    /// `locate` finds a program: the file, and the name by which it is called.
    pub fn decide_command(
        &self,
        words: &[String],
        locate: &dyn Fn(&str) -> Option<(OsText, OsText)>,
    ) -> Option<(Vec<String>, Decision)> {
        let judge = |words: &Vec<String>| {
            let located = words.first().and_then(|name| locate(name));
            line_exec(words, &self.places, |guess| {
                let exec = match &located {
                    Some((program, called)) => Exec {
                        program: program.as_bytes(),
                        called: called.as_bytes(),
                        ..*guess
                    },
                    None => *guess,
                };
                self.decide(&Action::Exec(exec))
            })
        };
        let decisions = commands_of_words(words)
            .into_iter()
            .map(|words| (judge(&words), words));
        // The outermost of equals.
        let strictest = decisions.reduce(|a, b| if b.0.verdict > a.0.verdict { b } else { a });
        strictest.map(|(decision, words)| (words, decision))
    }

    /// Whether a rule could refuse something below this directory. If so, a rename or a link of it must look at what is
    /// really there and judge each entry: the name would change, and the rule with it.
    pub fn refuses_below(&self, directory: &[u8]) -> bool {
        self.strata.iter().any(|(stratum, _)| {
            let mut rules = stratum.read.patterns.iter().chain(&stratum.write.patterns);
            rules.any(|(glob, verdict)| {
                *verdict != Verdict::Allow
                    && glob
                        .shapes
                        .iter()
                        .any(|shape| shape.reaches_below(directory))
            })
        })
    }

    fn overruled_by_strict(&self, standing: &Opinion) -> bool {
        self.strict && standing.firmness != Firmness::Rule && standing.verdict != Verdict::Deny
    }

    fn standing(&self, action: &Action<'_>) -> Opinion {
        let section = section(action);
        let mut stack = Stack::new();
        for (file, (stratum, compiled)) in self.strata.iter().enumerate() {
            let rule = compiled.strictest(action);
            let rule = rule.map(|verdict| (verdict, Firmness::Rule));
            let default = || {
                let (rule, firmness) = stratum.default_of(section)?;
                Some((rule.verdict, firmness))
            };
            if let Some((verdict, firmness)) = rule.or_else(default) {
                let opinion = Opinion {
                    verdict,
                    firmness,
                    file,
                };
                stack.put(stratum.layer, opinion);
            }
        }
        stack.result()
    }

    /// What would have been allowed, in the words of the files.
    fn instead(&self, action: &Action<'_>, section: Section, by: &By) -> Option<String> {
        /// More than this is not read.
        const MOST: usize = 5;
        let allowed = self
            .strata
            .iter()
            .flat_map(|(stratum, _)| stratum.rules(section));
        let mut allowed: Vec<&str> = allowed
            .filter(|rule| rule.verdict == Verdict::Allow)
            .map(|rule| rule.text.as_str())
            .collect();
        if let Action::Exec(exec) = action {
            let script = exec.interpreter.filter(|_| !matches!(by, By::Rule(_)));
            if let Some(interpreter) = script {
                let shown = String::from_utf8_lossy(interpreter.program).into_owned();
                return Some(format!(
                    "a script counts as its interpreter, and {shown} is not allowed"
                ));
            }
            let name = String::from_utf8_lossy(crate::exec::base(exec.program)).into_owned();
            let same = |text: &&str| {
                text.split(' ')
                    .next()
                    .is_some_and(|program| program.ends_with(&name))
            };
            let of_program: Vec<&str> = allowed.iter().copied().filter(same).collect();
            if matches!(by, By::Rule(_)) || !of_program.is_empty() {
                allowed = of_program;
            }
        } else if matches!(by, By::Rule(_)) && section != Section::Write {
            return None;
        }
        if allowed.is_empty() {
            return None;
        }
        let more = match allowed.len().saturating_sub(MOST) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        allowed.truncate(MOST);
        Some(format!("allowed: {}{more}", allowed.join(", ")))
    }
}

fn rules_that_match<'p>(
    (stratum, compiled): &'p (Stratum, Compiled),
    action: &Action<'_>,
) -> Vec<&'p Arc<Rule>> {
    let rules = stratum.rules(section(action));
    compiled
        .matching(action)
        .into_iter()
        .map(|n| &rules[n])
        .collect()
}

fn section(action: &Action<'_>) -> Section {
    match action {
        Action::Read(_) => Section::Read,
        Action::Write(_) => Section::Write,
        Action::Exec(_) => Section::Programs,
        Action::Connect(_) | Action::Bind(_) | Action::Unix(_) => Section::Network,
        Action::Tool { .. } => Section::Tools,
    }
}
